//! The version protocol of a run as the models use it: the product's, and twins of it with one fault each.

use kvatlas_index::version::{self, Locked, Seen, Version};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// A version word.
pub trait Protocol: Send + Sync + Sized + 'static {
    /// A version as a reader saw it.
    type Seen: Copy + PartialEq + std::fmt::Debug;
    /// The lock, held; dropping it unlocks.
    type Held<'a>: Held;

    /// Dead, never used.
    fn new_dead() -> Self;
    /// Begins an optimistic read; `None` while words are being moved, or when the run is dead.
    fn begin(&self) -> Option<Self::Seen>;
    /// Whether all that was loaded since belongs to that version.
    fn confirm(&self, seen: Self::Seen) -> bool;
    /// Takes the lock at that version, or not at all.
    fn lock_at(&self, seen: Self::Seen) -> Option<Self::Held<'_>>;
    /// Brings a dead run to life, locked, under a higher sequence.
    fn revive(&self) -> Self::Held<'_>;
    /// Before the first store to memory that an older reader may be comparing.
    fn reuse_fence();

    /// A run that is alive from the start.
    fn new_alive() -> Self {
        let word = Self::new_dead();
        drop(word.revive());
        word
    }

    /// Takes the lock at whatever version there is. The run does not die in the models that use this.
    fn lock(&self) -> Self::Held<'_> {
        loop {
            if let Some(held) = self.begin().and_then(|seen| self.lock_at(seen)) {
                return held;
            }
            thread::yield_now();
        }
    }
}

/// What the holder of the lock may do.
pub trait Held {
    /// Stores inside an odd window.
    fn window(&mut self, change: impl FnOnce());
    /// Marks the run as dead.
    fn kill(&mut self);
}

impl Protocol for Version {
    type Seen = Seen;
    type Held<'a> = Locked<'a>;

    fn new_dead() -> Self {
        Version::new_dead()
    }
    fn begin(&self) -> Option<Seen> {
        Version::begin(self).ok()
    }
    fn confirm(&self, seen: Seen) -> bool {
        Version::confirm(self, seen)
    }
    fn lock_at(&self, seen: Seen) -> Option<Locked<'_>> {
        Version::lock_at(self, seen, &mut 0)
    }
    fn revive(&self) -> Locked<'_> {
        Version::revive(self)
    }
    fn reuse_fence() {
        version::reuse_fence();
    }
}

impl Held for Locked<'_> {
    fn window(&mut self, change: impl FnOnce()) {
        Locked::window(self, change);
    }
    fn kill(&mut self) {
        Locked::kill(self);
    }
}

/// No fault: the twin by itself, to show that it is a twin.
pub const NO_FAULT: u8 = 0;
/// The odd store without the fence(Release) behind it.
pub const WINDOW_WITHOUT_FENCE: u8 = 1;
/// An atomic add with SeqCst in place of odd store and fence: the first of the two broken writer fences that look right.
pub const WINDOW_BY_ADD: u8 = 2;
/// A swap with AcqRel in place of odd store and fence: the second.
pub const WINDOW_BY_SWAP: u8 = 3;
/// Words moved without any window.
pub const NO_WINDOW: u8 = 4;
/// The reader without its fence(Acquire).
pub const CONFIRM_WITHOUT_FENCE: u8 = 5;
/// The lock taken at whatever version there is.
pub const LOCK_AT_ANY_VERSION: u8 = 6;
/// The sequence starts again when an id is used again.
pub const SEQUENCE_RESET: u8 = 7;
/// No fence before reused memory is written.
pub const NO_REUSE_FENCE: u8 = 8;
/// A new run's version stored Relaxed.
pub const REVIVED_RELAXED: u8 = 9;

const LOCK: u64 = 1;
const DEAD: u64 = 2;
const STEP: u64 = 4;

/// A twin of the version word, written apart from it, with one of the faults above.
pub struct Faulty<const FAULT: u8>(AtomicU64);

/// Its lock, held.
pub struct FaultyHeld<'a, const FAULT: u8> {
    word: &'a AtomicU64,
    now: u64,
}

impl<const FAULT: u8> Protocol for Faulty<FAULT> {
    type Seen = u64;
    type Held<'a> = FaultyHeld<'a, FAULT>;

    fn new_dead() -> Self {
        Self(AtomicU64::new(DEAD))
    }

    fn begin(&self) -> Option<u64> {
        let now = self.0.load(Ordering::Acquire) & !LOCK;
        (now & (DEAD | STEP) == 0).then_some(now)
    }

    fn confirm(&self, seen: u64) -> bool {
        if FAULT != CONFIRM_WITHOUT_FENCE {
            fence(Ordering::Acquire);
        }
        self.0.load(Ordering::Relaxed) & !LOCK == seen
    }

    fn lock_at(&self, seen: u64) -> Option<FaultyHeld<'_, FAULT>> {
        let mut at = seen;
        loop {
            match self.0.compare_exchange(at, at | LOCK, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(FaultyHeld { word: &self.0, now: at }),
                Err(now) if now & !LOCK != at && FAULT != LOCK_AT_ANY_VERSION => return None,
                Err(now) => at = now & !LOCK,
            }
            thread::yield_now();
        }
    }

    fn revive(&self) -> FaultyHeld<'_, FAULT> {
        let before = if FAULT == SEQUENCE_RESET { 0 } else { self.0.load(Ordering::Relaxed) };
        let now = (before & !DEAD) + 2 * STEP;
        let order = if FAULT == REVIVED_RELAXED { Ordering::Relaxed } else { Ordering::Release };
        self.0.store(now | LOCK, order);
        FaultyHeld { word: &self.0, now }
    }

    fn reuse_fence() {
        if FAULT != NO_REUSE_FENCE {
            fence(Ordering::Release);
        }
    }
}

impl<const FAULT: u8> Held for FaultyHeld<'_, FAULT> {
    fn window(&mut self, change: impl FnOnce()) {
        let odd = (self.now + STEP) | LOCK;
        match FAULT {
            NO_WINDOW => return change(),
            WINDOW_WITHOUT_FENCE => self.word.store(odd, Ordering::Relaxed),
            WINDOW_BY_ADD => drop(self.word.fetch_add(STEP, Ordering::SeqCst)),
            WINDOW_BY_SWAP => drop(self.word.swap(odd, Ordering::AcqRel)),
            _ => {
                self.word.store(odd, Ordering::Relaxed);
                fence(Ordering::Release);
            }
        }
        change();
        self.now += 2 * STEP;
        self.word.store(self.now | LOCK, Ordering::Release);
    }

    fn kill(&mut self) {
        self.word.store((self.now + STEP) | LOCK | DEAD, Ordering::Relaxed);
        fence(Ordering::Release);
        self.now = (self.now + 2 * STEP) | DEAD;
    }
}

impl<const FAULT: u8> Drop for FaultyHeld<'_, FAULT> {
    fn drop(&mut self) {
        let order = if FAULT == REVIVED_RELAXED { Ordering::Relaxed } else { Ordering::Release };
        self.word.store(self.now, order);
    }
}
