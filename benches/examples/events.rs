//! One class of event at a time on one lane, the same work in every run: for instruction counts and interleaved timing.
//!
//! `events CLASS [CHAINS] [ROUNDS]` prepares an index with CHAINS chains of 64 blocks, applies the class to all of them in a
//! shuffled order and prints the median time of a block (or of an event, where an event has one block) over ROUNDS,
//! without and with the lane looking ahead in its queue, in turn. Under
//! callgrind with `--collect-atstart=no --toggle-collect='*measured*'` only the events themselves are counted.

use kvatlas_corpora::mix;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, RankKey, Store, StoreKind, Tier, Upcoming,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const BLOCKS: usize = 64;
/// Holders of a chain where sharing is high.
const CROWD: usize = 14;

struct Chain {
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
    /// The names, tail first.
    tail_first: Vec<EngineHash>,
}

impl Chain {
    fn store(&self) -> Store<'_> {
        Store { parent: None, names: &self.names, contents: &self.contents, kind: StoreKind::Copy }
    }
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
    ahead: bool,
}

impl Bed {
    fn new() -> Self {
        let config = IndexConfig { hash_key: Some([11, 13]), ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        let mut lane = lanes.pop().expect("one lane");
        let open = |r| Holder { rank: lane.open_rank(RankKey(r)).expect("room"), tier: Tier::Device };
        let holders = (0..CROWD as u32 + 1).map(open).collect();
        Self { _index: index, lane, holders, ahead: false }
    }

    fn with(chains: &[Chain], holders: usize) -> Self {
        let mut bed = Self::new();
        for h in 0..holders {
            // Stored in an order of its own, so that neighbours in time are not neighbours in memory.
            let step = (chains.len() / 2) | 1;
            for i in 0..chains.len() {
                bed.store(h, &chains[i * step % chains.len()]);
            }
        }
        bed
    }

    fn store(&mut self, holder: usize, chain: &Chain) {
        self.lane.store(self.holders[holder], &chain.store()).expect("room for every chain");
    }
}

#[inline(never)]
fn measured_stores(bed: &mut Bed, holder: usize, chains: &[Chain]) {
    let at = bed.holders[holder];
    for (i, chain) in chains.iter().enumerate() {
        if bed.ahead {
            bed.lane.look_ahead(|n| chains.get(i + n).map(|chain| Upcoming::Store(at, chain.store())));
        }
        bed.store(holder, chain);
    }
}

#[inline(never)]
fn measured_removals(bed: &mut Bed, holder: usize, chains: &[Chain], at_once: usize) {
    let at = bed.holders[holder];
    let each = BLOCKS / at_once;
    let event = |i: usize| chains.get(i / each).map(|chain| &chain.tail_first[i % each * at_once..][..at_once]);
    for (i, names) in (0..).map_while(|i| Some((i, event(i)?))) {
        if bed.ahead {
            bed.lane.look_ahead(|n| event(i + n).map(|names| Upcoming::Remove(at, names)));
        }
        black_box(bed.lane.remove(at, names).expect("an open rank"));
    }
}

/// One-name removals of many chains in turn: no two events after one another are of one chain.
#[inline(never)]
fn measured_scattered(bed: &mut Bed, holders: &[usize], chains: &[Chain]) {
    let holders: Vec<Holder> = holders.iter().map(|&h| bed.holders[h]).collect();
    let group = holders.len();
    let event = |e: usize| {
        let (first, i, k) = (e / (group * BLOCKS) * group, e / group % BLOCKS, e % group);
        chains.get(first + k).map(|chain| (holders[k], &chain.tail_first[i..=i]))
    };
    for e in 0..chains.len() / group * group * BLOCKS {
        if bed.ahead {
            bed.lane.look_ahead(|n| event(e + n).map(|(at, names)| Upcoming::Remove(at, names)));
        }
        let (at, names) = event(e).expect("inside");
        black_box(bed.lane.remove(at, names).expect("an open rank"));
    }
}

/// Decode: each chain in turn grows by one block, sixteen times.
#[inline(never)]
fn measured_appends(bed: &mut Bed, chains: &[Chain], tails: &[Chain]) {
    let at = bed.holders[0];
    let event = |e: usize| {
        let (i, chain) = (e / chains.len(), e % chains.len());
        let (tail, names) = (&tails[chain], &chains[chain].names);
        let parent = if i == 0 { names[BLOCKS - 1] } else { tail.names[i - 1] };
        let (names, contents) = (&tail.names[i..=i], &tail.contents[i..=i]);
        Store { parent: Some(parent), names, contents, kind: StoreKind::Copy }
    };
    let all = chains.len() * APPENDS;
    for e in 0..all {
        if bed.ahead {
            bed.lane.look_ahead(|n| (e + n < all).then(|| Upcoming::Store(at, event(e + n))));
        }
        black_box(bed.lane.store(at, &event(e)).expect("room"));
    }
}
const APPENDS: usize = 16;

fn run(class: &str, chains: &[Chain], ahead: bool) -> f64 {
    let per_block = (chains.len() * BLOCKS) as f64;
    let timed = |bed: &mut Bed, units: f64, work: &mut dyn FnMut(&mut Bed)| {
        bed.ahead = ahead;
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
        let mut times = [Vec::new(), Vec::new()];
        (0..rounds)
            .for_each(|_| [false, true].iter().zip(&mut times).for_each(|(&a, t)| t.push(run(name, &chains, a))));
        let [plain, ahead] = times.map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[rounds / 2]
        });
        println!("{name:12} {plain:8.1} ns, looking ahead {ahead:8.1} ns");
    }
}
