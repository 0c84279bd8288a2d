//! Faults that a loom model puts into the product's own code, to show that they would be found: one at a time, or two where
//! each of them makes the other one good.
//!
//! In the product every question is the constant `false` and costs nothing. Under loom a model names its faults before it
//! runs; all threads of a model are one thread of the system, so the names are a thread-local.

/// A place where the code can be made wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Words that readers take together are moved without a window.
    WindowMissing,
    /// A window's odd store without the fence behind it.
    WindowUnfenced,
    /// An atomic add in place of the odd store and its fence: the first of the two broken writer fences that look right.
    WindowByAdd,
    /// A compare-and-swap in place of the odd store and its fence: the second.
    WindowBySwap,
    /// A reader confirms without its fence.
    ConfirmUnfenced,
    /// A run's LOCK is taken at whatever version there is.
    LockedAtAnyVersion,
    /// A run's LOCK is taken at whatever version there is, unless the run is dead.
    LockedIfAlive,
    /// A run's LOCK is taken at whatever version there is, and its fields are believed as they were seen before.
    FieldsFromBefore,
    /// The sequence starts again when a run's id is used again.
    SequenceReset,
    /// A new run's version and link are stored Relaxed, and its memory without a fence before.
    PublishedRelaxed,
    /// Memory that older readers may be comparing is written without a fence before it.
    ReuseUnfenced,
    /// The length of a run is published Relaxed.
    LenStoredRelaxed,
    /// A reader loads the length of a run Relaxed.
    LenLoadedRelaxed,
    /// The second half of a split is filled after the first one leads to it.
    SuffixFilledLate,
    /// What is left of the parent's run is judged by what was read before its LOCK.
    ReachFromBefore,
    /// A run, or its end, goes in a later section than the one that found that nobody needs it.
    TrimmedLater,
    /// A child is opened when the LOCK of the run around its parent was given back.
    OpenedUnlocked,
    /// Under LOCK nobody asks again whether the child hangs there by now.
    ChildNotProbed,
    /// Under LOCK nobody asks again whether the next position has the content by now.
    NextNotProbed,
    /// A walk accepts a run without looking back at the one before.
    NoStepBack,
    /// Holder blocks are given away before the window that takes them out of use.
    BlocksGivenEarly,
    /// A holder's entry that goes is replaced by another one without a window.
    EntryMoved,
    /// A slot is given away before it is swept.
    GivenBeforeSwept,
    /// A lookup uses its copy of the names without comparing the count after its walk.
    CountNotCompared,
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
    /// The holders of two halves are read before their LOCKs are taken.
    HalvesBeforeLock,
    /// A second half that was drawn into the first stays alive.
    SuccessorLeftAlive,
    /// A coverage is replaced without an odd window.
    ReplacedUnwindowed,
    /// A run's version is compared, but its LOCK is not taken.
    LockNotTaken,
    /// Whoever joins a child takes the LOCK of the parent's run first.
    ParentBeforeChild,
    /// A dead child is counted out of its parent's position when the LOCK of the parent's run was given back.
    KidClearedLate,
    /// The link of a dead child goes, and then its count, when the LOCK of the parent's run was given back.
    LinkClearedLate,
    /// A walk goes on in a physical successor without asking what it succeeds.
    SuccessorBelieved,
    /// Child links are taken out Relaxed.
    ClearedRelaxed,
}

/// Whether this fault is put in. Never, outside of loom.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn injected(_fault: Fault) -> bool {
    false
}

#[cfg(loom)]
pub use under_loom::{inject, injected};

#[cfg(loom)]
mod under_loom {
    use super::Fault;
    use std::cell::Cell;

    std::thread_local! {
        /// A bit for each fault.
        static INJECTED: Cell<u64> = const { Cell::new(0) };
    }

    fn bit(fault: Fault) -> u64 {
        1 << fault as u32
    }

    /// Puts these faults in, and takes all others out, for the models of this thread.
    pub fn inject(faults: &[Fault]) {
        INJECTED.with(|cell| cell.set(faults.iter().fold(0, |all, &fault| all | bit(fault))));
    }

    /// Whether this fault is put in.
    pub fn injected(fault: Fault) -> bool {
        INJECTED.with(|cell| cell.get() & bit(fault) != 0)
    }
}
