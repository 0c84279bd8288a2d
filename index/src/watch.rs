//! Lets loom see what its release 0.7 misses (`--cfg loom` only).
//!
//! Loom tries another order of two accesses to a word only with the *last* access to it. A thread that loads a word and then
//! stores to it hides an earlier load by another thread so, and loom does not try the store before that load (tokio-rs/loom
//! issues 166 and 392). "Read, then lock or store" is what every writer of the index does.
//!
//! So each word has a point for each thread, too: a load passes its own thread's, a store those of all. Passing one orders
//! nothing and carries no value (it wakes those who wait at a condition variable, where nobody ever waits), but loom takes two
//! passages of one point for dependent, and so tries the store before the last access of *every* thread. No thread is switched
//! between an access and its points, so they make no further interleavings by themselves.

use loom::sync::Condvar;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

/// Threads of a model at most, its first one included.
const THREADS_MAX: usize = 4;

std::thread_local! {
    /// All threads of a model are one thread of the system.
    static THREADS: Cell<usize> = const { Cell::new(0) };
}

/// So many threads, the first one included, touch words from here on; 0 while only one does.
pub fn watch(threads: usize) {
    assert!(threads <= THREADS_MAX, "points for {THREADS_MAX} threads");
    THREADS.with(|cell| cell.set(threads));
}

/// The points of a word.
#[derive(Default)]
pub(crate) struct Watched([OnceLock<Condvar>; THREADS_MAX]);

impl Watched {
    /// This thread has loaded the word.
    pub fn loaded(&self) {
        if THREADS.with(Cell::get) > 0 {
            self.pass(own_number()..own_number() + 1);
        }
    }

    /// This thread has stored to the word, or tried to.
    pub fn stored(&self) {
        self.pass(0..THREADS.with(Cell::get));
    }

    fn pass(&self, threads: std::ops::Range<usize>) {
        if threads.is_empty() {
            return;
        }
        // Loom asks for another thread's turn at the last point where it may: the access itself.
        loom::stop_exploring();
        self.0[threads].iter().for_each(|point| point.get_or_init(Condvar::new).notify_all());
        loom::explore();
    }
}

/// The number of the thread in its model, from 0 on. Loom keeps it to itself, but lets it be hashed.
fn own_number() -> usize {
    struct Last(u64);
    impl Hasher for Last {
        fn write(&mut self, _: &[u8]) {
            unreachable!("a thread's identity is numbers");
        }
        fn write_usize(&mut self, number: usize) {
            self.0 = number as u64;
        }
        fn finish(&self) -> u64 {
            self.0
        }
    }
    let mut last = Last(u64::MAX);
    loom::thread::current().id().hash(&mut last);
    last.0 as usize
}
