//! The version word of a run: a lock among writers, and a sequence that lets readers go without one.
//!
//! ```text
//! bit 0       LOCK   a writer is inside; readers ignore it
//! bit 1       DEAD   the run is unlinked; its id may be used again, under a higher sequence
//! bit 2       odd    words that readers compare are being moved
//! bits 2..64  sequence, never reset, not even when the id is used again
//! ```
//!
//! A reader calls [`Version::begin`], loads what it wants (every word an atomic, `len` with Acquire, the rest Relaxed) and
//! believes it only if [`Version::confirm`] says so. A writer takes LOCK, decides by what it reads under it, and changes a
//! single word with one Release store, or several inside [`Locked::window`]. Loom checks this type in `loom-tests`.

use crate::fault::{Fault, injected};
use crate::sync::{AtomicU64, Ordering, fence, wait};

const LOCK: u64 = 1;
const DEAD: u64 = 2;
const STEP: u64 = 4;
/// So many turns of one wait for a LOCK are the deadlock that a loom model of two threads is to find: at each of them the other
/// one runs on, to its end or to a wait of its own.
#[cfg(loom)]
const TURNS_FOUND: u32 = 200;

/// A version as a reader saw it: alive, even, LOCK left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen(u64);

/// Why a version could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// Words are being moved right now.
    Moving,
    /// The run is unlinked.
    Dead,
}

/// The version word.
#[repr(transparent)]
pub struct Version(AtomicU64);

impl Version {
    /// A version word for tests and models: dead, sequence 0.
    pub fn new_dead() -> Self {
        Self(AtomicU64::new(DEAD))
    }

    /// The version word that lives in an arena word.
    #[inline]
    pub(crate) fn of(word: &AtomicU64) -> &Version {
        // SAFETY: `Version` is `repr(transparent)` over `AtomicU64`, so both references have one layout and lifetime.
        #[expect(unsafe_code, reason = "view of an arena word as its protocol type")]
        unsafe {
            &*std::ptr::from_ref(word).cast::<Version>()
        }
    }

    /// Begins an optimistic read. Never blocks.
    #[inline]
    pub fn begin(&self) -> Result<Seen, Unreadable> {
        // Acquire: pairs with the Release that closed the last window, or that published the run.
        let word = self.0.load(Ordering::Acquire) & !LOCK;
        if word & DEAD != 0 {
            Err(Unreadable::Dead)
        } else if word & STEP != 0 {
            Err(Unreadable::Moving)
        } else {
            Ok(Seen(word))
        }
    }

    /// Begins an optimistic read of words that are being moved: waits up to so many turns for them to come to rest.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_patiently(&self, turns: u32) -> Result<Seen, Unreadable> {
        for turn in 1..=turns {
            wait(turn);
            match self.begin() {
                Err(Unreadable::Moving) => {}
                begun => return begun,
            }
        }
        Err(Unreadable::Moving)
    }

    /// Whether everything loaded since `seen` belongs to that version.
    #[inline]
    pub fn confirm(&self, seen: Seen) -> bool {
        // Acquire fence: pairs with the fence(Release) after a writer's odd store. A load above that saw a word of a later
        // window makes the load below see at least that window's odd version.
        if !injected(Fault::ConfirmUnfenced) {
            fence(Ordering::Acquire);
        }
        self.0.load(Ordering::Relaxed) & !LOCK == seen.0
    }

    /// Takes LOCK if the version is still `seen`; `None` when it moved on. Blocks while another writer is inside; `waits`
    /// counts the turns.
    #[inline]
    pub fn lock_at(&self, seen: Seen, waits: &mut u64) -> Option<Locked<'_>> {
        let (mut at, mut turn) = (seen.0, 0);
        if injected(Fault::LockNotTaken) {
            let word = self.0.load(Ordering::Acquire) & !LOCK;
            return (word == at).then_some(Locked { version: self, word });
        }
        loop {
            // Acquire: pairs with the Release of the last unlock.
            match self.0.compare_exchange(at, at | LOCK, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Locked { version: self, word: at }),
                Err(now) if now & !LOCK != at => {
                    if !locks_anyway(now) {
                        return None;
                    }
                    at = now & !LOCK;
                }
                Err(_) => {}
            }
            *waits += 1;
            wait(turn);
            turn += 1;
            #[cfg(loom)]
            if injected(Fault::ParentBeforeChild) {
                assert!(turn < TURNS_FOUND, "found: a LOCK is waited for without an end");
            }
        }
    }

    /// Brings a dead or unborn run to life, born locked, under a higher sequence. The caller took the id from a free list, wrote
    /// [`reuse_fence`] before its first store to the run's memory, and publishes with the guard's drop or a link's Release.
    #[inline]
    pub fn revive(&self) -> Locked<'_> {
        let word = if injected(Fault::SequenceReset) { 0 } else { self.0.load(Ordering::Relaxed) };
        debug_assert!(word & LOCK == 0 && (word & DEAD != 0 || word == 0), "only a dead or unborn run comes to life");
        let word = (word & !DEAD & !STEP) + 2 * STEP;
        // Release: pairs with the Acquire of `begin`; whoever sees this sequence sees the fields stored before it.
        self.0.store(word | LOCK, publishing());
        Locked { version: self, word }
    }

    /// Whether the run is dead or was never born. For checks and scans; a rumour while writers run.
    #[inline]
    pub fn is_dead(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & DEAD != 0 || word == 0
    }
}

/// Before the first store to memory that an older reader may still be comparing (content past a trim, a reused granule,
/// header or holder block): with it, a reader that sees such a store fails its `confirm`.
#[inline]
pub fn reuse_fence() {
    // Release fence: pairs with the Acquire fence in `confirm`.
    if !injected(Fault::ReuseUnfenced) && !injected(Fault::PublishedRelaxed) {
        fence(Ordering::Release);
    }
}

/// Whether a LOCK is taken although the version is another one by now: never.
#[inline(always)]
fn locks_anyway(now: u64) -> bool {
    let any = injected(Fault::LockedAtAnyVersion) || injected(Fault::FieldsFromBefore);
    any || injected(Fault::LockedIfAlive) && now & DEAD == 0
}

/// With what a run, and the link to it, come into the world: Release.
#[inline(always)]
pub(crate) fn publishing() -> Ordering {
    if injected(Fault::PublishedRelaxed) { Ordering::Relaxed } else { Ordering::Release }
}

/// LOCK, held. Dropping it unlocks.
pub struct Locked<'a> {
    version: &'a Version,
    word: u64,
}

impl Locked<'_> {
    /// Runs `change` inside an odd window: readers that overlap it retry. Keep it to the final handful of stores (they may
    /// be Relaxed).
    #[inline]
    pub fn window<R>(&mut self, change: impl FnOnce() -> R) -> R {
        if injected(Fault::WindowMissing) {
            return change();
        }
        self.begin_window((self.word + STEP) | LOCK);
        let result = change();
        self.word += 2 * STEP;
        // Release: pairs with the Acquire in `begin`.
        self.version.0.store(self.word | LOCK, Ordering::Release);
        result
    }

    /// Marks the run as unlinked, in a window of its own. Unlocking leaves it dead.
    #[inline]
    pub fn kill(&mut self) {
        self.begin_window((self.word + STEP) | LOCK | DEAD);
        self.word = (self.word + 2 * STEP) | DEAD;
    }

    /// The first word of a window: readers that saw any store behind it fail their `confirm`.
    #[inline(always)]
    fn begin_window(&self, odd: u64) {
        let word = &self.version.0;
        if injected(Fault::WindowByAdd) {
            word.fetch_add(STEP, Ordering::SeqCst);
        } else if injected(Fault::WindowBySwap) {
            let _ = word.compare_exchange(self.word | LOCK, odd, Ordering::AcqRel, Ordering::Relaxed);
        } else {
            word.store(odd, Ordering::Relaxed);
            // Release fence: pairs with the Acquire fence in `confirm`. An atomic add in place of store and fence would not
            // do: the stores that follow could become visible before it.
            if !injected(Fault::WindowUnfenced) {
                fence(Ordering::Release);
            }
        }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next `lock_at`, and of `begin`.
        self.version.0.store(self.word, publishing());
    }
}
