//! One class of work at a time, small and the same in every run, for counting instructions: `cargo xtask instructions` runs this
//! under callgrind, which collects inside [`measured`] only.
//!
//! 512 chains of 64 blocks share their first half with seven others; eight ranks; a fixed hash key.

use kvatlas_corpora::mix;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, Levels, LookupOptions, RankKey, Store, StoreKind, Tier,
};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

const CHAINS: u64 = 512;
const BLOCKS: u64 = 64;
const RANKS: u32 = 8;

/// Every class, and how many operations one run of it has.
const CLASSES: &[(&str, u64)] = &[
    ("first", CHAINS),
    ("join", CHAINS),
    ("join-random", CHAINS),
    ("append", CHAINS * 4),
    ("remove", CHAINS),
    ("remove-one", CHAINS * BLOCKS / 2),
    ("remove-one-random", CHAINS * BLOCKS / 2),
    ("lookup", CHAINS),
];

struct Chain {
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
}

fn chain(number: u64) -> Chain {
    let content = |block| mix(if block < BLOCKS / 2 { number / 8 } else { number | 1 << 32 }, block);
    let contents: Vec<_> = (0..BLOCKS).map(|block| ContentHash(content(block))).collect();
    let names = contents.iter().map(|content| EngineHash(mix(7, content.0))).collect();
    Chain { names, contents }
}

struct Bench {
    index: Arc<Index>,
    lane: Lane,
    holders: Vec<Holder>,
    chains: Vec<Chain>,
}

impl Bench {
    fn new() -> Self {
        let config = IndexConfig {
            hash_key: Some([11, 13]),
            ranks_max: 64,
            blocks_max: 1 << 20,
            runs_max: 1 << 18,
            exts_max: 1 << 16,
            ..IndexConfig::default()
        };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        let mut lane = lanes.pop().expect("one lane");
        let open = |key| Holder { rank: lane.open_rank(RankKey(key)).expect("room for the rank"), tier: Tier::Device };
        let holders = (0..RANKS).map(open).collect();
        Self { index, lane, holders, chains: (0..CHAINS).map(chain).collect() }
    }

    /// Chains that share nothing, under names that no other rank has.
    fn rename(&mut self, rank: usize) {
        self.chains = (0..CHAINS).map(|number| chain(number * 8)).collect();
        let names = self.chains.iter_mut().flat_map(|chain| &mut chain.names);
        names.for_each(|name| name.0 = mix(name.0, rank as u64));
    }

    fn store_all(&mut self, rank: usize) {
        for chain in &self.chains {
            let store = Store { parent: None, names: &chain.names, contents: &chain.contents, kind: StoreKind::Copy };
            let stored = self.lane.store(self.holders[rank], &store);
            assert!(stored.is_ok(), "room for every chain");
        }
    }

    /// Four decode blocks after every chain, one at a time, chain by chain.
    fn append_all(&mut self) {
        for step in 0..4 {
            for (number, chain) in self.chains.iter().enumerate() {
                let block = |step: u64| mix(99, (number as u64) << 8 | step);
                let last = chain.names[chain.names.len() - 1];
                let parent = Some(if step == 0 { last } else { EngineHash(block(step - 1)) });
                let (names, contents) = ([EngineHash(block(step))], [ContentHash(block(step) ^ 5)]);
                let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Copy };
                let stored = self.lane.store(self.holders[0], &store);
                assert!(stored.is_ok(), "room for every block");
            }
        }
    }

    fn remove_all(&mut self, rank: usize, names_max: usize) {
        for chain in &self.chains {
            let tail: Vec<EngineHash> = chain.names[BLOCKS as usize / 2..].iter().rev().copied().collect();
            for names in tail.chunks(names_max) {
                let removed = self.lane.remove(self.holders[rank], names);
                assert!(removed.is_ok(), "the rank is open");
            }
        }
    }

    fn look_up_all(&mut self) {
        let (mut reader, mut levels) = (self.index.reader(), Levels::new());
        for chain in &self.chains {
            let _ = black_box(reader.lookup_levels(&chain.contents, &LookupOptions::default(), &mut levels));
        }
        black_box(&levels);
    }
}

/// What callgrind collects.
#[inline(never)]
fn measured(bench: &mut Bench, work: fn(&mut Bench)) {
    work(black_box(bench));
}

fn main() -> ExitCode {
    let class = std::env::args().nth(1).unwrap_or_default();
    let mut bench = Bench::new();
    let held = match class.as_str() {
        "list" => {
            CLASSES.iter().for_each(|(name, operations)| println!("{name} {operations}"));
            return ExitCode::SUCCESS;
        }
        "first" => 0,
        "lookup" => RANKS as usize,
        "join-random" | "remove-one-random" => 0,
        _ => 1,
    };
    (0..held).for_each(|rank| bench.store_all(rank));
    let named = match class.as_str() {
        "join-random" => 6,
        "remove-one-random" => 2,
        _ => 0,
    };
    for rank in 0..named {
        bench.rename(rank);
        bench.store_all(rank);
    }
    if class == "join-random" {
        bench.rename(6);
    }
    match class.as_str() {
        "first" => measured(&mut bench, |bench| bench.store_all(0)),
        "join" => measured(&mut bench, |bench| bench.store_all(1)),
        "join-random" => measured(&mut bench, |bench| bench.store_all(6)),
        "append" => measured(&mut bench, Bench::append_all),
        "remove" => measured(&mut bench, |bench| bench.remove_all(0, usize::MAX)),
        "remove-one" => measured(&mut bench, |bench| bench.remove_all(0, 1)),
        "remove-one-random" => measured(&mut bench, |bench| bench.remove_all(1, 1)),
        "lookup" => measured(&mut bench, Bench::look_up_all),
        _ => {
            eprintln!("usage: instructions list | {}", CLASSES.iter().map(|c| c.0).collect::<Vec<_>>().join(" | "));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
