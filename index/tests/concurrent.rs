//! Sixteen lanes on threads and four readers, workers being replaced all the while.
//!
//! Each lane plays a history of its own ranks, but all lanes store along the same popular paths, so that they meet in the same
//! runs. What every operation says, and everything that is left in the end, must equal the oracle, to which the histories are
//! fed afterwards. While the lanes run, an answer must be plausible: ranks that do not change are exact, nobody is named
//! beyond what it can ever have held, and a chain that nobody held is never found.

#![expect(clippy::disallowed_types, reason = "a test's own flags are no part of the index's protocol")]

mod common;

use common::generator::Generator;
use common::operation::Op;
use common::profiles::CONCURRENT;
use common::rng::{Rng, mix};
use common::sides::{Did, Keys, OnLane, OnOracle};
use kvatlas_index::reference::Reference;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, HolderDepth, Index, IndexConfig, Lane, LookupOptions, Outcome, RankKey, Reader,
    Residency, Store, StoreKind, Tier,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const LANES: usize = 16;
const READERS: usize = 4;
/// Random ranks of each lane.
const RANKS: usize = 4;
/// Operations of each lane in one run.
const STEPS: usize = 500;
/// Runs unless `KVATLAS_CONCURRENT_RUNS` says otherwise.
const RUNS: usize = 20;
/// A rank on each lane that holds the shared path throughout.
const STEADY: u32 = 100_000;
/// A rank on each lane that stores and drops the first blocks of the shared path, and never more of them.
const SHORT: u32 = 200_000;
const SHORT_BLOCKS: usize = 10;
/// A rank on each lane that never stores anything.
const IDLE: u32 = 300_000;
/// Never stored by anyone.
const UNKNOWN: ContentHash = ContentHash(0xDEAD_BEEF_0000_0001);

#[test]
fn sixteen_lanes_and_four_readers() {
    let runs = std::env::var("KVATLAS_CONCURRENT_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(RUNS);
    let mut total = Seen::default();
    for run in 0..runs {
        let seen = one_run(run);
        total.exact += seen.exact;
        total.busy += seen.busy;
    }
    println!("{runs} of {runs} runs equal the oracle; {} lookups exact, {} busy", total.exact, total.busy);
    assert!(total.exact > 0, "no reader ever got an exact answer");
}

#[derive(Default)]
struct Seen {
    exact: u64,
    busy: u64,
}

fn one_run(run: usize) -> Seen {
    let seed = mix(0xC0C0, run as u64);
    let shards = 1 + run / 4 % 2;
    let config = IndexConfig {
        shards: shards as u32,
        lanes_per_shard: (LANES / shards) as u32,
        ranks_max: 1024,
        blocks_max: 1 << 20,
        runs_max: 1 << 18,
        exts_max: 1 << 15,
        orphans_max_per_rank: 24,
        run_blocks_max: [512, 8, 3, 1][run % 4],
        hash_key: Some([seed, 1]),
        ..IndexConfig::default()
    };
    println!("run {run}: seed {seed:#x}, shards {shards}, runs of {}", config.run_blocks_max);
    let mut oracle = Reference::new(config.orphans_max_per_rank as usize);
    let (index, mut lanes) = Index::new(config).expect("a valid configuration");
    let generators: Vec<Generator> = (0..LANES).map(|_| Generator::new(&CONCURRENT, RANKS, seed)).collect();
    let shared = generators[0].shared_path().to_vec();
    let fixed: Vec<Fixed> =
        lanes.iter_mut().enumerate().map(|(i, lane)| Fixed::open(lane, i as u32, &shared)).collect();

    let done = AtomicBool::new(false);
    let (exact, busy) = (AtomicU64::new(0), AtomicU64::new(0));
    let histories: Vec<History> = std::thread::scope(|scope| {
        for number in 0..READERS {
            let (reader, shared, generator) = (index.reader(), &shared, generators[0].clone());
            let (done, exact, busy) = (&done, &exact, &busy);
            scope.spawn(move || {
                let seen = read_along(reader, shared, &generator, done, mix(seed, 77 + number as u64));
                exact.fetch_add(seen.exact, Ordering::Relaxed);
                busy.fetch_add(seen.busy, Ordering::Relaxed);
            });
        }
        let writers: Vec<_> = lanes
            .into_iter()
            .zip(generators)
            .zip(&fixed)
            .enumerate()
            .map(|(i, ((lane, generator), fixed))| {
                let shared = &shared;
                scope.spawn(move || History::play(lane, i, generator, fixed, shared, mix(seed, i as u64)))
            })
            .collect();
        let histories = writers.into_iter().map(|writer| writer.join());
        let histories: Vec<_> = histories.collect();
        // The readers must end also where a writer failed.
        done.store(true, Ordering::Release);
        histories.into_iter().map(|h| h.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    compare(&index, &mut oracle, histories, &shared);
    Seen { exact: exact.into_inner(), busy: busy.into_inner() }
}

/// The ranks of a lane about which a reader knows what to expect.
struct Fixed {
    steady: Holder,
    short: Holder,
    idle: Holder,
}

fn names_of(path: &[ContentHash]) -> Vec<EngineHash> {
    let mut chain = 5;
    let step = |c: &ContentHash| {
        chain = mix(chain, c.0);
        EngineHash(chain)
    };
    path.iter().map(step).collect()
}

impl Fixed {
    fn open(lane: &mut Lane, number: u32, shared: &[ContentHash]) -> Self {
        let mut open = |first: u32| {
            let rank = lane.open_rank(RankKey(first + number)).expect("room for every rank");
            Holder { rank, tier: Tier::Device }
        };
        let fixed = Fixed { steady: open(STEADY), short: open(SHORT), idle: open(IDLE) };
        let names = names_of(shared);
        let store = Store { parent: None, names: &names, contents: shared, kind: StoreKind::Copy };
        lane.store(fixed.steady, &store).expect("room for the shared path");
        fixed
    }

    /// Drops the short rank's blocks in one of several orders and stores them again.
    fn churn(&self, lane: &mut Lane, shared: &[ContentHash], rng: &mut Rng) {
        let contents = &shared[..SHORT_BLOCKS];
        let mut names = names_of(contents);
        let store = Store { parent: None, names: &names, contents, kind: StoreKind::Announce };
        lane.store(self.short, &store).expect("room for a few blocks");
        match rng.below(3) {
            0 => names.reverse(),
            1 => names.rotate_left(SHORT_BLOCKS / 2),
            _ => {}
        }
        lane.remove(self.short, &names).expect("a removal of what was stored");
    }
}

/// What one lane played, and what it was told.
struct History {
    side: OnLane,
    fixed: [Holder; 3],
    ops: Vec<Op>,
    did: Vec<Did>,
}

impl History {
    fn play(
        lane: Lane,
        number: usize,
        mut generator: Generator,
        fixed: &Fixed,
        shared: &[ContentHash],
        seed: u64,
    ) -> History {
        let mut side = OnLane::new(lane, Keys::new((number * 2 * RANKS) as u32, RANKS));
        let (mut rng, mut ops, mut did) = (Rng::new(seed), Vec::new(), Vec::new());
        for step in 0..STEPS {
            let op = if step < RANKS { Op::Open { rank: step } } else { generator.draw(&mut rng) };
            side.apply(&op, &mut did);
            generator.note(&op);
            ops.push(op);
            if step % 3 == 0 {
                fixed.churn(&mut side.lane, shared, &mut rng);
            }
        }
        History { side, fixed: [fixed.steady, fixed.short, fixed.idle], ops, did }
    }
}

/// Looks up until the writers are done, and a little longer.
fn read_along(mut reader: Reader, shared: &[ContentHash], generator: &Generator, done: &AtomicBool, seed: u64) -> Seen {
    let (mut rng, mut seen, mut answer) = (Rng::new(seed), Seen::default(), Vec::new());
    let mut rounds_left = 50;
    while rounds_left > 0 {
        if done.load(Ordering::Acquire) {
            rounds_left -= 1;
        }
        let mut query = match rng.below(4) {
            0 => shared.to_vec(),
            1 => shared[..1 + rng.below(shared.len())].to_vec(),
            _ => generator.query(&mut rng),
        };
        let known = query.len();
        match rng.below(4) {
            0 => query.push(UNKNOWN),
            1 => query.insert(0, UNKNOWN),
            _ => {}
        }
        let known = if query.first() == Some(&UNKNOWN) { 0 } else { known };
        let residency = if rng.chance(500) { Residency::PerTier } else { Residency::Cumulative };
        answer.clear();
        let outcome = reader.lookup(&query, &LookupOptions { filter: None, residency }, &mut answer);
        seen.exact += u64::from(outcome == Outcome::Exact);
        seen.busy += u64::from(outcome == Outcome::Busy);
        check_answer(&query, known, shared, outcome, &answer);
    }
    seen
}

/// What holds of every answer, however the writers stand.
fn check_answer(query: &[ContentHash], known: usize, shared: &[ContentHash], outcome: Outcome, answer: &[HolderDepth]) {
    let along = query.iter().zip(shared).take_while(|(a, b)| a == b).count();
    let mut steady = 0;
    for line in answer {
        let (blocks, number) = (line.blocks as usize, line.rank.0);
        assert!(blocks >= 1 && blocks <= known, "{line:?} of a query with {known} blocks that may exist: {query:?}");
        match number {
            IDLE.. => panic!("{line:?}: this rank never stored anything"),
            SHORT.. => assert!(blocks <= SHORT_BLOCKS.min(along), "{line:?} was never that deep on {query:?}"),
            STEADY.. => {
                assert!(blocks <= along, "{line:?} never left the shared path, {query:?} leaves it after {along}");
                assert!(
                    outcome == Outcome::Busy || blocks == along,
                    "{line:?} holds {along} blocks of {query:?} at all times"
                );
                assert_eq!(line.tier, Tier::Device, "{line:?}");
                steady += 1;
            }
            _ => assert!((number as usize) < LANES * 2 * RANKS, "{line:?} was never opened"),
        }
    }
    if outcome == Outcome::Exact && along > 0 {
        assert_eq!(steady, LANES, "a rank that held {along} blocks of {query:?} throughout is missing");
    }
    let mut holders: Vec<_> = answer.iter().map(|h| (h.rank, h.tier)).collect();
    holders.sort_unstable();
    holders.dedup();
    assert_eq!(holders.len(), answer.len(), "a holder is named twice: {answer:?}");
}

/// Everything that was said and everything that is left equals the oracle.
fn compare(index: &std::sync::Arc<Index>, oracle: &mut Reference, histories: Vec<History>, shared: &[ContentHash]) {
    for number in 0..LANES as u32 {
        let key = RankKey(STEADY + number);
        oracle.open_rank(key);
        let store = Store { parent: None, names: &names_of(shared), contents: shared, kind: StoreKind::Copy };
        oracle.store(key, Tier::Device, &store).expect("a well-formed store");
    }
    index.check().expect("the structural invariants");
    histories.iter().for_each(|h| h.side.lane.check().expect("the lane's invariants"));
    let mut queries = vec![shared.to_vec()];
    for (number, history) in histories.iter().enumerate() {
        let mut side = OnOracle::new(oracle, Keys::new((number * 2 * RANKS) as u32, RANKS));
        let mut did = Vec::new();
        for (step, op) in history.ops.iter().enumerate() {
            let from = did.len();
            side.apply(op, &mut did);
            let got = &history.did[from..did.len()];
            assert_eq!(got, &did[from..], "lane {number} step {step}: index, oracle of {op:?}");
        }
        for rank in 0..RANKS {
            let Some(slot) = history.side.slots[rank] else { continue };
            let key = history.side.keys.key(rank);
            for tier in Tier::ALL {
                let at = Holder { rank: slot, tier };
                assert_eq!(history.side.lane.names(at), oracle.names(key, tier), "names of {key:?} {tier:?}");
                assert_eq!(history.side.lane.held(at), oracle.held(key, tier), "held by {key:?} {tier:?}");
            }
            assert_eq!(history.side.lane.parked(slot), oracle.parked(key), "parked for {key:?}");
        }
        queries.extend(history.ops.iter().rev().filter_map(path_of).take(40));
    }
    let mut reader = index.reader();
    for query in &queries {
        for residency in [Residency::PerTier, Residency::Cumulative] {
            let mut got = Vec::new();
            let outcome = reader.lookup(query, &LookupOptions { filter: None, residency }, &mut got);
            got.sort_unstable();
            assert_eq!((outcome, got), (Outcome::Exact, oracle.lookup(query, residency)), "of {query:?}");
        }
    }
    for mut history in histories {
        let open = history.side.slots.iter().flatten().copied().chain(history.fixed.map(|h| h.rank));
        for slot in open {
            history.side.lane.close_rank(slot).expect("an open rank");
        }
        while history.side.lane.sweep(100) > 0 {}
    }
    let left = index.stats();
    assert_eq!((left.held, left.blocks, left.runs, left.ranks), (0, 0, 0, 0), "left after every rank was closed");
}

/// The path that a store puts its blocks on.
fn path_of(op: &Op) -> Option<Vec<ContentHash>> {
    match op {
        Op::Store { contents, above, .. } => Some(above.0.iter().chain(contents).copied().collect()),
        _ => None,
    }
}
