//! A lookup meets a split of a run on its way (S1, M2, M20), and a lane that joins the run while another one splits it (M1, M10).
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound};
use kvatlas_loom_tests::fleet::{Asker, at_rest, fleet, race};

/// Ranks 0 and 1 hold blocks 1 and 2; rank 1, whose first block goes, splits the run.
fn lookup_of_the_run() {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1, 2]);
    second.store(0, &[1, 2]);
    let mut asker = Asker::new(&index, &[1, 2]);
    let splitter = move || {
        second.remove(0, &[1]);
        second
    };
    let (second, depths) = race(splitter, || asker.ask());
    if let Some(depths) = depths {
        assert!(depths[0] == 2, "{FOUND}a holder throughout has {} blocks", depths[0]);
        assert!([0, 2].contains(&depths[1]), "{FOUND}torn: {} blocks", depths[1]);
    }
    at_rest(&index, [&first, &second], &[(&[1, 2], &[2, 0])]);
}

/// The same, while the lookup goes on from the run to a child at its end.
fn lookup_of_a_child() {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1, 2, 3]);
    second.store(0, &[1, 2]);
    let mut asker = Asker::new(&index, &[1, 2, 3]);
    let splitter = move || {
        second.remove(0, &[1]);
        second
    };
    let (second, depths) = race(splitter, || asker.ask());
    if let Some(depths) = depths {
        assert!(depths[0] == 3, "{FOUND}a holder throughout has {} blocks", depths[0]);
        assert!([0, 2].contains(&depths[1]), "{FOUND}torn: {} blocks", depths[1]);
    }
    at_rest(&index, [&first, &second], &[(&[1, 2, 3], &[3, 0])]);
}

/// A lane joins the run while another one splits it: it holds both parts in the end.
fn join_of_the_run() {
    let (index, [mut first, mut second]) = fleet(2);
    second.store(0, &[1, 2]);
    second.store(1, &[1, 2]);
    let splitter = move || {
        second.remove(1, &[1]);
        second
    };
    let (second, ()) = race(splitter, || first.store(0, &[1, 2]));
    at_rest(&index, [&first, &second], &[(&[1, 2], &[2, 0, 2, 0])]);
}

#[test]
fn a_split_is_seen_whole_or_not_at_all() {
    sound("lookup and split", lookup_of_the_run);
}

#[test]
fn broken_splits() {
    for fault in [
        Fault::WindowMissing,
        Fault::WindowUnfenced,
        Fault::WindowByAdd,
        Fault::WindowBySwap,
        Fault::ConfirmUnfenced,
        Fault::SuffixFilledLate,
    ] {
        broken_by(fault, "lookup and split", lookup_of_the_run);
    }
}

#[test]
fn a_child_stays_where_it_is() {
    sound("lookup of a child and split", lookup_of_a_child);
}

#[test]
fn broken_splits_below_a_child() {
    for fault in [Fault::WindowMissing, Fault::SuffixFilledLate] {
        broken_by(fault, "lookup of a child and split", lookup_of_a_child);
    }
}

#[test]
fn a_join_meets_a_split() {
    sound("join and split", join_of_the_run);
}

#[test]
fn broken_joins_of_a_split_run() {
    for fault in [Fault::LockedAtAnyVersion, Fault::LockNotTaken] {
        broken_by(fault, "join and split", join_of_the_run);
    }
}
