//! Two or three lanes open the same child (S5, M5), and a lookup meets a child that is being opened.
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound, sound_to};
use kvatlas_loom_tests::fleet::{Asker, at_rest, fleet, race, race_of_three};

/// A first block, below the lock that stands in for the root's.
fn twins_at_the_root() {
    let (index, [mut first, mut second]) = fleet(1);
    let other = move || {
        second.store(0, &[1]);
        second
    };
    let (second, ()) = race(other, || first.store(0, &[1]));
    at_rest(&index, [&first, &second], &[(&[1], &[1, 1])]);
}

/// A further child of a block inside a run.
fn twins_below_a_run() {
    let (index, [mut first, mut second]) = fleet(2);
    first.store(1, &[1, 2]);
    first.store(0, &[1]);
    second.store(0, &[1]);
    let other = move || {
        second.store_after(0, 1, &[3]);
        second
    };
    let (second, ()) = race(other, || first.store_after(0, 1, &[3]));
    at_rest(&index, [&first, &second], &[(&[1, 3], &[2, 1, 2]), (&[1, 2], &[1, 2, 1])]);
}

/// Three lanes at once.
fn three_at_the_root() {
    let (index, [mut first, mut second, mut third]) = fleet(1);
    let two = move || {
        second.store(0, &[1]);
        second
    };
    let three = move || {
        third.store(0, &[1]);
        third
    };
    let (second, third, ()) = race_of_three(two, three, || first.store(0, &[1]));
    at_rest(&index, [&first, &second, &third], &[(&[1], &[1, 1, 1])]);
}

/// Whoever finds a child's link finds the child whole. Its memory had another life.
fn lookup_of_a_new_child() {
    let (index, [mut lane]) = fleet(1);
    lane.store(0, &[7, 8]);
    lane.remove(0, &[7, 8]);
    let mut asker = Asker::new(&index, &[7, 9]);
    let opener = move || {
        lane.store(0, &[7, 9]);
        lane
    };
    let (lane, depths) = race(opener, || asker.ask());
    let depths = depths.unwrap_or_else(|| panic!("{FOUND}a child that is opened keeps a lookup busy"));
    assert!([0, 2].contains(&depths[0]), "{FOUND}{} of a child's blocks", depths[0]);
    at_rest(&index, [&lane], &[(&[7, 9], &[2])]);
}

#[test]
fn two_lanes_make_one_first_block() {
    sound("twin openers at the root", twins_at_the_root);
}

#[test]
fn two_lanes_make_one_child() {
    sound("twin openers below a run", twins_below_a_run);
}

#[test]
fn three_lanes_make_one_first_block() {
    sound_to(1, "three openers", three_at_the_root);
}

#[test]
fn broken_openers() {
    broken_by(Fault::ChildNotProbed, "twin openers at the root", twins_at_the_root);
    broken_by(Fault::ChildNotProbed, "three openers", three_at_the_root);
    broken_by(Fault::ChildNotProbed, "twin openers below a run", twins_below_a_run);
    broken_by(Fault::OpenedUnlocked, "twin openers below a run", twins_below_a_run);
}

#[test]
fn a_linked_child_is_whole() {
    sound("lookup of a new child", lookup_of_a_new_child);
}

#[test]
fn broken_children() {
    broken_by(Fault::PublishedRelaxed, "lookup of a new child", lookup_of_a_new_child);
}
