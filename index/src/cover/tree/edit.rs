//! Keys that come and go: nodes are split and joined, one leaf is changed in place.

use super::{
    CHILDREN, Children, HEIGHT_MAX, KEYS, child, children, head, keys, put_children, put_keys, set_head, way, words,
};
use crate::cover::by_cut;
use crate::cover::change::store_half;
use crate::layout::{Arena, Entry, half};
use crate::sync::AtomicU64;

/// One block more or less in a key by cutoff.
const CUT_ONE: u32 = 1 << 22;
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

/// Puts a key in the place of the `i`-th of a tree that is one leaf, if it stays between its neighbours: one store, for which
/// readers need no window. Whether it did.
#[inline]
pub(crate) fn shift_key(arena: &Arena, root: u32, i: usize, key: u32) -> bool {
    let node = words(arena, root);
    let (count, keys) = (head(node).0, &node[1..]);
    let between = (i == 0 || half(keys, i - 1) < key) && (i + 1 == count || key < half(keys, i + 1));
    if between {
        store_half(keys, i, key);
    }
    between
}

/// Whether the `i`-th key of a leaf, which may be a rumour, is this holder's and stays above the one before it when its cutoff
/// becomes one less.
#[inline]
pub(crate) fn may_step_down(arena: &Arena, leaf: u32, i: usize, holder: Entry) -> bool {
    let node = words(arena, leaf);
    let (count, keys, key) = (head(node).0, &node[1..], by_cut(holder));
    i < count && half(keys, i) == key && (i == 0 || half(keys, i - 1) < key - CUT_ONE)
}

/// Makes the cutoff of the `i`-th key of a leaf one less, which [`may_step_down`] allowed: one store, for which readers need no
/// window.
#[inline]
pub(crate) fn step_down(arena: &Arena, leaf: u32, i: usize) {
    let keys = &words(arena, leaf)[1..];
    store_half(keys, i, half(keys, i) - CUT_ONE);
}

/// Takes the `old`-th key out of a tree that is one leaf, and puts a new one in. There is room, and a key is left. Only the
/// keys between the two places move.
pub(crate) fn change_leaf(arena: &Arena, root: u32, old: Option<u8>, new: Option<u32>) {
    let node = words(arena, root);
    let (count, height) = head(node);
    debug_assert!(height == 0 && count + usize::from(new.is_some()) > usize::from(old.is_some()));
    let keys = &node[1..];
    let above = |key: u32| (0..count).take_while(|&i| half(keys, i) < key).count();
    match (old.map(usize::from), new) {
        (None, None) => {}
        (Some(from), None) => {
            move_down(keys, from, count - 1);
            set_head(node, count - 1, 0);
        }
        (None, Some(key)) => {
            let to = above(key);
            move_up(keys, to, count);
            store_half(keys, to, key);
            set_head(node, count + 1, 0);
        }
        (Some(from), Some(key)) => {
            let to = above(key);
            if to <= from {
                move_up(keys, to, from);
                store_half(keys, to, key);
            } else {
                move_down(keys, from, to - 1);
                store_half(keys, to - 1, key);
            }
        }
    }
}

/// Moves the keys `from..to` up by one, over the one at `to`.
#[inline]
fn move_up(keys: &[AtomicU64], from: usize, to: usize) {
    (from..to).rev().for_each(|i| store_half(keys, i + 1, half(keys, i)));
}

/// Moves the keys `from + 1..=to` down by one, over the one at `from`.
#[inline]
fn move_down(keys: &[AtomicU64], from: usize, to: usize) {
    (from..to).for_each(|i| store_half(keys, i, half(keys, i + 1)));
}
