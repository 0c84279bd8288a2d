//! A made-up trace in the shape of the Mooncake conversation trace, so that a clone without any trace can run everything.
//!
//! Every prompt begins with one system head of one chunk. Conversations arrive at random; each has a few turns, and a turn's
//! prompt is the turn before with its answer, in whole chunks, and what the user said next. With the default settings the
//! prompts' mean length (about 24 chunks), the share of chunks seen before (about a third) and the answers' mean length
//! are near the published trace's; the tail of very long prompts is shorter.

use crate::random::Random;
use crate::trace::{CHUNK_TOKENS, Trace};
use serde::{Deserialize, Serialize};

/// What a made-up trace is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synthetic {
    /// Seed of everything random in it.
    pub seed: u64,
    /// Requests.
    pub requests: u32,
    /// Mean milliseconds between two requests.
    pub gap_ms: u64,
    /// Mean milliseconds between the turns of a conversation.
    pub think_ms: u64,
    /// Of a thousand turns, so many are followed by another one of the same conversation.
    pub continued_per_mille: u32,
    /// Chunks of the head that all prompts share.
    pub head_chunks: u32,
    /// Mean tokens that a user adds in one turn.
    pub user_tokens: u64,
    /// Mean tokens of an answer.
    pub answer_tokens: u64,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            seed: 1,
            requests: 12_000,
            gap_ms: 294,
            think_ms: 60_000,
            continued_per_mille: 380,
            head_chunks: 1,
            user_tokens: 7_500,
            answer_tokens: 343,
        }
    }
}

/// Where a conversation stands.
struct Conversation {
    tokens: u64,
    chunks: Vec<u64>,
}

impl Trace {
    /// The trace of these settings.
    pub fn synthetic(settings: &Synthetic) -> Self {
        let mut random = Random::new(settings.seed);
        let mut next_id = u64::from(settings.head_chunks);
        let mut requests = Vec::new();
        let mut begins = 0;
        let ending = u64::from(1000 - settings.continued_per_mille.min(999));
        while requests.len() < settings.requests as usize {
            begins += random.waiting(settings.gap_ms * 1000 / ending);
            let mut conversation = Conversation {
                tokens: u64::from(settings.head_chunks) * CHUNK_TOKENS,
                chunks: (0..u64::from(settings.head_chunks)).collect(),
            };
            let mut at = begins;
            loop {
                let answer = 1 + random.waiting(settings.answer_tokens);
                conversation.say(1 + random.waiting(settings.user_tokens), &mut next_id);
                requests.push((at, conversation.tokens, answer, conversation.chunks.clone()));
                if random.below(1000) < ending {
                    break;
                }
                conversation.answer(answer);
                at += random.waiting(settings.think_ms);
            }
        }
        requests.sort_by_key(|request| request.0);
        requests.truncate(settings.requests as usize);
        Trace::made_up(requests)
    }
}

impl Conversation {
    /// The user's part: chunks that were not full before get a new id, as their content is another one now.
    fn say(&mut self, tokens: u64, next_id: &mut u64) {
        self.chunks.truncate((self.tokens / CHUNK_TOKENS) as usize);
        self.tokens += tokens;
        while (self.chunks.len() as u64) < self.tokens.div_ceil(CHUNK_TOKENS) {
            self.chunks.push(*next_id);
            *next_id += 1;
        }
    }

    /// The answer: it stands in the next prompt.
    fn answer(&mut self, tokens: u64) {
        self.chunks.truncate((self.tokens / CHUNK_TOKENS) as usize);
        self.tokens = self.chunks.len() as u64 * CHUNK_TOKENS + tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_near_the_published_conversation_trace() {
        let trace = Trace::synthetic(&Synthetic::default());
        let requests = trace.requests();
        let chunks: usize = requests.iter().map(|request| request.chunks.len()).sum();
        let seen_before = 100 - 100 * trace.chunks() as usize / chunks;
        let mean = chunks / requests.len();
        assert_eq!(requests.len(), 12_000);
        assert!((18..30).contains(&mean), "{mean} chunks a prompt");
        assert!((25..45).contains(&seen_before), "{seen_before} % of the chunks seen before");
        assert!(requests.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
    }

    #[test]
    fn the_seed_decides() {
        let trace = |seed| Trace::synthetic(&Synthetic { seed, requests: 100, ..Synthetic::default() });
        assert_eq!(trace(7).sha256(), trace(7).sha256());
        assert_ne!(trace(7).sha256(), trace(8).sha256());
    }
}
