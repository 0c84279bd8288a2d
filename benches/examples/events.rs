//! One class of event at a time on one lane, the same work in every run: for instruction counts and interleaved timing.
//!
//! `events CLASS [CHAINS] [ROUNDS]` prepares an index with CHAINS chains of 64 blocks, applies the class to all of them in a
//! shuffled order and prints the median time of a block (or of an event, where an event has one block) over ROUNDS. Under
//! callgrind with `--collect-atstart=no --toggle-collect='*measured*'` only the events themselves are counted.

use kvatlas_index::{ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, RankKey, Store, StoreKind, Tier};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const BLOCKS: usize = 64;
/// Holders of a chain where sharing is high.
const CROWD: usize = 14;

fn mix(seed: u64, x: u64) -> u64 {
    let x = (seed.rotate_left(32) ^ x).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 31).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

struct Chain {
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
    /// The names, tail first.
    tail_first: Vec<EngineHash>,
}

/// Chains that share nothing; `kind` tells sets of them apart.
fn chains(kind: u64, count: usize) -> Vec<Chain> {
    let chain = |i: usize| {
        let seed = mix(kind, i as u64);
        let contents: Vec<_> = (0..BLOCKS).map(|b| ContentHash(mix(seed, b as u64))).collect();
        let names: Vec<_> = contents.iter().map(|c| EngineHash(mix(7, c.0))).collect();
        let tail_first = names.iter().rev().copied().collect();
        Chain { names, contents, tail_first }
    };
    let mut all: Vec<Chain> = (0..count).map(chain).collect();
    for i in (1..all.len()).rev() {
        all.swap(i, mix(99, i as u64) as usize % (i + 1));
    }
    all
}

struct Bed {
    _index: Arc<Index>,
    lane: Lane,
    holders: Vec<Holder>,
}

impl Bed {
    fn new() -> Self {
        let config = IndexConfig { hash_key: Some([11, 13]), ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        let mut lane = lanes.pop().expect("one lane");
        let open = |r| Holder { rank: lane.open_rank(RankKey(r)).expect("room"), tier: Tier::Device };
        let holders = (0..CROWD as u32 + 1).map(open).collect();
        Self { _index: index, lane, holders }
    }

    fn with(chains: &[Chain], holders: usize) -> Self {
        let mut bed = Self::new();
        for h in 0..holders {
            // Stored in an order of its own, so that neighbours in time are not neighbours in memory.
            let step = chains.len() / 2 + 1 | 1;
            for i in 0..chains.len() {
                bed.store(h, &chains[i * step % chains.len()]);
            }
        }
        bed
    }

    fn store(&mut self, holder: usize, chain: &Chain) {
        let store = Store { parent: None, names: &chain.names, contents: &chain.contents, kind: StoreKind::Copy };
        self.lane.store(self.holders[holder], &store).expect("room for every chain");
    }
}

#[inline(never)]
fn measured_stores(bed: &mut Bed, holder: usize, chains: &[Chain]) {
    chains.iter().for_each(|chain| bed.store(holder, chain));
}

#[inline(never)]
fn measured_removals(bed: &mut Bed, holder: usize, chains: &[Chain], at_once: usize) {
    let at = bed.holders[holder];
    for names in chains.iter().flat_map(|chain| chain.tail_first.chunks(at_once)) {
        black_box(bed.lane.remove(at, names).expect("an open rank"));
    }
}

/// One-name removals of many chains in turn: no two events after one another are of one chain.
#[inline(never)]
fn measured_scattered(bed: &mut Bed, holders: &[usize], chains: &[Chain]) {
    let holders: Vec<Holder> = holders.iter().map(|&h| bed.holders[h]).collect();
    for group in chains.chunks(holders.len()) {
        for i in 0..BLOCKS {
            for (chain, &at) in group.iter().zip(&holders) {
                black_box(bed.lane.remove(at, &chain.tail_first[i..=i]).expect("an open rank"));
            }
        }
    }
}

/// Decode: each chain in turn grows by one block, sixteen times.
#[inline(never)]
fn measured_appends(bed: &mut Bed, chains: &[Chain], tails: &[Chain]) {
    let at = bed.holders[0];
    for i in 0..APPENDS {
        for (chain, tail) in chains.iter().zip(tails) {
            let parent = if i == 0 { chain.names[BLOCKS - 1] } else { tail.names[i - 1] };
            let (names, contents) = (&tail.names[i..=i], &tail.contents[i..=i]);
            let store = Store { parent: Some(parent), names, contents, kind: StoreKind::Copy };
            black_box(bed.lane.store(at, &store).expect("room"));
        }
    }
}
const APPENDS: usize = 16;

fn run(class: &str, chains: &[Chain]) -> f64 {
    let per_block = (chains.len() * BLOCKS) as f64;
    let timed = |bed: &mut Bed, units: f64, work: &mut dyn FnMut(&mut Bed)| {
        let start = Instant::now();
        work(bed);
        start.elapsed().as_nanos() as f64 / units
    };
    match class {
        "first" => timed(&mut Bed::new(), per_block, &mut |bed| measured_stores(bed, 0, chains)),
        "join_high" => timed(&mut Bed::with(chains, CROWD), per_block, &mut |bed| measured_stores(bed, CROWD, chains)),
        "join_low" => timed(&mut Bed::with(chains, 1), per_block, &mut |bed| measured_stores(bed, CROWD, chains)),
        "remove_high" => {
            timed(&mut Bed::with(chains, CROWD), per_block, &mut |bed| measured_removals(bed, 3, chains, BLOCKS))
        }
        "remove_low" => {
            timed(&mut Bed::with(chains, 1), per_block, &mut |bed| measured_removals(bed, 0, chains, BLOCKS))
        }
        "one_high" => timed(&mut Bed::with(chains, CROWD), per_block, &mut |bed| measured_removals(bed, 3, chains, 1)),
        "one_low" => timed(&mut Bed::with(chains, 1), per_block, &mut |bed| measured_removals(bed, 0, chains, 1)),
        "one_spread" => {
            let all: Vec<usize> = (0..CROWD).collect();
            timed(&mut Bed::with(chains, CROWD), per_block, &mut |bed| measured_scattered(bed, &all, chains))
        }
        "append" => {
            let tails = self::chains(2, chains.len());
            let units = (chains.len() * APPENDS) as f64;
            timed(&mut Bed::with(chains, 1), units, &mut |bed| measured_appends(bed, chains, &tails))
        }
        other => {
            eprintln!("unknown class {other}");
            std::process::exit(2);
        }
    }
}

const CLASSES: [&str; 9] =
    ["first", "join_high", "join_low", "remove_high", "remove_low", "one_high", "one_low", "one_spread", "append"];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let class = arguments.next().unwrap_or_else(|| "all".into());
    let mut number = |default: usize| arguments.next().and_then(|a| a.parse().ok()).unwrap_or(default);
    let (count, rounds) = (number(2_048), number(5));
    let chains = chains(1, count);
    for name in CLASSES.into_iter().filter(|&c| class == "all" || c == class) {
        let mut times: Vec<f64> = (0..rounds).map(|_| run(name, &chains)).collect();
        times.sort_by(f64::total_cmp);
        println!("{name:12} {:8.1} ns (least {:.1})", times[rounds / 2], times[0]);
    }
}
