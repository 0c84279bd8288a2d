//! The product's own shared structures as loom models use them (`--cfg loom` only): each with what surrounds it in the
//! product cut down to a few words.

use crate::edge::{Check, Edge, Found};
use crate::place::Site;
use crate::slots::RankSlots;
use crate::types::RankKey;

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
        matches!(self.edge.find(self.hashes[run as usize], check), Found::Hit(()))
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
