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

use super::change::store_half;
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
/// Blocks that one change of one tree can need or free.
const CHANGE_MAX: usize = 2 * (HEIGHT_MAX + 1);
/// A node with no more than this is joined with a neighbour, if both are then no more than three quarters full.
const SPARSE: usize = 3;

/// Blocks at hand, or on their way back.
pub(crate) struct Blocks {
    ids: [u32; 2 * CHANGE_MAX + 2],
    len: usize,
}

impl Blocks {
    pub fn none() -> Self {
        Self { ids: [0; 2 * CHANGE_MAX + 2], len: 0 }
    }
    pub fn push(&mut self, id: u32) {
        self.ids[self.len] = id;
        self.len += 1;
    }
    pub fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.ids[self.len])
    }
    fn take(&mut self) -> u32 {
        self.pop().expect("as many blocks as the change needs were taken before it")
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

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

/// Blocks that inserting a key can need: one for each full node from the leaf up, and a root.
pub(crate) fn blocks_needed(arena: &Arena, root: u32, key: u32) -> usize {
    if root == 0 {
        return 1;
    }
    let (mut id, mut full_below) = (root, 0);
    let mut all_full = true;
    loop {
        let node = words(arena, id);
        let (count, height) = head(node);
        let full = count == if height == 0 { KEYS } else { CHILDREN };
        full_below = if full { full_below + 1 } else { 0 };
        all_full &= full;
        if height == 0 {
            return full_below + usize::from(all_full);
        }
        id = child(node, way(node, count, key)).1;
    }
}

/// Adds a key that is absent. The root afterwards.
pub(crate) fn insert(arena: &Arena, root: u32, key: u32, spare: &mut Blocks) -> u32 {
    if root == 0 {
        let id = spare.take();
        put_keys(words(arena, id), 0, &[key]);
        return id;
    }
    let Some(right) = insert_in(arena, root, key, spare) else { return root };
    let top = spare.take();
    let height = head(words(arena, root)).1 + 1;
    assert!(height <= HEIGHT_MAX, "no tree of slots grows so high");
    put_children(words(arena, top), height, &[(0, root), right]);
    top
}

/// Adds a key below a node; the node that was split off, if one was.
fn insert_in(arena: &Arena, id: u32, key: u32, spare: &mut Blocks) -> Option<(u32, u32)> {
    let node = words(arena, id);
    let (count, height) = head(node);
    if height == 0 {
        let mut all = [0; KEYS + 1];
        all[..KEYS].copy_from_slice(&keys(node));
        let at = all[..count].partition_point(|&k| k < key);
        debug_assert!(at == count || all[at] != key, "an inserted key is absent");
        all.copy_within(at..count, at + 1);
        all[at] = key;
        if count < KEYS {
            put_keys(node, at, &all[..=count]);
            return None;
        }
        let (left, right) = all.split_at(KEYS / 2);
        let new = spare.take();
        put_keys(words(arena, new), 0, right);
        put_keys(node, at.min(left.len()), left);
        return Some((right[0], new));
    }
    let at = way(node, count, key);
    let split = insert_in(arena, child(node, at).1, key, spare)?;
    let mut all = children(node, count);
    all.insert(at + 1, split);
    if all.len <= CHILDREN {
        put_children(node, height, &all.of[..all.len]);
        return None;
    }
    let (left, right) = all.of.split_at(all.len / 2);
    let new = spare.take();
    put_children(words(arena, new), height, right);
    put_children(node, height, left);
    Some((right[0].0, new))
}

/// Takes a key out that is there. The root afterwards, 0 when the set is empty.
pub(crate) fn remove(arena: &Arena, root: u32, key: u32, freed: &mut Blocks) -> u32 {
    if root == 0 {
        return 0;
    }
    let mut root = root;
    if remove_in(arena, root, key, freed) == 0 {
        freed.push(root);
        return 0;
    }
    loop {
        let node = words(arena, root);
        match head(node) {
            (1, height) if height > 0 => {
                freed.push(root);
                root = child(node, 0).1;
            }
            _ => return root,
        }
    }
}

/// Takes a key out below a node; how much the node has left.
fn remove_in(arena: &Arena, id: u32, key: u32, freed: &mut Blocks) -> usize {
    let node = words(arena, id);
    let (count, height) = head(node);
    if height == 0 {
        let mut all = keys(node);
        let at = all[..count].partition_point(|&k| k < key);
        debug_assert!(at < count && all[at] == key, "a removed key is there");
        all.copy_within(at + 1..count, at);
        put_keys(node, at, &all[..count - 1]);
        return count - 1;
    }
    let at = way(node, count, key);
    let left = remove_in(arena, child(node, at).1, key, freed);
    if left > SPARSE {
        return count;
    }
    let mut all = children(node, count);
    if left == 0 {
        freed.push(all.of[at].1);
        all.remove(at);
    } else if let Some(right) = [at + 1, at].into_iter().find(|&r| r > 0 && r < count && joined(arena, &all, r)) {
        freed.push(all.of[right].1);
        all.remove(right);
    } else {
        return count;
    }
    put_children(node, height, &all.of[..all.len]);
    all.len
}

/// Joins a child with the one before it, if both fit into three quarters of a node.
fn joined(arena: &Arena, all: &Children, right: usize) -> bool {
    let (a, b) = (words(arena, all.of[right - 1].1), words(arena, all.of[right].1));
    let ((in_a, height), (in_b, _)) = (head(a), head(b));
    let room = if height == 0 { KEYS } else { CHILDREN };
    if in_a + in_b > room * 3 / 4 {
        return false;
    }
    if height == 0 {
        let (mut keys_a, keys_b) = (keys(a), keys(b));
        keys_a[in_a..in_a + in_b].copy_from_slice(&keys_b[..in_b]);
        put_keys(a, in_a, &keys_a[..in_a + in_b]);
    } else {
        let (mut of_a, mut of_b) = (children(a, in_a), children(b, in_b));
        // The first child took all below; now what is below is its neighbour's.
        of_b.of[0].0 = all.of[right].0;
        of_a.of[in_a..in_a + in_b].copy_from_slice(&of_b.of[..in_b]);
        put_children(a, height, &of_a.of[..in_a + in_b]);
    }
    true
}

/// Puts a key in the place of another in a tree of one leaf.
pub(crate) fn exchange(arena: &Arena, root: u32, old: u32, new: u32) {
    let node = words(arena, root);
    let (count, height) = head(node);
    debug_assert!(height == 0, "keys are exchanged in a leaf alone");
    let mut all = keys(node);
    let Some(at) = all[..count].iter().position(|&k| k == old) else { return };
    all[at] = new;
    all[..count].sort_unstable();
    put_keys(node, 0, &all[..count]);
}

/// The entries of a tree by cutoff that is one leaf, in their order.
#[inline]
pub(crate) fn leaf(arena: &Arena, root: u32) -> impl Iterator<Item = Entry> {
    let node = words(arena, root);
    let count = if root == 0 { 0 } else { head(node).0 };
    (0..count).map(|i| of_cut_key(half(&node[1..], i)))
}

/// Keys of a tree that is one leaf.
#[inline]
pub(super) fn leaf_len(arena: &Arena, root: u32) -> usize {
    if root == 0 { 0 } else { head(words(arena, root)).0 }
}

/// Puts a key in the place of the `i`-th of a tree that is one leaf, if it stays between its neighbours: one store, for which
/// readers need no window. Whether it did.
#[inline]
pub(super) fn shift_key(arena: &Arena, root: u32, i: usize, key: u32) -> bool {
    let node = words(arena, root);
    let (count, keys) = (head(node).0, &node[1..]);
    let between = (i == 0 || half(keys, i - 1) < key) && (i + 1 == count || key < half(keys, i + 1));
    if between {
        store_half(keys, i, key);
    }
    between
}

/// Takes the `old`-th key out of a tree that is one leaf, and puts a new one in. There is room, and a key is left.
pub(super) fn change_leaf(arena: &Arena, root: u32, old: Option<u8>, new: Option<u32>) {
    let node = words(arena, root);
    let (mut count, height) = head(node);
    debug_assert!(height == 0 && count + usize::from(new.is_some()) > usize::from(old.is_some()));
    let mut all = [0; KEYS + 1];
    all[..KEYS].copy_from_slice(&keys(node));
    let mut from = KEYS;
    if let Some(at) = old.map(usize::from) {
        all.copy_within(at + 1..count, at);
        count -= 1;
        from = at;
    }
    if let Some(key) = new {
        let at = all[..count].iter().take_while(|&&k| k < key).count();
        all.copy_within(at..count, at + 1);
        all[at] = key;
        count += 1;
        from = from.min(at);
    }
    put_keys(node, from, &all[..count]);
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

/// Keys of a leaf, and children of a node, in a tree built at once: room for changes at either side.
const BUILT_KEYS: usize = 22;
const BUILT_CHILDREN: usize = 11;

/// Blocks of a tree of so many keys built at once.
pub(crate) fn blocks_built(keys: usize) -> usize {
    let mut level = keys.div_ceil(BUILT_KEYS);
    let mut all = level;
    while level > 1 {
        level = level.div_ceil(BUILT_CHILDREN);
        all += level;
    }
    all
}

/// Builds a tree of ascending keys in blocks from `take`; its root. `level` is memory to work in.
pub(crate) fn build(arena: &Arena, keys: &[u32], level: &mut Vec<(u32, u32)>, take: &mut impl FnMut() -> u32) -> u32 {
    level.clear();
    for keys in keys.chunks(BUILT_KEYS) {
        let id = take();
        put_keys(words(arena, id), 0, keys);
        level.push((keys[0], id));
    }
    let mut height = 0;
    while level.len() > 1 {
        height += 1;
        // A node stands where the first of its children stood, or before.
        let nodes = level.len().div_ceil(BUILT_CHILDREN);
        for node in 0..nodes {
            let of = &level[node * BUILT_CHILDREN..];
            let of = &of[..of.len().min(BUILT_CHILDREN)];
            let id = take();
            put_children(words(arena, id), height, of);
            level[node] = (of[0].0, id);
        }
        level.truncate(nodes);
    }
    level.first().map_or(0, |top| top.1)
}

/// Builds a leaf of ascending keys, as many as it has room for; 0 when there are none.
pub(crate) fn single(arena: &Arena, keys: &[u32], take: &mut impl FnMut() -> u32) -> u32 {
    if keys.is_empty() {
        return 0;
    }
    let id = take();
    put_keys(words(arena, id), 0, keys);
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::IndexConfig;
    use crate::shard::Shard;
    use std::collections::BTreeSet;

    fn all(arena: &Arena, root: u32) -> Vec<u32> {
        let mut out = Vec::new();
        each_leaf(arena, root, u32::MAX, &mut |keys| out.extend_from_slice(keys));
        out
    }

    #[test]
    fn equals_a_set_through_growth_and_shrinking() {
        let config = IndexConfig { exts_max: 4096, blocks_max: 512, runs_max: 64, ..IndexConfig::default() };
        let shard = Shard::new(&config, 0).unwrap();
        let arena = &shard.arena;
        let mut free: Vec<u32> = (1..4096).collect();
        let (mut root, mut set) = (0, BTreeSet::new());
        let mut x = 5u64;
        for step in 0..120_000u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Grows, shrinks, and in between crowds on few keys.
            let key = (x >> 40) as u32 % if step / 20_000 % 3 == 1 { 900 } else { 9_000 };
            let grow = (x >> 20) % 10 < if step / 20_000 % 2 == 0 { 7 } else { 2 };
            if grow && set.insert(key) {
                let mut spare = Blocks::none();
                let needed = blocks_needed(arena, root, key);
                (0..needed).for_each(|_| spare.push(free.pop().unwrap()));
                root = insert(arena, root, key, &mut spare);
                assert!(spare.is_empty(), "as many blocks as were asked for");
            } else if !grow && set.remove(&key) {
                let mut freed = Blocks::none();
                root = remove(arena, root, key, &mut freed);
                while let Some(id) = freed.pop() {
                    free.push(id);
                }
            }
            let probe = (x >> 30) as u32 % 9_000;
            assert_eq!(at_least(arena, root, probe), set.range(probe..).next().copied(), "step {step}");
            if step % 997 == 0 {
                assert_eq!(all(arena, root), set.iter().copied().collect::<Vec<_>>());
                let mut back = Vec::new();
                assert!(
                    !each_back(arena, root, u32::MAX, &mut |k| {
                        back.push(k);
                        back.len() < 40
                    }) || back.len() < 40
                );
                assert!(back.iter().eq(set.iter().rev().take(40)));
                let mut blocks = 0;
                each_block(arena, root, &mut |_| blocks += 1);
                assert_eq!(blocks + free.len(), 4095, "no block is lost");
                assert!(blocks <= set.len() / 2 + 12, "{blocks} blocks for {} keys", set.len());
            }
        }
        for key in set {
            let mut freed = Blocks::none();
            root = remove(arena, root, key, &mut freed);
            while let Some(id) = freed.pop() {
                free.push(id);
            }
        }
        assert_eq!((root, free.len()), (0, 4095));
    }

    #[test]
    fn built_at_once() {
        let shard = Shard::new(&IndexConfig { blocks_max: 512, runs_max: 64, ..IndexConfig::default() }, 0).unwrap();
        for count in [0, 1, 22, 23, 242, 243, 3_000] {
            let keys: Vec<u32> = (0..count).map(|i| i * 3).collect();
            let mut next = 0;
            let root = build(&shard.arena, &keys, &mut Vec::new(), &mut || {
                next += 1;
                next
            });
            assert_eq!(all(&shard.arena, root), keys);
            assert_eq!(next as usize, blocks_built(keys.len()));
        }
    }
}
