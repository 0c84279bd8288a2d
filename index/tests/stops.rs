//! A run is cut where many holders stop, and only there.

mod common;

use common::configurations::Configuration;
use common::pair::{Difference, Pair, copy};
use kvatlas_index::{ContentHash, EngineHash, RankFilter, RankKey, Tier};

const RANKS: usize = 40;

fn pair() -> Result<Pair, Difference> {
    let configuration =
        Configuration { name: "stops", ranks: RANKS, lanes: 2, shards: 1, run_blocks_max: 512, tiny: false };
    let mut pair = Pair::new(&configuration);
    (0..RANKS).try_for_each(|rank| pair.open(rank))?;
    Ok(pair)
}

/// The rank stores the first `blocks` blocks of the one chain, under the fleet's names or under its own.
fn store(pair: &mut Pair, rank: usize, blocks: u64, own: bool) -> Result<(), Difference> {
    let base = if own { 1_000 * (rank as u64 + 1) } else { 0 };
    let names: Vec<_> = (1..=blocks).map(|b| EngineHash(base + b)).collect();
    let contents: Vec<_> = (1..=blocks).map(ContentHash).collect();
    pair.store(rank, Tier::Device, &copy(None, &names, &contents))?.map_err(|e| e.to_string())?;
    compare(pair)
}

fn compare(pair: &mut Pair) -> Result<(), Difference> {
    let query: Vec<_> = (1..=64).map(ContentHash).collect();
    let some: RankFilter = (0..RANKS as u32).filter(|r| r % 3 != 1).map(RankKey).collect();
    pair.compare_lookup(&query, &some)?;
    pair.check()
}

#[test]
fn a_head_that_many_share_is_a_run_of_its_own() -> Result<(), Difference> {
    for own in [false, true] {
        let mut pair = pair()?;
        store(&mut pair, 0, 40, false)?;
        for rank in 1..RANKS {
            store(&mut pair, rank, 4, own)?;
        }
        let stats = pair.index.stats();
        assert_eq!((stats.runs, stats.splits), (2, 1), "names of their own: {own}");
        for rank in (0..RANKS).step_by(3) {
            pair.clear(rank, None)?;
            compare(&mut pair)?;
        }
        pair.finish()?;
    }
    Ok(())
}

#[test]
fn holders_that_stop_everywhere_cut_nothing() -> Result<(), Difference> {
    let mut pair = pair()?;
    store(&mut pair, 0, 40, false)?;
    for rank in 1..RANKS {
        store(&mut pair, rank, 1 + rank as u64 * 7 % 39, false)?;
    }
    let stats = pair.index.stats();
    assert_eq!((stats.runs, stats.splits), (1, 0));
    pair.finish()
}
