//! Applying events asks the heap for nothing once a lane is warm: the arena and the tables are reserved memory, and the free
//! lists and what an operation needs for itself are kept and reused. What is beyond that, as the documentation of `Lane` says,
//! is not asked of the warm turns here: more than 28 exceptions of a kind of one holder (`EXCEPTIONS`), a side map of more
//! than 256 chunks, a sixteenth of the shard with more than 448 positions that have several children, ranks that are opened or
//! closed, and exports.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; each call is passed on as it came")]

use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, RankKey, Stats, Store, StoreKind, Stored, Tier,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

thread_local! {
    /// Whether this thread is inside an operation of a lane, and how often it called the heap there.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
    /// Calls whose backtraces are yet to be printed.
    static SHOWN: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    if INSIDE.get() {
        ASKED.set(ASKED.get() + 1);
        if let Some(left) = SHOWN.get().checked_sub(1) {
            SHOWN.set(left);
            INSIDE.set(false);
            println!("{}", Backtrace::force_capture());
            INSIDE.set(true);
        }
    }
}

// SAFETY: every method passes its arguments to the system's allocator unchanged and returns its answer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs one operation and counts what it allocates, moves and frees.
fn inside<R>(operation: impl FnOnce() -> R) -> R {
    INSIDE.set(true);
    let done = operation();
    INSIDE.set(false);
    done
}

/// Ranks beyond the 256 that have a bit in a run's header, so that there are pages of full holders, too.
const RANKS: usize = 320;
/// One rank in so many has names of its own for everything. More ranks share each of these names than find room near its
/// home in the lane's map: crowds for the side map.
const OWN_NAMES: usize = 4;
/// Chains that one holder has alone: they make the map of names and the table of links grow.
const ALONE: usize = 1_500;
/// Chains that many holders have: crowds.
const SHARED: usize = 6;
const BLOCKS: usize = 160;
/// Chains of one holder with two branches at every block.
const TRUNKS: usize = 12;
/// Twins, copies and parked blocks that one holder has at once: a rank's maps keep room for so many.
const EXCEPTIONS: usize = 20;

struct Chain {
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
    /// From the last to the first, as engines evict.
    backwards: Vec<EngineHash>,
}

impl Chain {
    fn store(&self, blocks: Range<usize>, kind: StoreKind) -> Store<'_> {
        let parent = blocks.start.checked_sub(1).map(|i| self.names[i]);
        Store { parent, names: &self.names[blocks.clone()], contents: &self.contents[blocks], kind }
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ x
}

/// A chain of contents under the names of one fleet: fleet 0's are the canonical ones.
fn chain(number: usize, fleet: u64, blocks: usize) -> Chain {
    let block = |i: usize| ((number as u64) << 20) + i as u64 + 1;
    let names: Vec<_> = (0..blocks).map(|i| EngineHash(mix(block(i) | (fleet + 1) << 50))).collect();
    let backwards = names.iter().rev().copied().collect();
    Chain { names, contents: (0..blocks).map(|i| ContentHash(mix(block(i)))).collect(), backwards }
}

struct Churn {
    index: Arc<Index>,
    lane: Lane,
    holders: Vec<Holder>,
    alone: Vec<Chain>,
    /// By fleet: most ranks have the canonical names, some have names of their own, and the third ones are twins.
    shared: [Vec<Chain>; 3],
    trunks: Vec<Chain>,
    branches: Vec<Chain>,
    x: u64,
}

impl Churn {
    fn new() -> Self {
        let config = IndexConfig { ranks_max: 512, hash_key: Some([5, 6]), ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        let mut lane = lanes.remove(0);
        let open = |key: usize| {
            let rank = lane.open_rank(RankKey(key as u32)).expect("room for every rank");
            Holder { rank, tier: Tier::Device }
        };
        let holders = (0..RANKS).map(open).collect();
        let alone = (0..ALONE).map(|number| chain(1_000 + number, 0, 1 + number % 60)).collect();
        let shared = [0, 1, 2].map(|fleet| (0..SHARED).map(|number| chain(number, fleet, BLOCKS)).collect());
        let trunks = (0..TRUNKS).map(|number| chain(10_000 + number, 0, BLOCKS)).collect();
        let branches = (0..TRUNKS * BLOCKS * 2).map(|number| chain(20_000 + number, 0, 2)).collect();
        Self { index, lane, holders, alone, shared, trunks, branches, x: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        self.x = self.x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.x >> 33) as usize % n
    }

    /// A shared chain as a holder names it.
    fn named(&self, holder: usize, number: usize) -> &Chain {
        &self.shared[usize::from(holder.is_multiple_of(OWN_NAMES))][number]
    }

    fn store_shared(&mut self, holder: usize, number: usize, to: usize) {
        let chain = &self.shared[usize::from(holder.is_multiple_of(OWN_NAMES))][number];
        store(&mut self.lane, self.holders[holder], &chain.store(0..to, StoreKind::Announce));
    }

    fn remove(&mut self, holder: usize, names: Range<usize>, number: usize) {
        let chain = &self.shared[usize::from(holder.is_multiple_of(OWN_NAMES))][number];
        remove(&mut self.lane, self.holders[holder], &chain.backwards[names]);
    }

    /// One whole turn, from nothing to nothing; the figures at its height.
    fn turn(&mut self) -> Stats {
        self.x = 9;
        self.grow();
        self.crowds();
        self.branches();
        for holder in 0..RANKS {
            self.exceptions(holder);
        }
        self.orphans();
        let height = self.index.stats();
        self.shrink();
        height
    }

    fn grow(&mut self) {
        for (i, chain) in self.alone.iter().enumerate() {
            let (at, half, blocks) = (self.holders[i % RANKS], (chain.names.len() / 2).max(1), chain.names.len());
            store(&mut self.lane, at, &chain.store(0..half, StoreKind::Announce));
            store(&mut self.lane, at, &chain.store(half..blocks, StoreKind::Announce));
        }
    }

    /// Every depth, then many at the end, then all over the place, with holes.
    fn crowds(&mut self) {
        for holder in 0..RANKS {
            let (number, depth) = (self.below(SHARED), 1 + self.below(BLOCKS));
            self.store_shared(holder, number, depth);
            self.store_shared(holder, 0, 1 + holder % BLOCKS);
        }
        (0..RANKS).filter(|holder| holder % 3 > 0).for_each(|holder| self.store_shared(holder, 0, BLOCKS));
        for _ in 0..4_000 {
            let (holder, number) = (self.below(RANKS), self.below(SHARED));
            let (from, count) = (self.below(BLOCKS), 1 + self.below(20));
            match self.below(4) {
                0 => self.remove(holder, from..(from + count).min(BLOCKS), number),
                // One name an event, as some engines say it.
                1 => (from..(from + count).min(BLOCKS)).for_each(|i| self.remove(holder, i..i + 1, number)),
                2 => self.store_shared(holder, number, from + 1),
                _ => self.store_shared(holder, number, BLOCKS),
            }
        }
    }

    fn branches(&mut self) {
        let at = self.holders[1];
        for (number, trunk) in self.trunks.iter().enumerate() {
            store(&mut self.lane, at, &trunk.store(0..BLOCKS, StoreKind::Announce));
            for (i, branch) in self.branches[number * BLOCKS * 2..][..BLOCKS * 2].iter().enumerate() {
                let parent = Some(trunk.names[i % BLOCKS]);
                store(&mut self.lane, at, &Store { parent, ..branch.store(0..2, StoreKind::Announce) });
            }
        }
    }

    /// Twins and copies come and go; another tier takes names over and is cleared.
    fn exceptions(&mut self, holder: usize) {
        let number = holder % SHARED;
        self.store_shared(holder, number, EXCEPTIONS);
        let (at, twins) = (self.holders[holder], &self.shared[2][number]);
        store(&mut self.lane, at, &twins.store(0..EXCEPTIONS, StoreKind::Announce));
        let own = &self.shared[usize::from(holder.is_multiple_of(OWN_NAMES))][number];
        for _ in 0..3 {
            store(&mut self.lane, at, &own.store(0..EXCEPTIONS / 2, StoreKind::Copy));
        }
        let host = Holder { tier: Tier::Host, ..at };
        inside(|| self.lane.adopt(host, &own.names[..EXCEPTIONS])).expect("room for every block");
        inside(|| self.lane.set_copies(at, own.names[0], 5)).expect("an open rank");
        remove(&mut self.lane, at, &own.names[1..4]);
        remove(&mut self.lane, at, &twins.backwards[BLOCKS - EXCEPTIONS / 2..]);
        if holder % 40 == 1 {
            inside(|| self.lane.clear(at.rank, Some(Tier::Host))).expect("an open rank");
        }
    }

    /// What came before its parent waits and is attached, or is removed while it waits.
    fn orphans(&mut self) {
        for (holder, trunk) in (2..).step_by(5).zip(&self.trunks) {
            let at = self.holders[holder];
            let before = self.lane.parked(at.rank);
            store(&mut self.lane, at, &trunk.store(10..EXCEPTIONS, StoreKind::Announce));
            store(&mut self.lane, at, &trunk.store(5..10, StoreKind::Announce));
            assert_eq!((before, self.lane.parked(at.rank)), (0, EXCEPTIONS as u64 - 5));
            remove(&mut self.lane, at, &trunk.names[EXCEPTIONS - 2..EXCEPTIONS]);
            let did = store(&mut self.lane, at, &trunk.store(0..5, StoreKind::Announce));
            assert_eq!((did.attached, self.lane.parked(at.rank)), (EXCEPTIONS as u64 - 7, 0));
            store(&mut self.lane, at, &trunk.store(40..45, StoreKind::Announce));
        }
    }

    fn shrink(&mut self) {
        // Some forget everything at once: swept by what follows, and by the call.
        for holder in (0..RANKS).step_by(7) {
            inside(|| self.lane.clear(self.holders[holder].rank, None)).expect("an open rank");
        }
        for holder in 0..RANKS {
            (0..SHARED).for_each(|number| self.remove(holder, 0..BLOCKS, number));
        }
        for (i, chain) in self.alone.iter().enumerate() {
            remove(&mut self.lane, self.holders[i % RANKS], &chain.backwards);
        }
        for chain in self.branches.iter().chain(&self.trunks) {
            remove(&mut self.lane, self.holders[1], &chain.backwards);
        }
        // Copies, twins and what stands in the other tier.
        for holder in 0..RANKS {
            inside(|| self.lane.clear(self.holders[holder].rank, None)).expect("an open rank");
        }
        while inside(|| self.lane.sweep(1_000)) > 0 {}
    }
}

fn store(lane: &mut Lane, at: Holder, store: &Store<'_>) -> Stored {
    inside(|| lane.store(at, store)).expect("room for every block")
}

fn remove(lane: &mut Lane, at: Holder, names: &[EngineHash]) {
    inside(|| lane.remove(at, names)).expect("an open rank");
}

#[test]
fn a_warm_lane_asks_the_heap_for_nothing() {
    let mut churn = Churn::new();
    assert!(churn.named(OWN_NAMES, 0).names != churn.named(1, 0).names, "private names");
    // The second turn meets what the first one left: capacities have settled.
    let first = churn.turn();
    churn.turn();
    let cold = ASKED.replace(0);
    SHOWN.set(5);
    let again = churn.turn();
    println!("{cold} calls while it warmed up; {again:?} at the height");
    assert!(
        first.held > 100_000 && first.splits > 100 && first.merges > 10 && first.runs > 3_000,
        "a churn worth the name: {first:?}"
    );
    assert_eq!((first.held, first.blocks), (again.held, again.blocks), "the same turn");
    assert!(cold > 0, "the allocator counts");
    assert_eq!(ASKED.get(), 0, "heap calls of a warm lane: the first ones are shown above");
    let left = churn.index.stats();
    assert_eq!((left.held, left.blocks, left.runs, left.parked), (0, 0, 0, 0));
    churn.index.check().expect("every invariant");
    churn.lane.check().expect("every invariant of the lane");
}
