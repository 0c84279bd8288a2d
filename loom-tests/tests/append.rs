//! A versioned run read against appends: to the end of a run, and after another lane's trim up to the same length.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, Ordering::*};
use loom::thread;

struct Run<P> {
    version: P,
    len: AtomicU64,
    content: AtomicU64,
    trimmed: AtomicU64,
}

const OLD: u64 = 5;
const NEW: u64 = 6;

fn run<P: Protocol>(len: u64, content: u64) -> Arc<Run<P>> {
    let word = AtomicU64::new;
    Arc::new(Run { version: P::new_alive(), len: word(len), content: word(content), trimmed: word(0) })
}

/// Stores block 1 and publishes it by `len` alone: the version does not move. The appender does not load `len` first, since
/// loom would then miss the reader's earlier load.
fn append_block<P: Protocol>(run: &Run<P>, order: Ordering) {
    let held = run.version.lock();
    P::reuse_fence();
    run.content.store(NEW, Relaxed);
    run.len.store(2, order);
    drop(held);
}

fn append<P: Protocol>(stored: Ordering, loaded: Ordering) {
    let run = run::<P>(1, 0);
    let lane = run.clone();
    let appender = thread::spawn(move || append_block(&lane, stored));
    if let Some(seen) = run.version.begin() {
        let len = run.len.load(loaded);
        let content = run.content.load(Relaxed);
        if run.version.confirm(seen) && len == 2 {
            assert!(content == NEW, "{FOUND}content {content} below the published length");
        }
    }
    appender.join().unwrap();
}

/// One lane trims block 1 away, another appends to the same length: `len` goes down and up again.
fn trim_then_append<P: Protocol>() {
    let run = run::<P>(2, OLD);
    let first = run.version.begin();
    let lane = run.clone();
    let trimmer = thread::spawn(move || {
        let mut held = lane.version.lock();
        held.window(|| lane.len.store(1, Relaxed));
        drop(held);
        lane.trimmed.store(1, Release);
    });
    let lane = run.clone();
    let appender = thread::spawn(move || {
        if lane.trimmed.load(Acquire) == 1 {
            append_block(&lane, Release);
        }
    });
    if let Some(seen) = run.version.begin() {
        let len = run.len.load(Acquire);
        let content = run.content.load(Relaxed);
        if run.version.confirm(seen) && len == 2 {
            let expected = if Some(seen) == first { OLD } else { NEW };
            assert!(content == expected, "{FOUND}content {content} of another life");
        }
    }
    trimmer.join().unwrap();
    appender.join().unwrap();
}

#[test]
fn an_append_is_published_by_len() {
    sound("append", || append::<Version>(Release, Acquire));
}

#[test]
fn broken_len_stored_relaxed() {
    broken("append, len stored Relaxed", || append::<Faulty<NO_REUSE_FENCE>>(Relaxed, Acquire));
}

#[test]
fn broken_len_loaded_relaxed() {
    broken("append, len loaded Relaxed", || append::<Version>(Release, Relaxed));
}

#[test]
fn len_may_go_down_and_up() {
    sound("trim, then append", trim_then_append::<Version>);
}

#[test]
fn broken_append_without_reuse_fence() {
    broken("trim, then append without the fence", trim_then_append::<Faulty<NO_REUSE_FENCE>>);
}

#[test]
fn broken_trim_without_window() {
    broken("trim without a window", trim_then_append::<Faulty<NO_WINDOW>>);
}
