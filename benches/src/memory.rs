//! Bytes of memory by account: a counting allocator for the heap, and the resident pages of reserved address ranges.
//!
//! A thread charges what it allocates and frees to the account it has chosen. An index whose code always runs under its own
//! account is counted exactly, whatever else the process does. Reserved ranges (an arena that commits memory on touch) never
//! pass through an allocator: their resident pages are read from the system.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; each call is passed on as it came")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::io::{Read, Seek, SeekFrom};
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

/// Address ranges that are reserved without being backed. Known by their addresses: the system joins neighbouring ranges in
/// its list, so that an index's ranges may end up in one entry with another's.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    /// First and last-but-one address of each, in order, apart from each other.
    ranges: Vec<(u64, u64)>,
}

/// Reserved ranges below this are not an arena's.
const ARENA_BYTES_MIN: u64 = 1 << 20;
/// Bytes of a page as `/proc/self/pagemap` counts them.
const PAGE: u64 = 4096;
/// Bytes of its entry for a page.
const ENTRY: u64 = 8;

impl Reserved {
    /// The ranges at this moment; none where the system does not tell (`/proc/self/smaps`).
    pub fn now() -> Self {
        Self { ranges: large_ranges().into_iter().map(|range| (range.start, range.end)).collect() }
    }

    /// The addresses that were reserved since `before`.
    pub fn since(&self, before: &Reserved) -> Reserved {
        let mut ranges = Vec::new();
        for &(first, end) in &self.ranges {
            let mut start = first;
            for &(from, to) in before.ranges.iter().filter(|&&(from, to)| from < end && first < to) {
                if start < from {
                    ranges.push((start, from));
                }
                start = to.max(start);
            }
            if start < end {
                ranges.push((start, end));
            }
        }
        Reserved { ranges }
    }

    /// Bytes of memory that these ranges use by now.
    pub fn resident(&self) -> u64 {
        let mut bytes = 0;
        for range in large_ranges().into_iter().filter(|range| range.resident > 0) {
            for &(start, end) in self.ranges.iter().filter(|&&(start, end)| start < range.end && range.start < end) {
                bytes += match (start.max(range.start), end.min(range.end)) {
                    whole if whole == (range.start, range.end) => range.resident,
                    (start, end) => present(start, end).unwrap_or(0),
                };
            }
        }
        bytes
    }
}

/// Resident bytes of all anonymous memory of this process.
///
/// # Errors
///
/// The system does not tell (`/proc/self/status`).
pub fn resident_anonymous() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Bytes of the pages between two addresses that are in memory or swapped out.
fn present(start: u64, end: u64) -> std::io::Result<u64> {
    let mut map = std::fs::File::open("/proc/self/pagemap")?;
    map.seek(SeekFrom::Start(start / PAGE * ENTRY))?;
    let mut entries = std::io::BufReader::with_capacity(1 << 16, map).take((end - start) / PAGE * ENTRY);
    let (mut entry, mut pages) = ([0; ENTRY as usize], 0);
    while entries.read_exact(&mut entry).is_ok() {
        // Bit 63: in memory; bit 62: swapped out.
        pages += u64::from(u64::from_le_bytes(entry) >> 62 != 0);
    }
    Ok(pages * PAGE)
}

struct Range {
    start: u64,
    end: u64,
    resident: u64,
}

/// Large anonymous ranges with their resident bytes.
fn large_ranges() -> Vec<Range> {
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
                all.push(Range { start, end, resident: 0 });
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

    #[test]
    fn what_was_reserved_since_is_known_by_its_addresses() {
        let of = |ranges: &[(u64, u64)]| Reserved { ranges: ranges.to_vec() };
        let since = |now: &[(u64, u64)], before: &[(u64, u64)]| of(now).since(&of(before)).ranges;
        assert_eq!(since(&[(10, 20), (40, 50)], &[]), [(10, 20), (40, 50)]);
        assert_eq!(since(&[(10, 20), (40, 50)], &[(10, 20)]), [(40, 50)]);
        // Joined with what was there, below, above and on both sides.
        assert_eq!(since(&[(10, 30)], &[(10, 20)]), [(20, 30)]);
        assert_eq!(since(&[(0, 20)], &[(10, 20)]), [(0, 10)]);
        assert_eq!(since(&[(0, 50)], &[(10, 20), (30, 35)]), [(0, 10), (20, 30), (35, 50)]);
    }
}
