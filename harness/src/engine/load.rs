//! What an engine says of its load.

use super::Engine;
use kvatlas_service::routing::RankLoad;

/// An engine's load now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// As a record of rank 0.
    pub rank: RankLoad,
    /// Requests that lost their blocks to older ones, since the start.
    pub preemptions: u64,
}

impl Engine {
    /// Its load now. Takes time in proportion to the requests.
    pub fn load(&self) -> Load {
        let block_size = i64::from(self.spec.block_size);
        let used = i64::from(self.pool.len() - self.pool.free());
        let uncached = |s: &super::Sequence| {
            let limit = (s.goal() - 1) / self.spec.block_size;
            let names = &s.request.names[..limit as usize];
            i64::from(s.goal()) - self.truth(names) as i64 * block_size
        };
        let left = |s: &super::Sequence| i64::from(s.goal() - s.computed.min(s.goal()));
        let in_prompt = self.running.iter().filter(|s| s.generated == 0 || s.computed + 1 < s.goal());
        Load {
            rank: RankLoad {
                rank: 0,
                running: self.running.len() as i64,
                waiting: self.waiting.len() as i64,
                waiting_uncached_tokens: self.waiting.iter().map(uncached).sum(),
                prefill_remaining_tokens: in_prompt.map(left).sum(),
                used_tokens: used * block_size,
                max_total_tokens: i64::from(self.pool.len()) * block_size,
                token_usage: used as f64 / f64::from(self.pool.len().max(1)),
                utilization: self.running.len() as f64 / f64::from(self.spec.seats.max(1)),
                gen_throughput: self.rate,
                cache_hit_rate: self.counters.cached_tokens as f64 / self.counters.prompt_tokens.max(1) as f64,
                max_running: i64::from(self.spec.seats),
            },
            preemptions: self.counters.preemptions,
        }
    }
}
