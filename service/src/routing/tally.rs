//! What was dispatched to a worker and cannot be in its latest load record yet.

use std::collections::VecDeque;
use std::time::Duration;

/// Dispatches since the last record, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    entries: VecDeque<(Duration, u64)>,
    tokens: u64,
}

impl Tally {
    /// Adds a dispatch. Beyond `max` entries the oldest are folded into the next one, so that no token is forgotten.
    pub fn dispatched(&mut self, now: Duration, tokens: u64, max: usize) {
        self.tokens = self.tokens.saturating_add(tokens);
        self.entries.push_back((now, tokens));
        if self.entries.len() > max.max(1) {
            let oldest = self.entries.pop_front().map_or(0, |(_, tokens)| tokens);
            if let Some(next) = self.entries.front_mut() {
                next.1 = next.1.saturating_add(oldest);
            }
        }
    }

    /// Drops what a record received at `received_at` must contain: a dispatch needs `ack_delay` to be seen by the engine.
    pub fn recorded(&mut self, received_at: Duration, ack_delay: Duration) {
        while let Some((at, tokens)) = self.entries.front().copied() {
            if at.saturating_add(ack_delay) > received_at {
                break;
            }
            self.tokens -= tokens;
            self.entries.pop_front();
        }
    }

    /// Takes back one dispatch of that time that ended before a record could show it.
    pub fn ended(&mut self, dispatched_at: Duration, tokens: u64) {
        let at = self.entries.iter().position(|entry| *entry == (dispatched_at, tokens));
        if let Some(at) = at {
            self.entries.remove(at);
            self.tokens -= tokens;
        }
    }

    /// Tokens dispatched.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Requests dispatched.
    pub fn requests(&self) -> u32 {
        self.entries.len() as u32
    }
}
