//! One pass: who computes how much, how long it takes, and what it leaves behind.

use super::request::{Output, RequestId};
use super::{Engine, Nanos, Sequence};

/// What one request does in a pass.
#[derive(Clone, Copy, Debug)]
struct Share {
    id: RequestId,
    /// Tokens that are computed.
    tokens: u32,
    /// It ends with a token of the answer: nothing is left to compute before it.
    samples: bool,
}

/// A pass under way.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) ends_at: Nanos,
    seconds: f64,
    shares: Vec<Share>,
}

impl Pass {
    /// A request was aborted.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.shares.retain(|share| share.id != id);
    }
}

/// What the pass costs, in the units of the timing.
#[derive(Default)]
struct Work {
    prefill: f64,
    /// Σ chunk · (tokens before it + half of it).
    attention: f64,
    decodes: f64,
    decode_context: f64,
}

impl Engine {
    /// Begins a pass, if none is under way and there is anything to do.
    pub(super) fn begin_pass(&mut self, now: Nanos) {
        if self.pass.is_some() || (self.running.is_empty() && self.waiting.is_empty()) {
            return;
        }
        let mut budget = self.spec.timing.token_budget.max(1.0) as u32;
        let (mut shares, mut work) = (Vec::with_capacity(self.running.len() + 1), Work::default());
        self.go_on(&mut budget, &mut shares, &mut work);
        self.admit(&mut budget, &mut shares, &mut work);
        if shares.is_empty() {
            return;
        }
        let timing = &self.spec.timing;
        let seconds = timing.base
            + timing.kp * work.prefill
            + timing.ka * work.attention
            + timing.kd * work.decodes
            + timing.kc * work.decode_context;
        let seconds = seconds * self.slowed;
        self.pass = Some(Pass { ends_at: now + (seconds * 1e9).round().max(1.0) as Nanos, seconds, shares });
    }

    /// Running requests, oldest first.
    fn go_on(&mut self, budget: &mut u32, shares: &mut Vec<Share>, work: &mut Work) {
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let sequence = &self.running[at];
            let tokens = (sequence.goal() - sequence.computed).min(*budget);
            if !self.make_room(at, tokens) {
                // It was the one admitted last, and preempted itself.
                break;
            }
            self.share(at, tokens, budget, shares, work);
            at += 1;
        }
    }

    /// Gives a running request blocks for so many more tokens, preempting whoever was admitted last while there are none. `false`:
    /// that was the request itself.
    fn make_room(&mut self, at: usize, tokens: u32) -> bool {
        let sequence = &self.running[at];
        let needed = (sequence.computed + tokens).div_ceil(self.spec.block_size) as usize;
        let mut evicted = Vec::new();
        let mut there = true;
        while there && self.running[at].blocks.len() < needed {
            match self.pool.take(&mut evicted) {
                Some(block) => self.running[at].blocks.push(block),
                None => {
                    self.preempt();
                    there = at < self.running.len();
                }
            }
        }
        self.announce_removed(evicted);
        there
    }

    fn preempt(&mut self) {
        let Some(mut last) = self.running.pop() else { return };
        self.release(&last);
        last.blocks.clear();
        (last.computed, last.published) = (0, 0);
        self.counters.preemptions += 1;
        self.waiting.push_front(last);
    }

    /// Waiting requests, first come first served, while seats, budget and blocks last.
    fn admit(&mut self, budget: &mut u32, shares: &mut Vec<Share>, work: &mut Work) {
        while *budget > 0
            && self.running.len() < self.spec.seats as usize
            && let Some(sequence) = self.waiting.pop_front()
        {
            match self.place(sequence) {
                Ok(sequence) => self.running.push(sequence),
                Err(sequence) => {
                    self.waiting.push_front(sequence);
                    return;
                }
            }
            let at = self.running.len() - 1;
            let tokens = (self.running[at].goal() - self.running[at].computed).min(*budget);
            self.share(at, tokens, budget, shares, work);
        }
    }

    /// Gives a request its cached blocks and the rest of its prompt's, if all of them are to be had.
    fn place(&mut self, mut sequence: Sequence) -> Result<Sequence, Sequence> {
        let block_size = self.spec.block_size;
        let goal = sequence.goal();
        // The last token is always computed: somebody has to say what comes after it.
        let most = ((goal - 1) / block_size) as usize;
        let names = &sequence.request.names[..most.min(sequence.request.names.len())];
        let cached = names.iter().map_while(|name| self.pool.find(*name)).collect::<Vec<_>>();
        let idle = cached.iter().filter(|block| self.pool.is_idle(**block)).count();
        let wanted = goal.div_ceil(block_size) as usize - cached.len();
        if wanted + idle > self.pool.free() as usize {
            return Err(sequence);
        }
        cached.iter().for_each(|block| self.pool.use_cached(*block));
        sequence.published = cached.len() as u32;
        sequence.computed = sequence.published * block_size;
        sequence.cached.get_or_insert(sequence.computed);
        sequence.blocks = cached;
        let mut evicted = Vec::new();
        sequence.blocks.extend((0..wanted).map_while(|_| self.pool.take(&mut evicted)));
        self.announce_removed(evicted);
        Ok(sequence)
    }

    fn share(&self, at: usize, tokens: u32, budget: &mut u32, shares: &mut Vec<Share>, work: &mut Work) {
        let sequence = &self.running[at];
        let (before, samples) = (f64::from(sequence.computed), sequence.computed + tokens == sequence.goal());
        *budget -= tokens;
        if sequence.generated > 0 && tokens == 1 {
            work.decodes += 1.0;
            work.decode_context += before;
        } else {
            let chunk = f64::from(tokens);
            work.prefill += chunk;
            work.attention += chunk * (before + chunk / 2.0);
        }
        shares.push(Share { id: sequence.request.id, tokens, samples });
    }

    /// What a pass did becomes visible.
    pub(super) fn end_pass(&mut self, pass: Pass, out: &mut Vec<Output>) {
        self.counters.passes += 1;
        out.append(&mut self.pending);
        while self.unannounced.front().is_some_and(|(due, _)| *due <= self.counters.passes) {
            out.extend(self.unannounced.pop_front().map(|(_, names)| Output::Removed { names }));
        }
        let mut sampled = 0;
        // Shares are in the order of the running requests, and every running request that has none comes between or after them.
        let mut at = 0;
        for share in pass.shares {
            while self.running[at].request.id != share.id {
                at += 1;
            }
            self.running[at].computed += share.tokens;
            self.publish(at, out);
            if share.samples {
                sampled += 1;
                let sequence = &mut self.running[at];
                sequence.generated += 1;
                out.push(Output::Token { id: share.id, tokens: sequence.generated });
                if sequence.generated == sequence.request.output_tokens {
                    self.end(at, out);
                    continue;
                }
            }
            at += 1;
        }
        self.rate = f64::from(sampled) / pass.seconds.max(1e-9);
    }

    /// Caches the blocks that have become full.
    fn publish(&mut self, at: usize, out: &mut Vec<Output>) {
        let sequence = &mut self.running[at];
        let names = sequence.request.names.len() as u32;
        let (from, to) = (sequence.published, (sequence.computed / self.spec.block_size).min(names));
        if from >= to {
            return;
        }
        sequence.published = to;
        let range = from as usize..to as usize;
        for (block, name) in sequence.blocks[range.clone()].iter().zip(&sequence.request.names[range.clone()]) {
            self.pool.publish(*block, *name);
        }
        out.push(Output::Stored {
            id: sequence.request.id,
            from,
            parent: range.start.checked_sub(1).map(|before| sequence.request.names[before]),
            names: sequence.request.names[range].to_vec(),
        });
    }

    fn end(&mut self, at: usize, out: &mut Vec<Output>) {
        let sequence = self.running.remove(at);
        self.release(&sequence);
        let cached_tokens = sequence.cached.unwrap_or(0);
        self.counters.ended += 1;
        self.counters.prompt_tokens += u64::from(sequence.request.prompt_tokens);
        self.counters.cached_tokens += u64::from(cached_tokens);
        out.push(Output::Ended { id: sequence.request.id, cached_tokens });
    }
}
