//! Orphans: blocks of one rank whose parent is not known yet, kept under a bound in the order they came.

use crate::hash::{HashKey, IntMap, shrink};
use crate::types::{StoreKind, Tier};
use std::collections::BTreeMap;

/// A parked block.
#[derive(Clone, Copy)]
pub(crate) struct Parked {
    pub tier: Tier,
    pub parent: u64,
    pub name: u64,
    pub content: u64,
    pub kind: StoreKind,
}

/// The parking place of a rank. Tickets count up, so the order of arrival is theirs.
pub(crate) struct Parking {
    blocks: BTreeMap<u64, Parked>,
    by_parent: IntMap<u64, Vec<u64>>,
    by_name: IntMap<u64, Vec<u64>>,
    next: u64,
    limit: usize,
}

impl Parking {
    pub fn new(key: HashKey, limit: usize) -> Self {
        let map = || IntMap::with_hasher(key);
        Self { blocks: BTreeMap::new(), by_parent: map(), by_name: map(), next: 0, limit }
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of the blocks and their lists, about: a block with its ticket, and its ticket in two lists of at least four.
    pub fn bytes(&self) -> u64 {
        let lists = (self.by_parent.capacity() + self.by_name.capacity()) * (size_of::<(u64, Vec<u64>)>() + 1) * 8 / 7;
        (self.blocks.len() * (size_of::<(u64, Parked)>() + 2 * 32) + lists) as u64
    }

    /// Parks a block; false when the place is full.
    pub fn park(&mut self, block: Parked) -> bool {
        if self.blocks.len() >= self.limit {
            return false;
        }
        let ticket = self.next;
        self.next += 1;
        self.by_parent.entry(block.parent).or_default().push(ticket);
        self.by_name.entry(block.name).or_default().push(ticket);
        self.blocks.insert(ticket, block);
        true
    }

    /// The first block that waits for `parent`, taken out.
    pub fn take_child(&mut self, parent: u64) -> Option<Parked> {
        let ticket = *self.by_parent.get(&parent)?.first()?;
        Some(self.take(ticket))
    }

    /// The latest block with this tier and name, taken out; whether there was one.
    pub fn take_name(&mut self, tier: Tier, name: u64) -> bool {
        let latest = self
            .by_name
            .get(&name)
            .and_then(|tickets| tickets.iter().rev().copied().find(|t| self.blocks[t].tier == tier));
        if let Some(ticket) = latest {
            self.take(ticket);
        }
        latest.is_some()
    }

    /// Takes out every block of a tier; how many there were.
    pub fn clear(&mut self, tier: Tier) -> u64 {
        let tickets: Vec<u64> = self.blocks.iter().filter(|(_, b)| b.tier == tier).map(|(&t, _)| t).collect();
        tickets.iter().for_each(|&t| {
            self.take(t);
        });
        tickets.len() as u64
    }

    fn take(&mut self, ticket: u64) -> Parked {
        let block = self.blocks.remove(&ticket).expect("listed tickets are parked");
        for (map, key) in [(&mut self.by_parent, block.parent), (&mut self.by_name, block.name)] {
            let tickets = map.get_mut(&key).expect("a parked block is listed");
            tickets.retain(|&t| t != ticket);
            if tickets.is_empty() {
                map.remove(&key);
                shrink(map);
            }
        }
        block
    }
}
