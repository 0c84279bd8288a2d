//! The side map: entries that found no room within reach of their home. Empty but for crowds of equal hashes, such as many
//! holders with the same private names, and for very few strays of a full map.
//!
//! Ordered by the hash, so that it tells whether a home has any entry here: a home is marked if and only if it has.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// (hash of the name, owner, slot).
pub(crate) struct Crowd(BTreeSet<(u64, u32, u32)>);

impl Crowd {
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// About the bytes of the tree: its nodes are two thirds full.
    pub fn bytes(&self) -> u64 {
        (self.len() * size_of::<(u64, u32, u32)>()) as u64 * 3 / 2
    }

    /// The slot of an owner's name with this hash of which `is` says that it is the one.
    #[cold]
    pub fn get(&self, hash: u64, owner: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.0.range((hash, owner, 0)..=(hash, owner, u32::MAX)).map(|entry| entry.2).find(|&slot| is(slot))
    }

    #[cold]
    pub fn insert(&mut self, hash: u64, owner: u32, slot: u32) {
        let new = self.0.insert((hash, owner, slot));
        debug_assert!(new, "slot {slot:x} stands here once");
    }

    /// Takes an entry out; whether it was there.
    #[cold]
    pub fn remove(&mut self, hash: u64, owner: u32, slot: u32) -> bool {
        self.0.remove(&(hash, owner, slot))
    }

    /// Whether any entry has a hash of this range.
    #[cold]
    pub fn any(&self, hashes: RangeInclusive<u64>) -> bool {
        self.first(hashes).is_some()
    }

    /// The first entry of a range of hashes.
    #[cold]
    pub fn first(&self, hashes: RangeInclusive<u64>) -> Option<(u64, u32, u32)> {
        let (low, high) = hashes.into_inner();
        self.0.range((low, 0, 0)..=(high, u32::MAX, u32::MAX)).next().copied()
    }

    /// Every entry: hash, owner, slot.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32, u32)> {
        self.0.iter().copied()
    }
}
