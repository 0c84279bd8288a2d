//! A versioned run read against a split of that run. Both broken writer fences are here.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;

/// The words of a header that a reader takes together.
struct Run<P> {
    version: P,
    base: AtomicU64,
    len: AtomicU64,
    /// Blocks held by a full holder, and by one that holds one block only.
    full: AtomicU64,
    partial: AtomicU64,
    next: AtomicU64,
}

impl<P: Protocol> Run<P> {
    fn new(version: P, [base, len, full, partial, next]: [u64; 5]) -> Self {
        let word = AtomicU64::new;
        Run { version, base: word(base), len: word(len), full: word(full), partial: word(partial), next: word(next) }
    }

    /// base, len, full, partial, next, all of one version.
    fn read(&self) -> Option<[u64; 5]> {
        let seen = self.version.begin()?;
        let len = self.len.load(Acquire);
        let [base, full, partial, next] =
            [&self.base, &self.full, &self.partial, &self.next].map(|word| word.load(Relaxed));
        self.version.confirm(seen).then_some([base, len, full, partial, next])
    }
}

/// A run of two blocks is split into two of one. The suffix takes the header of a dead run.
fn split<P: Protocol>(suffix_filled_late: bool) {
    let run = Run::new(P::new_alive(), [1, 2, 2, 1, 0]);
    let dead = Run::new(P::new_dead(), [7, 3, 3, 3, 0]);
    let both = Arc::new((run, dead));
    let lane = both.clone();
    let splitter = thread::spawn(move || {
        let (run, suffix) = (&lane.0, &lane.1);
        let mut held = run.version.lock();
        P::reuse_fence();
        let fill = || {
            suffix.base.store(2, Relaxed);
            suffix.len.store(1, Relaxed);
            suffix.full.store(1, Relaxed);
            suffix.partial.store(0, Relaxed);
        };
        if !suffix_filled_late {
            fill();
        }
        let born = suffix.version.revive();
        held.window(|| {
            run.len.store(1, Relaxed);
            run.full.store(1, Relaxed);
            run.next.store(1, Relaxed);
        });
        if suffix_filled_late {
            fill();
        }
        drop(born);
    });
    // Twice: the splitter loads the version before it stores to it, so loom does not run it before the reader's first load.
    for _ in 0..2 {
        let Some(prefix) = both.0.read() else { continue };
        let whole = prefix == [1, 2, 2, 1, 0];
        assert!(whole || prefix == [1, 1, 1, 1, 1], "{FOUND}torn prefix {prefix:?}");
        if !whole && let Some(suffix) = both.1.read() {
            assert!(suffix == [2, 1, 1, 0, 0], "{FOUND}torn suffix {suffix:?}");
        }
    }
    splitter.join().unwrap();
}

#[test]
fn a_split_is_seen_whole_or_not_at_all() {
    sound("split", || split::<Version>(false));
    sound("split, twin", || split::<Faulty<NO_FAULT>>(false));
}

#[test]
fn broken_odd_store_without_fence() {
    broken("split, odd store without fence", || split::<Faulty<WINDOW_WITHOUT_FENCE>>(false));
}

#[test]
fn broken_add_in_place_of_the_fence() {
    broken("split, fetch_add(SeqCst) for store and fence", || split::<Faulty<WINDOW_BY_ADD>>(false));
}

#[test]
fn broken_swap_in_place_of_the_fence() {
    broken("split, swap(AcqRel) for store and fence", || split::<Faulty<WINDOW_BY_SWAP>>(false));
}

#[test]
fn broken_no_window() {
    broken("split, no window", || split::<Faulty<NO_WINDOW>>(false));
}

#[test]
fn broken_reader_without_fence() {
    broken("split, reader without fence", || split::<Faulty<CONFIRM_WITHOUT_FENCE>>(false));
}

#[test]
fn broken_suffix_filled_after_its_birth() {
    broken("split, suffix filled late", || split::<Version>(true));
}
