//! More lanes than cores on a handful of two- and three-block chains: every operation splits, appends, trims or unlinks a run
//! that the others are at, while readers look on. In the end everything equals the oracle.

#![expect(clippy::disallowed_types, reason = "a test's own flags are no part of the index's protocol")]

mod common;

use common::operation::{Above, Op};
use common::rng::{Rng, mix};
use common::sides::{Did, Keys, OnLane, OnOracle};
use kvatlas_index::reference::Reference;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, HolderDepth, Index, IndexConfig, LookupOptions, Outcome, RankKey, Reader,
    Residency, Store, StoreKind, Tier,
};
use std::sync::atomic::{AtomicBool, Ordering};

const LANES: usize = 6;
const READERS: usize = 2;
/// Ranks of a lane: with all lanes, more than a run's inline form holds.
const RANKS: usize = 3;
const STEPS: usize = 4000;
/// Histories unless `KVATLAS_HAMMER_SEEDS` says otherwise.
const SEEDS: u64 = 50;
/// Holds every chain in full, on the first lane, throughout.
const STEADY: u32 = 50_000;
/// Contents of the chains: forks after one and after two blocks, and a content that is the root's first one as well.
const CHAINS: [&[u64]; 5] = [&[0, 1, 2], &[0, 1, 3], &[0, 4], &[u64::MAX, 0], &[u64::MAX, 0, u64::MAX]];

#[test]
fn lanes_hammer_short_chains() {
    let seeds = std::env::var("KVATLAS_HAMMER_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SEEDS);
    let merges: u64 = (0..seeds).map(one_seed).sum();
    println!("{merges} halves became one again");
    assert!(merges > seeds, "{merges} merges in {seeds} histories");
}

fn chain(number: usize) -> Vec<ContentHash> {
    CHAINS[number].iter().copied().map(ContentHash).collect()
}

fn names(seed: u64, contents: &[ContentHash]) -> Vec<EngineHash> {
    let mut at = seed;
    let step = |c: &ContentHash| {
        at = mix(at, c.0);
        EngineHash(at)
    };
    contents.iter().map(step).collect()
}

/// How many halves became one again.
fn one_seed(seed: u64) -> u64 {
    println!("seed {seed}");
    let steady = seed % 3 != 2;
    let config = IndexConfig {
        lanes_per_shard: LANES as u32,
        ranks_max: 256,
        blocks_max: 1 << 14,
        runs_max: 1 << 12,
        exts_max: 1 << 10,
        orphans_max_per_rank: 4,
        run_blocks_max: [512, 1, 2][(seed / 3 % 3) as usize],
        hash_key: Some([seed, mix(seed, 3)]),
        ..IndexConfig::default()
    };
    let mut oracle = Reference::new(config.orphans_max_per_rank as usize);
    let (index, mut lanes) = Index::new(config).expect("a valid configuration");
    let rank = lanes[0].open_rank(RankKey(STEADY)).expect("room for a rank");
    oracle.open_rank(RankKey(STEADY));
    for number in 0..if steady { CHAINS.len() } else { 0 } {
        let contents = chain(number);
        let store = Store { parent: None, names: &names(7, &contents), contents: &contents, kind: StoreKind::Announce };
        lanes[0].store(Holder { rank, tier: Tier::Device }, &store).expect("room for a chain");
        oracle.store(RankKey(STEADY), Tier::Device, &store).expect("a well-formed store");
    }
    let done = AtomicBool::new(false);
    let played: Vec<(OnLane, Vec<Op>, Vec<Did>)> = std::thread::scope(|scope| {
        for number in 0..READERS as u64 {
            let (reader, done) = (index.reader(), &done);
            scope.spawn(move || read_along(reader, steady, done, mix(seed, 90 + number)));
        }
        let writers: Vec<_> = lanes
            .into_iter()
            .enumerate()
            .map(|(i, lane)| scope.spawn(move || play(OnLane::new(lane, keys(i)), mix(seed, i as u64))))
            .collect();
        let played: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        played.into_iter().map(|p| p.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    index.check().expect("the structural invariants");
    for (i, (side, ops, did)) in played.iter().enumerate() {
        side.lane.check().expect("the lane's invariants");
        let mut other = OnOracle::new(&mut oracle, keys(i));
        let mut want = Vec::new();
        ops.iter().for_each(|op| other.apply(op, &mut want));
        assert_eq!(did, &want, "what lane {i} was told, and the oracle");
        for rank in 0..RANKS {
            let (Some(slot), key) = (side.slots[rank], side.keys.key(rank)) else { continue };
            for tier in Tier::ALL {
                assert_eq!(side.lane.names(Holder { rank: slot, tier }), oracle.names(key, tier), "{key:?} {tier:?}");
            }
        }
    }
    let mut reader = index.reader();
    for query in (0..CHAINS.len()).map(chain) {
        for residency in [Residency::PerTier, Residency::Cumulative] {
            let mut got = Vec::new();
            let outcome = reader.lookup(&query, &LookupOptions { filter: None, residency }, &mut got);
            got.sort_unstable();
            assert_eq!((outcome, got), (Outcome::Exact, oracle.lookup(&query, residency)), "of {query:?}");
        }
    }
    for (i, (mut side, ..)) in played.into_iter().enumerate() {
        let slots = side.slots.iter().flatten().copied().chain((i == 0).then_some(rank));
        slots.for_each(|slot| {
            side.lane.close_rank(slot).expect("an open rank");
        });
        while side.lane.sweep(100) > 0 {}
        side.lane.check().expect("the lane's invariants");
    }
    index.check().expect("the structural invariants");
    let left = index.stats();
    assert_eq!((left.held, left.blocks, left.runs, left.ranks), (0, 0, 0, 0), "left after every rank was closed");
    left.merges
}

fn keys(lane: usize) -> Keys {
    Keys::new((lane * 2 * RANKS) as u32, RANKS)
}

/// One lane's history: mostly stores and removals of one to three blocks.
fn play(mut side: OnLane, seed: u64) -> (OnLane, Vec<Op>, Vec<Did>) {
    let (mut rng, mut ops, mut did) = (Rng::new(seed), Vec::new(), Vec::new());
    for _ in 0..STEPS {
        let op = draw(&mut rng);
        side.apply(&op, &mut did);
        ops.push(op);
    }
    (side, ops, did)
}

fn draw(rng: &mut Rng) -> Op {
    let rank = rng.below(RANKS);
    let tier = if rng.chance(850) { Tier::Device } else { Tier::Host };
    let mut contents = chain(rng.below(CHAINS.len()));
    // A rank's engine mostly uses everybody's seed, sometimes its own.
    let mut all = names(if rng.chance(800) { 7 } else { 100 + rank as u64 }, &contents);
    let from = if rng.chance(300) { rng.below(contents.len()) } else { 0 };
    let to = from + 1 + rng.below(contents.len() - from);
    match rng.below(100) {
        0..=4 => Op::Open { rank },
        5..=6 => Op::Close { rank },
        7..=8 => Op::Clear { rank, tier: rng.chance(500).then_some(tier) },
        9..=11 => Op::Adopt { rank, tier, names: all[from..to].to_vec() },
        12..=14 => Op::SetCopies { rank, tier, name: all[from], left: rng.below(2) as u64 },
        15..=56 => {
            let parent = from.checked_sub(1).map(|i| all[i]);
            let (names, contents) = (all.drain(from..to).collect(), contents.drain(from..to).collect());
            let kind = if rng.chance(500) { StoreKind::Announce } else { StoreKind::Copy };
            Op::Store { rank, tier, parent, names, contents, kind, above: Above::default() }
        }
        _ => {
            let mut names = all[from..to].to_vec();
            if rng.chance(600) {
                names.reverse();
            }
            Op::Remove { rank, tier, names, each: rng.chance(500) }
        }
    }
}

fn read_along(mut reader: Reader, steady: bool, done: &AtomicBool, seed: u64) {
    let (mut rng, mut answer, mut walk) = (Rng::new(seed), Vec::new(), Vec::new());
    while !done.load(Ordering::Acquire) {
        let mut query = chain(rng.below(CHAINS.len()));
        query.truncate(1 + rng.below(query.len()));
        let known = query.len();
        if rng.chance(200) {
            query.push(ContentHash(0xDEAD));
        }
        let residency = if rng.chance(700) { Residency::PerTier } else { Residency::Cumulative };
        answer.clear();
        let outcome = reader.lookup(&query, &LookupOptions { filter: None, residency }, &mut answer);
        answer.sort_unstable();
        let twice = answer.windows(2).find(|w| (w[0].rank, w[0].tier) == (w[1].rank, w[1].tier));
        assert!(twice.is_none(), "a holder is named twice: {twice:?} of {query:?}");
        for HolderDepth { rank, blocks, .. } in &answer {
            assert!(*blocks as usize <= known, "{rank:?} holds {blocks} of {query:?}");
            assert!(rank.0 == STEADY || (rank.0 as usize) < LANES * 2 * RANKS, "{rank:?} was never opened");
        }
        let its = answer.iter().find(|h| h.rank.0 == STEADY);
        if steady && outcome == Outcome::Exact {
            assert_eq!(its.map(|h| h.blocks as usize), Some(known), "the rank that holds {query:?} throughout");
        }
        walk.clear();
        if steady && reader.walk(&query, RankKey(STEADY), Tier::Device, &mut walk) == Outcome::Exact {
            assert_eq!(walk.iter().map(|s| s.held as usize).sum::<usize>(), known, "{walk:?} of {query:?}");
        }
    }
}
