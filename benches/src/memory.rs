//! Bytes of memory by account: a counting allocator for the heap, and the resident pages of reserved address ranges.
//!
//! A thread charges what it allocates and frees to the account it has chosen. An index whose code always runs under its own
//! account is counted exactly, whatever else the process does. Reserved ranges (an arena that commits memory on touch) never
//! pass through an allocator: their resident pages are read from the system.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; each call is passed on as it came")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Accounts there are; 0 is everything that is no index.
pub const ACCOUNTS: usize = 10;

static BYTES: [AtomicIsize; ACCOUNTS] = [const { AtomicIsize::new(0) }; ACCOUNTS];

thread_local! {
    static ACCOUNT: Cell<usize> = const { Cell::new(0) };
}

/// An allocator that counts what it passes on, by account. Make it the program's global allocator.
pub struct Counting<A>(pub A);

fn count(bytes: isize) {
    // Relaxed: each account is a sum that is read when its threads are at rest.
    BYTES[ACCOUNT.get()].fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: every method passes its arguments to the inner allocator unchanged and returns its answer.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the inner allocator's.
        unsafe { self.0.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the inner allocator's.
        unsafe { self.0.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are the inner allocator's.
        unsafe { self.0.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are the inner allocator's.
        unsafe { self.0.realloc(pointer, layout, size) }
    }
}

/// Runs code whose heap use on this thread belongs to an account.
pub fn charge<R>(account: usize, work: impl FnOnce() -> R) -> R {
    let before = ACCOUNT.replace(account);
    let done = work();
    ACCOUNT.set(before);
    done
}

/// Heap bytes of an account. 0 everywhere unless [`Counting`] is the program's allocator.
pub fn heap(account: usize) -> u64 {
    BYTES[account].load(Ordering::Relaxed).max(0) as u64
}

/// Address ranges that are reserved without being backed, as the system lists them.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    starts: BTreeSet<u64>,
}

/// Reserved ranges below this are not an arena's.
const ARENA_BYTES_MIN: u64 = 1 << 20;

impl Reserved {
    /// The ranges at this moment; none where the system does not tell (`/proc/self/smaps`).
    pub fn now() -> Self {
        Self { starts: ranges().into_iter().map(|range| range.start).collect() }
    }

    /// The ranges that came since `before`.
    pub fn since(&self, before: &Reserved) -> Reserved {
        Reserved { starts: self.starts.difference(&before.starts).copied().collect() }
    }

    /// Bytes of memory that these ranges use by now.
    pub fn resident(&self) -> u64 {
        ranges().into_iter().filter(|range| self.starts.contains(&range.start)).map(|range| range.resident).sum()
    }
}

struct Range {
    start: u64,
    resident: u64,
}

/// Large anonymous ranges with their resident bytes.
fn ranges() -> Vec<Range> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut all: Vec<Range> = Vec::new();
    let mut large = false;
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            let (start, end) = (number(start), number(end));
            large = end - start >= ARENA_BYTES_MIN && line.split_whitespace().count() == 5;
            if large {
                all.push(Range { start, resident: 0 });
            }
        } else if first == "Rss:" && large {
            let kilobytes = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
            if let Some(range) = all.last_mut() {
                range.resident = kilobytes.unwrap_or(0) * 1024;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_to_the_account_in_force() {
        let allocator = Counting(std::alloc::System);
        let layout = Layout::from_size_align(1000, 8).unwrap();
        let pointer = charge(7, || {
            // SAFETY: the layout is not empty.
            unsafe { allocator.alloc(layout) }
        });
        assert_eq!(heap(7), 1000);
        // SAFETY: the pointer is of this allocator and layout.
        charge(7, || unsafe { allocator.dealloc(pointer, layout) });
        assert_eq!(heap(7), 0);
    }
}
