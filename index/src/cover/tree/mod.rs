//! Ordered sets of 32-bit keys in holder blocks: B+ trees whose nodes are one block, two cache lines.
//!
//! ```text
//! node, 16 words:  0     keys or children : 8 | height : 8
//! height 0         1-15  30 x u32 key, ascending
//! above            1-15  15 x (child : 32 | least key that belongs to it : 32), ascending; the first child takes all below
//! ```
//!
//! Changes happen inside an odd window, or in a tree that is not published; they take the blocks that they need from a
//! list filled before, and put those that they free on another. Reads may follow rumours: every count is cut off, and a
//! walk ends after so many blocks.

pub(crate) mod build;
pub(crate) mod edit;
#[cfg(test)]
mod tests;

use super::of_cut_key;
use crate::layout::{Arena, BLOCK, Block, Entry, half};
use crate::prefetch::read_soon;
use crate::sync::{AtomicU64, Ordering};

/// Keys of a leaf.
pub(crate) const KEYS: usize = 30;
/// Children of an inner node.
const CHILDREN: usize = 15;
/// Levels above the leaves, at most: seven children a node would need eight for all slots that there are.
const HEIGHT_MAX: usize = 10;

#[inline]
fn words(arena: &Arena, id: u32) -> &[AtomicU64; BLOCK] {
    let block: Block<'_> = arena.block(id);
    block.words()
}

/// (keys or children, height); a rumour is cut off.
#[inline]
fn head(node: &[AtomicU64]) -> (usize, usize) {
    let word = node[0].load(Ordering::Relaxed);
    let height = (word >> 8 & 0xff) as usize;
    ((word as usize & 0xff).min(if height == 0 { KEYS } else { CHILDREN }), height.min(HEIGHT_MAX))
}

fn set_head(node: &[AtomicU64], count: usize, height: usize) {
    node[0].store((count | height << 8) as u64, Ordering::Relaxed);
}

/// The keys of a leaf; what is beyond its count is worth nothing. All words are read, as a loop that ends at any number of
/// them costs more.
#[inline]
fn keys(node: &[AtomicU64; BLOCK]) -> [u32; KEYS] {
    let mut keys = [0; KEYS];
    for (two, word) in keys.as_chunks_mut().0.iter_mut().zip(&node[1..]) {
        let word = word.load(Ordering::Relaxed);
        *two = [word as u32, (word >> 32) as u32];
    }
    keys
}

fn put_keys(node: &[AtomicU64], from: usize, keys: &[u32]) {
    for (i, two) in keys.chunks(2).enumerate().skip(from / 2) {
        let word = u64::from(two[0]) | two.get(1).map_or(0, |&k| u64::from(k) << 32);
        node[1 + i].store(word, Ordering::Relaxed);
    }
    set_head(node, keys.len(), 0);
}

#[inline]
fn child(node: &[AtomicU64], i: usize) -> (u32, u32) {
    let word = node[1 + i].load(Ordering::Relaxed);
    ((word >> 32) as u32, word as u32)
}

fn children(node: &[AtomicU64], count: usize) -> Children {
    let mut all = Children { of: [(0, 0); CHILDREN + 1], len: count };
    (0..count).for_each(|i| all.of[i] = child(node, i));
    all
}

/// Children of a node and one more.
struct Children {
    of: [(u32, u32); CHILDREN + 1],
    len: usize,
}

impl Children {
    fn insert(&mut self, at: usize, pair: (u32, u32)) {
        self.of.copy_within(at..self.len, at + 1);
        self.of[at] = pair;
        self.len += 1;
    }
    fn remove(&mut self, at: usize) {
        self.of.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }
}

fn put_children(node: &[AtomicU64], height: usize, pairs: &[(u32, u32)]) {
    for (word, &(low, id)) in node[1..].iter().zip(pairs) {
        word.store(u64::from(low) << 32 | u64::from(id), Ordering::Relaxed);
    }
    set_head(node, pairs.len(), height);
}

/// The child that a key belongs to.
#[inline]
fn way(node: &[AtomicU64], count: usize, key: u32) -> usize {
    (1..count).take_while(|&i| child(node, i).0 <= key).count()
}

/// The entries of a tree by cutoff that is one leaf, in their order.
#[inline]
pub(crate) fn leaf(arena: &Arena, root: u32) -> impl DoubleEndedIterator<Item = Entry> {
    let node = words(arena, root);
    let count = if root == 0 { 0 } else { head(node).0 };
    (0..count).map(|i| of_cut_key(half(&node[1..], i)))
}

/// Keys of a tree that is one leaf.
#[inline]
pub(super) fn leaf_len(arena: &Arena, root: u32) -> usize {
    if root == 0 { 0 } else { head(words(arena, root)).0 }
}

/// Where the key of a slot stands in a tree by cutoff that is one leaf, and what it says. Two keys at a time: most holders of a run
/// are looked at only to see that they are another one.
#[inline]
pub(crate) fn seat_of(arena: &Arena, root: u32, slot: u32) -> Option<(u8, Entry)> {
    const SLOTS: u64 = 0x003f_fffe_003f_fffe;
    const TOPS: u64 = 0x8000_0000_8000_0000;
    if root == 0 {
        return None;
    }
    let node = words(arena, root);
    let (count, wanted) = (head(node).0, u64::from(slot << 1) * 0x1_0000_0001);
    for (i, word) in node[1..].iter().take(count.div_ceil(2)).enumerate() {
        let word = word.load(Ordering::Relaxed);
        // A half that differs keeps its top bit when one is taken away.
        let differ = (((word ^ wanted) & SLOTS | TOPS) - (TOPS >> 31)) & TOPS;
        if differ != TOPS {
            let second = differ as u32 == TOPS as u32;
            let at = 2 * i + usize::from(second);
            let key = if second { word >> 32 } else { word } as u32;
            return (at < count).then(|| (at as u8, of_cut_key(key)));
        }
    }
    None
}

/// The least key that is not below `key`.
#[inline]
pub(crate) fn at_least(arena: &Arena, root: u32, key: u32) -> Option<u32> {
    let (mut id, mut next) = (root, None);
    if root == 0 {
        return None;
    }
    for _ in 0..=HEIGHT_MAX {
        let node = words(arena, id);
        let (count, height) = head(node);
        if height == 0 {
            let all = keys(node);
            let at = all[..count].partition_point(|&k| k < key);
            return if at < count { Some(all[at]) } else { next.and_then(|id| least(arena, id)) };
        }
        let at = way(node, count, key);
        id = child(node, at).1;
        if at + 1 < count {
            next = Some(child(node, at + 1).1);
        }
    }
    None
}

fn least(arena: &Arena, id: u32) -> Option<u32> {
    let mut id = id;
    for _ in 0..=HEIGHT_MAX {
        let node = words(arena, id);
        let (count, height) = head(node);
        if height == 0 {
            return (count > 0).then(|| half(&node[1..], 0));
        }
        id = child(node, 0).1;
    }
    None
}

/// Calls `see` with the keys of every leaf, ascending. Ends after `budget` blocks.
#[inline]
pub(crate) fn each_leaf(arena: &Arena, root: u32, budget: u32, see: &mut impl FnMut(&[u32])) {
    if root != 0 {
        let mut left = budget;
        leaves_below(arena, root, HEIGHT_MAX, &mut left, see);
    }
}

fn leaves_below(arena: &Arena, id: u32, levels: usize, budget: &mut u32, see: &mut impl FnMut(&[u32])) {
    if *budget == 0 {
        return;
    }
    *budget -= 1;
    let node = words(arena, id);
    let (count, height) = head(node);
    if height == 0 || levels == 0 {
        return see(&keys(node)[..count.min(KEYS)]);
    }
    for i in 0..count {
        if i + 1 < count {
            let next = words(arena, child(node, i + 1).1);
            read_soon(&next[0]);
            read_soon(&next[8]);
        }
        leaves_below(arena, child(node, i).1, levels - 1, budget, see);
    }
}

/// Calls `see` with keys descending, until it says false. Ends after `budget` blocks. Whether it went through.
pub(crate) fn each_back(arena: &Arena, root: u32, budget: u32, see: &mut impl FnMut(u32) -> bool) -> bool {
    let mut left = budget;
    root == 0 || back_below(arena, root, HEIGHT_MAX, &mut left, see)
}

fn back_below(arena: &Arena, id: u32, levels: usize, budget: &mut u32, see: &mut impl FnMut(u32) -> bool) -> bool {
    if *budget == 0 {
        return true;
    }
    *budget -= 1;
    let node = words(arena, id);
    let (count, height) = head(node);
    if height == 0 || levels == 0 {
        return keys(node)[..count].iter().rev().all(|&key| see(key));
    }
    (0..count).rev().all(|i| back_below(arena, child(node, i).1, levels - 1, budget, see))
}

/// Calls `see` with every block of a tree. Only where nobody changes it.
pub(crate) fn each_block(arena: &Arena, root: u32, see: &mut impl FnMut(u32)) {
    if root == 0 {
        return;
    }
    let node = words(arena, root);
    let (count, height) = head(node);
    if height > 0 {
        (0..count).for_each(|i| each_block(arena, child(node, i).1, see));
    }
    see(root);
}
