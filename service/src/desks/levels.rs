//! From the index's ranks to the desk's workers.

use crate::routing::{NO_RANK, Overlap, Slot};
use kvatlas_index::{Levels, RankKey, Tier};
use smallvec::SmallVec;

/// A rank's place at a desk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seat {
    pub slot: Slot,
    pub rank: u32,
}

/// The ranks of a desk by their number in the index.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Vec<Option<Seat>>);

impl Seats {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn put(&mut self, key: RankKey, seat: Seat) {
        let at = key.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(seat);
    }

    #[inline]
    fn get(&self, key: RankKey) -> Option<Seat> {
        *self.0.get(key.0 as usize)?
    }

    /// The tiers of one rank, nearest first, each with its blocks.
    pub fn tiers(&self, levels: &Levels, seat: Seat) -> SmallVec<[(Tier, u32); Tier::COUNT]> {
        let own = levels.pairs().filter(|pair| self.get(pair.rank) == Some(seat));
        let mut tiers: SmallVec<[_; Tier::COUNT]> = own.map(|pair| (pair.tier, pair.blocks)).collect();
        tiers.sort_unstable_by_key(|(tier, _)| tier.index());
        tiers
    }
}

/// What the index says, by slot. Buffers to be used again.
#[derive(Clone, Debug, Default)]
pub(super) struct Depths {
    /// Each worker's deepest rank and tier.
    pub overlap: Overlap,
    /// The number of that rank.
    pub ranks: Vec<u32>,
}

impl Depths {
    /// Nobody holds anything.
    pub fn reset(&mut self, slots: usize) {
        self.overlap.reset(slots);
        self.ranks.clear();
        self.ranks.resize(slots, NO_RANK);
    }

    /// Credits the workers of `seats` with what was found of ranks that `counts` says yes to; whether there was any. Takes time in
    /// proportion to the holders.
    pub fn credit(&mut self, seats: &Seats, levels: &Levels, counts: impl Fn(RankKey, Seat) -> bool) -> bool {
        let mut any = false;
        // Deepest first: the first that is met of a worker is its deepest.
        for pair in levels.pairs() {
            let Some(seat) = seats.get(pair.rank).filter(|seat| counts(pair.rank, *seat)) else { continue };
            let at = seat.slot as usize;
            if self.ranks.get(at) == Some(&NO_RANK) {
                self.ranks[at] = seat.rank;
                self.overlap.blocks[at] = pair.blocks;
                any = true;
            }
        }
        any
    }
}
