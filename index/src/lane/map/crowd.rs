//! The side maps: entries that found no room within reach of their home, by owner. Empty but for crowds of equal hashes,
//! such as many holders with the same private names.

use crate::hash::{HashKey, IntMap, shrink};

/// Owner -> name -> slot.
pub(crate) struct Crowd {
    owners: IntMap<u32, IntMap<u64, u32>>,
    len: usize,
    key: HashKey,
}

impl Crowd {
    pub fn new(key: HashKey) -> Self {
        Self { owners: IntMap::with_hasher(key), len: 0, key }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// About the bytes of the maps: an entry and its control byte, at seven eighths of the buckets.
    pub fn bytes(&self) -> u64 {
        const BUCKET: usize = size_of::<(u64, u32)>() + 1;
        if self.owners.is_empty() {
            return 0;
        }
        self.owners.values().map(|names| (names.capacity() * BUCKET) as u64 * 8 / 7).sum()
    }

    #[cold]
    pub fn get(&self, owner: u32, name: u64) -> Option<u32> {
        self.owners.get(&owner)?.get(&name).copied()
    }

    #[cold]
    pub fn insert(&mut self, owner: u32, name: u64, slot: u32) {
        let names = self.owners.entry(owner).or_insert_with(|| IntMap::with_hasher(self.key));
        let there = names.insert(name, slot);
        debug_assert!(there.is_none(), "an owner has a name once");
        self.len += 1;
    }

    /// Takes `name -> slot` of an owner out; whether it was there.
    #[cold]
    pub fn remove(&mut self, owner: u32, name: u64, slot: u32) -> bool {
        let Some(names) = self.owners.get_mut(&owner) else { return false };
        if names.get(&name) != Some(&slot) {
            return false;
        }
        names.remove(&name);
        self.len -= 1;
        if names.is_empty() {
            self.owners.remove(&owner);
            shrink(&mut self.owners);
        } else {
            shrink(names);
        }
        true
    }

    /// Every entry: owner, name, slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64, u32)> {
        self.owners.iter().flat_map(|(&owner, names)| names.iter().map(move |(&name, &slot)| (owner, name, slot)))
    }
}
