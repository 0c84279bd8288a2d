//! A mock engine: continuous batching over a cached KV pool, in virtual time. Pure: requests and times in, tokens and events out; the
//! simulator and the fleet on real sockets run the same one.
//!
//! A pass has a budget of tokens. Running requests come first, in the order in which they were admitted: one that is still in its
//! prompt takes what is left of it or of the budget, one that decodes takes one token. Then waiting requests, first come first
//! served, each only if its whole prompt fits into the free blocks. A decoding request that finds no free block preempts the one
//! that was admitted last, which goes back to the head of the queue and computes its prompt, and what it had generated, again.
//! Everything that a pass does becomes visible at its end, whose time is the [`Timing`]'s.

mod load;
mod pass;
pub mod pool;
mod request;
#[cfg(test)]
mod tests;

pub use load::Load;
pub use request::{Output, Request, RequestId, chained};

use kvatlas_service::routing::Timing;
use pass::Pass;
use pool::{BlockId, Name, Pool};
use std::collections::VecDeque;

/// Nanoseconds of virtual time, from any origin.
pub type Nanos = u64;

/// What an engine is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSpec {
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks of the pool.
    pub blocks: u32,
    /// Requests that run at once.
    pub seats: u32,
    /// Passes that evicted blocks are announced after: engines tell removals late.
    pub removals_late_passes: u32,
    /// Times, and tokens of a pass.
    pub timing: Timing,
}

impl EngineSpec {
    /// An engine with a model of about eight billion parameters: blocks of 16 tokens, 256 seats, a pool of 676,128 tokens.
    pub const CLASS_8B: EngineSpec = EngineSpec {
        block_size: 16,
        blocks: 676_128 / 16,
        seats: 256,
        removals_late_passes: 0,
        timing: Timing::CLASS_8B,
    };

    /// The same with so small a pool that it fills: 12,000 blocks.
    pub const RESTRICTED: EngineSpec = EngineSpec { blocks: 12_000, ..EngineSpec::CLASS_8B };
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// It could never be admitted, whatever else ends.
    #[error("prompt and answer take {needed} blocks of {blocks}")]
    TooLong {
        /// Blocks that it takes.
        needed: u32,
        /// Blocks that there are.
        blocks: u32,
    },
}

/// A request that was admitted, or was before.
#[derive(Debug)]
struct Sequence {
    request: Request,
    /// Tokens whose keys and values are in blocks.
    computed: u32,
    /// Tokens of the answer.
    generated: u32,
    /// Found cached at the first admission.
    cached: Option<u32>,
    /// Its blocks, in order.
    blocks: Vec<BlockId>,
    /// Blocks that are cached under their names, from the first on.
    published: u32,
}

impl Sequence {
    /// Tokens that have to be computed before it goes on decoding.
    fn goal(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }
}

/// What an engine has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Passes.
    pub passes: u64,
    /// Requests that lost their blocks to older ones.
    pub preemptions: u64,
    /// Prompt tokens of the requests that ended.
    pub prompt_tokens: u64,
    /// Of these, found cached.
    pub cached_tokens: u64,
    /// Requests that ended.
    pub ended: u64,
}

/// A mock engine.
pub struct Engine {
    spec: EngineSpec,
    pool: Pool,
    waiting: VecDeque<Sequence>,
    /// In the order in which they were admitted.
    running: Vec<Sequence>,
    pass: Option<Pass>,
    /// What happened outside of a pass.
    pending: Vec<Output>,
    /// Evicted blocks that are not announced yet, with the pass that does.
    unannounced: VecDeque<(u64, Vec<Name>)>,
    paused_until: Nanos,
    slowed: f64,
    rate: f64,
    counters: EngineCounters,
}

impl Engine {
    /// An engine without requests, whose pool holds nothing.
    pub fn new(spec: EngineSpec) -> Self {
        Self {
            spec,
            pool: Pool::new(spec.blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            pass: None,
            pending: Vec::new(),
            unannounced: VecDeque::new(),
            paused_until: 0,
            slowed: 1.0,
            rate: 0.0,
            counters: EngineCounters::default(),
        }
    }

    /// Queues a request. It is looked at when the pass under way has ended.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Refused> {
        let tokens = request.prompt_tokens + request.output_tokens - 1;
        let needed = tokens.div_ceil(self.spec.block_size);
        if needed > self.spec.blocks {
            return Err(Refused::TooLong { needed, blocks: self.spec.blocks });
        }
        self.waiting.push_back(Sequence {
            request,
            computed: 0,
            generated: 0,
            cached: None,
            blocks: Vec::new(),
            published: 0,
        });
        self.begin_pass(now);
        Ok(())
    }

    /// Forgets a request, wherever it is; its blocks stay cached. `false`: there is none.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.waiting.iter().position(|s| s.request.id == id) {
            self.waiting.remove(at);
            return true;
        }
        let Some(at) = self.running.iter().position(|s| s.request.id == id) else { return false };
        let sequence = self.running.remove(at);
        if let Some(pass) = &mut self.pass {
            pass.forget(id);
        }
        self.release(&sequence);
        true
    }

    /// When [`Engine::advance`] has something to do; `None`: not before the next request.
    pub fn next_wakeup(&self) -> Option<Nanos> {
        let pending = (!self.pending.is_empty()).then_some(0);
        pending.or(self.pass.as_ref().map(|pass| pass.ends_at.max(self.paused_until)))
    }

    /// Ends the pass that is due, if one is, appends what it did and begins the next. To be called again while
    /// [`Engine::next_wakeup`] is not later than `now`.
    pub fn advance(&mut self, now: Nanos, out: &mut Vec<Output>) {
        out.append(&mut self.pending);
        let Some(pass) = self.pass.take_if(|pass| pass.ends_at.max(self.paused_until) <= now) else { return };
        let ended_at = pass.ends_at.max(self.paused_until);
        self.end_pass(pass, out);
        self.begin_pass(ended_at);
    }

    /// Leading blocks of a prompt that are cached, by the engine's own names.
    pub fn truth(&self, names: &[Name]) -> usize {
        names.iter().take_while(|name| self.pool.find(**name).is_some()).count()
    }

    /// Every cached name with the number of its copies, in no order.
    pub fn cached(&self) -> impl Iterator<Item = (Name, u32)> + '_ {
        self.pool.names()
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What it has done.
    pub fn counters(&self) -> EngineCounters {
        self.counters
    }

    /// What it is made of.
    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }

    /// Nothing ends before then: a stopped process.
    pub fn pause(&mut self, until: Nanos) {
        self.paused_until = until;
    }

    /// Passes take so many times as long, from the next one on.
    pub fn slow(&mut self, factor: f64) {
        self.slowed = if factor.is_finite() { factor.max(0.001) } else { 1.0 };
    }

    /// Evicts what is cached in so many free blocks.
    pub fn evict(&mut self, blocks: u32) {
        let mut names = Vec::new();
        self.pool.evict(blocks, &mut names);
        self.announce_removed(names);
    }

    /// Forgets everything that is cached, as engines do when they are told to. `false`: a request has blocks in use, so nothing is
    /// forgotten.
    pub fn clear(&mut self) -> bool {
        if !self.running.is_empty() {
            return false;
        }
        self.pool.clear();
        self.unannounced.clear();
        self.pending.push(Output::Cleared);
        true
    }

    fn announce_removed(&mut self, names: Vec<Name>) {
        if names.is_empty() {
            return;
        }
        match self.spec.removals_late_passes {
            0 => self.pending.push(Output::Removed { names }),
            late => self.unannounced.push_back((self.counters.passes + u64::from(late), names)),
        }
    }

    fn release(&mut self, sequence: &Sequence) {
        sequence.blocks.iter().rev().for_each(|block| self.pool.release(*block));
    }
}
