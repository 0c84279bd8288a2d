//! What a router knows of its workers' caches: an index fed by events as they are delivered.

use super::arrivals::Arrival;
use super::router::KvBatch;
use crate::engine::Output;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, Levels, LookupOptions, RankKey, RankSlot, Reader, Store,
    StoreKind, Tier,
};

/// An index of one router.
pub struct Known {
    lane: Lane,
    reader: Reader,
    ranks: Vec<RankSlot>,
    contents: Vec<ContentHash>,
    levels: Levels,
    depths: Vec<u32>,
    names: Vec<EngineHash>,
}

impl Known {
    /// An index of so many workers of which nothing is known.
    ///
    /// # Panics
    /// If the system has no memory for it.
    pub fn new(workers: usize) -> Self {
        let config = IndexConfig { shards: 1, lanes_per_shard: 1, ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("room for an index");
        let mut lane = lanes.remove(0);
        let ranks = (0..workers).map(|worker| lane.open_rank(RankKey(worker as u32)).expect("room for ranks"));
        let ranks = ranks.collect();
        Self {
            reader: index.reader(),
            lane,
            ranks,
            contents: Vec::new(),
            levels: Levels::new(),
            depths: vec![0; workers],
            names: Vec::new(),
        }
    }

    /// Content hashes of a prompt's full blocks, and by worker how many of them it holds.
    pub fn look_up(&mut self, request: &Arrival) -> (&[ContentHash], &[u32]) {
        self.contents.clear();
        self.contents.extend(request.contents[..request.prompt_blocks as usize].iter().map(|hash| ContentHash(*hash)));
        // Nobody writes while this reads: the answer is never cut short.
        let _ = self.reader.lookup_levels(&self.contents, &LookupOptions::default(), &mut self.levels);
        self.levels.depths(Tier::Device, &mut self.depths);
        (&self.contents, &self.depths)
    }

    /// Applies a batch of a worker.
    ///
    /// # Panics
    /// If the index's limits do not hold the fleet's blocks.
    pub fn apply(&mut self, worker: usize, batch: &KvBatch, arrivals: &[Arrival]) {
        let at = Holder { rank: self.ranks[worker], tier: Tier::Device };
        for event in &batch.events {
            match event {
                Output::Stored { id, from, parent, names } => {
                    let contents = &arrivals[*id as usize].contents[*from as usize..][..names.len()];
                    self.contents.clear();
                    self.contents.extend(contents.iter().map(|hash| ContentHash(*hash)));
                    self.put_names(names);
                    let parent = parent.map(EngineHash);
                    let (names, contents) = (&self.names, &self.contents);
                    let store = Store { parent, names, contents, kind: StoreKind::Copy };
                    self.lane.store(at, &store).expect("room for blocks");
                }
                Output::Removed { names } => {
                    self.put_names(names);
                    self.lane.remove(at, &self.names).expect("a rank that is open");
                }
                Output::Cleared => {
                    self.lane.clear(self.ranks[worker], None).expect("a rank that is open");
                }
                Output::Token { .. } | Output::Ended { .. } => {}
            }
        }
    }

    fn put_names(&mut self, names: &[u64]) {
        self.names.clear();
        self.names.extend(names.iter().map(|name| EngineHash(*name)));
    }
}
