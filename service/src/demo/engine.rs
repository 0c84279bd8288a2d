//! A mock engine: what vLLM and SGLang do to their prefix caches and announce, reduced to what an index can see. Pure:
//! [`MockEngine::step`] serves one request and returns the batches of events that the engine would publish.
//!
//! vLLM: full blocks of the prompt in one store, then one store for each block that decoding fills; no deduplication, so a
//! prompt that is in flight twice and a prompt that ends on a block boundary leave second copies; one removal for each
//! block that is reused, before the store that needed the room. SGLang: the tree is a set; the prompt's and then the output's
//! new pages in one store each, the pages that made room in one removal.
//!
//! Left out: time, batching of requests, preemption, tiers, groups. One request runs at a time.

use super::names::{Dialect, Namer};
use super::pool::{NewBlock, NodeId, Pool, SlotId};
use super::traffic::Turn;
use crate::wire::{ContentHasher, HashMode, Namespace, Prompt};
use kvatlas_index::{ContentHash, EngineHash};
use std::sync::Arc;

/// Tokens in a block.
pub const BLOCK_SIZE: usize = 16;

/// What an engine publishes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Consecutive blocks became available.
    Stored {
        /// Name of the block before the first.
        parent: Option<EngineHash>,
        /// Their names.
        names: Vec<EngineHash>,
        /// Their tokens.
        tokens: Vec<u32>,
        /// The request's cache salt.
        salt: Option<Arc<str>>,
    },
    /// One copy of each is gone.
    Removed {
        /// Their names.
        names: Vec<EngineHash>,
    },
    /// Everything is gone.
    Cleared,
}

/// One mock engine.
pub struct MockEngine {
    namer: Namer,
    pool: Pool,
    contents: ContentHasher,
    started: bool,
}

/// A request while it is served.
struct Running {
    blocks: Vec<NewBlock>,
    tokens: Vec<u32>,
    salt: Option<Arc<str>>,
    /// The last block of its path so far, and how many there are.
    at: Option<NodeId>,
    depth: usize,
    slots: Vec<SlotId>,
}

impl MockEngine {
    /// An engine with an empty pool of so many blocks.
    pub fn new(namer: Namer, blocks: usize) -> Self {
        Self {
            namer,
            pool: Pool::new(blocks),
            contents: ContentHasher::new(HashMode::Plain, BLOCK_SIZE),
            started: false,
        }
    }

    /// The wire it speaks.
    pub fn dialect(&self) -> Dialect {
        self.namer.dialect()
    }

    /// What it really holds.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What it publishes when it starts: SGLang a clear, vLLM nothing.
    pub fn start(&mut self) -> Option<Vec<Event>> {
        let first = !std::mem::replace(&mut self.started, true);
        (first && self.dialect() == Dialect::SglangMaps).then(|| vec![Event::Cleared])
    }

    /// Serves one request. Each element of the answer is one batch, in order.
    pub fn step(&mut self, turn: &Turn) -> Vec<Vec<Event>> {
        let runs = if turn.twin && self.dialect() != Dialect::SglangMaps { 2 } else { 1 };
        // Twins find the same hits, since both are scheduled before either has stored anything.
        let mut running: Vec<Running> = (0..runs).map(|_| self.schedule(turn)).collect();
        let prompt_blocks = turn.prompt.tokens.len() / BLOCK_SIZE;
        let mut batches = vec![Vec::new()];
        for run in &mut running {
            self.extend(run, prompt_blocks, &mut batches[0]);
        }
        match self.dialect() {
            Dialect::VllmMaps | Dialect::VllmArrays => {
                for depth in prompt_blocks + 1..=running[0].blocks.len() {
                    let mut batch = Vec::new();
                    running.iter_mut().for_each(|run| self.extend(run, depth, &mut batch));
                    batches.push(batch);
                }
            }
            Dialect::SglangMaps => {
                let mut batch = Vec::new();
                running.iter_mut().for_each(|run| self.extend(run, run.blocks.len(), &mut batch));
                batches.push(batch);
            }
        }
        running.iter().for_each(|run| self.pool.release(&run.slots));
        batches.retain(|batch| !batch.is_empty());
        batches
    }

    /// Finds what is cached and keeps it in place. At least one token of the prompt is always computed.
    fn schedule(&mut self, turn: &Turn) -> Running {
        let mut tokens = turn.prompt.tokens.clone();
        tokens.extend(&turn.output);
        // The last generated token never enters the cache.
        tokens.truncate(tokens.len().saturating_sub(1) / BLOCK_SIZE * BLOCK_SIZE);
        let blocks = self.blocks(&tokens, turn.prompt.salt.as_deref());
        let salt = turn.prompt.salt.clone();
        let mut run = Running { blocks, tokens, salt, at: None, depth: 0, slots: Vec::new() };
        let hit_max = turn.prompt.tokens.len().saturating_sub(1) / BLOCK_SIZE;
        while run.depth < hit_max
            && let Some(node) = self.pool.live_child(run.at, &run.blocks[run.depth].digest)
        {
            run.slots.extend(self.pool.pin(node));
            run.at = Some(node);
            run.depth += 1;
        }
        run
    }

    /// Makes the request's path `depth` blocks long.
    fn extend(&mut self, run: &mut Running, depth: usize, batch: &mut Vec<Event>) {
        let depth = depth.min(run.blocks.len());
        let (mut evicted, mut first, mut parent) = (Vec::new(), run.depth, run.at);
        while run.depth < depth {
            let block = run.blocks[run.depth];
            if self.dialect() == Dialect::SglangMaps
                && let Some(node) = self.pool.live_child(run.at, &block.digest)
            {
                // The tree has this page already; the computed one is thrown away. Only pages before all new ones can be there.
                run.slots.extend(self.pool.pin(node));
                run.at = Some(node);
                run.depth += 1;
                (first, parent) = (run.depth, run.at);
                continue;
            }
            let Some((slot, out)) = self.pool.take() else { break };
            evicted.extend(out);
            run.slots.push(slot);
            run.at = Some(self.pool.fill(slot, run.at, block));
            run.depth += 1;
        }
        self.removals(evicted, batch);
        if run.depth > first {
            batch.push(Event::Stored {
                parent: parent.map(|id| self.pool.node(id).name),
                names: run.blocks[first..run.depth].iter().map(|b| b.name).collect(),
                tokens: run.tokens[first * BLOCK_SIZE..run.depth * BLOCK_SIZE].to_vec(),
                salt: run.salt.clone(),
            });
        }
    }

    fn removals(&self, mut evicted: Vec<EngineHash>, batch: &mut Vec<Event>) {
        match self.dialect() {
            Dialect::VllmMaps | Dialect::VllmArrays => {
                batch.extend(evicted.into_iter().map(|name| Event::Removed { names: vec![name] }));
            }
            Dialect::SglangMaps if evicted.is_empty() => {}
            Dialect::SglangMaps => {
                evicted.reverse();
                batch.push(Event::Removed { names: evicted });
            }
        }
    }

    /// Names and contents of the full blocks of `tokens`.
    fn blocks(&mut self, tokens: &[u32], salt: Option<&str>) -> Vec<NewBlock> {
        let mut contents: Vec<ContentHash> = Vec::new();
        let namespace = Namespace::new(None, salt);
        self.contents.prompt(&Prompt { tokens, namespace, items: &[] }, &mut contents);
        let digests = self.namer.chain(tokens, BLOCK_SIZE, salt);
        let named = digests.into_iter().zip(contents);
        named.map(|(digest, content)| NewBlock { digest, name: self.namer.name(&digest), content }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::random::Random;
    use crate::demo::traffic::{self, Traffic};
    use std::collections::BTreeMap;

    fn engine(dialect: Dialect, blocks: usize) -> MockEngine {
        MockEngine::new(Namer::new(dialect, Some(7)), blocks)
    }

    fn turn(prompt: std::ops::Range<u32>, output: std::ops::Range<u32>, twin: bool) -> Turn {
        let prompt = traffic::Prompt { tokens: prompt.collect(), salt: None };
        Turn { worker: 0, prompt, output: output.collect(), twin }
    }

    /// Folds events the way any consumer has to: counting.
    fn fold(live: &mut BTreeMap<EngineHash, u64>, batches: &[Vec<Event>]) {
        for event in batches.iter().flatten() {
            match event {
                Event::Stored { names, tokens, .. } => {
                    assert_eq!(tokens.len(), names.len() * BLOCK_SIZE);
                    names.iter().for_each(|&n| *live.entry(n).or_insert(0) += 1);
                }
                Event::Removed { names } => {
                    for name in names {
                        let left = live.get_mut(name).expect("only held blocks are removed");
                        *left -= 1;
                        if *left == 0 {
                            live.remove(name);
                        }
                    }
                }
                Event::Cleared => live.clear(),
            }
        }
    }

    #[test]
    fn vllm_stores_the_prompt_at_once_and_each_decoded_block_by_itself() {
        let mut engine = engine(Dialect::VllmMaps, 64);
        let batches = engine.step(&turn(0..40, 100..130, false));
        let sizes: Vec<Vec<usize>> = batches
            .iter()
            .map(|b| b.iter().map(|e| if let Event::Stored { names, .. } = e { names.len() } else { 0 }).collect())
            .collect();
        assert_eq!(sizes, [vec![2], vec![1], vec![1]]);
        let again = engine.step(&turn(0..40, 100..101, false));
        assert!(again.is_empty(), "all of it is cached: {again:?}");
    }

    #[test]
    fn a_prompt_that_ends_on_a_block_boundary_and_a_twin_leave_second_copies_in_vllm_only() {
        for (dialect, want) in [(Dialect::VllmMaps, [1, 3]), (Dialect::SglangMaps, [1, 1])] {
            let mut engine = engine(dialect, 64);
            engine.step(&turn(0..32, 100..101, false));
            engine.step(&turn(0..32, 100..101, true));
            let copies: Vec<u64> = engine.pool().dump().iter().map(|(_, c)| *c).collect();
            assert_eq!(copies, want, "{dialect:?}");
        }
    }

    #[test]
    fn counting_the_events_gives_the_pool() {
        for dialect in [Dialect::VllmMaps, Dialect::VllmArrays, Dialect::SglangMaps] {
            let mut engine = engine(dialect, 700);
            let mut traffic = Traffic::new(Random::new(3), 1);
            let mut live = BTreeMap::new();
            fold(&mut live, &engine.start().into_iter().collect::<Vec<_>>());
            let mut removed = 0;
            for _ in 0..400 {
                let batches = engine.step(&traffic.next_turn());
                removed += batches.iter().flatten().filter(|e| matches!(e, Event::Removed { .. })).count();
                fold(&mut live, &batches);
                let pool: BTreeMap<_, _> =
                    engine.pool().dump().iter().filter(|(_, c)| *c > 0).map(|(n, c)| (n.name, *c)).collect();
                assert_eq!(live, pool, "{dialect:?}");
            }
            assert!(removed > 100, "{dialect:?} evicts");
        }
    }
}
