//! Huge pages for memory that is in use already: a stretch of 2 MiB of a region whose pages are all there is made one huge page
//! (`MADV_COLLAPSE`, Linux 6.1), from a thread that is neither a lane's nor a reader's.
//!
//! Huge pages at first touch cost bytes where a region is used in part, and a store waits until 2 MiB are zeroed. A collapse
//! costs neither: the huge page takes as many bytes as the pages that it replaces, and nobody waits who does not touch this
//! stretch while it is copied. What a region gives back splits a huge page into small ones again; such a stretch is not
//! collapsed before it was found whole in [`SCANS_WAITED`] scans, so that memory that comes and goes is left alone.
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "two system calls on ranges that a mapping owns"))]

use crate::place::{PageFigures, PagesTended};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering};
use std::sync::Arc;

/// Bytes of a stretch: a huge page of x86-64 and of Arm with 4-KiB pages. Elsewhere the system refuses.
pub(crate) const STRETCH: usize = 1 << 21;
/// Entries that the system writes for a stretch, where pages are smallest.
const PAGES: usize = STRETCH >> 12;
/// Scans that must find a stretch whole again after memory of it was given back.
const SCANS_WAITED: u8 = 8;
/// Every so many scans all of a mapping is looked at; the others end one stretch behind those where pages were seen.
const SCANS_EVERYWHERE: u64 = 64;
/// Scans without an attempt after a refusal double up to two to this power.
const BACKOFF_MAX: u32 = 8;

/// Bytes to reserve for so many that are used: whole stretches, so that a large region begins with one. The system lays mappings
/// of whole huge pages at such addresses (Linux 6.7); where it does not, the pages before the first and behind the last stay small.
pub(crate) fn whole_stretches(bytes: usize) -> usize {
    if bytes < STRETCH { bytes } else { bytes.next_multiple_of(STRETCH) }
}

/// States of a stretch; those up to [`SCANS_WAITED`] count how often it must still be found whole.
const FRESH: u8 = 0;
/// No page was seen there.
const UNSEEN: u8 = 253;
/// The system is asked to collapse it.
const TRYING: u8 = 254;
/// A huge page.
const HUGE: u8 = 255;

/// Every mapping of a shard and of its lanes' tables.
pub(crate) struct Pages {
    /// Those that are mapped, in the order in which they were reserved.
    enrolled: Mutex<Vec<Arc<Stretches>>>,
    /// Held for the length of a scan.
    scan: Mutex<Scan>,
    collapsed: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicU64,
    errno: AtomicU32,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            enrolled: Mutex::new(Vec::new()),
            scan: Mutex::new(Scan::default()),
            collapsed: AtomicU64::default(),
            refused: AtomicU64::default(),
            waiting: AtomicU64::default(),
            errno: AtomicU32::default(),
        }
    }
}

#[derive(Default)]
struct Scan {
    number: u64,
    /// Scans to come without an attempt.
    resting: u32,
    /// Refusals since the last success, as the power of two of scans to rest.
    backoff: u32,
}

/// The stretches of one mapping.
pub(crate) struct Stretches {
    /// Address of the mapping, and of its first stretch.
    start: usize,
    first: usize,
    states: Box<[AtomicU8]>,
    /// Whether the addresses are still this mapping's. Locked while the system is asked about them.
    mapped: Mutex<bool>,
}

/// A mapping's entry, which ends with it. To be dropped before the mapping is.
#[derive(Default)]
pub(crate) struct Enrolled(Option<Arc<Stretches>>);

impl Drop for Enrolled {
    fn drop(&mut self) {
        if let Some(stretches) = &self.0 {
            *stretches.mapped.lock() = false;
        }
    }
}

impl Enrolled {
    /// Says that the bytes of a range, counted from the mapping's start, are about to be given back.
    #[inline]
    pub fn gives_back(&self, from: usize, bytes: usize) {
        let Some(stretches) = &self.0 else { return };
        let begin = (stretches.start + from).saturating_sub(stretches.first) / STRETCH;
        let end = (stretches.start + from + bytes).saturating_sub(stretches.first).div_ceil(STRETCH);
        let end = end.min(stretches.states.len());
        for state in stretches.states.get(begin..end).unwrap_or_default() {
            // Relaxed, as are all accesses of states: they order no memory; a scan that overtakes this collapses once too often.
            state.store(SCANS_WAITED, Ordering::Relaxed);
        }
    }
}

impl Pages {
    /// Takes a mapping in, of so many bytes at this address.
    pub fn enroll(&self, start: usize, bytes: usize) -> Enrolled {
        let first = start.next_multiple_of(STRETCH);
        let count = (start + bytes).saturating_sub(first) / STRETCH;
        if count == 0 {
            return Enrolled(None);
        }
        let states = (0..count).map(|_| AtomicU8::new(UNSEEN)).collect();
        let stretches = Arc::new(Stretches { start, first, states, mapped: Mutex::new(true) });
        self.enrolled.lock().push(stretches.clone());
        Enrolled(Some(stretches))
    }

    /// One scan, with at most `budget` attempts, which are taken from it.
    pub fn tend(&self, budget: &mut u32, tended: &mut PagesTended) {
        self.tend_with(budget, tended, system::collapse);
    }

    fn tend_with(&self, budget: &mut u32, tended: &mut PagesTended, system: impl Fn(usize) -> Result<(), i32>) {
        let mut scan = self.scan.lock();
        let everywhere = scan.number.is_multiple_of(SCANS_EVERYWHERE);
        scan.number += 1;
        let resting = scan.resting > 0;
        scan.resting = scan.resting.saturating_sub(1);
        let maps = {
            let mut enrolled = self.enrolled.lock();
            enrolled.retain(|stretches| *stretches.mapped.lock());
            enrolled.clone()
        };
        let mut attempts = if resting { 0 } else { *budget };
        let (before, mut did) = (attempts, PagesTended::default());
        // The lanes' tables were reserved last. They come first, as what an event reads is spread over all of them.
        for stretches in maps.iter().rev() {
            stretches.scan(everywhere, |start| {
                if attempts == 0 {
                    did.waiting += 1;
                    return None;
                }
                attempts -= 1;
                let answer = system(start);
                match answer {
                    Ok(()) => (did.collapsed, scan.backoff) = (did.collapsed + 1, 0),
                    Err(_) => {
                        did.refused += 1;
                        attempts = 0;
                        scan.resting = 1 << scan.backoff;
                        scan.backoff = (scan.backoff + 1).min(BACKOFF_MAX);
                    }
                }
                self.errno.store(answer.err().unwrap_or(0) as u32, Ordering::Relaxed);
                Some(answer.is_ok())
            });
        }
        *budget -= (before - attempts).min(*budget);
        // Relaxed: figures, each by itself.
        self.collapsed.fetch_add(did.collapsed.into(), Ordering::Relaxed);
        self.refused.fetch_add(did.refused.into(), Ordering::Relaxed);
        self.waiting.store(did.waiting.into(), Ordering::Relaxed);
        tended.collapsed += did.collapsed;
        tended.waiting += did.waiting;
        tended.refused += did.refused;
    }

    /// The figures at this moment.
    pub fn figures(&self) -> PageFigures {
        let enrolled = self.enrolled.lock();
        PageFigures {
            huge: enrolled.iter().map(|stretches| stretches.huge()).sum(),
            waiting: self.waiting.load(Ordering::Relaxed),
            collapsed: self.collapsed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            errno: self.errno.load(Ordering::Relaxed) as i32,
        }
    }
}

impl Stretches {
    fn huge(&self) -> u64 {
        self.states.iter().filter(|state| state.load(Ordering::Relaxed) == HUGE).count() as u64
    }

    /// Looks at the stretches that are not huge and lets `collapse` try those that are whole and have waited; it says what came
    /// of it, or `None` where it did not try.
    fn scan(&self, everywhere: bool, mut collapse: impl FnMut(usize) -> Option<bool>) {
        let mut seen_before = true;
        for (i, state) in self.states.iter().enumerate() {
            let was = state.load(Ordering::Relaxed);
            let look = was != HUGE && (was != UNSEEN || seen_before || everywhere);
            seen_before = was != UNSEEN;
            if !look {
                continue;
            }
            // For one stretch at a time: who unmaps waits no longer than a collapse.
            let mapped = self.mapped.lock();
            if !*mapped {
                return;
            }
            let start = self.first + i * STRETCH;
            let become_ = |to: u8| state.compare_exchange(was, to, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            match (system::seen(start), was) {
                (Seen::Nothing, _) => {}
                // What was given back begins to wait anew.
                (Seen::Some, 1..=SCANS_WAITED) => drop(become_(SCANS_WAITED)),
                (Seen::Some, _) => drop(become_(FRESH)),
                (Seen::Whole, 1..=SCANS_WAITED) => drop(become_(was - 1)),
                (Seen::Whole, _) => {
                    if !become_(TRYING) {
                        continue;
                    }
                    let to = match collapse(start) {
                        Some(true) => HUGE,
                        Some(false) => SCANS_WAITED,
                        None => FRESH,
                    };
                    // If memory of it was given back meanwhile it is not huge any more, and says so already.
                    let _ = state.compare_exchange(TRYING, to, Ordering::Relaxed, Ordering::Relaxed);
                }
            }
        }
    }
}

/// How many of a stretch's pages are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Nothing,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is seen there"))]
    Some,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is seen there"))]
    Whole,
}

#[cfg(target_os = "linux")]
mod system {
    use super::{PAGES, STRETCH, Seen};

    /// Which pages of a mapped stretch are in memory.
    pub fn seen(start: usize) -> Seen {
        // One byte a page. Where pages are larger fewer are written, and the rest must not count as missing.
        let mut pages = [1u8; PAGES];
        // SAFETY: the call reads page tables and no memory of the range, and writes a byte for each page of at least 4 KiB, of
        // which `pages` has room for all.
        let answer = unsafe { libc::syscall(libc::SYS_mincore, start, STRETCH, pages.as_mut_ptr()) };
        // The other bits of a byte mean nothing.
        match pages.iter().filter(|&&page| page & 1 == 1).count() {
            _ if answer != 0 => Seen::Nothing,
            0 => Seen::Nothing,
            PAGES => Seen::Whole,
            _ => Seen::Some,
        }
    }

    /// Makes a mapped stretch one huge page, whatever the system's setting for transparent ones is. The error is the system's
    /// number: no memory, a page that is in use by the system, no such advice.
    pub fn collapse(start: usize) -> Result<(), i32> {
        // SAFETY: the range is inside one private anonymous mapping, alive as the caller holds its lock; the advice changes
        // which pages back it and no byte of it, and what other threads do there meanwhile waits or goes before.
        let answer = unsafe { libc::syscall(libc::SYS_madvise, start, STRETCH, libc::MADV_COLLAPSE) };
        if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Seen;

    pub fn seen(_start: usize) -> Seen {
        Seen::Nothing
    }

    pub fn collapse(_start: usize) -> Result<(), i32> {
        Err(0)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::{ContentHash, EngineHash, Holder, HugePages, Index, IndexConfig, RankKey, Store, StoreKind, Tier};
    use memmap2::{Advice, MmapMut, MmapOptions, UncheckedAdvice};

    const PAGE: usize = STRETCH / PAGES;

    /// Pages with a mapping of so many whole stretches at least, none of it touched; the offset of its first stretch.
    fn mapping(stretches: usize) -> (Pages, Enrolled, MmapMut, usize) {
        let map = MmapOptions::new().len((stretches + 1) * STRETCH).map_anon().expect("room for a mapping");
        // A system may be set to make huge pages by itself; a kernel without them refuses.
        let _ = map.advise(Advice::NoHugePage);
        let pages = Pages::default();
        let enrolled = pages.enroll(map.as_ptr() as usize, map.len());
        let first = (map.as_ptr() as usize).next_multiple_of(STRETCH) - map.as_ptr() as usize;
        (pages, enrolled, map, first)
    }

    fn touch(map: &mut MmapMut, from: usize, bytes: usize) {
        map[from..from + bytes].iter_mut().step_by(PAGE).for_each(|byte| *byte = 7);
    }

    /// Scans with this answer of the system and no limit; which addresses it was asked for.
    fn scan(pages: &Pages, answer: Result<(), i32>) -> Vec<usize> {
        let asked = std::cell::RefCell::new(Vec::new());
        pages.tend_with(&mut u32::MAX.clone(), &mut PagesTended::default(), |start| {
            asked.borrow_mut().push(start);
            answer
        });
        asked.into_inner()
    }

    #[test]
    fn only_stretches_in_use_throughout_are_collapsed_and_each_once() {
        let (pages, _enrolled, mut map, first) = mapping(3);
        assert_eq!(scan(&pages, Ok(())), []);
        let start = map.as_ptr() as usize + first;
        touch(&mut map, first, STRETCH);
        touch(&mut map, first + STRETCH, STRETCH - PAGE);
        assert_eq!(scan(&pages, Ok(())), [start]);
        assert_eq!((scan(&pages, Ok(())), pages.figures().huge), (vec![], 1));
        touch(&mut map, first + 2 * STRETCH - PAGE, PAGE);
        assert_eq!(scan(&pages, Ok(())), [start + STRETCH]);
        assert_eq!((pages.figures().huge, pages.figures().collapsed), (2, 2));
    }

    #[test]
    fn what_was_given_back_waits_until_it_is_whole_for_some_scans() {
        let (pages, enrolled, mut map, first) = mapping(2);
        touch(&mut map, first, 2 * STRETCH);
        assert_eq!(scan(&pages, Ok(())).len(), 2);
        let (gone, bytes) = (first + STRETCH - PAGE, PAGE);
        enrolled.gives_back(gone, bytes);
        // SAFETY: nobody else looks at this map.
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, gone, bytes).unwrap() };
        assert_eq!(pages.figures().huge, 1, "only the stretch it lies in");
        for _ in 0..2 * SCANS_WAITED {
            assert_eq!(scan(&pages, Ok(())), []);
        }
        touch(&mut map, gone, bytes);
        for _ in 0..SCANS_WAITED {
            assert_eq!(scan(&pages, Ok(())), []);
        }
        assert_eq!(scan(&pages, Ok(())), [map.as_ptr() as usize + first]);
    }

    #[test]
    fn refusals_are_counted_and_tried_again_less_and_less_often() {
        let (pages, _enrolled, mut map, first) = mapping(8);
        touch(&mut map, first, 8 * STRETCH);
        let refused = Err(libc::ENOMEM);
        let attempts: Vec<usize> = (0..32).filter(|_| !scan(&pages, refused).is_empty()).collect();
        // One attempt, then one scan without, then two, four, eight.
        assert_eq!(attempts, [0, 2, 5, 10, 19]);
        let figures = pages.figures();
        assert_eq!((figures.refused, figures.errno, figures.huge), (5, libc::ENOMEM, 0));
        let collapsed: usize = (0..32).map(|_| scan(&pages, Ok(())).len()).sum();
        assert_eq!((collapsed, pages.figures().errno), (8, 0));
    }

    #[test]
    fn a_scan_keeps_to_its_budget() {
        let (pages, _enrolled, mut map, first) = mapping(4);
        touch(&mut map, first, 4 * STRETCH);
        let (mut budget, mut tended) = (3, PagesTended::default());
        pages.tend_with(&mut budget, &mut tended, |_| Ok(()));
        assert_eq!((budget, tended), (0, PagesTended { collapsed: 3, waiting: 1, refused: 0 }));
        assert_eq!(pages.figures().waiting, 1);
    }

    #[test]
    fn a_mapping_that_went_is_not_asked_for() {
        let (pages, enrolled, mut map, first) = mapping(1);
        touch(&mut map, first, STRETCH);
        drop(enrolled);
        assert_eq!((scan(&pages, Ok(())), pages.enrolled.lock().len()), (vec![], 0));
    }

    #[test]
    fn a_mapping_without_a_whole_stretch_is_left_alone() {
        let map = MmapOptions::new().len(STRETCH - PAGE).map_anon().unwrap();
        let pages = Pages::default();
        let enrolled = pages.enroll(map.as_ptr() as usize, map.len());
        enrolled.gives_back(0, STRETCH - PAGE);
        assert_eq!(pages.enrolled.lock().len(), 0);
    }

    fn contents(count: u64) -> (Vec<EngineHash>, Vec<ContentHash>) {
        (1..=count).map(|i| (EngineHash(i), ContentHash(i))).unzip()
    }

    #[test]
    fn an_index_answers_the_same_from_collapsed_pages_and_gives_them_back() {
        const BLOCKS: u64 = 600_000;
        let config = IndexConfig { huge_pages: HugePages::Collapse, run_blocks_max: 512, ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).unwrap();
        let rank = lanes[0].open_rank(RankKey(3)).unwrap();
        let (names, contents) = contents(BLOCKS);
        let store = Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy };
        lanes[0].store(Holder { rank, tier: Tier::Device }, &store).unwrap();
        let mut tended = PagesTended::default();
        while tended.refused == 0 {
            let did = index.tend_pages(2);
            tended.collapsed += did.collapsed;
            tended.refused += did.refused;
            assert!(did.collapsed + did.refused <= 2);
            if did.waiting + did.refused == 0 {
                break;
            }
        }
        // Contents and names have two whole stretches each, the lane's map some. A system may refuse.
        assert!(tended.collapsed >= 4 || tended.refused > 0, "{tended:?}");
        let figures = index.page_figures().next().unwrap();
        assert_eq!((figures.collapsed, figures.refused), (tended.collapsed.into(), tended.refused.into()));
        let mut found = Vec::new();
        let _ = index.reader().lookup(&contents, &crate::LookupOptions::default(), &mut found);
        assert_eq!(found[0].blocks, BLOCKS as u32);
        lanes[0].remove(Holder { rank, tier: Tier::Device }, &names).unwrap();
        assert_eq!(index.stats().held, 0);
        let after = index.page_figures().next().unwrap();
        assert!(after.huge < figures.huge || figures.huge == 0, "the lane's map shrank: {after:?}");
        drop(lanes);
        assert_eq!(index.tend_pages(u32::MAX).refused, 0);
    }

    #[test]
    fn nothing_is_tended_that_was_not_asked_for() {
        let (index, mut lanes) = Index::new(IndexConfig::default()).unwrap();
        let rank = lanes[0].open_rank(RankKey(3)).unwrap();
        let (names, contents) = contents(600_000);
        let store = Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy };
        lanes[0].store(Holder { rank, tier: Tier::Device }, &store).unwrap();
        assert_eq!(index.tend_pages(u32::MAX), PagesTended::default());
        assert_eq!(index.page_figures().next(), Some(PageFigures::default()));
    }
}
