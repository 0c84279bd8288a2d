//! Runs that may be merged.

use super::{CONTENTS, Who, depth_of, shard, write_run};
use crate::alloc::GRANULE;
use crate::lane::work::{Counts, Scratch};
use crate::layout::{Entry, Fields, ROOT};
use crate::shard::Shard;
use crate::sync::Ordering;

const FIRST_RUN: u32 = 1;
const SECOND_RUN: u32 = 2;
const THIRD_RUN: u32 = 3;

/// A run that was cut, in a shard of its own: each part is one block. Holder 0 has all blocks, holder 1 the first.
pub struct Halves {
    shard: Shard,
    /// Position of the second block.
    second: u32,
}

impl Halves {
    /// So many parts at some place: the second one begins at this position.
    fn new(second: u32, parts: u32) -> Self {
        let shard = shard();
        let arena = &shard.arena;
        for part in 0..parts {
            let (run, base) = (FIRST_RUN + part, second - 1 + part);
            let next = if part + 1 < parts { run + 1 } else { 0 };
            let cap = if next == 0 { GRANULE - base % GRANULE } else { 1 };
            let parent = if part == 0 { ROOT } else { base - 1 };
            let f = Fields { base, parent, next, ext: 0, len: 1, cap, holders: 0, flags: 0 };
            write_run(&shard, run, f, CONTENTS[part as usize], if part == 0 { &[0, 1] } else { &[0] });
            shard.kids.add(arena, parent);
        }
        arena.owner(second / GRANULE).store(SECOND_RUN, Ordering::Relaxed);
        arena.owner((second - 1) / GRANULE).store(FIRST_RUN, Ordering::Relaxed);
        Self { shard, second }
    }

    /// Halves that a lookup finds: both are in one granule.
    pub fn linked() -> Self {
        let halves = Self::new(GRANULE + 1, 2);
        let shard = &halves.shard;
        let hash = shard.edge_hash(ROOT, CONTENTS[0].0);
        shard.edge.insert(0, hash, FIRST_RUN, 1, &|run, granule| shard.rehash(run, granule));
        halves
    }

    /// Halves with a granule each, so that a lane finds the second one by its owner.
    pub fn apart() -> Self {
        Self::new(2 * GRANULE, 2)
    }

    /// The same with a third part behind the second.
    pub fn thirds() -> Self {
        Self::new(2 * GRANULE, 3)
    }

    /// A lane makes the first two one, if no other is in the way; whether it did.
    pub fn merge(&self) -> bool {
        self.shard.merge(SECOND_RUN, &mut Scratch::default(), &mut Counts::default()).is_some()
    }

    /// The same of the second and the third.
    pub fn merge_third(&self) -> bool {
        self.shard.merge(THIRD_RUN, &mut Scratch::default(), &mut Counts::default()).is_some()
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

    /// Whether a holder has a block, counted from 0, to a lane; nobody has one that is in no run.
    pub fn holds(&self, slot: u32, block: u32) -> bool {
        let there = self.shard.locate_once(self.second - 1 + block);
        there
            .is_some_and(|(sight, offset)| self.shard.cut(self.shard.header(sight.run), &sight.fields, slot).0 > offset)
    }

    /// How many of the first two blocks a holder has, to a lookup; `None` when it gave up.
    pub fn depth(&self, slot: u32) -> Option<u32> {
        depth_of(&self.shard, &CONTENTS[..2], Who::Slot(slot)).map(|(depth, _)| depth)
    }
}
