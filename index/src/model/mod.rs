//! The product's own shared structures as loom models use them (`--cfg loom` only): each with what surrounds it in the
//! product cut down to a few words.

mod halves;
mod path;

use crate::alloc::GRANULE;
use crate::config::IndexConfig;
use crate::edge::{self, Check, Edge};
use crate::index::Index;
use crate::kids::Kids;
use crate::lane::Lane;
use crate::lane::work::Scratch;
use crate::layout::{Entry, Fields};
use crate::place::Site;
use crate::read::found::Found;
use crate::read::walk::{Stretch, Survivors, walk};
use crate::shard::Shard;
use crate::slots::RankSlots;
use crate::sync::Ordering;
use crate::types::{ContentHash, Outcome, RankKey};
use std::sync::Arc;

pub use halves::Halves;
pub use path::{Path, Successor};

/// A whole index, as small as the models need: runs of two blocks at most, numbered from 1 to `runs`, each of which may begin
/// one granule of two positions, and memory for `sets` runs with more than four holders, which are in set form.
pub fn tiny(lanes: u32, ranks_per_lane: u32, runs: u32, sets: u32) -> (Arc<Index>, Vec<Lane>) {
    let config = IndexConfig {
        lanes_per_shard: lanes,
        ranks_max: lanes * ranks_per_lane,
        blocks_max: (runs + 1) * GRANULE,
        runs_max: runs + 1,
        exts_max: sets + 1,
        orphans_max_per_rank: 0,
        private_names_max_per_lane: 32,
        run_blocks_max: GRANULE,
        hash_key: Some([1, 2]),
        ..IndexConfig::default()
    };
    Index::build(config).expect("memory of loom's")
}

/// The table of child links, over links of which only the hashes matter. Buckets have two slots, and there are two of them
/// at first.
pub struct Links {
    edge: Edge,
    /// Hash of each run, from 1 on.
    hashes: Vec<u64>,
}

impl Links {
    /// An empty table for lanes 0 and 1. A link's home is that half of the table in which its hash is.
    pub fn new(hashes: &[u64]) -> Self {
        let edge = Edge::reserve(4, 2, &mut Site::default()).expect("memory of loom's");
        Self { edge, hashes: [&[0], hashes].concat() }
    }

    /// Adds the link of a run, and moves others if the table is growing.
    pub fn insert(&self, lane: u32, run: u32) {
        self.edge.insert(lane, self.hashes[run as usize], run, run, &|run, _| self.hashes[run as usize]);
    }

    /// Takes the link of a run out, and moves others if the table is shrinking; whether it was there.
    pub fn remove(&self, lane: u32, run: u32) -> bool {
        let there = self.edge.remove(lane, self.hashes[run as usize], run);
        self.advance();
        there
    }

    /// Moves links if the table is growing or shrinking.
    pub fn advance(&self) {
        self.edge.advance(&|run, _| self.hashes[run as usize]);
    }

    /// Whether a reader finds the link of a run.
    pub fn finds(&self, run: u32) -> bool {
        let check = |found, _| if found == run { Check::Yes(()) } else { Check::No };
        matches!(self.edge.find(self.hashes[run as usize], check), edge::Found::Hit(()))
    }
}

/// The count of the children at one position, one at first.
pub struct Children(Shard);

impl Children {
    /// One child.
    pub fn new() -> Self {
        let shard = shard();
        shard.kids.add(&shard.arena, GRANULE);
        Self(shard)
    }

    /// One more.
    pub fn add(&self) {
        self.0.kids.add(&self.0.arena, GRANULE);
    }

    /// One less.
    pub fn remove(&self) {
        self.0.kids.remove(&self.0.arena, GRANULE);
    }

    /// How many, and whether there is any.
    pub fn count(&self) -> (u32, bool) {
        (self.0.kids.count(&self.0.arena, GRANULE), Kids::any(&self.0.arena, GRANULE))
    }
}

impl Default for Children {
    fn default() -> Self {
        Self::new()
    }
}

/// The slot table of one lane.
pub struct Slots(RankSlots);

impl Slots {
    /// Room for one rank.
    pub fn new() -> Self {
        let slots = RankSlots::new(1, 1);
        slots.take_word();
        Self(slots)
    }

    /// Gives slot 0 to a rank.
    pub fn give(&self, key: u32) {
        self.0.give(0, RankKey(key));
    }

    /// Hides slot 0.
    pub fn mask(&self) {
        self.0.mask(0);
    }

    /// What a lookup reads first.
    pub fn count(&self) -> u64 {
        self.0.count()
    }

    /// Whose slot 0 is, to a lookup that read this count first, then entries, and went through a fence(Acquire).
    pub fn name(&self, count: u64) -> Option<u32> {
        self.0.name(0, count).map(|key| key.0)
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self::new()
    }
}

/// Contents of a chain.
const CONTENTS: [ContentHash; 3] = [ContentHash(7), ContentHash(8), ContentHash(9)];

/// A shard alone, with room for three runs.
fn shard() -> Shard {
    let config = IndexConfig {
        ranks_max: 1,
        blocks_max: 4 * GRANULE,
        runs_max: 4,
        exts_max: 1,
        hash_key: Some([3, 4]),
        ..IndexConfig::default()
    };
    Shard::new(&config, 0).expect("memory of loom's")
}

/// Writes a run of one block, with these holders, and brings it to life. What leads to it is the caller's.
fn write_run(shard: &Shard, run: u32, mut f: Fields, content: ContentHash, holders: &[u32]) {
    let header = shard.header(run);
    shard.arena.contents(f.base, 1)[0].store(content.0, Ordering::Relaxed);
    let holders: Vec<_> = holders.iter().map(|&slot| Entry { slot, cut: 1, private: false }).collect();
    let installed = shard.install_new(&mut Scratch::default().drafts, header, &mut f, &holders);
    installed.expect("entries need no block");
    drop(header.version().revive());
}

/// How many blocks of a chain somebody has, to a lookup, and the sum of the slots of whom it saw there; `None` when it gave up.
fn depth_of(shard: &Shard, chain: &[ContentHash], who: Who) -> Option<(u32, u32)> {
    let mut survivor = Survivor { who, depth: 0, slots: 0, left: true };
    let walked = walk(shard, chain, &mut survivor, &mut Found::default());
    (walked.outcome == Outcome::Exact).then_some((survivor.depth, survivor.slots))
}

/// Whom a walk follows.
#[derive(Clone, Copy)]
enum Who {
    /// One holder.
    Slot(u32),
    /// Anybody, and at each run anybody else.
    Anybody,
}

struct Survivor {
    who: Who,
    depth: u32,
    slots: u32,
    left: bool,
}

impl Survivors for Survivor {
    fn begin(&mut self) {
        (self.depth, self.slots, self.left) = (0, 0, true);
    }
    fn enter(&mut self, stretch: &Stretch<'_>, _found: &mut Found) -> bool {
        let (shard, header, fields) = (stretch.shard, stretch.header, stretch.fields);
        let cut = match self.who {
            Who::Slot(slot) => shard.cut(header, fields, slot).0,
            Who::Anybody => {
                let mut furthest = 0;
                shard.each_holder(header, fields, |entry| {
                    furthest = entry.cut.max(furthest);
                    self.slots += entry.slot;
                });
                furthest
            }
        };
        self.depth = stretch.depth + cut.min(stretch.matched);
        self.left = cut >= stretch.matched;
        self.left
    }
    fn finish(&mut self, _depth: u32, _found: &mut Found) {}
    fn ended(&self, _found: &Found) -> usize {
        usize::from(!self.left)
    }
    fn cut_off(&mut self, _ended: usize, depth: u32, _found: &mut Found) {
        self.depth = self.depth.min(depth);
    }
}
