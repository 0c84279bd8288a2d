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
