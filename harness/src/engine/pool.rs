//! The KV pool of a mock engine: a fixed number of blocks with reference counts. What is released stays cached until its block is
//! wanted for something else, least recently released first.
//!
//! A request releases its blocks tail first, so a chain is evicted from its end. Equal content that was computed twice has two
//! blocks (copies); the engine finds the one that was cached first, and both count until both are evicted.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// An engine's name of a block: a hash over its content and every block before it.
pub type Name = u64;

/// Number of a physical block.
pub type BlockId = u32;

const NONE: BlockId = BlockId::MAX;

/// Names are hashes already.
#[derive(Default)]
pub struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}

type ByName<V> = HashMap<Name, V, BuildHasherDefault<NameHasher>>;

#[derive(Clone, Copy)]
struct Block {
    /// What is cached in it.
    name: Option<Name>,
    /// Requests that use it.
    users: u32,
    /// Neighbours in the list of free blocks.
    before: BlockId,
    after: BlockId,
    /// The next copy of the same name, in the order in which they were cached.
    copy: BlockId,
}

/// The pool.
pub struct Pool {
    blocks: Vec<Block>,
    /// The first copy of each cached name.
    cached: ByName<BlockId>,
    /// Least and most recently released.
    oldest: BlockId,
    newest: BlockId,
    free: u32,
}

impl Pool {
    /// Blocks that are all free and hold nothing.
    pub fn new(blocks: u32) -> Self {
        let empty = Block { name: None, users: 0, before: NONE, after: NONE, copy: NONE };
        let mut pool = Self {
            blocks: vec![empty; blocks as usize],
            cached: ByName::default(),
            oldest: NONE,
            newest: NONE,
            free: 0,
        };
        (0..blocks).for_each(|block| pool.link(block));
        pool
    }

    /// Blocks.
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether there is not a single block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that no request uses; what is cached in them counts as free.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// The block that has this name cached.
    pub fn find(&self, name: Name) -> Option<BlockId> {
        self.cached.get(&name).copied()
    }

    /// Whether no request uses a block.
    pub fn is_idle(&self, block: BlockId) -> bool {
        self.blocks[block as usize].users == 0
    }

    /// One more request uses a block.
    pub fn use_cached(&mut self, block: BlockId) {
        if self.is_idle(block) {
            self.unlink(block);
        }
        self.blocks[block as usize].users += 1;
    }

    /// A block for one request, the least recently released; what it had cached goes to `evicted`. `None`: all are in use.
    pub fn take(&mut self, evicted: &mut Vec<Name>) -> Option<BlockId> {
        let block = self.oldest;
        if block == NONE {
            return None;
        }
        self.unlink(block);
        evicted.extend(self.forget(block));
        self.blocks[block as usize].users = 1;
        Some(block)
    }

    /// What was computed into a block in use is cached under this name from now on.
    pub fn publish(&mut self, block: BlockId, name: Name) {
        self.blocks[block as usize].name = Some(name);
        let mut at = *self.cached.entry(name).or_insert(block);
        if at == block {
            return;
        }
        while self.blocks[at as usize].copy != NONE {
            at = self.blocks[at as usize].copy;
        }
        self.blocks[at as usize].copy = block;
    }

    /// A request does not use a block any more.
    pub fn release(&mut self, block: BlockId) {
        let users = &mut self.blocks[block as usize].users;
        *users -= 1;
        if *users == 0 {
            self.link(block);
        }
    }

    /// Evicts what is cached in so many of the free blocks, least recently released first.
    pub fn evict(&mut self, mut count: u32, evicted: &mut Vec<Name>) {
        let mut block = self.oldest;
        while block != NONE && count > 0 {
            let name = self.forget(block);
            count -= u32::from(name.is_some());
            evicted.extend(name);
            block = self.blocks[block as usize].after;
        }
    }

    /// Nothing is cached any more. Blocks in use stay in use.
    pub fn clear(&mut self) {
        self.cached.clear();
        self.blocks.iter_mut().for_each(|block| (block.name, block.copy) = (None, NONE));
    }

    /// Every cached name with the number of its copies, in no order.
    pub fn names(&self) -> impl Iterator<Item = (Name, u32)> + '_ {
        self.cached.iter().map(|(name, first)| {
            let next = |block: &BlockId| Some(self.blocks[*block as usize].copy).filter(|copy| *copy != NONE);
            (*name, std::iter::successors(Some(*first), next).count() as u32)
        })
    }

    /// Checks that every block is in the list of free ones or in use, and every cached name where it should be.
    ///
    /// # Panics
    /// If that is not so.
    pub fn check(&self) {
        let mut listed = 0;
        let (mut block, mut before) = (self.oldest, NONE);
        while block != NONE {
            let Block { users, before: b, after, .. } = self.blocks[block as usize];
            assert_eq!((users, b), (0, before), "free block {block}");
            (before, block) = (block, after);
            listed += 1;
        }
        assert_eq!((listed, before), (self.free, self.newest));
        let idle = self.blocks.iter().filter(|block| block.users == 0).count();
        assert_eq!(idle as u32, self.free);
        let named = self.blocks.iter().filter(|block| block.name.is_some()).count();
        assert_eq!(named as u32, self.names().map(|(_, copies)| copies).sum::<u32>());
    }

    fn forget(&mut self, block: BlockId) -> Option<Name> {
        let Block { name, copy, .. } = self.blocks[block as usize];
        let name = name?;
        (self.blocks[block as usize].name, self.blocks[block as usize].copy) = (None, NONE);
        let mut at = self.cached[&name];
        if at != block {
            while self.blocks[at as usize].copy != block {
                at = self.blocks[at as usize].copy;
            }
            self.blocks[at as usize].copy = copy;
        } else if copy == NONE {
            self.cached.remove(&name);
        } else {
            self.cached.insert(name, copy);
        }
        Some(name)
    }

    fn link(&mut self, block: BlockId) {
        (self.blocks[block as usize].before, self.blocks[block as usize].after) = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = block,
            newest => self.blocks[newest as usize].after = block,
        }
        self.newest = block;
        self.free += 1;
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { before, after, .. } = self.blocks[block as usize];
        match before {
            NONE => self.oldest = after,
            before => self.blocks[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.blocks[after as usize].before = before,
        }
        self.free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &mut Pool) -> (BlockId, Vec<Name>) {
        let mut evicted = Vec::new();
        let block = pool.take(&mut evicted).expect("a free block");
        (block, evicted)
    }

    #[test]
    fn what_was_released_first_is_evicted_first() {
        let mut pool = Pool::new(3);
        let blocks: Vec<_> = (0..3).map(|_| take(&mut pool).0).collect();
        blocks.iter().zip([10, 11, 12]).for_each(|(block, name)| pool.publish(*block, name));
        // Tail first: so the tail is the first to go.
        blocks.iter().rev().for_each(|block| pool.release(*block));
        pool.check();
        assert_eq!(take(&mut pool).1, [12]);
        pool.use_cached(pool.find(10).unwrap());
        assert_eq!(take(&mut pool).1, [11]);
        assert_eq!(pool.take(&mut Vec::new()), None, "the last one is in use");
        assert_eq!((pool.find(10), pool.find(11)), (Some(blocks[0]), None));
        pool.check();
    }

    #[test]
    fn copies_of_a_name_are_held_one_by_one() {
        let mut pool = Pool::new(4);
        let blocks: Vec<_> = (0..3).map(|_| take(&mut pool).0).collect();
        blocks.iter().for_each(|block| pool.publish(*block, 7));
        assert_eq!(pool.names().collect::<Vec<_>>(), [(7, 3)]);
        [1, 0, 2].iter().for_each(|at| pool.release(blocks[*at]));
        assert_eq!(take(&mut pool).1, [] as [Name; 0], "the block that was never used");
        assert_eq!((take(&mut pool).1, pool.find(7)), (vec![7], Some(blocks[0])));
        assert_eq!((take(&mut pool).1, pool.find(7)), (vec![7], Some(blocks[2])));
        pool.check();
        assert_eq!((take(&mut pool).1, pool.find(7)), (vec![7], None));
        pool.check();
    }

    #[test]
    fn clearing_and_evicting_leave_blocks_in_use_where_they_are() {
        let mut pool = Pool::new(4);
        let blocks: Vec<_> = (0..4).map(|_| take(&mut pool).0).collect();
        blocks.iter().zip(1..).for_each(|(block, name)| pool.publish(*block, name));
        blocks[1..].iter().for_each(|block| pool.release(*block));
        let mut evicted = Vec::new();
        pool.evict(2, &mut evicted);
        assert_eq!((evicted, pool.free()), (vec![2, 3], 3));
        pool.check();
        pool.clear();
        assert_eq!((pool.names().count(), pool.free()), (0, 3));
        pool.release(blocks[0]);
        pool.check();
    }
}
