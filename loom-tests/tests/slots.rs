//! A holder slot is given to another rank: no answer names one rank from entries of the other.
#![cfg(loom)]

use kvatlas_loom_tests::check::{FOUND, broken, sound};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*, fence};
use loom::thread;

/// The shape of the index's slot table: stamp << 1 | masked, and a count of stamps given.
struct Slot {
    stamp: AtomicU64,
    given: AtomicU64,
    /// Holder entries of two runs: 1 are the first rank's, 2 the second's.
    entries: [AtomicU64; 2],
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Sound,
    /// Given away before the last rank's entries are swept.
    GivenBeforeSweep,
    /// The reader does not compare the stamp with the count that it read first.
    NoCount,
    /// The second rank's entry stored Relaxed, and no fence behind the mask.
    RelaxedEntry,
    /// The reader without its fence before it reads the stamp.
    NoReaderFence,
}

fn slot_reuse(form: Form) {
    let word = AtomicU64::new;
    let slot = Arc::new(Slot { stamp: word(1 << 1), given: word(1), entries: [word(1), word(1)] });
    let lane = slot.clone();
    let writer = thread::spawn(move || {
        lane.stamp.store(1 << 1 | 1, Relaxed);
        if form != Form::RelaxedEntry {
            fence(Release);
        }
        let give = || {
            lane.stamp.store(2 << 1, Release);
            lane.given.store(2, Release);
        };
        if form == Form::GivenBeforeSweep {
            give();
        }
        lane.entries.iter().for_each(|entry| entry.store(0, Release));
        if form != Form::GivenBeforeSweep {
            give();
        }
        lane.entries[0].store(2, if form == Form::RelaxedEntry { Relaxed } else { Release });
    });
    let count = slot.given.load(Acquire);
    let entries = [&slot.entries[0], &slot.entries[1]].map(|entry| entry.load(Relaxed));
    if form != Form::NoReaderFence {
        fence(Acquire);
    }
    let stamp = slot.stamp.load(Relaxed);
    if stamp & 1 == 0 && (form == Form::NoCount || stamp >> 1 <= count) {
        let other = if stamp >> 1 == 1 { 2 } else { 1 };
        assert!(!entries.contains(&other), "{FOUND}rank {} named from the other's entries", stamp >> 1);
    }
    writer.join().unwrap();
}

/// How a reader's copy of the names is guarded.
#[derive(Clone, Copy, PartialEq)]
enum Copy {
    Sound,
    /// The count is not compared again after the walk.
    NotComparedAgain,
    /// Nor before it: a copy of the old count goes on.
    NotComparedBefore,
    /// The count rises only when a slot is given, before its mask and sweep.
    RaisedBeforeSweep,
    /// The count read again without a fence after the walk.
    NoReaderFence,
}

/// A reader that copied the first rank's name under count 1 and keeps it as long as the count stands.
fn copied_name(form: Copy) {
    let word = AtomicU64::new;
    let slot = Arc::new(Slot { stamp: word(1 << 1), given: word(1), entries: [word(1), word(1)] });
    let lane = slot.clone();
    let writer = thread::spawn(move || {
        if form == Copy::RaisedBeforeSweep {
            lane.given.store(3, Release);
        }
        lane.stamp.store(1 << 1 | 1, Relaxed);
        if form != Copy::RaisedBeforeSweep {
            lane.given.store(2, Release);
        }
        fence(Release);
        lane.entries.iter().for_each(|entry| entry.store(0, Release));
        lane.stamp.store(3 << 1, Release);
        if form != Copy::RaisedBeforeSweep {
            lane.given.store(3, Release);
        }
        lane.entries[0].store(2, Release);
    });
    let count = slot.given.load(Acquire);
    // The copy: made under count 1, or now, as the slot table answers for this count.
    let stamp = slot.stamp.load(Relaxed);
    let now = if stamp & 1 == 0 && stamp >> 1 <= count { stamp >> 1 } else { 0 };
    let copy = if count == 1 || form == Copy::NotComparedBefore { 1 } else { now };
    let entries = [&slot.entries[0], &slot.entries[1]].map(|entry| entry.load(Relaxed));
    if form != Copy::NoReaderFence {
        fence(Acquire);
    }
    let again = slot.given.load(Relaxed);
    let compares = !matches!(form, Copy::NotComparedAgain | Copy::NotComparedBefore);
    if copy != 0 && (again == count || !compares) {
        let other = if copy == 1 { 2 } else { 1 };
        assert!(!entries.contains(&other), "{FOUND}rank {copy} named from the other's entries");
    }
    writer.join().unwrap();
}

#[test]
fn a_copied_name_is_its_own_ranks() {
    sound("copied name", || copied_name(Copy::Sound));
}

#[test]
fn broken_copy_without_the_second_count() {
    broken("copied name, count not compared again", || copied_name(Copy::NotComparedAgain));
}

#[test]
fn broken_copy_without_the_first_count() {
    broken("copied name, count not compared", || copied_name(Copy::NotComparedBefore));
}

#[test]
fn broken_copy_count_raised_before_the_sweep() {
    broken("copied name, count raised before the sweep", || copied_name(Copy::RaisedBeforeSweep));
}

#[test]
fn broken_copy_without_fence() {
    broken("copied name, reader without fence", || copied_name(Copy::NoReaderFence));
}

#[test]
fn a_slot_names_its_own_rank() {
    sound("slot reuse", || slot_reuse(Form::Sound));
}

#[test]
fn broken_given_before_the_sweep() {
    broken("slot given before the sweep", || slot_reuse(Form::GivenBeforeSweep));
}

#[test]
fn broken_without_the_count() {
    broken("slot without the count", || slot_reuse(Form::NoCount));
}

#[test]
fn broken_entry_relaxed() {
    broken("entry Relaxed, no fence behind the mask", || slot_reuse(Form::RelaxedEntry));
}

#[test]
fn broken_reader_without_fence() {
    broken("slot reader without fence", || slot_reuse(Form::NoReaderFence));
}
