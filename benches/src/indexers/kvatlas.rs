//! Our index: one shard, one lane, each worker a rank with its device tier; beside them the thread that makes huge pages.

use super::{Searcher, Writer};
use crate::laps::Laps;
use crate::tending::Tending;
use kvatlas_corpora::{Batch, OperationKind};
use kvatlas_index::{
    Holder, HugePages, Index, IndexConfig, Lane, Levels, LookupOptions, RankKey, Reader, Store, StoreKind, Tier,
    Upcoming,
};
use std::hint::black_box;
use std::sync::Arc;

/// How our index is set up in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The lane sees its queue of events and asks for their memory ahead of time.
    pub look_ahead: bool,
    /// Which pages its regions ask for.
    pub huge_pages: HugePages,
}

impl Default for Setting {
    /// As the service runs it.
    fn default() -> Self {
        Self { look_ahead: false, huge_pages: HugePages::Collapse }
    }
}

/// Our index under one lane. Stores count copies, lookups answer by levels.
pub struct Kvatlas {
    index: Arc<Index>,
    lane: Lane,
    holders: Vec<Holder>,
    setting: Setting,
    _tending: Tending,
    /// Stores and removals that the index refused.
    pub refused: u64,
}

impl Kvatlas {
    /// An index for so many workers. The hash key is fixed, so that instruction counts repeat.
    pub fn new(workers: u32) -> Self {
        Self::with(workers, Setting::default())
    }

    /// The same with a setting.
    pub fn with(workers: u32, setting: Setting) -> Self {
        let (ranks_max, huge_pages) = (workers.div_ceil(64) * 64, setting.huge_pages);
        let config = IndexConfig { hash_key: Some([11, 13]), ranks_max, huge_pages, ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        let mut lane = lanes.pop().expect("one lane");
        let open = |key| Holder { rank: lane.open_rank(RankKey(key)).expect("room for the rank"), tier: Tier::Device };
        let holders = (0..workers).map(open).collect();
        let tending = Tending::of(&index).expect("a thread");
        Self { index, lane, holders, setting, _tending: tending, refused: 0 }
    }

    /// The index itself, for its counters.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// The event at this place of a batch as the lane sees it in its queue.
    #[inline]
    fn upcoming<'a>(&self, batch: &'a Batch, operation: usize) -> Option<Upcoming<'a>> {
        let operation = &batch.operations[operation];
        let holder = self.holders[operation.worker as usize];
        let names = batch.names(operation);
        match operation.kind {
            OperationKind::Lookup => None,
            OperationKind::Store { parent, .. } => {
                let contents = batch.contents(operation);
                Some(Upcoming::Store(holder, Store { parent, names, contents, kind: StoreKind::Copy }))
            }
            OperationKind::Remove => Some(Upcoming::Remove(holder, names)),
        }
    }
}

impl Writer for Kvatlas {
    fn name(&self) -> &'static str {
        match (self.setting.look_ahead, self.setting.huge_pages) {
            (true, _) => "kvatlas-ahead",
            (false, HugePages::Collapse) => "kvatlas",
            (false, HugePages::Off) => "kvatlas-small-pages",
            (false, HugePages::Transparent | HugePages::Explicit) => "kvatlas-huge",
        }
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

    fn play(&mut self, batch: &Batch, events: &[usize], laps: &mut Laps) {
        if self.setting.look_ahead {
            self.lane.look_ahead_first(|n| self.upcoming(batch, *events.get(n)?));
        }
        laps.time(events.len(), |i| {
            if self.setting.look_ahead {
                self.lane.look_ahead(|n| self.upcoming(batch, *events.get(i + n)?));
            }
            self.apply(batch, events[i]);
        });
    }

    fn refused(&self) -> u64 {
        self.refused
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
