//! A holder's part of a run changes its place or form while a lookup reads it: in no answer is it missing that has it throughout
//! (M6, M13, M14, M16).
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound};
use kvatlas_loom_tests::fleet::{Asker, Worker, at_rest, fleet, fleet_with, race, race_in_turn, race_of_three};

/// So many ranks make a run's holders a set.
const MANY: usize = 5;

fn all_store(lane: &mut Worker, ranks: std::ops::Range<usize>, chain: &[u64]) {
    ranks.for_each(|rank| lane.store(rank, chain));
}

/// In a set a holder of a part is a key, one of all of it a bit. Rank 0 has the first block throughout.
fn key_and_bit(becomes_bit: bool) {
    let (index, [mut lane]) = fleet_with(MANY as u32, 2, 2);
    all_store(&mut lane, 1..MANY, &[1, 2]);
    lane.store(0, if becomes_bit { &[1] } else { &[1, 2] });
    let mut asker = Asker::new(&index, &[1]);
    let changer = move || {
        if becomes_bit {
            lane.store_after(0, 1, &[2]);
        } else {
            lane.remove(0, &[2]);
        }
        lane
    };
    let (lane, depths) = race(changer, || asker.ask());
    assert!(depths.is_none_or(|depths| depths[0] == 1), "{FOUND}a holder throughout is missing");
    let rank_0 = if becomes_bit { 2 } else { 1 };
    at_rest(&index, [&lane], &[(&[1, 2], &[rank_0, 2, 2, 2, 2])]);
}

/// One more holder makes the entries of a header a set; when it leaves they are entries again.
fn entries_and_set(becomes_set: bool) {
    let (index, [mut lane]) = fleet_with(MANY as u32, 2, 2);
    all_store(&mut lane, usize::from(becomes_set)..MANY, &[1]);
    let mut asker = Asker::new(&index, &[1]);
    let changer = move || {
        if becomes_set {
            lane.store(0, &[1]);
        } else {
            lane.remove(0, &[1]);
        }
        lane
    };
    let (lane, depths) = race(changer, || asker.ask());
    assert!(depths.is_none_or(|depths| depths[1..MANY] == [1; MANY - 1]), "{FOUND}missing of {depths:?}");
    at_rest(&index, [&lane], &[(&[1], &[u32::from(becomes_set), 1, 1, 1, 1])]);
}

/// An entry goes; the others stay where they are.
fn one_entry_goes() {
    let (index, [mut lane]) = fleet(MANY as u32 - 1);
    all_store(&mut lane, 0..MANY - 1, &[1]);
    let mut asker = Asker::new(&index, &[1]);
    let leaver = move || {
        lane.remove(0, &[1]);
        lane
    };
    let (lane, depths) = race(leaver, || asker.ask());
    assert!(depths.is_none_or(|depths| depths[1..MANY - 1] == [1; MANY - 2]), "{FOUND}missing of {depths:?}");
    at_rest(&index, [&lane], &[(&[1], &[0, 1, 1, 1])]);
}

/// Two lanes make one run's holders a set at once.
fn two_make_a_set() {
    let (index, [mut first, mut second]) = fleet_with(3, 2, 2);
    all_store(&mut first, 0..2, &[1]);
    all_store(&mut second, 0..2, &[1]);
    let other = move || {
        second.store(2, &[1]);
        second
    };
    let (second, ()) = race(other, || first.store(2, &[1]));
    at_rest(&index, [&first, &second], &[(&[1], &[1; 6])]);
}

/// A holder block comes free where a set becomes entries, and another lane's run takes it for keys of its own.
fn a_block_is_used_again(in_turn: bool) {
    let (index, [mut first, mut second]) = fleet_with(MANY as u32, 3, 3);
    all_store(&mut first, 1..MANY, &[1, 2]);
    first.store(0, &[1]);
    all_store(&mut second, 1..MANY, &[7, 8]);
    let mut asker = Asker::new(&index, &[1]);
    let giver = move || {
        first.remove(4, &[2, 1]);
        first
    };
    let taker = move || {
        second.store(0, &[7]);
        second
    };
    let (first, second, depths) = match in_turn {
        true => race_in_turn(giver, taker, || asker.ask()),
        false => race_of_three(giver, taker, || asker.ask()),
    };
    if let Some(depths) = depths {
        assert!(depths[..4] == [1; 4], "{FOUND}missing of {depths:?}");
        assert!(depths[MANY..] == [0; MANY], "{FOUND}a holder of another run in {depths:?}");
    }
    at_rest(&index, [&first, &second], &[(&[1], &[1, 1, 1, 1, 0]), (&[7], &[0, 0, 0, 0, 0, 1, 1, 1, 1, 1])]);
}

#[test]
fn a_holder_that_changes_form_is_never_missing() {
    sound("key becomes bit", || key_and_bit(true));
    sound("bit becomes key", || key_and_bit(false));
    sound("entries become a set", || entries_and_set(true));
    sound("a set becomes entries", || entries_and_set(false));
}

#[test]
fn broken_changes_of_form() {
    for fault in [Fault::WindowMissing, Fault::WindowUnfenced, Fault::ConfirmUnfenced] {
        broken_by(fault, "key becomes bit", || key_and_bit(true));
        broken_by(fault, "entries become a set", || entries_and_set(true));
        broken_by(fault, "a set becomes entries", || entries_and_set(false));
    }
    // A bit goes with a Release store, which does what the window's fence is for.
    for fault in [Fault::WindowMissing, Fault::ConfirmUnfenced] {
        broken_by(fault, "bit becomes key", || key_and_bit(false));
    }
}

#[test]
fn an_entry_leaves_a_hole() {
    sound("one entry goes", one_entry_goes);
}

#[test]
fn broken_holes() {
    broken_by(Fault::EntryMoved, "one entry goes", one_entry_goes);
}

#[test]
fn two_lanes_make_one_set() {
    sound("two make a set", two_make_a_set);
}

#[test]
fn broken_sets_of_two() {
    for fault in [Fault::FieldsFromBefore, Fault::LockNotTaken] {
        broken_by(fault, "two make a set", two_make_a_set);
    }
}

#[test]
fn a_holder_block_has_one_life_at_a_time() {
    sound("a holder block is used again", || a_block_is_used_again(true));
}

#[test]
fn broken_holder_blocks() {
    broken_by(Fault::ReuseUnfenced, "a holder block is used again", || a_block_is_used_again(true));
    broken_by(Fault::BlocksGivenEarly, "a holder block is used again", || a_block_is_used_again(false));
}
