//! The product's own shared structures as loom models use them (`--cfg loom` only): each with what surrounds it in the
//! product cut down to a few words.

use crate::alloc::GRANULE;
use crate::config::IndexConfig;
use crate::edge::{self, Check, Edge};
use crate::index::Index;
use crate::lane::Lane;
use crate::lane::work::{Counts, Scratch};
use crate::layout::{Entry, Fields, ROOT};
use crate::place::Site;
use crate::read::found::Found;
use crate::read::walk::{Stretch, Survivors, walk};
use crate::shard::Shard;
use crate::slots::RankSlots;
use crate::sync::Ordering;
use crate::types::{ContentHash, Outcome, RankKey};
use std::sync::Arc;

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

/// A run that was cut in two, in a shard of its own: each half is one block. Holder 0 has both blocks, holder 1 the first.
pub struct Halves {
    shard: Shard,
    /// Position of the second block.
    second: u32,
}

const FIRST_RUN: u32 = 1;
const SECOND_RUN: u32 = 2;
const CONTENTS: [ContentHash; 2] = [ContentHash(7), ContentHash(8)];

impl Halves {
    /// The halves at some place: the second one begins at this position.
    fn new(second: u32) -> Self {
        let config = IndexConfig {
            ranks_max: 1,
            blocks_max: 4 * GRANULE,
            runs_max: 4,
            exts_max: 1,
            hash_key: Some([3, 4]),
            ..IndexConfig::default()
        };
        let shard = Shard::new(&config, 0).expect("memory of loom's");
        let arena = &shard.arena;
        let run = |run, base, parent, next, holders: &[u32]| {
            let header = shard.header(run);
            let cap = if next == 0 { GRANULE - base % GRANULE } else { 1 };
            let mut f = Fields { base, parent, next, ext: 0, len: 1, cap, holders: 0, flags: 0 };
            let holders: Vec<_> = holders.iter().map(|&slot| Entry { slot, cut: 1, private: false }).collect();
            let installed = shard.install_new(&mut Scratch::default().drafts, header, &mut f, &holders);
            installed.expect("entries need no block");
            drop(header.version().revive());
        };
        for (position, content) in [second - 1, second].into_iter().zip(CONTENTS) {
            arena.contents(position, 1)[0].store(content.0, Ordering::Relaxed);
        }
        run(FIRST_RUN, second - 1, ROOT, SECOND_RUN, &[0, 1]);
        run(SECOND_RUN, second, second - 1, 0, &[0]);
        arena.owner(second / GRANULE).store(SECOND_RUN, Ordering::Relaxed);
        arena.owner((second - 1) / GRANULE).store(FIRST_RUN, Ordering::Relaxed);
        shard.kids.add(arena, second - 1);
        Self { shard, second }
    }

    /// Halves that a lookup finds: both are in one granule.
    pub fn linked() -> Self {
        let halves = Self::new(GRANULE + 1);
        let shard = &halves.shard;
        let hash = shard.edge_hash(ROOT, CONTENTS[0].0);
        shard.edge.insert(0, hash, FIRST_RUN, 1, &|run, granule| shard.rehash(run, granule));
        halves
    }

    /// Halves with a granule each, so that a lane finds the second one by its owner.
    pub fn apart() -> Self {
        Self::new(2 * GRANULE)
    }

    /// A lane makes them one, if no other is in the way; whether it did.
    pub fn merge(&self) -> bool {
        self.shard.merge(SECOND_RUN, &mut Scratch::default(), &mut Counts::default()).is_some()
    }

    /// Holder 1 holds the second block from now on, as another lane joins it to the run that it finds there.
    pub fn join(&self) {
        loop {
            let (sight, offset) = self.shard.locate(self.second);
            let Some(mut held) = self.shard.lock_at(&sight, &mut Counts::default()) else { continue };
            let entry = Entry { slot: 1, cut: offset + 1, private: false };
            let drafts = &mut Scratch::default().drafts;
            let set = self.shard.set_cut(drafts, &mut held.lock, held.header, &mut held.f, entry);
            return set.expect("an entry needs no block");
        }
    }

    /// Whether a holder has the second block, to a lane.
    pub fn holds(&self, slot: u32) -> bool {
        let (sight, offset) = self.shard.locate(self.second);
        self.shard.cut(self.shard.header(sight.run), &sight.fields, slot).0 > offset
    }

    /// How many of the blocks a holder has, to a lookup; `None` when it gave up.
    pub fn depth(&self, slot: u32) -> Option<u32> {
        let mut survivor = Survivor { slot, depth: 0, left: true };
        let walked = walk(&self.shard, &CONTENTS, &mut survivor, &mut Found::default());
        (walked.outcome == Outcome::Exact).then_some(survivor.depth)
    }
}

/// One holder, followed by a walk.
struct Survivor {
    slot: u32,
    depth: u32,
    left: bool,
}

impl Survivors for Survivor {
    fn begin(&mut self) {
        (self.depth, self.left) = (0, true);
    }
    fn enter(&mut self, stretch: &Stretch<'_>, _found: &mut Found) -> bool {
        let (cut, _) = stretch.shard.cut(stretch.header, stretch.fields, self.slot);
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
