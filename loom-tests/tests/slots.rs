//! A rank is closed and its slot given to another one: no lookup names one rank from entries of the other, neither by the slot
//! table nor by the copy of its names that a reader keeps (S7, M12).
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound};
use kvatlas_loom_tests::fleet::{Asker, at_rest, fleet, race};

/// Rank 0 holds blocks 1 and 2. It is closed, and rank 1, on the same slot, holds block 1.
fn another_rank_on_the_slot() {
    let (index, [mut lane]) = fleet(1);
    lane.store(0, &[1, 2]);
    let mut asker = Asker::new(&index, &[1, 2]);
    let changer = move || {
        lane.close(0);
        lane.open(1);
        lane.store(0, &[1]);
        lane
    };
    let (lane, depths) = race(changer, || asker.ask());
    if let Some(depths) = depths {
        assert!([0, 2].contains(&depths[0]), "{FOUND}rank 0 named from entries of rank 1: {}", depths[0]);
        assert!(depths[1] <= 1, "{FOUND}rank 1 named from entries of rank 0: {}", depths[1]);
    }
    at_rest(&index, [&lane], &[(&[1, 2], &[0, 1])]);
}

#[test]
fn a_slot_names_its_own_rank() {
    sound("another rank on the slot", another_rank_on_the_slot);
}

#[test]
fn broken_names() {
    for fault in [Fault::StampNotCompared, Fault::GivenBeforeSwept, Fault::CountNotCompared] {
        broken_by(fault, "another rank on the slot", another_rank_on_the_slot);
    }
}
