//! Micro-benchmarks of the index alone: one lane, one reader, chains of 64 blocks that several ranks share.
//!
//! Run with `cargo bench -p kvatlas-benches`. Figures of shared machines move by tens of per cent: compare within one run.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kvatlas_corpora::mix;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, LookupOptions, Outcome, RankKey, Reader, Store,
    StoreKind, Tier,
};
use std::hint::black_box;

const BLOCKS: usize = 64;
const CHAINS: usize = 4_096;
const RANKS: u32 = 16;

struct Chain {
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
}

/// Chains that share their first half with seven others.
fn chains() -> Vec<Chain> {
    let chain = |i: usize| {
        let content = |b: usize| mix(if b < BLOCKS / 2 { i as u64 / 8 } else { i as u64 | 1 << 32 }, b as u64);
        let contents: Vec<_> = (0..BLOCKS).map(|b| ContentHash(content(b))).collect();
        let names = contents.iter().map(|c| EngineHash(mix(7, c.0))).collect();
        Chain { names, contents }
    };
    (0..CHAINS).map(chain).collect()
}

fn open(ranks: u32) -> (std::sync::Arc<Index>, Lane, Vec<Holder>) {
    let config = IndexConfig { hash_key: Some([11, 13]), ..IndexConfig::default() };
    let (index, mut lanes) = Index::new(config).expect("a valid configuration");
    let mut lane = lanes.pop().expect("one lane");
    let open = |r| Holder { rank: lane.open_rank(RankKey(r)).expect("room"), tier: Tier::Device };
    let holders = (0..ranks).map(open).collect();
    (index, lane, holders)
}

fn store(lane: &mut Lane, at: Holder, chain: &Chain) {
    let store = Store { parent: None, names: &chain.names, contents: &chain.contents, kind: StoreKind::Copy };
    lane.store(at, &store).expect("room for every chain");
}

fn events(c: &mut Criterion) {
    let chains = chains();
    let mut group = c.benchmark_group("event");
    group.throughput(Throughput::Elements((CHAINS * BLOCKS) as u64)).sample_size(10);
    let all = |lane: &mut Lane, at: Holder| chains.iter().for_each(|chain| store(lane, at, chain));
    group.bench_function("store_first_holder", |b| {
        b.iter_batched_ref(|| open(1), |(_index, lane, at)| all(lane, at[0]), BatchSize::PerIteration);
    });
    group.bench_function("store_join", |b| {
        let joined = || {
            let (index, mut lane, at) = open(2);
            all(&mut lane, at[0]);
            (index, lane, at)
        };
        b.iter_batched_ref(joined, |(_index, lane, at)| all(lane, at[1]), BatchSize::PerIteration);
    });
    let full = || {
        let (index, mut lane, at) = open(1);
        all(&mut lane, at[0]);
        (index, lane, at)
    };
    let tails: Vec<Vec<EngineHash>> =
        chains.iter().map(|c| c.names[BLOCKS / 2..].iter().rev().copied().collect()).collect();
    group.throughput(Throughput::Elements((CHAINS * BLOCKS / 2) as u64));
    group.bench_function("remove_tail_first", |b| {
        let remove = |lane: &mut Lane, at| {
            for tail in &tails {
                let _ = black_box(lane.remove(at, tail));
            }
        };
        b.iter_batched_ref(full, |(_index, lane, at)| remove(lane, at[0]), BatchSize::PerIteration);
    });
    group.bench_function("remove_one_name_an_event", |b| {
        let remove = |lane: &mut Lane, at| {
            for &name in tails.iter().flatten() {
                let _ = black_box(lane.remove(at, &[name]));
            }
        };
        b.iter_batched_ref(full, |(_index, lane, at)| remove(lane, at[0]), BatchSize::PerIteration);
    });
    group.finish();
}

fn lookups(c: &mut Criterion) {
    let chains = chains();
    let (index, mut lane, holders) = open(RANKS);
    for (i, chain) in chains.iter().enumerate() {
        for r in 0..=i as u32 % RANKS {
            store(&mut lane, holders[r as usize], chain);
        }
    }
    let mut reader: Reader = index.reader();
    let mut out = Vec::with_capacity(64);
    let mut next = 0;
    c.bench_function("lookup_64_blocks", |b| {
        b.iter(|| {
            next = (next + 97) % CHAINS;
            out.clear();
            let outcome = reader.lookup(&chains[next].contents, &LookupOptions::default(), &mut out);
            assert_eq!(outcome, Outcome::Exact);
            black_box(&out);
        });
    });
}

criterion_group!(benches, events, lookups);
criterion_main!(benches);
