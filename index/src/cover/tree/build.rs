//! Trees built at once, from keys in order.

use super::{put_children, put_keys, words};
use crate::layout::Arena;

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
