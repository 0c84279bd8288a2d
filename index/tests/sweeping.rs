//! What a cleared or closed rank held is in no answer from that moment on, and its memory comes back by and by.

mod common;

use common::configurations::Configuration;
use common::pair::{Pair, copy};
use common::rng::{Rng, mix};
use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, IndexError, Lane, LookupOptions, RankFilter, RankKey,
    RankSlot, Reader, Tier,
};
use std::sync::Arc;

const DEVICE: Tier = Tier::Device;

fn names(seed: u64, blocks: u64) -> Vec<EngineHash> {
    (0..blocks).map(|i| EngineHash(mix(i, seed))).collect()
}

fn contents(chain: u64, blocks: u64) -> Vec<ContentHash> {
    (0..blocks).map(|i| ContentHash(mix(i, !chain))).collect()
}

fn index(config: IndexConfig) -> (Arc<Index>, Lane, Reader) {
    let (index, mut lanes) =
        Index::new(IndexConfig { hash_key: Some([1, 2]), ..config }).expect("a valid configuration");
    let reader = index.reader();
    (index, lanes.remove(0), reader)
}

/// Stores whole chains of their own names.
fn store(lane: &mut Lane, rank: RankSlot, chains: std::ops::Range<u64>, blocks: u64) {
    for chain in chains {
        let (n, c) = (names(chain, blocks), contents(chain, blocks));
        lane.store(Holder { rank, tier: DEVICE }, &copy(None, &n, &c)).expect("room for a chain");
    }
}

/// Whom a lookup of a chain names, with the blocks.
fn answer(reader: &mut Reader, chain: u64, blocks: u64) -> Vec<(u32, u32)> {
    let mut out = Vec::new();
    let _ = reader.lookup(&contents(chain, blocks), &LookupOptions::default(), &mut out);
    let mut out: Vec<_> = out.iter().map(|h| (h.rank.0, h.blocks)).collect();
    out.sort_unstable();
    out
}

fn check(index: &Index, lane: &Lane) {
    index.check().expect("the structural invariants");
    lane.check().expect("the lane's invariants");
}

#[test]
fn a_clear_is_visible_before_anything_is_swept() {
    let (index, mut lane, mut reader) = index(IndexConfig::default());
    let ranks: Vec<_> = (0..2).map(|key| lane.open_rank(RankKey(key)).expect("room")).collect();
    ranks.iter().for_each(|&rank| store(&mut lane, rank, 0..1_000, 20));
    let held = index.stats().held;
    assert_eq!(answer(&mut reader, 7, 20), [(0, 20), (1, 20)]);

    let did = lane.clear(ranks[0], None).expect("an open rank");
    assert_eq!((did.blocks, lane.held(Holder { rank: ranks[0], tier: DEVICE })), (20_000, 0));
    let stats = index.stats();
    assert_eq!((stats.held, stats.blocks), (held - 20_000, 20_000));
    assert!(stats.sweeping >= 19_000, "{} blocks left to sweep", stats.sweeping);
    for chain in 0..1_000 {
        assert_eq!(answer(&mut reader, chain, 20), [(1, 20)]);
    }
    lane.close_rank(ranks[1]).expect("an open rank");
    for chain in 0..1_000 {
        assert_eq!(answer(&mut reader, chain, 20), []);
    }
    assert_eq!((index.stats().held, index.stats().ranks), (0, 1));
    check(&index, &lane);
    while lane.sweep(10) > 0 {
        check(&index, &lane);
    }
    let stats = index.stats();
    assert_eq!((stats.sweeping, stats.blocks, stats.runs), (0, 0, 0));
}

/// Private names of a cleared rank are swept some granules at a time, and neither a rank that comes after it nor the limit
/// of private names meets them.
#[test]
fn private_names_of_a_cleared_rank_are_swept_by_and_by() {
    let (index, mut lane, mut reader) = index(IndexConfig { private_names_max_per_lane: 8_000, ..Default::default() });
    let ranks: Vec<_> = (0..2).map(|key| lane.open_rank(RankKey(key)).expect("room")).collect();
    let private = |lane: &mut Lane, salt: u64| {
        for chain in 0..100 {
            let (n, c) = (names(chain + salt, 20), contents(chain, 20));
            lane.store(Holder { rank: ranks[1], tier: DEVICE }, &copy(None, &n, &c)).expect("room for a chain");
        }
    };
    store(&mut lane, ranks[0], 0..100, 20);
    for round in 1..=20 {
        private(&mut lane, round * 1_000);
        check(&index, &lane);
        assert_eq!(answer(&mut reader, 7, 20), [(0, 20), (1, 20)]);
        assert_eq!(lane.clear(ranks[1], None).expect("an open rank").blocks, 2_000);
        let left = lane.sweep(0);
        assert!((3_000..=4_000).contains(&left), "{left} blocks and private names left");
        let swept = left - lane.sweep(1);
        assert!(swept <= 20 + 8, "{swept} by one run and one granule");
        check(&index, &lane);
        assert_eq!(answer(&mut reader, 7, 20), [(0, 20)]);
    }
    while lane.sweep(16) > 0 {}
    check(&index, &lane);
    assert_eq!(index.stats().sweeping, 0);
}

/// The same rank stores again at once: the same chains, others under the same names, and longer ones, while the sweep goes
/// over what it held before.
#[test]
fn a_cleared_rank_stores_again_while_the_sweep_goes_on() {
    let configuration =
        Configuration { name: "sweep", ranks: 3, lanes: 1, shards: 1, run_blocks_max: 512, tiny: false };
    let mut pair = Pair::new(&configuration);
    let none = RankFilter::new();
    for rank in 0..3 {
        pair.open(rank).expect("room");
    }
    let mut rng = Rng::new(5);
    for round in 0..40u64 {
        for step in 0..200 {
            let (rank, chain) = (rng.below(3), rng.below(120) as u64);
            // Every other round the names of the round before lead to other contents.
            let (n, c) = (names(chain, 12), contents(chain + round % 2 * 1_000, 12));
            let blocks = 1 + rng.below(12);
            if rank == 2 && rng.chance(300) {
                pair.remove(rank, DEVICE, &n[..blocks]).expect("as the oracle").expect("no limit");
            } else {
                pair.store(rank, DEVICE, &copy(None, &n[..blocks], &c[..blocks]))
                    .expect("as the oracle")
                    .expect("no limit");
            }
            if step % 16 == 0 {
                pair.compare_lookup(&c, &none).expect("as the oracle");
            }
        }
        let rank = (round % 3) as usize;
        if round % 4 == 3 {
            pair.close(rank).expect("as the oracle");
            pair.open(rank).expect("room");
        } else {
            pair.clear(rank, None).expect("as the oracle");
        }
        pair.check().expect("the invariants");
        pair.compare_names(rank).expect("as the oracle");
    }
    pair.finish().expect("as the oracle, and nothing left");
}

/// One rank is cleared far more often than there may be slots to sweep, each time with something to drop.
#[test]
fn a_storm_of_clears_keeps_its_memory() {
    let (index, mut lane, mut reader) = index(IndexConfig { ranks_max: 8, ..IndexConfig::default() });
    let steady = lane.open_rank(RankKey(1)).expect("room");
    store(&mut lane, steady, 0..3_000, 4);
    let fresh = index.stats().bytes_live;
    let rank = lane.open_rank(RankKey(2)).expect("room");
    let mut most = 0;
    for round in 0..2_000u64 {
        store(&mut lane, rank, round..round + 3, 4);
        assert_eq!(answer(&mut reader, round, 4), [(1, 4), (2, 4)]);
        assert_eq!(lane.clear(rank, None).expect("an open rank").blocks, 12);
        assert_eq!(answer(&mut reader, round, 4), [(1, 4)]);
        most = most.max(index.stats().sweeping);
    }
    assert!((24..=256 * 12).contains(&most), "{most} blocks waited to be swept");
    check(&index, &lane);
    while lane.sweep(1_000) > 0 {}
    check(&index, &lane);
    let stats = index.stats();
    assert_eq!((stats.held, stats.blocks, stats.sweeping), (12_000, 12_000, 0));
    assert!(stats.bytes_live <= fresh * 11 / 10, "{} bytes, {fresh} before", stats.bytes_live);
}

/// What waits to be swept is never the reason to refuse: neither a rank nor blocks.
#[test]
fn limits_do_not_see_what_is_not_swept() {
    let config =
        IndexConfig { ranks_max: 20, blocks_max: 1 << 12, runs_max: 1 << 9, exts_max: 64, ..IndexConfig::default() };
    let (index, mut lane, _) = index(config);
    let mut ranks: Vec<_> = (0..20).map(|key| lane.open_rank(RankKey(key)).expect("room")).collect();
    assert_eq!(lane.open_rank(RankKey(99)), Err(IndexError::RanksFull { limit: 20 }));
    for round in 0..200u64 {
        let i = (round % 20) as usize;
        store(&mut lane, ranks[i], round..round + 100, 24);
        if round % 2 == 0 {
            lane.clear(ranks[i], None).expect("an open rank");
        } else {
            lane.close_rank(ranks[i]).expect("an open rank");
            ranks[i] = lane.open_rank(RankKey(i as u32)).expect("as many ranks as before");
        }
    }
    check(&index, &lane);
    assert_eq!(index.stats().held, 0);
}

/// Ten thousand ranks that share chains leave one after the other.
#[test]
fn ten_thousand_ranks_leave() {
    const RANKS: u32 = 10_000;
    let (index, mut lane, mut reader) = index(IndexConfig { ranks_max: RANKS, ..IndexConfig::default() });
    let ranks: Vec<_> = (0..RANKS).map(|key| lane.open_rank(RankKey(key)).expect("room")).collect();
    for (i, &rank) in ranks.iter().enumerate() {
        let chain = i as u64 % 4;
        store(&mut lane, rank, chain..chain + 1, 1 + i as u64 % 30);
    }
    let (first, rest) = ranks.split_at(9_990);
    for &rank in first {
        lane.close_rank(rank).expect("an open rank");
    }
    let left: Vec<(u32, u32)> = (9_990..RANKS).filter(|r| r % 4 == 1).map(|r| (r, 1 + r % 30)).collect();
    assert_eq!(answer(&mut reader, 1, 30), left);
    while lane.sweep(100) > 0 {}
    check(&index, &lane);
    for &rank in rest {
        lane.close_rank(rank).expect("an open rank");
    }
    while lane.sweep(100) > 0 {}
    let stats = index.stats();
    assert_eq!((stats.ranks, stats.held, stats.blocks, stats.runs), (0, 0, 0, 0));
}
