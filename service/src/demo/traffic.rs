//! Chat traffic: conversations that begin with one of a few system prompts, grow turn by turn, and end. Pure and seeded.
//!
//! What makes it a test of a prefix index: conversations share long heads, some move between workers, some carry a cache
//! salt, and now and then one prompt is in flight twice at once, which gives an engine two physical copies of its blocks.

use super::random::Random;
use std::collections::VecDeque;
use std::sync::Arc;

const SYSTEM_PROMPTS: u64 = 6;
const CONVERSATIONS: usize = 48;
const PROMPT_TOKENS_MAX: usize = 3000;
const RECENT_MAX: usize = 512;

/// Tokens inside a namespace: what a router looks up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Cache salt.
    pub salt: Option<Arc<str>>,
}

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The worker that serves it.
    pub worker: usize,
    /// What is asked.
    pub prompt: Prompt,
    /// What the worker will generate.
    pub output: Vec<u32>,
    /// Whether the same prompt is in flight twice in this step.
    pub twin: bool,
}

struct Conversation {
    prompt: Prompt,
    worker: usize,
    turns_left: u64,
}

/// The generator.
pub struct Traffic {
    random: Random,
    workers: usize,
    systems: Vec<Vec<u32>>,
    conversations: Vec<Conversation>,
    recent: VecDeque<Prompt>,
}

impl Traffic {
    /// Traffic for so many workers, at least one.
    pub fn new(mut random: Random, workers: usize) -> Self {
        let systems = (0..SYSTEM_PROMPTS).map(|_| {
            let len = random.between(200, 1200);
            random.tokens(len)
        });
        let systems = systems.collect();
        Self { random, workers, systems, conversations: Vec::new(), recent: VecDeque::new() }
    }

    /// The next request.
    pub fn next_turn(&mut self) -> Turn {
        if self.conversations.len() < CONVERSATIONS {
            let fresh = self.conversation();
            self.conversations.push(fresh);
        }
        let at = self.random.below(self.conversations.len());
        let asked = self.random.between(10, 120);
        let asked = self.random.tokens(asked);
        let answered = self.random.between(8, 96);
        let output = self.random.tokens(answered);
        let moves = self.random.chance(15);
        let elsewhere = self.random.below(self.workers);
        let twin = self.random.chance(8);
        let conversation = &mut self.conversations[at];
        if moves {
            conversation.worker = elsewhere;
        }
        conversation.prompt.tokens.extend(asked);
        let turn = Turn { worker: conversation.worker, prompt: conversation.prompt.clone(), output, twin };
        conversation.prompt.tokens.extend(&turn.output);
        conversation.turns_left -= 1;
        let over = conversation.turns_left == 0 || conversation.prompt.tokens.len() > PROMPT_TOKENS_MAX;
        let so_far = conversation.prompt.clone();
        if over {
            self.conversations.swap_remove(at);
        }
        self.remember(so_far);
        turn
    }

    /// A prompt of the kinds a router asks about: the prefix of one that ran, a fork, an extension, another namespace, a miss.
    pub fn probe(&mut self) -> Prompt {
        if self.recent.is_empty() {
            return Prompt { tokens: self.random.tokens(200), salt: None };
        }
        let at = self.random.below(self.recent.len());
        let mut prompt = self.recent[at].clone();
        let cut = self.random.between(1, prompt.tokens.len() as u64) as usize;
        match self.random.below(10) {
            0..=4 => {}
            5 => prompt.tokens.truncate(cut),
            6 => {
                prompt.tokens.truncate(cut);
                prompt.tokens.extend(self.random.tokens(80));
            }
            7 => prompt.tokens.extend(self.random.tokens(64)),
            8 => prompt.salt = if prompt.salt.is_some() { None } else { Some("nobody".into()) },
            _ => prompt.tokens = self.random.tokens(cut as u64),
        }
        prompt
    }

    fn conversation(&mut self) -> Conversation {
        let system = self.random.below(self.systems.len());
        let salt = self.random.chance(20).then(|| format!("tenant-{}", self.random.below(3)).into());
        let prompt = Prompt { tokens: self.systems[system].clone(), salt };
        Conversation { prompt, worker: self.random.below(self.workers), turns_left: self.random.between(2, 12) }
    }

    fn remember(&mut self, prompt: Prompt) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(prompt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_share_heads_move_between_workers_and_stay_bounded() {
        let mut traffic = Traffic::new(Random::new(1), 4);
        let turns: Vec<Turn> = (0..500).map(|_| traffic.next_turn()).collect();
        let heads: std::collections::HashSet<&[u32]> = turns.iter().map(|t| &t.prompt.tokens[..150]).collect();
        assert_eq!(heads.len(), SYSTEM_PROMPTS as usize);
        assert!((0..4).all(|w| turns.iter().any(|t| t.worker == w)));
        assert!(turns.iter().any(|t| t.twin) && turns.iter().any(|t| t.prompt.salt.is_some()));
        assert!(turns.iter().all(|t| t.prompt.tokens.len() <= PROMPT_TOKENS_MAX + 120));
        assert!(traffic.recent.len() <= RECENT_MAX);
    }

    #[test]
    fn probes_are_deterministic_and_never_empty() {
        let run = || {
            let mut traffic = Traffic::new(Random::new(9), 2);
            (0..50).for_each(|_| drop(traffic.next_turn()));
            (0..200).map(|_| traffic.probe()).collect::<Vec<_>>()
        };
        let probes = run();
        assert_eq!(probes, run());
        assert!(probes.iter().all(|p| !p.tokens.is_empty()));
    }
}
