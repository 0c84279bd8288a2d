//! kv-index 2.0.0: its sharded chain index with one shard, and a block map for each worker as its gateway keeps them.
//!
//! Stores take slices of its own 16-byte blocks and removals slices of its hashes, both laid out ahead of time. Lookups use its
//! callback form into a vector that is reused, which allocates nothing. It keeps sets: a second copy of a block is not counted.

use super::{Searcher, Writer};
use kv_index::{ChainBlockMap, ContentHash, SequenceHash, ShardedChainIndex, StoredBlock};
use kvatlas_corpora::{Batch, OperationKind};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

/// Bytes of a slot of its block maps with the tag byte, as its documentation gives them.
const MAP_SLOT_BYTES: usize = 17;

/// Workers of one of its shards at most.
const SHARD_WORKERS_MAX: u32 = 1024;

/// The chain index of kv-index.
pub struct KvIndex {
    index: Arc<ShardedChainIndex>,
    workers: Vec<(u32, ChainBlockMap)>,
    blocks: Vec<StoredBlock>,
    removed: Vec<SequenceHash>,
    /// Stores that it refused.
    pub refused: u64,
}

impl KvIndex {
    /// An index of so many workers: one shard, or as many as its limit of 1,024 workers a shard asks for.
    pub fn new(workers: u32) -> Self {
        let shards = workers.div_ceil(SHARD_WORKERS_MAX).max(1);
        let index = Arc::new(ShardedChainIndex::new(shards as usize, workers.div_ceil(shards) as usize));
        let intern = |worker: u32| {
            let (shard, name) = ((worker % shards) as usize, format!("worker-{worker}"));
            let id = index.intern_worker_in(shard, &name).expect("room for the worker");
            (id, ChainBlockMap::default())
        };
        let workers = (0..workers).map(intern).collect();
        Self { index, workers, blocks: Vec::new(), removed: Vec::new(), refused: 0 }
    }
}

impl Writer for KvIndex {
    fn name(&self) -> &'static str {
        "kv-index"
    }

    fn prepare(&mut self, batch: &Batch) {
        let names = batch.all_names();
        self.removed.clear();
        self.removed.extend(names.iter().map(|name| SequenceHash(name.0)));
        self.blocks.clear();
        self.blocks.resize(names.len(), StoredBlock { seq_hash: SequenceHash(0), content_hash: ContentHash(0) });
        for operation in batch.operations.iter().filter(|o| matches!(o.kind, OperationKind::Store { .. })) {
            let blocks = &mut self.blocks[batch.names_range(operation)];
            for ((block, name), content) in blocks.iter_mut().zip(batch.names(operation)).zip(batch.contents(operation))
            {
                *block = StoredBlock { seq_hash: SequenceHash(name.0), content_hash: ContentHash(content.0) };
            }
        }
    }

    #[inline]
    fn apply(&mut self, batch: &Batch, operation: usize) {
        let operation = &batch.operations[operation];
        let (id, map) = &mut self.workers[operation.worker as usize];
        let range = batch.names_range(operation);
        match operation.kind {
            OperationKind::Lookup => {}
            OperationKind::Store { parent, .. } => {
                let parent = parent.map(|name| SequenceHash(name.0));
                self.refused += u64::from(self.index.apply_stored(*id, &self.blocks[range], parent, map).is_err());
            }
            OperationKind::Remove => self.index.apply_removed(*id, &self.removed[range], map),
        }
    }

    fn refused(&self) -> u64 {
        self.refused
    }

    fn searcher(&self) -> Box<dyn Searcher> {
        let numbers = self.workers.iter().enumerate().map(|(worker, (id, _))| (*id, worker as u32)).collect();
        Box::new(Search { index: self.index.clone(), found: Vec::new(), numbers })
    }

    fn own_bytes(&self) -> Option<u64> {
        let stats = self.index.stats();
        let maps: usize = self.workers.iter().map(|(_, map)| map.capacity() * MAP_SLOT_BYTES).sum();
        Some((stats.arena_bytes + stats.header_bytes + maps) as u64)
    }
}

struct Search {
    index: Arc<ShardedChainIndex>,
    found: Vec<(u32, u32)>,
    /// Its worker ids as ours.
    numbers: HashMap<u32, u32>,
}

impl Searcher for Search {
    fn prepare(&mut self, _batch: &Batch) {}

    #[inline]
    fn lookup(&mut self, batch: &Batch, operation: usize) {
        let contents = batch.contents(&batch.operations[operation]);
        let found = &mut self.found;
        found.clear();
        self.index.score_into(contents, |content| content.0, false, |worker, score| found.push((worker, score)));
        black_box(found);
    }

    fn answer(&mut self, batch: &Batch, operation: usize) -> Vec<(u32, u32)> {
        self.lookup(batch, operation);
        let mut pairs: Vec<_> = self.found.iter().map(|&(id, blocks)| (self.numbers[&id], blocks)).collect();
        pairs.sort_unstable();
        pairs
    }
}
