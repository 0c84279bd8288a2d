//! A holder slot of the product's table is given to another rank: no answer names one rank from entries of the other, also
//! when the sweep goes on in the background.
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_index::model::Slots;
use kvatlas_index::sync::{AtomicU64, Ordering::*, fence};
use kvatlas_index::watch::watch;
use kvatlas_loom_tests::check::{FOUND, broken, broken_by, sound};
use kvatlas_loom_tests::fleet::race;
use loom::sync::Arc;

struct Shard {
    slots: Slots,
    /// Holder entries of two runs: 1 are the first rank's, 2 the second's.
    entries: [AtomicU64; 2],
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Sound,
    /// Given away when the sweep has seen one run of two.
    GivenBeforeSwept,
    /// The second rank's entry stored Relaxed: sound, as a fence is behind the mask.
    RelaxedEntry,
    /// The reader without its fence before it names: sound, as naming reads the stamp again behind a fence of its own.
    NoReaderFence,
}

/// The lane masks the slot (the clear is over then), sweeps one run after the other, and gives the slot away.
fn slot_reuse(form: Form) {
    watch(0);
    let shard = Shard { slots: Slots::new(), entries: [AtomicU64::new(1), AtomicU64::new(1)] };
    shard.slots.give(1);
    let shard = Arc::new(shard);
    let lane = shard.clone();
    let writer = move || {
        let sweep = |run: usize| lane.entries[run].store(0, Release);
        lane.slots.mask();
        sweep(0);
        if form != Form::GivenBeforeSwept {
            sweep(1);
        }
        lane.slots.give(2);
        if form == Form::GivenBeforeSwept {
            sweep(1);
        }
        lane.entries[0].store(2, if form == Form::RelaxedEntry { Relaxed } else { Release });
    };
    race(writer, || {
        let count = shard.slots.count();
        let entries = [&shard.entries[0], &shard.entries[1]].map(|entry| entry.load(Relaxed));
        if form != Form::NoReaderFence {
            fence(Acquire);
        }
        if let Some(key) = shard.slots.name(count) {
            let other = if key == 1 { 2 } else { 1 };
            assert!(!entries.contains(&other), "{FOUND}rank {key} named from the other's entries");
        }
    });
}

/// A clear masks the slot: a lookup that begins after it names nobody from it.
fn cleared_is_gone(told_before: bool) {
    watch(0);
    let slots = Slots::new();
    slots.give(1);
    let shared = Arc::new((slots, AtomicU64::new(0)));
    let lane = shared.clone();
    let writer = move || {
        if told_before {
            lane.1.store(1, Release);
        }
        lane.0.mask();
        lane.1.store(1, Release);
    };
    race(writer, || {
        let after = shared.1.load(Acquire) == 1;
        let count = shared.0.count();
        fence(Acquire);
        assert!(!after || shared.0.name(count).is_none(), "{FOUND}a cleared slot is named");
    });
}

#[test]
fn a_slot_names_its_own_rank() {
    sound("slot reuse", || slot_reuse(Form::Sound));
    sound("slot reuse, entry Relaxed behind the mask's fence", || slot_reuse(Form::RelaxedEntry));
    sound("slot reuse, the stamp read twice in place of a fence", || slot_reuse(Form::NoReaderFence));
}

#[test]
fn a_cleared_slot_is_not_named() {
    sound("clear", || cleared_is_gone(false));
}

#[test]
fn broken_given_before_it_is_swept() {
    broken("slot given before it is swept", || slot_reuse(Form::GivenBeforeSwept));
}

#[test]
fn broken_without_the_count() {
    broken_by(Fault::StampNotCompared, "slot without the count", || slot_reuse(Form::Sound));
}

#[test]
fn broken_mask_without_fence() {
    broken_by(Fault::MaskUnfenced, "entry Relaxed, no fence behind the mask", || slot_reuse(Form::RelaxedEntry));
}

#[test]
fn broken_clear_over_before_the_mask() {
    broken("clear over before the mask", || cleared_is_gone(true));
}
