//! Inputs that nobody sends on purpose: counts at the end of their range, crowds that leave, limits reached where a change
//! was only half done, parents that wait for each other.

#![expect(clippy::unwrap_used, reason = "a test may stop where its own scene is wrong")]

mod common;

use common::configurations::Configuration;
use common::pair::{Pair, copy};
use common::rng::{Rng, mix};
use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, IndexError, Lane, RankFilter, RankKey, Removed, Store,
    StoreKind, Tier,
};
use std::sync::Arc;

const DEVICE: Tier = Tier::Device;

fn pair(ranks: usize, lanes: u32) -> Pair {
    let name = "hostile";
    let mut pair = Pair::new(&Configuration { name, ranks, lanes, shards: 1, run_blocks_max: 512, tiny: false });
    (0..ranks).for_each(|rank| pair.open(rank).unwrap());
    pair
}

fn contents(chain: u64, blocks: u64) -> Vec<ContentHash> {
    (0..blocks).map(|i| ContentHash(mix(chain, i))).collect()
}

fn names(seed: u64, blocks: u64) -> Vec<EngineHash> {
    (0..blocks).map(|i| EngineHash(mix(!seed, i))).collect()
}

/// An index alone, with ranks open on its only lane.
fn index(config: IndexConfig, ranks: u32) -> (Arc<Index>, Lane, Vec<Holder>) {
    let (index, mut lanes) = Index::new(IndexConfig { hash_key: Some([5, 9]), ..config }).unwrap();
    let mut lane = lanes.remove(0);
    let open = |key| Holder { rank: lane.open_rank(RankKey(key)).unwrap(), tier: DEVICE };
    let holders = (0..ranks).map(open).collect();
    (index, lane, holders)
}

fn check(index: &Index, lane: &Lane) {
    index.check().and_then(|()| lane.check()).unwrap();
}

#[track_caller]
fn about_equal(what: &str, got: u64, want: u64) {
    println!("{what}: {got} live bytes, {want} in a fresh index");
    assert!((want * 9 / 10..=want * 11 / 10).contains(&got), "{what}: {got} live bytes, {want} in a fresh index");
}

#[test]
fn the_largest_count_of_copies_stays_the_largest() {
    let mut pair = pair(1, 1);
    let (n, c) = (names(1, 2), contents(1, 2));
    for left in [u64::MAX, u64::MAX - 1] {
        pair.store(0, DEVICE, &copy(None, &n, &c)).unwrap().unwrap();
        pair.set_copies(0, DEVICE, n[1], left).unwrap().unwrap();
        for _ in 0..3 {
            pair.store(0, DEVICE, &copy(None, &n, &c)).unwrap().unwrap();
        }
        pair.compare_names(0).unwrap();
        let did = pair.remove(0, DEVICE, &n[1..]).unwrap().unwrap();
        assert_eq!(did, Removed { copies: 1, ..Removed::default() });
        pair.compare_names(0).unwrap();
    }
    pair.finish().unwrap();
}

/// A moved name carries its copies along; its count must not pass the end either.
#[test]
fn a_name_with_the_largest_count_moves() {
    let mut pair = pair(1, 1);
    let (n, c) = (names(1, 1), contents(1, 2));
    pair.store(0, DEVICE, &copy(None, &n, &c[..1])).unwrap().unwrap();
    pair.set_copies(0, DEVICE, n[0], u64::MAX).unwrap().unwrap();
    for i in [1, 0, 1] {
        pair.store(0, DEVICE, &copy(None, &n, &c[i..=i])).unwrap().unwrap();
        pair.compare_names(0).unwrap();
    }
    pair.finish().unwrap();
}

#[test]
fn copies_twins_and_orphans_give_their_memory_back() {
    const BLOCKS: u64 = 20_000;
    let (index, mut lane, holders) = index(IndexConfig::default(), 1);
    let at = holders[0];
    let (n, twins, c) = (names(1, BLOCKS), names(2, BLOCKS), contents(1, BLOCKS));
    let mut store = |names: &[EngineHash], parent: Option<EngineHash>| {
        lane.store(at, &Store { parent, names, contents: &c, kind: StoreKind::Copy }).unwrap();
    };
    store(&n, None);
    let fresh = index.stats().bytes_live;
    store(&n, None);
    store(&twins, None);
    store(&names(3, BLOCKS), Some(EngineHash(77)));
    let full = index.stats();
    assert!(full.bytes_live > fresh * 3 / 2, "{} bytes with everything, {fresh} without", full.bytes_live);
    assert_eq!(full.parked, 4096);
    for list in [&n, &twins, &names(3, BLOCKS)] {
        lane.remove(at, list).unwrap();
    }
    assert_eq!((lane.held(at), lane.parked(at.rank), index.stats().parked), (BLOCKS, 0, 0));
    about_equal("copies, twins and orphans gone", index.stats().bytes_live, fresh);
    check(&index, &lane);
}

/// Half of the ranks have names of their own for the chains that all share; what is left costs what it costs freshly stored.
#[test]
fn foreign_names_come_and_go() {
    const RANKS: u32 = 24;
    const BLOCKS: u64 = 40;
    let store = |lane: &mut Lane, holders: &[Holder], rank: usize, chain: u64| {
        let seed = if rank % 2 == 1 { mix(chain, 100 + rank as u64) } else { chain };
        let (n, c) = (names(seed, BLOCKS), contents(chain, BLOCKS));
        let store = Store { parent: None, names: &n, contents: &c, kind: StoreKind::Copy };
        lane.store(holders[rank], &store).unwrap();
        n
    };
    let (churned, mut lane, holders) = index(IndexConfig::default(), RANKS);
    let mut live = std::collections::VecDeque::new();
    for step in 0..20_000u64 {
        let (rank, chain) = (mix(step, 1) as usize % RANKS as usize, step / 60);
        if !live.iter().any(|&(r, c, _)| (r, c) == (rank, chain)) {
            live.push_back((rank, chain, store(&mut lane, &holders, rank, chain)));
        }
        if live.len() > 120 {
            let (rank, _, mut n) = live.pop_front().unwrap();
            n.reverse();
            let events = if step % 3 == 0 { 1 } else { n.len() };
            n.chunks(events).for_each(|event| assert_eq!(lane.remove(holders[rank], event).unwrap().unknown, 0));
        }
    }
    check(&churned, &lane);
    let (fresh, mut fresh_lane, fresh_holders) = index(IndexConfig::default(), RANKS);
    live.iter().for_each(|&(rank, chain, _)| drop(store(&mut fresh_lane, &fresh_holders, rank, chain)));
    about_equal("foreign churn", churned.stats().bytes_live, fresh.stats().bytes_live);
}

/// A fleet that shares its seed, beside one odd rank that stored first: many holders have the same private names, which crowd
/// at the same homes.
#[test]
fn a_fleet_with_the_same_private_names() {
    const RANKS: usize = 120;
    let mut pair = pair(RANKS, 1);
    let c = contents(1, 40);
    pair.store(0, DEVICE, &copy(None, &names(1, 40), &c)).unwrap().unwrap();
    let fleet = names(2, 40);
    for rank in 1..RANKS {
        pair.store(rank, DEVICE, &copy(None, &fleet[..20], &c[..20])).unwrap().unwrap();
    }
    pair.check().unwrap();
    for rank in (1..RANKS).rev() {
        pair.store(rank, DEVICE, &copy(Some(fleet[19]), &fleet[20..], &c[20..])).unwrap().unwrap();
    }
    pair.check().unwrap();
    let tail_first: Vec<_> = fleet.iter().rev().copied().collect();
    for rank in (1..RANKS).step_by(2) {
        let events = if rank % 4 == 1 { 1 } else { 40 };
        for event in tail_first.chunks(events) {
            assert_eq!(pair.remove(rank, DEVICE, event).unwrap().unwrap().removed, event.len() as u64);
        }
    }
    pair.check().unwrap();
    for rank in (2..RANKS).step_by(4) {
        pair.clear(rank, Some(DEVICE)).unwrap();
    }
    pair.check().unwrap();
    pair.compare_names(4).unwrap();
    pair.compare_lookup(&c, &RankFilter::new()).unwrap();
    pair.finish().unwrap();
}

/// Six hundred ranks hold parts of one run, and all but a few leave: its holder blocks go back, one by one change as well.
#[test]
fn a_crowd_that_left_a_run_leaves_no_holder_blocks() {
    const RANKS: u32 = 1200;
    const BLOCKS: u64 = 64;
    let (n, c) = (names(1, BLOCKS), contents(1, BLOCKS));
    let stay = |rank: usize| rank.is_multiple_of(133);
    let store = |lane: &mut Lane, at: Holder, rank: usize| {
        let blocks = if rank.is_multiple_of(3) { 64 } else { rank % 63 + 1 };
        let store = Store { parent: None, names: &n[..blocks], contents: &c[..blocks], kind: StoreKind::Copy };
        lane.store(at, &store).unwrap();
    };
    let (fresh, mut fresh_lane, fresh_holders) = index(IndexConfig::default(), RANKS);
    let all = |holders: &[Holder]| holders.iter().copied().enumerate().collect::<Vec<_>>();
    all(&fresh_holders).into_iter().filter(|&(r, _)| stay(r)).for_each(|(r, at)| store(&mut fresh_lane, at, r));
    let fresh = fresh.stats().bytes_live;
    for how in ["remove", "clear", "close"] {
        let (index, mut lane, holders) = index(IndexConfig::default(), RANKS);
        all(&holders).into_iter().for_each(|(r, at)| store(&mut lane, at, r));
        let mut down = n.clone();
        down.reverse();
        for (_, at) in all(&holders).into_iter().filter(|&(r, _)| !stay(r)) {
            match how {
                "remove" => lane.remove(at, &down).map(|_| ()).unwrap(),
                "clear" => lane.clear(at.rank, None).map(|_| ()).unwrap(),
                _ => lane.close_rank(at.rank).map(|_| ()).unwrap(),
            }
        }
        check(&index, &lane);
        while lane.sweep(100) > 0 {}
        check(&index, &lane);
        about_equal(how, index.stats().bytes_live, fresh);
    }
}

/// No holder block is left when the last holder of a run's end goes: the end must go with it all the same, and so must
/// everything in the end.
#[test]
fn taking_away_needs_no_holder_block() {
    const CHAINS: u64 = 31;
    let config = IndexConfig { exts_max: 64, ranks_max: 2000, ..IndexConfig::default() };
    let (index, mut lane, holders) = index(config, 64 * 15);
    // One rank on each page of 256 holder slots.
    let spread: Vec<Holder> = holders.iter().copied().skip(70).step_by(64).collect();
    assert_eq!(spread.len(), 14);
    for chain in 0..CHAINS {
        let (n, c) = (names(chain, 8), contents(chain, 8));
        for (i, &at) in spread.iter().enumerate() {
            let blocks = if i == 0 { 8 } else { 4 };
            let store = Store { parent: None, names: &n[..blocks], contents: &c[..blocks], kind: StoreKind::Copy };
            lane.store(at, &store).unwrap();
        }
    }
    check(&index, &lane);
    for chain in 0..CHAINS {
        let n = names(chain, 8);
        lane.remove(spread[0], &n[4..]).unwrap();
        check(&index, &lane);
    }
    for (i, &at) in spread.iter().enumerate() {
        for chain in 0..CHAINS {
            let mut n = names(chain, 4);
            n.reverse();
            let did = if i % 2 == 0 { lane.remove(at, &n).unwrap().removed } else { 4 };
            assert_eq!(did, 4);
        }
        lane.clear(at.rank, None).unwrap();
        check(&index, &lane);
        while lane.sweep(1) > 0 {}
        check(&index, &lane);
    }
    let left = index.stats();
    assert_eq!((left.held, left.blocks, left.runs), (0, 0, 0));
}

/// Holder blocks, runs and names run out among stores, moves, holes, adoptions and twins of ranks on seventeen pages, under
/// both kinds of names: after the clear of whoever met the limit everything is exact.
#[test]
fn limits_in_the_middle_of_everything() {
    for (seed, run_blocks_max) in [(1, 512), (2, 512), (3, 8), (4, 1)] {
        println!("seed {seed}, runs of {run_blocks_max}");
        limits(seed, run_blocks_max);
    }
}

fn limits(seed: u64, run_blocks_max: u32) {
    const SEATS: usize = 17;
    const BLOCKS: usize = 24;
    let (name, ranks) = ("limits", SEATS * 64);
    let mut pair = Pair::new(&Configuration { name, ranks, lanes: 1, shards: 1, run_blocks_max, tiny: true });
    (0..ranks).for_each(|rank| pair.open(rank).unwrap());
    let mut rng = Rng::new(seed);
    for step in 0..8000 {
        let (seat, chain) = (rng.below(SEATS), rng.below(6));
        let (rank, tier) = (seat * 64, if rng.chance(700) { DEVICE } else { Tier::Host });
        // Chains part at different depths; names are everybody's, the rank's own, or another chain's.
        let c: Vec<_> = (0..BLOCKS)
            .map(|i| ContentHash(if i < chain * 4 { i as u64 } else { mix(chain as u64, i as u64) }))
            .collect();
        let own = if rng.chance(700) { 0 } else { seat as u64 };
        let mut n: Vec<_> = (0..BLOCKS).map(|i| EngineHash(mix(c[i].0, 50 + own))).collect();
        let from = if rng.chance(500) { rng.below(BLOCKS) } else { 0 };
        let to = from + 1 + rng.below(BLOCKS - from);
        if rng.chance(100) {
            n[to - 1] = EngineHash(mix(rng.below(40) as u64, 50));
        }
        let full = pair.full_errors;
        match rng.below(100) {
            0..=54 => {
                let store = copy(from.checked_sub(1).map(|i| n[i]), &n[from..to], &c[from..to]);
                pair.store(rank, tier, &store).unwrap().ok();
            }
            55..=59 => {
                pair.adopt(rank, tier, &n[from..to]).unwrap().ok();
            }
            60..=62 => {
                pair.set_copies(rank, tier, n[from], rng.below(3) as u64).unwrap().ok();
            }
            63 => {
                pair.clear(rank, Some(tier)).unwrap();
            }
            64 => pair.close(rank).and_then(|()| pair.open(rank)).unwrap(),
            _ => {
                n[from..to].reverse();
                pair.remove(rank, tier, &n[from..to]).unwrap().ok();
            }
        }
        pair.compare_counts(rank).unwrap();
        if pair.full_errors > full || step % 200 == 0 {
            pair.check().unwrap();
            pair.compare_lookup(&c, &[RankKey(rank as u32)].into_iter().collect()).unwrap();
        }
    }
    println!("{} limits reached", pair.full_errors);
    assert!(pair.full_errors > 20, "{} limits reached", pair.full_errors);
    (0..SEATS).for_each(|seat| pair.compare_names(seat * 64).unwrap());
    pair.finish().unwrap();
}

#[test]
fn parents_that_wait_for_each_other() {
    let mut pair = pair(1, 1);
    let (n, c) = (names(1, 4), contents(1, 4));
    for (name, parent) in [(0, 1), (1, 0), (2, 2 + 1), (3, 2)] {
        let store = copy(Some(n[parent]), &n[name..=name], &c[name..=name]);
        pair.store(0, if name % 2 == 0 { Tier::Host } else { DEVICE }, &store).unwrap().unwrap();
    }
    assert_eq!(pair.set_copies(0, DEVICE, n[3], 5).unwrap().unwrap().unknown, 1, "a parked name has no count yet");
    pair.store(0, DEVICE, &copy(None, &n[..1], &c[..1])).unwrap().unwrap();
    pair.compare_names(0).unwrap();
    pair.compare_counts(0).unwrap();
    pair.set_copies(0, Tier::Host, n[2], 0).unwrap().unwrap();
    pair.adopt(0, Tier::Disk, &n).unwrap().unwrap();
    pair.compare_names(0).unwrap();
    for query in [[0, 1, 0], [2, 3, 2]] {
        let query: Vec<_> = query.iter().map(|&i: &usize| c[i]).collect();
        pair.compare_lookup(&query, &RankFilter::new()).unwrap();
    }
    pair.finish().unwrap();
}

/// One event of a hundred thousand blocks, and questions of none and of a million.
#[test]
fn a_very_long_chain() {
    const BLOCKS: u64 = 100_000;
    let mut pair = pair(2, 2);
    let (n, c) = (names(1, BLOCKS), contents(1, BLOCKS));
    for rank in 0..2 {
        pair.store(rank, DEVICE, &copy(None, &n, &c)).unwrap().unwrap();
    }
    let mut long = c.clone();
    long.resize(1_000_000, ContentHash(0));
    for query in [&long[..], &c, &[]] {
        let mut got = pair.lookup(query, Default::default(), None).unwrap();
        got.sort_unstable();
        assert_eq!(got, pair.oracle.lookup(query, Default::default()));
    }
    let middle = &n[BLOCKS as usize / 2..][..1];
    pair.remove(0, DEVICE, middle).unwrap().unwrap();
    pair.compare_lookup(&c, &[RankKey(0)].into_iter().collect()).unwrap();
    pair.check().unwrap();
    pair.finish().unwrap();
}

/// A hostile or broken engine: tens of thousands of orphans of one parent and of one name. Work quadratic in them would not end soon.
#[test]
fn orphans_of_one_parent_and_of_one_name() {
    const ORPHANS: u64 = 60_000;
    let config = IndexConfig { orphans_max_per_rank: ORPHANS as u32, ..IndexConfig::default() };
    let (index, mut lane, holders) = index(config, 1);
    let at = holders[0];
    for same_name in [false, true] {
        for i in 0..ORPHANS {
            let n = [EngineHash(if same_name { 3 } else { 10 + i })];
            let store =
                Store { parent: Some(EngineHash(1)), names: &n, contents: &contents(i, 1), kind: StoreKind::Copy };
            assert_eq!(lane.store(at, &store).unwrap().orphans, 1);
        }
        if same_name {
            let all = vec![EngineHash(3); ORPHANS as usize];
            assert_eq!(lane.remove(at, &all).unwrap().parked, ORPHANS);
        } else {
            let root =
                Store { parent: None, names: &[EngineHash(1)], contents: &contents(9, 1), kind: StoreKind::Copy };
            assert_eq!(lane.store(at, &root).unwrap().attached, ORPHANS);
            lane.clear(at.rank, None).unwrap();
        }
    }
    check(&index, &lane);
    assert_eq!(index.stats().parked, 0);
}

#[test]
fn a_filter_of_the_largest_keys() {
    let mut filter = RankFilter::new();
    for key in [0, 63, 64, 65_535, 65_536, u32::MAX - 1, u32::MAX] {
        assert!(!filter.contains(RankKey(key)));
        filter.insert(RankKey(key));
        assert!(filter.contains(RankKey(key)));
    }
    filter.remove(RankKey(u32::MAX));
    assert!(!filter.contains(RankKey(u32::MAX)) && filter.contains(RankKey(u32::MAX - 1)));
    let mut pair = pair(2, 1);
    let (n, c) = (names(1, 2), contents(1, 2));
    for rank in 0..2 {
        pair.store(rank, DEVICE, &copy(None, &n, &c)).unwrap().unwrap();
    }
    pair.compare_lookup(&c, &filter).unwrap();
    assert_eq!(filter, [0, 63, 64, 65_535, 65_536, u32::MAX - 1].map(RankKey).into_iter().collect());
    filter.remove(RankKey(1));
    pair.finish().unwrap();
}

/// As many lanes and shards as there may be.
#[test]
fn sixty_four_lanes_of_sixty_four_shards() {
    let config = IndexConfig {
        shards: 64,
        lanes_per_shard: 64,
        ranks_max: 64,
        blocks_max: 512,
        runs_max: 64,
        exts_max: 64,
        ..IndexConfig::default()
    };
    let (index, mut lanes) = Index::new(config).unwrap();
    let (n, c) = (names(1, 3), contents(1, 3));
    let open: Vec<_> = lanes
        .iter_mut()
        .enumerate()
        .map(|(i, lane)| {
            let rank = lane.open_rank(RankKey(i as u32)).unwrap();
            lane.store(Holder { rank, tier: DEVICE }, &copy(None, &n, &c)).unwrap();
            rank
        })
        .collect();
    assert!(matches!(lanes[0].open_rank(RankKey(9999)), Err(IndexError::RanksFull { limit: 64 })));
    let mut answer = Vec::new();
    let outcome = index.reader().lookup(&c, &Default::default(), &mut answer);
    assert_eq!((outcome, answer.len()), (kvatlas_index::Outcome::Exact, 64 * 64));
    index.check().unwrap();
    for (lane, rank) in lanes.iter_mut().zip(open) {
        lane.close_rank(rank).unwrap();
        lane.check().unwrap();
        while lane.sweep(100) > 0 {}
    }
    index.check().unwrap();
    assert_eq!(index.stats().runs, 0);
}
