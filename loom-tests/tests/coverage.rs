//! A coverage change racing a reader, and racing a split.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;

struct Run<P> {
    version: P,
    /// Full holders as bits, one partial entry as a cutoff.
    bits: AtomicU64,
    entry: AtomicU64,
    next: AtomicU64,
}

fn run<P: Protocol>(bits: u64, entry: u64) -> Run<P> {
    let word = AtomicU64::new;
    Run { version: P::new_alive(), bits: word(bits), entry: word(entry), next: word(0) }
}

/// A holder goes partial, full, partial. It holds the first block throughout, so no reader may miss it.
fn there_and_back<P: Protocol>() {
    let run = Arc::new(run::<P>(0, 1));
    let lane = run.clone();
    let writer = thread::spawn(move || {
        for full in [true, false] {
            let mut held = lane.version.lock();
            held.window(|| {
                lane.bits.store(u64::from(full), Relaxed);
                lane.entry.store(u64::from(!full), Relaxed);
            });
        }
    });
    if let Some(seen) = run.version.begin() {
        let (bits, entry) = (run.bits.load(Relaxed), run.entry.load(Relaxed));
        if run.version.confirm(seen) {
            assert!(bits + entry == 1, "{FOUND}bit {bits} and entry {entry} of one holder");
        }
    }
    writer.join().unwrap();
}

/// A cutoff moves with one Release store under the lock, without a window: each value was true at some moment. With two
/// words (entry to bit) the same is wrong: the holder is in neither for a moment.
fn without_a_window<P: Protocol>(two_words: bool) {
    let run = Arc::new(run::<P>(0, 1));
    let lane = run.clone();
    let writer = thread::spawn(move || {
        let held = lane.version.lock();
        if two_words {
            lane.entry.store(0, Release);
            lane.bits.store(1, Release);
        } else {
            lane.entry.store(2, Release);
        }
        drop(held);
    });
    if let Some(seen) = run.version.begin() {
        let (bits, entry) = (run.bits.load(Relaxed), run.entry.load(Relaxed));
        if run.version.confirm(seen) {
            assert!(bits == 1 || entry != 0, "{FOUND}a holder throughout is missing");
        }
    }
    writer.join().unwrap();
}

/// A lane joins a run that another splits: its bit must be in both parts.
fn join_against_split<P: Protocol>() {
    let both = Arc::new((run::<P>(1, 0), run::<P>(0, 0)));
    let lanes = both.clone();
    let splitter = thread::spawn(move || {
        let (run, suffix) = (&lanes.0, &lanes.1);
        let mut held = run.version.lock();
        let bits = run.bits.load(Relaxed);
        suffix.bits.store(bits, Relaxed);
        held.window(|| run.next.store(1, Relaxed));
    });
    let (run, suffix) = (&both.0, &both.1);
    loop {
        let Some(seen) = run.version.begin() else {
            thread::yield_now();
            continue;
        };
        let split = run.next.load(Relaxed) == 1;
        let Some(held) = run.version.lock_at(seen) else {
            thread::yield_now();
            continue;
        };
        run.bits.store(run.bits.load(Relaxed) | 2, Release);
        drop(held);
        if split {
            let held = suffix.version.lock();
            suffix.bits.store(suffix.bits.load(Relaxed) | 2, Release);
            drop(held);
        }
        break;
    }
    splitter.join().unwrap();
    let (prefix, suffix) = (run.bits.load(Relaxed), suffix.bits.load(Relaxed));
    assert!((prefix, suffix) == (3, 3), "{FOUND}a holder is lost: {prefix:b}, {suffix:b}");
}

#[test]
fn a_holder_that_changes_form_is_never_missing() {
    sound("partial, full, partial", there_and_back::<Version>);
}

#[test]
fn broken_change_of_form_without_window() {
    broken("partial, full, partial without windows", there_and_back::<Faulty<NO_WINDOW>>);
}

#[test]
fn broken_change_of_form_without_fence() {
    broken("partial, full, partial, odd store without fence", there_and_back::<Faulty<WINDOW_WITHOUT_FENCE>>);
}

#[test]
fn one_word_needs_no_window() {
    sound("a cutoff moves", || without_a_window::<Version>(false));
}

#[test]
fn broken_two_words_need_one() {
    broken("entry to bit without a window", || without_a_window::<Version>(true));
}

#[test]
fn a_join_meets_a_split() {
    sound("join against split", join_against_split::<Version>);
}

#[test]
fn broken_join_at_another_version() {
    broken("join at any version", join_against_split::<Faulty<LOCK_AT_ANY_VERSION>>);
}
