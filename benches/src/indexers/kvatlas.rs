//! Our index: one shard, one lane, each worker a rank with its device tier.

use super::{Searcher, Writer};
use kvatlas_corpora::{Batch, OperationKind};
use kvatlas_index::{Holder, Index, IndexConfig, Lane, Levels, LookupOptions, RankKey, Reader, Store, StoreKind, Tier};
use std::hint::black_box;
use std::sync::Arc;

/// Our index under one lane. Stores count copies, lookups answer by levels.
pub struct Kvatlas {
    index: Arc<Index>,
    lane: Lane,
    holders: Vec<Holder>,
    /// Stores and removals that the index refused.
    pub refused: u64,
}

impl Kvatlas {
    /// An index for so many workers. The hash key is fixed, so that instruction counts repeat.
    pub fn new(workers: u32) -> Self {
        let ranks_max = workers.div_ceil(64) * 64;
        let config = IndexConfig { hash_key: Some([11, 13]), ranks_max, ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        let mut lane = lanes.pop().expect("one lane");
        let open = |key| Holder { rank: lane.open_rank(RankKey(key)).expect("room for the rank"), tier: Tier::Device };
        let holders = (0..workers).map(open).collect();
        Self { index, lane, holders, refused: 0 }
    }

    /// The index itself, for its counters.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }
}

impl Writer for Kvatlas {
    fn name(&self) -> &'static str {
        "kvatlas"
    }

    fn prepare(&mut self, _batch: &Batch) {}

    #[inline]
    fn apply(&mut self, batch: &Batch, operation: usize) {
        let operation = &batch.operations[operation];
        let holder = self.holders[operation.worker as usize];
        let (names, contents) = (batch.names(operation), batch.contents(operation));
        let done = match operation.kind {
            OperationKind::Lookup => return,
            OperationKind::Store { parent, .. } => {
                let store = Store { parent, names, contents, kind: StoreKind::Copy };
                self.lane.store(holder, &store).map(|did| did.orphans + did.orphans_dropped)
            }
            OperationKind::Remove => self.lane.remove(holder, names).map(|did| did.unknown),
        };
        self.refused += u64::from(done != Ok(0));
    }

    fn searcher(&self) -> Box<dyn Searcher> {
        Box::new(Search { reader: self.index.reader(), levels: Levels::new() })
    }

    fn own_bytes(&self) -> Option<u64> {
        Some(self.index.stats().bytes_live)
    }
}

struct Search {
    reader: Reader,
    levels: Levels,
}

impl Searcher for Search {
    fn prepare(&mut self, _batch: &Batch) {}

    #[inline]
    fn lookup(&mut self, batch: &Batch, operation: usize) {
        let contents = batch.contents(&batch.operations[operation]);
        let _ = black_box(self.reader.lookup_levels(contents, &LookupOptions::default(), &mut self.levels));
        black_box(&self.levels);
    }

    fn answer(&mut self, batch: &Batch, operation: usize) -> Vec<(u32, u32)> {
        let contents = batch.contents(&batch.operations[operation]);
        let mut found = Vec::new();
        let _ = self.reader.lookup(contents, &LookupOptions::default(), &mut found);
        let mut pairs: Vec<_> = found.iter().map(|line| (line.rank.0, line.blocks)).collect();
        pairs.sort_unstable();
        pairs
    }
}
