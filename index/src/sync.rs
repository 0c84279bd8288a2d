//! The one door to atomics, fences and locks: std in the product, loom in the models (`--cfg loom`).
//!
//! std's atomics anywhere else in this crate fail clippy, so that loom sees every shared word.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this module is the facade")]
pub use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync as locks;
#[cfg(not(loom))]
use std::sync as locks;

/// A short lock between writers. Readers never take one. A panic of another lane inside it does not poison it: what it
/// guards (free lists, counts) is changed by single statements.
pub struct Mutex<T>(locks::Mutex<T>);

impl<T> Mutex<T> {
    /// A new lock around a value.
    pub fn new(value: T) -> Self {
        Self(locks::Mutex::new(value))
    }

    /// Blocks until the lock is taken.
    pub fn lock(&self) -> locks::MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// One turn of a bounded wait: the first 64 turns spin, later ones give the processor away.
#[inline]
pub fn wait(turn: u32) {
    #[cfg(loom)]
    {
        let _ = turn;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if turn < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
