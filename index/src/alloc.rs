//! Who owns which granule, run id and holder block: free lists behind one short lock of the shard.
//!
//! A granule is eight positions. Pages of 64 granules carry one bitmap word of free granules; pages are binned by their
//! longest free stretch, so an allocation takes the tightest page that fits, and freed neighbours coalesce by themselves. The
//! bins are lists that go through the pages, so a page changes its bin without asking the heap for anything.
//! Each lane has a small stock in front of them: run ids, taken and given back in groups, and the stretches that it freed last,
//! for the runs that grow into them; they go back in groups, too.

use crate::config::IndexConfig;
use crate::error::IndexError;
use crate::sync::Mutex;

/// Positions of a granule (one cache line of content hashes).
pub(crate) const GRANULE: u32 = if cfg!(loom) { 2 } else { 8 };
const PAGE: u32 = 64;

#[derive(Clone, Copy)]
struct Page {
    /// A set bit is a free granule.
    free: u64,
    /// Longest free stretch: the bin this page is in; 0 is in no bin.
    bin: u32,
    /// Its neighbours in the bin: the one that came after it, and the one that was there before; `NO_PAGE` at the ends.
    younger: u32,
    older: u32,
}

/// No page: the end of a bin.
const NO_PAGE: u32 = u32::MAX;

/// The granule allocator.
pub(crate) struct Granules {
    pages: Vec<Page>,
    /// The page that came last, by bin.
    bins: [u32; PAGE as usize + 1],
    pages_max: u32,
    live: u64,
}

/// Length of the longest run of set bits.
fn longest_stretch(mut word: u64) -> u32 {
    let mut length = 0;
    while word != 0 {
        word &= word << 1;
        length += 1;
    }
    length
}

fn mask(at: u32, count: u32) -> u64 {
    (if count == PAGE { u64::MAX } else { (1 << count) - 1 }) << at
}

impl Granules {
    fn new(blocks_max: u32) -> Self {
        let bins = [NO_PAGE; PAGE as usize + 1];
        let mut granules = Self { pages: Vec::new(), bins, pages_max: blocks_max.div_ceil(GRANULE * PAGE), live: 0 };
        granules.add_page();
        // Position 0 is the root's, so granule 0 is never handed out.
        granules.pages[0].free &= !1;
        granules.rebin(0);
        granules
    }

    fn add_page(&mut self) {
        let id = self.pages.len() as u32;
        self.pages.push(Page { free: u64::MAX, bin: 0, younger: NO_PAGE, older: NO_PAGE });
        self.rebin(id);
    }

    fn rebin(&mut self, id: u32) {
        let Page { free, bin: old, younger, older } = self.pages[id as usize];
        let bin = longest_stretch(free);
        if bin == old {
            return;
        }
        if old > 0 {
            match self.pages.get_mut(younger as usize) {
                Some(page) => page.older = older,
                None => self.bins[old as usize] = older,
            }
            if let Some(page) = self.pages.get_mut(older as usize) {
                page.younger = younger;
            }
        }
        let mut first = NO_PAGE;
        if bin > 0 {
            first = std::mem::replace(&mut self.bins[bin as usize], id);
            if let Some(page) = self.pages.get_mut(first as usize) {
                page.younger = id;
            }
        }
        self.pages[id as usize] = Page { free, bin, younger: NO_PAGE, older: first };
    }

    /// The first of `count` (1..=64) granules in a row, or `None` when the limit is reached.
    fn take(&mut self, count: u32) -> Option<u32> {
        debug_assert!((1..=PAGE).contains(&count));
        let id = match (count..=PAGE).map(|bin| self.bins[bin as usize]).find(|&id| id != NO_PAGE) {
            Some(id) => id,
            None if (self.pages.len() as u32) < self.pages_max => {
                self.add_page();
                self.bins[PAGE as usize]
            }
            None => return None,
        };
        let free = self.pages[id as usize].free;
        // Bit i of `starts`: `count` free granules begin at i.
        let (mut starts, mut have) = (free, 1);
        while have < count {
            let step = have.min(count - have);
            starts &= starts >> step;
            have += step;
        }
        let at = starts.trailing_zeros();
        self.pages[id as usize].free = free & !mask(at, count);
        self.rebin(id);
        self.live += u64::from(count);
        Some(id * PAGE + at)
    }

    /// Takes up to `count` granules from `first` on, as far as they are free and on its page. How many.
    fn take_from(&mut self, first: u32, count: u32) -> u32 {
        let (id, at) = (first / PAGE, first % PAGE);
        let Some(page) = self.pages.get_mut(id as usize) else { return 0 };
        let count = (page.free >> at).trailing_ones().min(count);
        if count > 0 {
            page.free &= !mask(at, count);
            self.rebin(id);
            self.live += u64::from(count);
        }
        count
    }

    /// Gives back `count` granules from `first`, all of one page.
    fn give(&mut self, first: u32, count: u32) {
        let (id, at) = (first / PAGE, first % PAGE);
        let mask = mask(at, count);
        let page = &mut self.pages[id as usize];
        assert!(page.free & mask == 0, "granule freed twice");
        page.free |= mask;
        self.rebin(id);
        self.live -= u64::from(count);
    }
}

/// Ids from a counter, given back through a stack.
struct Ids {
    free: Vec<u32>,
    next: u32,
    limit: u32,
}

impl Ids {
    fn new(limit: u32) -> Self {
        // Id 0 means "none" in every link.
        Self { free: Vec::new(), next: 1, limit }
    }
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.next < self.limit).then(|| {
                self.next += 1;
                self.next - 1
            })
        })
    }
    fn live(&self) -> u64 {
        u64::from(self.next) - 1 - self.free.len() as u64
    }
}

/// All free lists of a shard.
pub(crate) struct Alloc {
    granules: Granules,
    runs: Ids,
    exts: Ids,
    blocks_max: u32,
}

/// What a shard's free lists say, for statistics.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub granules_live: u64,
    pub granules_known: u64,
    pub runs_live: u64,
    pub runs_known: u64,
    pub exts_live: u64,
    pub exts_known: u64,
}

impl Alloc {
    pub fn new(blocks_max: u32, runs_max: u32, exts_max: u32) -> Self {
        Self { granules: Granules::new(blocks_max), runs: Ids::new(runs_max), exts: Ids::new(exts_max), blocks_max }
    }

    /// A run id.
    pub fn take_run(&mut self) -> Result<u32, IndexError> {
        self.runs.take().ok_or(IndexError::RunsFull { limit: self.runs.limit })
    }
    pub fn give_run(&mut self, id: u32) {
        self.runs.free.push(id);
    }

    /// A holder block id.
    pub fn take_ext(&mut self) -> Result<u32, IndexError> {
        self.exts.take().ok_or(IndexError::ExtsFull { limit: self.exts.limit })
    }
    pub fn give_ext(&mut self, id: u32) {
        self.exts.free.push(id);
    }

    /// Granules in a row; fewer than asked for (but at least one) when memory is fragmented near its limit.
    pub fn take_granules(&mut self, count: u32) -> Result<(u32, u32), IndexError> {
        let mut want = count;
        loop {
            if let Some(first) = self.granules.take(want) {
                return Ok((first, want));
            }
            if want == 1 {
                return Err(IndexError::BlocksFull { limit: self.blocks_max });
            }
            want /= 2;
        }
    }
    pub fn give_granules(&mut self, first: u32, count: u32) {
        if count > 0 {
            self.granules.give(first, count);
        }
    }

    /// Highest run id handed out so far, plus one.
    pub fn runs_end(&self) -> u32 {
        self.runs.next
    }

    /// Whether a limit comes near: more than three quarters of blocks, runs or holder blocks are taken.
    pub fn scarce(&self) -> bool {
        let scarce = |live: u64, limit: u32| live > u64::from(limit) / 4 * 3;
        scarce(self.granules.live * u64::from(GRANULE), self.blocks_max)
            || scarce(self.runs.live(), self.runs.limit)
            || scarce(self.exts.live(), self.exts.limit)
    }

    pub fn usage(&self) -> Usage {
        Usage {
            granules_live: self.granules.live,
            granules_known: self.granules.pages.len() as u64 * u64::from(PAGE),
            runs_live: self.runs.live(),
            runs_known: u64::from(self.runs.next) - 1,
            exts_live: self.exts.live(),
            exts_known: u64::from(self.exts.next) - 1,
        }
    }
}

/// Run ids and stretches of granules that a stock holds at most.
const STOCK: usize = 16;
/// All stocks together hold at most this part of the runs and of the granules there may be: near a limit one lane must not
/// run out for what another keeps.
const STOCK_PART: u32 = 16;

/// What one lane keeps of run ids and of what it freed, so that most runs end without the shard's lock.
pub(crate) struct Stock {
    runs_most: usize,
    stretches_most: usize,
    runs: [u32; STOCK],
    runs_len: usize,
    /// Free stretches (first granule, granules), each inside one page.
    stretches: [(u32, u32); STOCK],
    stretches_len: usize,
    granules: u32,
}

impl Stock {
    /// An empty one, for one of the shard's lanes.
    pub fn new(config: &IndexConfig) -> Self {
        let most = |limit: u32, each: u32| STOCK.min((limit / config.lanes_per_shard / STOCK_PART / each) as usize);
        Self {
            runs_most: most(config.runs_max, 1),
            stretches_most: most(config.blocks_max / GRANULE, PAGE),
            runs: [0; STOCK],
            runs_len: 0,
            stretches: [(0, 0); STOCK],
            stretches_len: 0,
            granules: 0,
        }
    }

    /// Run ids kept.
    pub fn runs(&self) -> u64 {
        self.runs_len as u64
    }
    /// Granules kept.
    pub fn granules(&self) -> u64 {
        u64::from(self.granules)
    }

    /// A run id.
    pub fn take_run(&mut self, shared: &Mutex<Alloc>) -> Result<u32, IndexError> {
        if self.runs_len == 0 {
            let mut shared = shared.lock();
            let first = shared.take_run()?;
            // Used ids only: a fresh one makes every sweep over the runs longer.
            while self.runs_len < self.runs_most / 2 {
                let Some(id) = shared.runs.free.pop() else { break };
                self.runs[self.runs_len] = id;
                self.runs_len += 1;
            }
            return Ok(first);
        }
        self.runs_len -= 1;
        Ok(self.runs[self.runs_len])
    }

    pub fn give_run(&mut self, shared: &Mutex<Alloc>, id: u32) {
        if self.runs_len == self.runs_most {
            let keep = self.runs_most / 2;
            let mut shared = shared.lock();
            self.runs[keep..self.runs_len].iter().for_each(|&id| shared.give_run(id));
            self.runs_len = keep;
            if self.runs_most == 0 {
                shared.give_run(id);
                return;
            }
        }
        self.runs[self.runs_len] = id;
        self.runs_len += 1;
    }

    /// Granules in a row; fewer than asked for (but at least one) when memory is fragmented near its limit. They are the
    /// shard's, as only all pages together have the tightest stretch: cut from the few of the stock, runs of different
    /// lengths leave twice the holes after a long churn (`peers --cell after-churn`).
    pub fn take_granules(&mut self, shared: &Mutex<Alloc>, count: u32) -> Result<(u32, u32), IndexError> {
        let mut shared = shared.lock();
        match shared.granules.take(count) {
            Some(first) => Ok((first, count)),
            None => {
                self.return_stretches(&mut shared, 0);
                shared.take_granules(count)
            }
        }
    }

    /// Up to `count` granules from `first` on, which follows a granule that is in use, as far as they are free. How many.
    pub fn take_from(&mut self, shared: &Mutex<Alloc>, first: u32, count: u32) -> u32 {
        match self.stretches[..self.stretches_len].iter().position(|s| s.0 == first) {
            Some(i) => {
                let count = count.min(self.stretches[i].1);
                self.cut_stretch(i, count);
                count
            }
            None => shared.lock().granules.take_from(first, count),
        }
    }

    /// Takes the beginning of an own stretch; its first granule.
    fn cut_stretch(&mut self, i: usize, count: u32) -> u32 {
        let (first, have) = self.stretches[i];
        self.stretches[i] = (first + count, have - count);
        if have == count {
            self.stretches_len -= 1;
            self.stretches.swap(i, self.stretches_len);
        }
        self.granules -= count;
        first
    }

    /// Takes granules back, any number in a row.
    pub fn give_granules(&mut self, shared: &Mutex<Alloc>, mut first: u32, mut count: u32) {
        while count > 0 {
            let here = count.min(PAGE - first % PAGE);
            self.give_stretch(shared, first, here);
            (first, count) = (first + here, count - here);
        }
    }

    fn give_stretch(&mut self, shared: &Mutex<Alloc>, first: u32, count: u32) {
        self.granules += count;
        // Tails go granule by granule, downwards: they join the stretch that the last one left.
        if let Some((last_first, last_count)) = self.stretches[..self.stretches_len].last_mut()
            && first + count == *last_first
            && first / PAGE == *last_first / PAGE
        {
            (*last_first, *last_count) = (first, *last_count + count);
            return;
        }
        if self.stretches_len == self.stretches_most {
            let mut shared = shared.lock();
            self.return_stretches(&mut shared, self.stretches_most / 2);
            if self.stretches_most == 0 {
                shared.give_granules(first, count);
                self.granules -= count;
                return;
            }
        }
        self.stretches[self.stretches_len] = (first, count);
        self.stretches_len += 1;
    }

    /// Gives all stretches but the last `keep` back to the shard.
    fn return_stretches(&mut self, shared: &mut Alloc, keep: usize) {
        let gone = self.stretches_len.saturating_sub(keep);
        for &(first, count) in &self.stretches[..gone] {
            shared.give_granules(first, count);
            self.granules -= count;
        }
        self.stretches.copy_within(gone..self.stretches_len, 0);
        self.stretches_len -= gone;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stock_hands_out_what_came_back_and_loses_nothing() {
        for (blocks_max, most) in [(GRANULE * PAGE * 4, 0), (1 << 20, STOCK)] {
            let config = IndexConfig { blocks_max, runs_max: blocks_max / 8, ..IndexConfig::default() };
            let mut stock = Stock::new(&config);
            assert_eq!(stock.stretches_most, most);
            gives_and_takes(&mut stock, &Mutex::new(Alloc::new(config.blocks_max, config.runs_max, 64)));
        }
    }

    fn gives_and_takes(stock: &mut Stock, shared: &Mutex<Alloc>) {
        let mut held = Vec::<(u32, u32)>::new();
        let (mut runs, mut x) = (Vec::new(), 11u64);
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if x >> 60 < 9 {
                let want = (x >> 33) as u32 % 64 + 1;
                if let Ok((first, count)) = stock.take_granules(shared, want) {
                    assert!(count <= want && first / PAGE == (first + count - 1) / PAGE);
                    assert!(held.iter().all(|&(f, c)| first + count <= f || f + c <= first), "overlap");
                    held.push((first, count));
                }
                if let Some(last) = held.last_mut().filter(|_| x >> 50 & 1 == 0) {
                    // Stretches grow where what follows them is free; here only to the end of their page, as `give` expects.
                    let end = last.0 + last.1;
                    let more = stock.take_from(shared, end, (PAGE - 1) - (end - 1) % PAGE);
                    last.1 += more;
                    let (first, count) = *last;
                    let others = &held[..held.len() - 1];
                    assert!(others.iter().all(|&(f, c)| first + count <= f || f + c <= first), "overlap");
                }
                runs.extend(stock.take_run(shared));
            } else if !held.is_empty() {
                let (first, count) = held.swap_remove((x >> 20) as usize % held.len());
                stock.give_granules(shared, first, count);
                if let Some(run) = runs.pop() {
                    stock.give_run(shared, run);
                }
            }
            let usage = shared.lock().usage();
            let granules: u32 = held.iter().map(|h| h.1).sum();
            assert_eq!(usage.granules_live, u64::from(granules) + stock.granules());
            assert_eq!(usage.runs_live, runs.len() as u64 + stock.runs());
        }
        let mut ids = runs.clone();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), runs.len(), "no id twice");
        held.drain(..).for_each(|(first, count)| stock.give_granules(shared, first, count));
        stock.return_stretches(&mut shared.lock(), 0);
        assert_eq!((stock.granules(), shared.lock().usage().granules_live), (0, 0));
    }

    #[test]
    fn granules_never_overlap_and_come_back() {
        let mut granules = Granules::new(GRANULE * PAGE * 4);
        let mut held: Vec<(u32, u32)> = Vec::new();
        let mut x = 7u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let count = (x >> 33) as u32 % 64 + 1;
            if x >> 60 < 9 {
                if let Some(first) = granules.take(count) {
                    assert!(first > 0 && first + count <= 4 * PAGE && first / PAGE == (first + count - 1) / PAGE);
                    assert!(held.iter().all(|&(f, c)| first + count <= f || f + c <= first), "overlap");
                    held.push((first, count));
                }
            } else if !held.is_empty() {
                let (first, count) = held.swap_remove((x >> 20) as usize % held.len());
                granules.give(first, count);
            }
            assert_eq!(granules.live, held.iter().map(|h| u64::from(h.1)).sum::<u64>());
        }
        held.drain(..).for_each(|(first, count)| granules.give(first, count));
        let mut whole: Vec<u32> = vec![granules.bins[PAGE as usize]];
        while let Some(page) = granules.pages.get(whole[whole.len() - 1] as usize) {
            assert_eq!(page.bin, PAGE);
            whole.push(page.older);
        }
        assert_eq!(whole.len() - 1, 3, "whole pages, but for the root's");
    }

    #[test]
    fn limits_are_errors() {
        let mut alloc = Alloc::new(512, 3, 2);
        assert_eq!((alloc.take_run(), alloc.take_run()), (Ok(1), Ok(2)));
        assert_eq!(alloc.take_run(), Err(IndexError::RunsFull { limit: 3 }));
        assert_eq!(alloc.take_ext(), Ok(1));
        assert_eq!(alloc.take_ext(), Err(IndexError::ExtsFull { limit: 2 }));
        assert_eq!(alloc.take_granules(63), Ok((1, 63)));
        assert_eq!(alloc.take_granules(4), Err(IndexError::BlocksFull { limit: 512 }));
    }
}
