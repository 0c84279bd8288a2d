//! Exports of one lane's ranks while other lanes store, remove and split on the same paths.

mod common;

use common::configurations::Configuration;
use common::copies::{Told, same_state};
use common::generator::Generator;
use common::operation::Op;
use common::profiles::{CONCURRENT, Profile};
use common::rng::{Rng, mix};
use common::sides::{Keys, OnLane, OnOracle};
use kvatlas_index::reference::Reference;
use kvatlas_index::{Index, Lane, RankKey};
use std::sync::Barrier;

const LANES: usize = 3;
const RANKS: usize = 4;
const STEPS: usize = 900;
/// Operations between two exports.
const EXPORT_STEPS: usize = 9;

/// One lane's history, with an export every few operations, compared with what the lane's own oracle says.
fn play(lane: Lane, seed: u64, start: &Barrier) -> (u64, u64) {
    let first = lane.lane() * 1_000;
    // The same paths on every lane, names of the lane's own for some ranks.
    let profile = Profile { alphabet: 2, ..CONCURRENT };
    let mut generator = Generator::new(&profile, RANKS, seed);
    let mut rng = Rng::new(mix(seed, first.into()));
    let mut oracle = Reference::new(24);
    let mut on_oracle = OnOracle::new(&mut oracle, Keys::new(first, RANKS));
    let mut on_lane = OnLane::new(lane, Keys::new(first, RANKS));
    start.wait();
    let (mut exports, mut blocks) = (0, 0);
    for step in 0..RANKS + STEPS {
        let op = if step < RANKS { Op::Open { rank: step } } else { generator.draw(&mut rng) };
        generator.note(&op);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        on_lane.apply(&op, &mut a);
        on_oracle.apply(&op, &mut b);
        assert_eq!(a, b, "seed {seed} step {step}");
        let rank = rng.below(RANKS);
        let Some(slot) = on_lane.slots[rank].filter(|_| step % EXPORT_STEPS == 0) else { continue };
        let mut told: Vec<Told> = Vec::new();
        let mut export = on_lane.lane.export(slot).expect("an open rank");
        let units = 1 + rng.below(40) as u32;
        while !on_lane.lane.export_some(&mut export, units, &mut |piece| told.push(piece.into())).expect("it settles") {
        }
        let (key, copy) = (on_oracle.keys.key(rank), RankKey(0));
        let mut fresh = Reference::new(24);
        fresh.open_rank(copy);
        for piece in &told {
            fresh.import(copy, &piece.view()).expect("an open rank");
        }
        let same = same_state(on_oracle.oracle, key, &fresh, copy);
        assert_eq!(same, Ok(()), "seed {seed} step {step} rank {rank}");
        exports += 1;
        blocks += fresh.held(copy, kvatlas_index::Tier::Device);
    }
    (exports, blocks)
}

#[test]
fn other_lanes_split_what_is_exported() {
    for (seed, run_blocks_max) in [(1, 512), (2, 512), (3, 512), (4, 8), (5, 3), (6, 1)] {
        let configuration =
            Configuration { name: "export", ranks: RANKS, lanes: LANES as u32, shards: 1, run_blocks_max, tiny: false };
        let (index, lanes) = Index::new(configuration.index()).expect("a valid configuration");
        let start = Barrier::new(LANES);
        let done: Vec<(u64, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = lanes.into_iter().map(|lane| scope.spawn(|| play(lane, seed, &start))).collect();
            threads.into_iter().map(|thread| thread.join().expect("every export as its oracle")).collect()
        });
        index.check().expect("the invariants");
        assert!(done.iter().all(|&(exports, blocks)| exports > 50 && blocks > exports), "{done:?}");
    }
}
