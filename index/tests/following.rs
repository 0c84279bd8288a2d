//! One name an event, tails first: what vLLM sends when it frees a request's blocks. Few and many holders, interrupted by
//! everything that may change the run meanwhile.

mod common;

use common::configurations::Configuration;
use common::pair::{Difference, Pair, copy};
use kvatlas_index::{ContentHash, EngineHash, RankFilter, RankKey, Tier};

const RANKS: usize = 40;
const BLOCKS: u64 = 30;

fn pair(lanes: u32, run_blocks_max: u32) -> Result<Pair, Difference> {
    let configuration =
        Configuration { name: "following", ranks: RANKS, lanes, shards: 1, run_blocks_max, tiny: false };
    let mut pair = Pair::new(&configuration);
    (0..RANKS).try_for_each(|rank| pair.open(rank))?;
    Ok(pair)
}

/// A block of the one chain, which forks after the tenth for every fifth rank.
fn content(rank: usize, block: u64) -> u64 {
    if block > 10 && rank.is_multiple_of(5) { 1_000 + block } else { block }
}

/// A rank's name of a block: every rank of so many has names of its own; with 0 none has.
fn name(own: usize, rank: usize, block: u64) -> EngineHash {
    let content = content(rank, block);
    EngineHash(if own > 0 && rank % own == own - 1 { content + 10_000 * (rank as u64 + 1) } else { content })
}

/// The rank stores its first blocks.
fn store(pair: &mut Pair, own: usize, rank: usize, blocks: u64) -> Result<(), Difference> {
    let names: Vec<_> = (1..=blocks).map(|b| name(own, rank, b)).collect();
    let contents: Vec<_> = (1..=blocks).map(|b| ContentHash(content(rank, b))).collect();
    pair.store(rank, Tier::Device, &copy(None, &names, &contents))?.map_err(|e| e.to_string())?;
    Ok(())
}

fn remove(pair: &mut Pair, own: usize, rank: usize, block: u64) -> Result<(), Difference> {
    pair.remove(rank, Tier::Device, &[name(own, rank, block)])?.map_err(|e| e.to_string())?;
    Ok(())
}

fn compare(pair: &mut Pair) -> Result<(), Difference> {
    let some: RankFilter = (0..RANKS as u32).filter(|r| r % 3 != 1).map(RankKey).collect();
    for first_after_fork in [11, 1_011] {
        let query: Vec<_> = (1..=10).chain(first_after_fork..first_after_fork + 20).map(ContentHash).collect();
        pair.compare_lookup(&query, &some)?;
    }
    pair.check()
}

/// All ranks go down together, so that their keys pass each other; every so often one stores again or is cleared.
fn play(own: usize, holders: usize, lanes: u32, run_blocks_max: u32) -> Result<(), Difference> {
    let mut pair = pair(lanes, run_blocks_max)?;
    for rank in 0..holders {
        store(&mut pair, own, rank, BLOCKS - rank as u64 % 4)?;
    }
    let mut left: Vec<u64> = (0..holders).map(|rank| BLOCKS - rank as u64 % 4).collect();
    let mut step = 0;
    while left.iter().any(|&blocks| blocks > 0) {
        for (rank, left) in left.iter_mut().enumerate() {
            step += 1;
            // Some hurry, some wait.
            for _ in 0..(rank + step) % 3 {
                if *left > 0 {
                    remove(&mut pair, own, rank, *left)?;
                    *left -= 1;
                }
            }
            if step % 97 == 0 {
                *left = (*left + 5).min(BLOCKS);
                store(&mut pair, own, rank, *left)?;
            }
            if step % 131 == 0 {
                pair.clear(rank, None)?;
                *left = 0;
            }
            if step % 61 == 0 && *left > 3 {
                // A name from the middle: the one after it is not the expected one.
                let middle = *left / 2;
                remove(&mut pair, own, rank, middle)?;
                store(&mut pair, own, rank, *left)?;
            }
            if step % 7 == 0 {
                compare(&mut pair)?;
            }
        }
        if step > 40 * holders {
            break;
        }
    }
    compare(&mut pair)?;
    pair.finish()
}

fn tails_removed_name_by_name(own: usize) -> Result<(), Difference> {
    for holders in [1, 2, 7, 9, 12, 40] {
        for (lanes, run_blocks_max) in [(1, 512), (2, 512), (2, 3), (1, 1)] {
            play(own, holders, lanes, run_blocks_max).map_err(|e| format!("{holders} holders, {lanes} lanes: {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn shared_names_equal_the_oracle() -> Result<(), Difference> {
    tails_removed_name_by_name(0)
}

#[test]
fn names_of_each_rank_equal_the_oracle() -> Result<(), Difference> {
    tails_removed_name_by_name(1)
}

#[test]
fn names_of_every_third_rank_equal_the_oracle() -> Result<(), Difference> {
    tails_removed_name_by_name(3)
}

/// Some ranks go down name by name while others keep the whole chain, so that names and blocks stay: the ranks' keys pass each
/// other, and those who keep it leave in the end, in the middle of it or not at all.
#[test]
fn some_go_down_while_others_keep_all_equal_the_oracle() -> Result<(), Difference> {
    for (holders, lanes, run_blocks_max, leave_at) in
        [(12, 1, 512, 0), (20, 1, 512, 150), (20, 2, 512, 120), (40, 1, 16, 400), (40, 2, 512, 300)]
    {
        let mut pair = pair(lanes, run_blocks_max)?;
        (0..holders).try_for_each(|rank| store(&mut pair, 0, rank, BLOCKS))?;
        let going = holders * 2 / 3;
        let (mut left, mut step) = (vec![BLOCKS; going], 0);
        while left.iter().any(|&blocks| blocks > 0) {
            for (rank, left) in left.iter_mut().enumerate() {
                step += 1;
                for _ in 0..((rank + step) % 4).min(*left as usize) {
                    remove(&mut pair, 0, rank, *left)?;
                    *left -= 1;
                }
                if step % 5 == 0 {
                    compare(&mut pair)?;
                }
                if step == leave_at {
                    (going..holders).try_for_each(|rank| pair.clear(rank, None).map(drop))?;
                }
            }
        }
        pair.finish().map_err(|e| format!("{holders} holders, {lanes} lanes: {e}"))?;
    }
    Ok(())
}

/// A rank that has a chain under names of its own behind blocks that have its canonical ones, which others share: each name
/// finds the next one, from the one kind to the other.
#[test]
fn names_of_both_kinds_in_one_chain_equal_the_oracle() -> Result<(), Difference> {
    for run_blocks_max in [512, 3] {
        let mut pair = pair(1, run_blocks_max)?;
        for round in 0..3 {
            store(&mut pair, 0, 1, 30)?;
            for rank in [2, 3] {
                store(&mut pair, 0, rank, 12)?;
                let names: Vec<_> = (13..=30).map(|b| name(1, rank, b)).collect();
                let contents: Vec<_> = (13..=30).map(|b| ContentHash(content(rank, b))).collect();
                let stored = copy(Some(name(0, rank, 12)), &names, &contents);
                pair.store(rank, Tier::Device, &stored)?.map_err(|e| e.to_string())?;
            }
            for block in (1..=30).rev() {
                for rank in [2, 3] {
                    remove(&mut pair, usize::from(block > 12), rank, block)?;
                    pair.compare_names(rank)?;
                }
                compare(&mut pair)?;
                if round == 1 && block % 4 == 0 {
                    remove(&mut pair, 0, 1, block + 4 - 4 * u64::from(block > 26))?;
                }
            }
            (0..RANKS).try_for_each(|rank| pair.clear(rank, None).map(|_| ()))?;
        }
        pair.finish()?;
    }
    Ok(())
}
