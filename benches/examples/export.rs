//! How long exports take: `export [RANKS] [BLOCKS] [ROUNDS]` fills one lane with RANKS ranks of BLOCKS blocks each and exports one of
//! them ROUNDS times, whole and in steps. Prints, by the kind of what the rank holds, the median time of a block and of all, the
//! longest step, and the time of a block to import it on a lane that has the chains already.
//!
//! Under callgrind with `--collect-atstart=no --toggle-collect='*measured*'` only the whole exports are counted.

use kvatlas_corpora::mix;
use kvatlas_index::{
    ContentHash, EngineHash, Exported, Holder, Index, IndexConfig, Lane, RankKey, RankSlot, Store, StoreKind, Tier,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Units of a step.
const STEP: u32 = 1 << 15;

fn store(lane: &mut Lane, rank: RankSlot, parent: Option<EngineHash>, salt: u64, contents: &[u64]) {
    let names: Vec<_> = contents.iter().map(|&c| EngineHash(mix(salt, c))).collect();
    let contents: Vec<_> = contents.iter().map(|&c| ContentHash(c)).collect();
    let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Copy };
    lane.store(Holder { rank, tier: Tier::Device }, &store).expect("room");
}

/// Chains of 64 blocks, of which `shared` in a hundred are everybody's; `salt` makes the names a rank's own.
fn fill(lane: &mut Lane, rank: RankSlot, number: u64, blocks: u64, shared: u64, salt: u64) {
    for chain in 0..blocks / 64 {
        let owner = if chain % 100 < shared { 0 } else { number + 1 };
        let contents: Vec<_> = (0..64).map(|i| mix(mix(owner, chain), i)).collect();
        store(lane, rank, None, salt, &contents);
    }
}

#[inline(never)]
fn measured_export(lane: &Lane, rank: RankSlot, step: u32, longest: &mut Duration) -> (u64, Duration) {
    let (mut names, mut all) = (0, Duration::ZERO);
    let mut export = lane.export(rank).expect("an open rank");
    loop {
        let start = Instant::now();
        let mut see = |told: Exported<'_>| {
            if let Exported::Store { store, .. } = black_box(told) {
                names += store.names.len() as u64;
            }
        };
        let done = lane.export_some(&mut export, step, &mut see).expect("nothing changes");
        let took = start.elapsed();
        all += took;
        *longest = (*longest).max(took);
        if done {
            return (names, all);
        }
    }
}

fn run(kind: &str, ranks: u64, blocks: u64, rounds: usize) {
    let config = IndexConfig { hash_key: Some([11, 13]), ..IndexConfig::default() };
    let (index, mut lanes) = Index::new(config).expect("a valid configuration");
    let mut lane = lanes.remove(0);
    let slots: Vec<_> = (0..ranks).map(|key| lane.open_rank(RankKey(key as u32)).expect("room")).collect();
    for (number, &slot) in slots.iter().enumerate() {
        let number = number as u64;
        let salt = if kind == "private" { number } else { 7 };
        let shared = if kind == "own" { 0 } else { 50 };
        fill(&mut lane, slot, number, blocks, shared, salt);
    }
    let rank = slots[slots.len() / 2];
    if kind == "holes" {
        let names = |chain: u64| {
            let owner = if chain % 100 < 50 { 0 } else { ranks / 2 + 1 };
            [5, 30].map(|i| EngineHash(mix(7, mix(mix(owner, chain), i))))
        };
        for chain in 0..blocks / 64 {
            lane.remove(Holder { rank, tier: Tier::Device }, &names(chain)).expect("an open rank");
        }
    }
    let (mut longest, mut whole, mut told) = (Duration::ZERO, Vec::new(), 0);
    for _ in 0..rounds {
        let mut one = Duration::ZERO;
        let (names, took) = measured_export(&lane, rank, u32::MAX, &mut one);
        whole.push(took);
        told = names;
        measured_export(&lane, rank, STEP, &mut longest);
    }
    whole.sort_unstable();
    let took = whole[rounds / 2];
    let copy = lane.open_rank(RankKey(u32::MAX)).expect("room");
    let import = import(&mut lane, rank, copy);
    println!(
        "{kind:8} {told:8} blocks told, {:8} runs in the shard: {:6.1} ns a block, {:6.2} ms in all, longest step {:5.2} ms, import {:6.1} ns a block",
        index.stats().runs,
        took.as_nanos() as f64 / told as f64,
        took.as_secs_f64() * 1e3,
        longest.as_secs_f64() * 1e3,
        import.as_nanos() as f64 / told as f64,
    );
}

enum Kept {
    Store(Option<EngineHash>, Vec<EngineHash>, Vec<ContentHash>),
    Remove(Vec<EngineHash>),
}

fn import(lane: &mut Lane, from: RankSlot, to: RankSlot) -> Duration {
    let (mut kept, mut export) = (Vec::new(), lane.export(from).expect("an open rank"));
    let mut see = |told: Exported<'_>| match told {
        Exported::Store { store, .. } => {
            kept.push(Kept::Store(store.parent, store.names.to_vec(), store.contents.to_vec()));
        }
        Exported::Remove { names, .. } => kept.push(Kept::Remove(names.to_vec())),
        Exported::Copies { .. } => {}
    };
    while !lane.export_some(&mut export, u32::MAX, &mut see).expect("nothing changes") {}
    let start = Instant::now();
    for told in &kept {
        let tier = Tier::Device;
        let told = match told {
            Kept::Store(parent, names, contents) => {
                Exported::Store { tier, store: Store { parent: *parent, names, contents, kind: StoreKind::Announce } }
            }
            Kept::Remove(names) => Exported::Remove { tier, names },
        };
        lane.import(to, &told).expect("room");
    }
    start.elapsed()
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let mut number = |default: u64| numbers.next().unwrap_or(default);
    let (ranks, blocks, rounds) = (number(32), number(131_072), number(5));
    for kind in ["own", "shared", "private", "holes"] {
        run(kind, ranks, blocks, rounds as usize);
    }
}
