//! Two halves of a run become one again where nobody needs the cut any more, in every form of coverage, and only there.

mod common;

use common::configurations::Configuration;
use common::history::run_one;
use common::pair::{Difference, Pair, copy};
use common::profiles::Profile;
use kvatlas_index::{ContentHash, EngineHash, RankFilter, RankKey, Stats, Store, StoreKind, Tier};
use std::ops::Range;

over_every_configuration!(cuts);

/// Blocks of the one chain.
const BLOCKS: u64 = 40;

fn pair(ranks: usize) -> Result<Pair, Difference> {
    let configuration = Configuration { name: "merging", ranks, lanes: 2, shards: 1, run_blocks_max: 512, tiny: false };
    let mut pair = Pair::new(&configuration);
    (0..ranks).try_for_each(|rank| pair.open(rank))?;
    Ok(pair)
}

/// The names of a fleet: 0 is the one whose names everybody else uses, too.
fn name(fleet: u64, block: u64) -> EngineHash {
    EngineHash((fleet << 32) + block + 1)
}

/// The rank stores these blocks of the chain under the names of a fleet.
fn store(pair: &mut Pair, rank: usize, fleet: u64, blocks: Range<u64>) -> Result<(), Difference> {
    let parent = blocks.start.checked_sub(1).map(|block| name(fleet, block));
    let names: Vec<_> = blocks.clone().map(|block| name(fleet, block)).collect();
    let contents: Vec<_> = blocks.map(ContentHash).collect();
    // No copies of what it has: a removal is to take it.
    let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Announce };
    pair.store(rank, Tier::Device, &store)?.map_err(|e| e.to_string())?;
    compare(pair)
}

/// The rank removes these blocks, the last one first, all at once or one by one.
fn remove(pair: &mut Pair, rank: usize, fleet: u64, blocks: Range<u64>, at_once: bool) -> Result<(), Difference> {
    let names: Vec<_> = blocks.rev().map(|block| name(fleet, block)).collect();
    for names in names.chunks(if at_once { names.len() } else { 1 }) {
        pair.remove(rank, Tier::Device, names)?.map_err(|e| e.to_string())?;
        compare(pair)?;
    }
    Ok(())
}

fn compare(pair: &mut Pair) -> Result<(), Difference> {
    let query: Vec<_> = (0..BLOCKS + 2).map(ContentHash).collect();
    let some: RankFilter = (0..64).filter(|r| r % 3 != 1).map(RankKey).collect();
    pair.compare_lookup(&query, &some)?;
    pair.check()
}

fn runs(pair: &Pair) -> (u64, u64, u64) {
    let Stats { runs, splits, merges, .. } = pair.index.stats();
    (runs, splits, merges)
}

#[test]
fn a_hole_that_heals_or_ends_leaves_one_run() -> Result<(), Difference> {
    for (one, at_once) in [(true, true), (false, true), (false, false)] {
        let mut pair = pair(3)?;
        store(&mut pair, 0, 0, 0..BLOCKS)?;
        store(&mut pair, 1, 0, 0..BLOCKS)?;
        for turn in 1..=3 {
            remove(&mut pair, 1, 0, 20..21, true)?;
            assert_eq!(runs(&pair), (2, turn, turn - 1));
            match turn {
                // The hole is filled: by the holder's store of this block, or of all from here on.
                1 if one => store(&mut pair, 1, 0, 20..21)?,
                1 => store(&mut pair, 1, 0, 20..BLOCKS)?,
                // What is behind the hole goes.
                2 => {
                    remove(&mut pair, 1, 0, 21..BLOCKS, at_once)?;
                    assert_eq!(runs(&pair), (1, turn, turn));
                    store(&mut pair, 1, 0, 20..BLOCKS)?;
                }
                // What is before the hole goes: it is still one.
                _ => {
                    remove(&mut pair, 1, 0, 0..20, at_once)?;
                    assert_eq!(runs(&pair), (2, turn, turn - 1));
                    remove(&mut pair, 1, 0, 21..BLOCKS, at_once)?;
                }
            }
            assert_eq!(runs(&pair), (1, turn, turn), "turn {turn}");
        }
        pair.finish()?;
    }
    Ok(())
}

/// Entries, bits and keys, and crowds with and without pages of bits: the halves have the form of their many holders.
#[test]
fn halves_of_every_form_become_one() -> Result<(), Difference> {
    for (ranks, spread) in [(4, false), (30, false), (30, true), (200, true), (320, false), (320, true)] {
        let mut pair = pair(ranks)?;
        for rank in 0..ranks {
            // Everywhere but at the cuts to come.
            let some = 1 + rank as u64 * 7 % (BLOCKS - 1);
            let end = if spread && rank % 2 == 1 { some + u64::from(some % 9 == 2) } else { BLOCKS };
            store(&mut pair, rank, 0, 0..end)?;
        }
        for (turn, rank) in [ranks - 2, 2, 0].into_iter().enumerate() {
            let (before, at) = (runs(&pair), 10 + 9 * turn as u64);
            remove(&mut pair, rank, 0, at..at + 1, true)?;
            assert_eq!(runs(&pair), (before.0 + 1, before.1 + 1, before.2), "{ranks} ranks");
            match turn {
                0 => store(&mut pair, rank, 0, at..BLOCKS)?,
                1 => remove(&mut pair, rank, 0, at + 1..BLOCKS, true)?,
                _ => {
                    pair.clear(rank, None)?;
                    pair.sweep();
                    compare(&mut pair)?;
                }
            }
            assert_eq!(runs(&pair), (before.0, before.1 + 1, before.2 + 1), "{ranks} ranks, spread {spread}");
        }
        pair.finish()?;
    }
    Ok(())
}

#[test]
fn children_at_the_seam_stay() -> Result<(), Difference> {
    let mut pair = pair(4)?;
    for rank in 0..3 {
        store(&mut pair, rank, 0, 0..BLOCKS)?;
    }
    // Two branches at the seam to be, one at the end of the second half.
    for (branch, after) in [(1, 19), (2, 19), (3, BLOCKS - 1)] {
        let (names, contents) = ([EngineHash(1_000 + branch)], [ContentHash(1_000 + branch)]);
        pair.store(2, Tier::Device, &copy(Some(name(0, after)), &names, &contents))?.map_err(|e| e.to_string())?;
    }
    // The holder that has everything keeps the second half alive.
    store(&mut pair, 3, 0, 0..20)?;
    remove(&mut pair, 1, 0, 19..20, true)?;
    let before = runs(&pair);
    remove(&mut pair, 1, 0, 20..BLOCKS, false)?;
    assert_eq!(runs(&pair), (before.0 - 1, before.1, before.2 + 1));
    let query = |branch: u64, after: u64| -> Vec<_> { (0..=after).chain([1_000 + branch]).map(ContentHash).collect() };
    let all = (0..64).map(RankKey).collect();
    for (branch, after) in [(1, 19), (2, 19), (3, BLOCKS - 1)] {
        pair.compare_lookup(&query(branch, after), &all)?;
        pair.remove(2, Tier::Device, &[EngineHash(1_000 + branch)])?.map_err(|e| e.to_string())?;
        pair.compare_lookup(&query(branch, after), &all)?;
        compare(&mut pair)?;
    }
    assert_eq!(runs(&pair).0, 1);
    pair.finish()
}

#[test]
fn names_of_another_kind_keep_a_seam_until_they_go() -> Result<(), Difference> {
    for at_once in [true, false] {
        let mut pair = pair(4)?;
        store(&mut pair, 0, 0, 0..BLOCKS)?;
        // One holder has all of it under names of its own, one from the middle on.
        store(&mut pair, 1, 1, 0..BLOCKS)?;
        store(&mut pair, 2, 0, 0..17)?;
        let names: Vec<_> = (17..BLOCKS).map(|block| name(2, block)).collect();
        let contents: Vec<_> = (17..BLOCKS).map(ContentHash).collect();
        pair.store(2, Tier::Device, &copy(Some(name(0, 16)), &names, &contents))?.map_err(|e| e.to_string())?;
        compare(&mut pair)?;
        assert_eq!(runs(&pair), (2, 1, 0));
        // A hole of the private holder somewhere else comes and goes; this seam stays.
        remove(&mut pair, 1, 1, 30..31, true)?;
        remove(&mut pair, 1, 1, 31..BLOCKS, at_once)?;
        assert_eq!(runs(&pair), (2, 2, 1));
        remove(&mut pair, 2, 2, 17..BLOCKS, at_once)?;
        assert_eq!(runs(&pair), (1, 2, 2));
        pair.compare_names(1)?;
        pair.compare_names(2)?;
        pair.finish()?;
    }
    Ok(())
}

/// A cut needs nine who stop; it goes when two are left, and in between nothing happens, however they come and go.
#[test]
fn a_stop_is_worth_a_cut_or_not_and_nothing_flaps() -> Result<(), Difference> {
    let ranks = 40;
    let mut pair = pair(ranks)?;
    for rank in 0..20 {
        store(&mut pair, rank, 0, 0..BLOCKS)?;
    }
    for rank in 20..28 {
        store(&mut pair, rank, 0, 0..10)?;
    }
    assert_eq!(runs(&pair), (2, 1, 0));
    for rank in 20..25 {
        remove(&mut pair, rank, 0, 0..10, true)?;
        assert_eq!(runs(&pair), (2, 1, 0));
    }
    for _ in 0..5 {
        for rank in 20..25 {
            store(&mut pair, rank, 0, 0..10)?;
        }
        for rank in 20..25 {
            remove(&mut pair, rank, 0, 5..10, true)?;
            remove(&mut pair, rank, 0, 0..5, true)?;
        }
        assert_eq!(runs(&pair), (2, 1, 0));
    }
    remove(&mut pair, 25, 0, 5..10, true)?;
    assert_eq!(runs(&pair), (1, 1, 1), "two of forty stop there");
    for _ in 0..5 {
        for rank in 20..25 {
            store(&mut pair, rank, 0, 0..10)?;
        }
        assert_eq!(runs(&pair), (1, 1, 1));
        for rank in 20..25 {
            remove(&mut pair, rank, 0, 0..10, false)?;
        }
        assert_eq!(runs(&pair), (1, 1, 1));
    }
    pair.finish()
}

/// Children that lie right behind their parent by chance are no second halves.
#[test]
fn neighbours_by_chance_and_long_halves_stay_apart() -> Result<(), Difference> {
    let configuration = Configuration { name: "short", ranks: 3, lanes: 1, shards: 1, run_blocks_max: 8, tiny: false };
    let mut pair = Pair::new(&configuration);
    (0..3).try_for_each(|rank| pair.open(rank))?;
    for rank in 0..2 {
        store(&mut pair, rank, 0, 0..BLOCKS)?;
    }
    assert_eq!(runs(&pair), (5, 0, 0));
    for at in [8, 7, 16, 15] {
        remove(&mut pair, 1, 0, at..at + 1, true)?;
        remove(&mut pair, 1, 0, at + 1..BLOCKS, false)?;
        assert_eq!(runs(&pair).0, 5, "cut at {at}");
        store(&mut pair, 1, 0, at..BLOCKS)?;
    }
    pair.finish()
}

/// The counts of the histories that the suite above plays: a suite without merges would say nothing of them.
#[test]
fn histories_of_cuts_merge_often() {
    let profile = Profile::named("cuts");
    for (name, least) in [("two_lanes", 100), ("ranks_200", 20), ("runs_of_8", 100)] {
        let done = run_one(&profile, &Configuration::named(name), 0);
        println!("{name}: {} splits, {} merges in {} operations", done.splits, done.merges, done.operations);
        assert!(done.merges >= least, "{name}: {} merges", done.merges);
    }
}
