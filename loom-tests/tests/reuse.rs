//! A run's id is used again while a reader is inside the old one.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;

struct Run<P> {
    version: P,
    base: AtomicU64,
    len: AtomicU64,
    free: AtomicU64,
}

fn take<P: Protocol>(run: &Run<P>) {
    if run.free.load(Acquire) == 1 {
        P::reuse_fence();
        run.base.store(2, Relaxed);
        run.len.store(1, Relaxed);
        drop(run.version.revive());
    }
}

/// One lane kills the run, it or another takes the id. A reader may see either life, never words of both.
fn reuse<P: Protocol>(same_lane: bool) {
    let word = AtomicU64::new;
    let run = Arc::new(Run { version: P::new_alive(), base: word(7), len: word(3), free: word(0) });
    let lane = run.clone();
    let killer = thread::spawn(move || {
        let mut held = lane.version.lock();
        held.kill();
        drop(held);
        lane.free.store(1, Release);
        if same_lane {
            take(&lane);
        }
    });
    let lane = run.clone();
    let taker = (!same_lane).then(|| thread::spawn(move || take(&lane)));
    if let Some(seen) = run.version.begin() {
        let (base, len) = (run.base.load(Relaxed), run.len.load(Acquire));
        if run.version.confirm(seen) {
            let one_life = [(7, 3), (2, 1)].contains(&(base, len));
            assert!(one_life, "{FOUND}words of two lives: base {base}, len {len}");
        }
    }
    killer.join().unwrap();
    taker.into_iter().for_each(|taker| taker.join().unwrap());
}

#[test]
fn a_reader_sees_one_life() {
    sound("reuse by another lane", || reuse::<Version>(false));
    sound("reuse by the same lane", || reuse::<Version>(true));
}

#[test]
fn broken_without_reuse_fence() {
    broken("reuse without the fence", || reuse::<Faulty<NO_REUSE_FENCE>>(false));
}

#[test]
fn broken_sequence_starts_again() {
    broken("reuse, sequence reset", || reuse::<Faulty<SEQUENCE_RESET>>(true));
}
