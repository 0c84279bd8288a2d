//! A tree against a set, through every change of its shape.

use super::build::{blocks_built, build, single};
use super::edit::{Blocks, blocks_needed, change_leaf, insert, remove};
use super::*;
use crate::config::IndexConfig;
use crate::cover::by_cut;
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

/// Keys come, go and move in one leaf, at every place of it and through every number of keys.
#[test]
fn a_single_leaf_changes_in_place() {
    let shard = Shard::new(&IndexConfig { blocks_max: 512, runs_max: 64, ..IndexConfig::default() }, 0).unwrap();
    let arena = &shard.arena;
    let root = single(arena, &[1 << 22], &mut || 1);
    let mut model = vec![1u32 << 22];
    let mut x = 9u64;
    for step in 0..60_000u32 {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (cut, slot) = ((x >> 40) as u32 % 500 + 1, (x >> 20) as u32 % 40);
        let entry = Entry { slot, cut, private: x >> 50 & 1 == 1 };
        let key = by_cut(entry);
        let old = model.iter().position(|&k| of_cut_key(k).slot == slot);
        assert_eq!(seat_of(arena, root, slot), old.map(|i| (i as u8, of_cut_key(model[i]))), "step {step}");
        let goes = (x >> 10) % 8 < if step / 5_000 % 2 == 0 { 2 } else { 5 };
        let new = (!goes && (old.is_some() || model.len() < KEYS)).then_some(key);
        if new.is_none() && (old.is_none() || model.len() == 1) {
            continue;
        }
        change_leaf(arena, root, old.map(|i| i as u8), new);
        if let Some(i) = old {
            model.remove(i);
        }
        model.extend(new);
        model.sort_unstable();
        assert_eq!(all(arena, root), model, "step {step}");
        assert!(leaf(arena, root).rev().map(by_cut).eq(model.iter().rev().copied()));
    }
}
