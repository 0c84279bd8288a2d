//! A global allocator that counts, once it is told to: heap bytes of an indexer are what it asked for and did not give back.
//! Until then it costs one relaxed load an allocation. Underneath is mimalloc.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait; every method hands its own contract on")]

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

static COUNTS: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The allocator.
pub struct Counting;

/// Begins to count. What was allocated before and is freed later counts as less than nothing, so start before the indexer.
pub fn start() {
    LIVE.store(0, Ordering::Relaxed);
    PEAK.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
}

/// Bytes asked for since [`start`] and not given back; the peak of that.
pub fn live() -> (i64, i64) {
    (LIVE.load(Ordering::Relaxed), PEAK.load(Ordering::Relaxed))
}

#[inline]
fn count(bytes: i64) {
    if COUNTS.load(Ordering::Relaxed) {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

// SAFETY: every method hands its arguments to mimalloc unchanged and returns what mimalloc returns; counting touches no memory
// but three atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { MiMalloc.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        // SAFETY: the block came from mimalloc by one of these methods, with this layout.
        unsafe { MiMalloc.realloc(block, layout, new_size) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the block came from mimalloc by one of these methods, with this layout.
        unsafe { MiMalloc.dealloc(block, layout) }
    }
}
