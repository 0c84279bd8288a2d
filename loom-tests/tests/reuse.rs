//! A lookup is inside a run that dies, and whose id and positions are used again: for another chain (S1b, M3), and below a run
//! that stays (S3, M3).
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_index::model::{Path, Successor};
use kvatlas_index::watch::watch;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound};
use kvatlas_loom_tests::fleet::{Asker, at_rest, fleet, race, race_in_turn};
use loom::sync::Arc;

/// Rank 0 gives up blocks 1 and 2; rank 1, of another lane, stores another chain. No lookup finds rank 1 below the first one.
fn reuse_by_another_lane() {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1, 2]);
    let mut asker = Asker::new(&index, &[1, 2]);
    let killer = move || {
        first.remove(0, &[1, 2]);
        first
    };
    let taker = move || {
        second.store(0, &[7]);
        second
    };
    let (first, second, depths) = race_in_turn(killer, taker, || asker.ask());
    let depths = depths.unwrap_or_default();
    assert!([0, 2].contains(&depths[0]), "{FOUND}torn: {} blocks", depths[0]);
    assert!(depths[1] == 0, "{FOUND}a rank of another life of the run");
    at_rest(&index, [&first, &second], &[(&[1, 2], &[0, 0]), (&[7], &[0, 1])]);
}

/// The same by one lane: its own order is enough but for the sequence, which must not begin again.
fn reuse_by_the_same_lane() {
    let (index, [mut lane]) = fleet(2);
    lane.store(0, &[1, 2]);
    let mut asker = Asker::new(&index, &[1, 2]);
    let other_chain = move || {
        lane.remove(0, &[1, 2]);
        lane.store(1, &[7]);
        lane
    };
    let (lane, depths) = race(other_chain, || asker.ask());
    let depths = depths.unwrap_or_default();
    assert!([0, 2].contains(&depths[0]), "{FOUND}torn: {} blocks", depths[0]);
    assert!(depths[1] == 0, "{FOUND}a rank of another life of the run");
    at_rest(&index, [&lane], &[(&[1, 2], &[0, 0]), (&[7], &[0, 1])]);
}

/// Block 2 is trimmed, its position used for another one, and a child hung there: 1, 2, 3 was never a chain.
fn reuse_of_a_parent() {
    let (index, [mut lane]) = fleet(1);
    lane.store(0, &[1, 2]);
    let mut asker = Asker::new(&index, &[1, 2, 3]);
    let other_end = move || {
        lane.remove(0, &[2]);
        lane.store_after(0, 1, &[4]);
        lane.store_after(0, 4, &[3]);
        lane
    };
    let (lane, depths) = race(other_end, || asker.ask());
    assert!(depths.unwrap_or_default()[0] < 3, "{FOUND}a chain that never existed");
    at_rest(&index, [&lane], &[(&[1, 2], &[1]), (&[1, 4, 3], &[3])]);
}

/// Ids and positions of a whole path are used again, by another lane (M3b).
fn reuse_of_a_path() {
    watch(0);
    let path = Arc::new(Path::new());
    let (killer, taker) = (path.clone(), path.clone());
    let ((), (), found) = race_in_turn(move || killer.die(), move || taker.use_again(), || path.depth());
    if let Some((depth, slots)) = found {
        assert!(depth < 3, "{FOUND}a chain that never existed");
        assert!(slots == 0, "{FOUND}a holder of the other chain");
    }
}

/// A lookup is on its way to a physical successor when that dies and its id is used for another chain (M18).
fn reuse_of_a_successor() {
    watch(0);
    let runs = Arc::new(Successor::new());
    let lane = runs.clone();
    let ((), depth) = race(move || lane.die_and_use_again(), || runs.depth());
    assert!(depth.is_none_or(|depth| depth == 1), "{FOUND}a holder of one block is found with {depth:?}");
}

#[test]
fn a_lookup_sees_one_life() {
    sound("reuse by another lane", reuse_by_another_lane);
    sound("reuse by the same lane", reuse_by_the_same_lane);
}

#[test]
fn broken_reuse_without_fence() {
    broken_by(Fault::ReuseUnfenced, "reuse by another lane", reuse_by_another_lane);
}

#[test]
fn broken_sequence_that_begins_again() {
    broken_by(Fault::SequenceReset, "reuse by the same lane", reuse_by_the_same_lane);
}

#[test]
fn one_step_back_is_enough() {
    sound("reuse of a parent", reuse_of_a_parent);
}

#[test]
fn broken_without_the_step_back() {
    broken_by(Fault::NoStepBack, "reuse of a parent", reuse_of_a_parent);
}

#[test]
fn one_step_back_is_enough_on_a_path() {
    sound("reuse of a path", reuse_of_a_path);
}

#[test]
fn broken_paths() {
    for fault in [Fault::NoStepBack, Fault::SequenceReset, Fault::ReuseUnfenced] {
        broken_by(fault, "reuse of a path", reuse_of_a_path);
    }
}

#[test]
fn a_dead_successor_is_not_followed() {
    sound("reuse of a successor", reuse_of_a_successor);
}

#[test]
fn broken_ways_to_a_dead_successor() {
    broken_by(Fault::SuccessorBelieved, "reuse of a successor", reuse_of_a_successor);
}
