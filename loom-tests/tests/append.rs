//! A lookup meets an append (S2, M7), also after another lane's trim of the same position (M7b), and an append meets a rank that
//! opens a run with the same content (M11).
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound};
use kvatlas_loom_tests::fleet::{Asker, at_rest, fleet, race, race_in_turn};

/// Block 3 goes where block 2 once was. An append does not move the version: `len` publishes it.
fn lookup_of_the_end() {
    let (index, [mut lane]) = fleet(1);
    lane.store(0, &[1, 2]);
    lane.remove(0, &[2]);
    let mut asker = Asker::new(&index, &[1, 2]);
    let appender = move || {
        lane.store_after(0, 1, &[3]);
        lane
    };
    let (lane, depths) = race(appender, || asker.ask());
    assert!(depths.is_none_or(|depths| depths[0] == 1), "{FOUND}{depths:?}: block 2 is gone before the lookup");
    at_rest(&index, [&lane], &[(&[1, 2], &[1]), (&[1, 3], &[2])]);
}

/// One lane trims block 2 away, another appends block 3 there: the length goes down and up again.
fn trim_then_append() {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1, 2]);
    second.store(0, &[1]);
    let mut asker = Asker::new(&index, &[1, 3]);
    let trimmer = move || {
        first.remove(0, &[2]);
        first
    };
    let appender = move || {
        second.store_after(0, 1, &[3]);
        second
    };
    let (first, second, depths) = race_in_turn(trimmer, appender, || asker.ask());
    if let Some(depths) = depths {
        assert!(depths[0] == 1, "{FOUND}rank 0 had block 3, or lost block 1: {}", depths[0]);
        assert!([1, 2].contains(&depths[1]), "{FOUND}torn: {} blocks", depths[1]);
    }
    at_rest(&index, [&first, &second], &[(&[1, 2], &[1, 1]), (&[1, 3], &[1, 2])]);
}

/// Rank 0 appends block 2 to its run; rank 1 has block 1 under a name of its own, and so opens a run for block 2. There is one
/// block 2 in the end, which both hold.
fn append_and_open() {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1]);
    second.store_named(0, None, &[101], &[1]);
    let opener = move || {
        second.store_named(0, Some(101), &[102], &[2]);
        second
    };
    let (second, ()) = race(opener, || first.store_after(0, 1, &[2]));
    at_rest(&index, [&first, &second], &[(&[1, 2], &[2, 2])]);
}

#[test]
fn an_append_is_published_by_len() {
    sound("lookup and append", lookup_of_the_end);
}

#[test]
fn broken_appends() {
    for fault in [Fault::LenStoredRelaxed, Fault::LenLoadedRelaxed] {
        broken_by(fault, "lookup and append", lookup_of_the_end);
    }
}

#[test]
fn a_length_may_go_down_and_up() {
    sound("trim, then append", trim_then_append);
}

#[test]
fn broken_trims_and_appends() {
    for fault in [Fault::ReuseUnfenced, Fault::WindowMissing] {
        broken_by(fault, "trim, then append", trim_then_append);
    }
}

#[test]
fn an_append_meets_an_opener() {
    sound("append and open", append_and_open);
}

#[test]
fn broken_appends_beside_an_opener() {
    for fault in [Fault::ChildNotProbed, Fault::NextNotProbed] {
        broken_by(fault, "append and open", append_and_open);
    }
}
