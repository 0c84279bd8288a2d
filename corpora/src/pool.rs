//! The block pool of a mock worker: what it holds, what of that is in use, and what goes next.
//!
//! A block is in use as long as a request has it pinned. When its last request ends it goes to the young end of one list; the
//! old end is evicted first. Requests give their blocks back tail first, so a chain is evicted tail first.

use crate::random::{Random, mix};
use hashbrown::HashTable;

/// No place in the list.
const NONE: u32 = u32::MAX;
/// How often a random eviction looks for a block that is not in use before it takes the oldest.
const TRIES: u32 = 16;

#[derive(Clone, Copy)]
struct Block {
    /// What it holds; meaningless while the block is free.
    node: u32,
    older: u32,
    younger: u32,
    /// Requests that use it; `FREE` when it holds nothing.
    pins: u32,
}

const FREE: u32 = u32::MAX;

/// One worker's blocks. A node is a block of content at its place in the corpus's tree.
pub(crate) struct Pool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    places: HashTable<u32>,
    oldest: u32,
    youngest: u32,
    capacity: u32,
    /// Blocks promised to running requests that they did not fill yet.
    reserved: u32,
}

fn hash(node: u32) -> u64 {
    mix(0, u64::from(node))
}

impl Pool {
    pub fn new(capacity: u32) -> Self {
        let (blocks, free, places) = (Vec::new(), Vec::new(), HashTable::new());
        Self { blocks, free, places, oldest: NONE, youngest: NONE, capacity, reserved: 0 }
    }

    /// Blocks held.
    pub fn held(&self) -> u32 {
        self.places.len() as u32
    }

    /// Whether so many blocks could be added, if need be by evicting all that is not in use.
    pub fn can_take(&self, blocks: u32) -> bool {
        u64::from(self.reserved) + u64::from(blocks) <= u64::from(self.capacity)
    }

    /// Blocks that have to go before `blocks` more can be promised.
    pub fn excess(&self, blocks: u32) -> u32 {
        (u64::from(self.held()) + u64::from(self.reserved) + u64::from(blocks)).saturating_sub(u64::from(self.capacity))
            as u32
    }

    /// Promises blocks to a request.
    pub fn reserve(&mut self, blocks: u32) {
        self.reserved += blocks;
    }

    /// The block that holds a node.
    pub fn find(&self, node: u32) -> Option<u32> {
        self.places.find(hash(node), |&place| self.blocks[place as usize].node == node).copied()
    }

    /// Fills a promised block with a node, pinned by its request.
    pub fn fill(&mut self, node: u32) -> u32 {
        self.reserved -= 1;
        let block = Block { node, older: NONE, younger: NONE, pins: 1 };
        let place = match self.free.pop() {
            Some(place) => {
                self.blocks[place as usize] = block;
                place
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        };
        let blocks = &self.blocks;
        self.places.insert_unique(hash(node), place, |&place| hash(blocks[place as usize].node));
        place
    }

    /// Keeps a block while one more request uses it.
    pub fn pin(&mut self, place: u32) {
        if self.blocks[place as usize].pins == 0 {
            self.unlink(place);
        }
        self.blocks[place as usize].pins += 1;
    }

    /// A request is done with a block; the last one puts it at the young end.
    pub fn unpin(&mut self, place: u32) {
        let block = &mut self.blocks[place as usize];
        block.pins -= 1;
        if block.pins > 0 {
            return;
        }
        (block.older, block.younger) = (self.youngest, NONE);
        match self.youngest {
            NONE => self.oldest = place,
            youngest => self.blocks[youngest as usize].younger = place,
        }
        self.youngest = place;
    }

    /// Evicts the oldest block, or any that is not in use, and says what it held. `None` when all are in use.
    pub fn evict(&mut self, random: Option<&mut Random>) -> Option<u32> {
        let any = random.and_then(|random| {
            let tries = (0..TRIES).map(|_| random.below(self.blocks.len() as u64) as u32);
            tries.into_iter().find(|&place| self.blocks[place as usize].pins == 0)
        });
        let place = any.unwrap_or(self.oldest);
        if place == NONE {
            return None;
        }
        self.unlink(place);
        let node = self.blocks[place as usize].node;
        if let Ok(entry) = self.places.find_entry(hash(node), |&other| other == place) {
            entry.remove();
        }
        self.blocks[place as usize].pins = FREE;
        self.free.push(place);
        Some(node)
    }

    fn unlink(&mut self, place: u32) {
        let Block { older, younger, .. } = self.blocks[place as usize];
        match older {
            NONE => self.oldest = younger,
            older => self.blocks[older as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            younger => self.blocks[younger as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(nodes: std::ops::Range<u32>) -> (Pool, Vec<u32>) {
        let mut pool = Pool::new(8);
        pool.reserve(nodes.len() as u32);
        let places = nodes.map(|node| pool.fill(node)).collect();
        (pool, places)
    }

    #[test]
    fn a_request_that_ends_is_evicted_tail_first() {
        let (mut pool, places) = filled(0..3);
        assert_eq!(pool.evict(None), None, "all in use");
        places.iter().rev().for_each(|&place| pool.unpin(place));
        assert_eq!([pool.evict(None), pool.evict(None)], [Some(2), Some(1)]);
        assert_eq!((pool.held(), pool.find(1), pool.find(0)), (1, None, Some(places[0])));
    }

    #[test]
    fn use_makes_young_again() {
        let (mut pool, places) = filled(0..3);
        places.iter().for_each(|&place| pool.unpin(place));
        pool.pin(places[0]);
        pool.unpin(places[0]);
        assert_eq!(pool.evict(None), Some(1));
    }

    #[test]
    fn promises_count_as_held() {
        let (mut pool, _) = filled(0..3);
        pool.reserve(4);
        assert_eq!((pool.excess(1), pool.excess(2)), (0, 1));
        assert_eq!(pool.fill(9), 3);
        assert_eq!(pool.excess(1), 0, "a promise kept is no promise any more");
        assert!(!pool.can_take(9));
    }

    #[test]
    fn random_evictions_leave_blocks_in_use_alone() {
        let (mut pool, places) = filled(0..8);
        places[4..].iter().for_each(|&place| pool.unpin(place));
        let mut random = Random::new(3);
        let evicted: Vec<_> = (0..4).filter_map(|_| pool.evict(Some(&mut random))).collect();
        assert!(evicted.len() == 4 && evicted.iter().all(|&node| node >= 4), "{evicted:?}");
        assert_eq!(pool.evict(Some(&mut random)), None);
    }
}
