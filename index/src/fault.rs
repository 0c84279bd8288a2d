//! Faults that a loom model puts into the product's own code, one at a time, to show that it would be found.
//!
//! In the product every question is the constant `false` and costs nothing. Under loom a model names the fault before it
//! runs; all threads of a model are one thread of the system, so the name is a thread-local.

/// A place where the code can be made wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A reader of child links believes a miss without reading the directory again.
    MissBelieved,
    /// A step clears copied links before it publishes the directory.
    ClearedBeforePublished,
    /// An insert or a removal reads the directory before it has the lock.
    DirectoryBeforeLock,
    /// No fence behind the mask of a slot.
    MaskUnfenced,
    /// A lookup names a slot whatever its stamp.
    StampNotCompared,
    /// The holders of a second half are read before its LOCK is taken.
    SuccessorBeforeLock,
    /// A second half that was drawn into the first stays alive.
    SuccessorLeftAlive,
    /// A coverage is replaced without an odd window.
    ReplacedUnwindowed,
}

/// Whether this fault is put in. Never, outside of loom.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn injected(_fault: Fault) -> bool {
    false
}

/// A point at which loom must consider every other thread. It is needed where a writer loads a word before it stores to it:
/// loom 0.7 then forgets a reader's earlier load of that word (tokio-rs/loom issues 166 and 392). Nothing, outside of loom.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn turn() {}

#[cfg(loom)]
pub use under_loom::{inject, injected, turn};

#[cfg(loom)]
mod under_loom {
    use super::Fault;
    use std::cell::Cell;

    loom::lazy_static! {
        static ref TURNS: crate::sync::AtomicU64 = crate::sync::AtomicU64::new(0);
    }

    /// An access that depends on every other of its kind, and orders nothing.
    pub fn turn() {
        TURNS.fetch_add(1, crate::sync::Ordering::Relaxed);
    }

    std::thread_local! {
        static INJECTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Puts a fault in, or takes it out, for the models of this thread.
    pub fn inject(fault: Option<Fault>) {
        INJECTED.with(|cell| cell.set(fault));
    }

    /// Whether this fault is put in.
    pub fn injected(fault: Fault) -> bool {
        INJECTED.with(|cell| cell.get() == Some(fault))
    }
}
