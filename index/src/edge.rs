//! Child links of a shard: one hash table from (parent position, first content) to a run.
//!
//! ```text
//! bucket, 64 bytes:  7 x u64 slot: tag 12 | run 26 | first granule 26     0 = empty
//!                    4 x u16: links that passed this bucket on their way from home, by two bits of their hash
//! directory word:    changes 30 | moved 26 | move 2 | class 6
//! ```
//!
//! Keys are not kept: a candidate is verified by its header's parent and its first content, so a stale slot is harmless.
//! The passing counts end a probe and make removal exact without tombstones; there are four to a bucket, so that few of
//! those who ask for a child that there is not go on to the next bucket. A class is a number of buckets, each half as
//! many again as the one before, in memory of its own; homes keep the order of the hashes.
//!
//! *Growing and shrinking* go a few buckets at a time, each time a link comes or goes. The directory word says how far a
//! move has come: links whose home in the old class is below `moved` are in the other class, all others are in the old
//! one. A step takes every lane's lock, copies the links of the next homes, publishes the new `moved` and only then clears
//! the copied ones; memory left behind is given back as the move goes on.
//!
//! Readers probe without a lock and wait for nobody: a hit verifies itself, and a reader that misses reads the directory
//! again and starts over if it changed. A lane inserts and removes under a lock of its own (so lanes do not wait for each
//! other); two lanes never work on one key at once, since both hold the LOCK of the run that covers the parent (the root's
//! children have a striped lock instead).

use crate::error::ConfigError;
use crate::fault::{Fault, injected};
use crate::place::Site;
use crate::prefetch::read_soon;
use crate::region::Region;
use crate::sync::{AtomicU64, Mutex, Ordering, fence};
use crate::version::publishing;
use crossbeam_utils::CachePadded;

/// Links of a bucket. Loom's models have small ones, so that they overflow.
const SLOTS: usize = if cfg!(loom) { 2 } else { 7 };
const WORDS: usize = SLOTS + 1;
/// Buckets of the smallest table.
const BUCKETS_MIN: u32 = if cfg!(loom) { 2 } else { 8 };
/// Homes that one step moves: about twenty links, a microsecond or two.
const STEP_BUCKETS: u32 = if cfg!(loom) { 1 } else { 4 };
/// Links of a step for which there is memory from the beginning: more only where buckets overflow far.
const STEP_LINKS: usize = 8 * SLOTS * STEP_BUCKETS as usize;
/// Buckets whose memory is given back together (64 KiB: a few microseconds).
const CHUNK_BUCKETS: u32 = 1024;
const ID_BITS: u32 = 26;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
const CLASS_BITS: u32 = 6;
const MOVED_SHIFT: u32 = CLASS_BITS + 2;
const CHANGES_SHIFT: u32 = MOVED_SHIFT + ID_BITS;
/// A passing count that is no longer counted.
const COUNT_MAX: u64 = 0xffff;

/// A verdict on a candidate.
pub(crate) enum Check<R> {
    /// Another key's, or stale.
    No,
    /// The child asked for.
    Yes(R),
    /// Cannot be told right now: its words are being moved.
    Busy,
}

/// What a probe found.
pub(crate) enum Found<R> {
    Hit(R),
    Miss,
    Busy,
}

/// A number of buckets, and the memory for it.
#[derive(Clone, Copy)]
struct Class {
    /// First bucket.
    from: usize,
    buckets: u32,
}

/// Where the links are going.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    None = 0,
    Grow = 1,
    Shrink = 2,
}

/// The directory word, unpacked.
#[derive(Clone, Copy)]
struct Directory {
    class: usize,
    to: Move,
    moved: u32,
    changes: u64,
}

impl Directory {
    #[inline]
    fn unpack(word: u64) -> Self {
        let to = match word >> CLASS_BITS & 3 {
            0 => Move::None,
            1 => Move::Grow,
            _ => Move::Shrink,
        };
        let moved = (word >> MOVED_SHIFT & ID_MASK) as u32;
        Self { class: (word & ((1 << CLASS_BITS) - 1)) as usize, to, moved, changes: word >> CHANGES_SHIFT }
    }
    fn pack(self) -> u64 {
        // The count of changes wraps after 2^30: a reader is not put aside for as many steps.
        self.changes << CHANGES_SHIFT
            | u64::from(self.moved) << MOVED_SHIFT
            | (self.to as u64) << CLASS_BITS
            | self.class as u64
    }
    /// The class that links go to.
    #[inline]
    fn target(self) -> usize {
        match self.to {
            Move::None => self.class,
            Move::Grow => self.class + 1,
            Move::Shrink => self.class - 1,
        }
    }
}

/// A link being moved: where it is, and its hash.
struct Moving {
    bucket: u32,
    slot: u32,
    link: u64,
    hash: u64,
}

/// The table.
pub(crate) struct Edge {
    words: Region<AtomicU64>,
    classes: Box<[Class]>,
    directory: AtomicU64,
    lanes: Box<[CachePadded<Mutex<()>>]>,
    len: AtomicU64,
    /// Memory of a step, reused.
    step: Mutex<Vec<Moving>>,
}

fn pack(hash: u64, run: u32, granule: u32) -> u64 {
    tag(hash) << (2 * ID_BITS) | u64::from(run) << ID_BITS | u64::from(granule)
}
#[inline]
fn tag(hash: u64) -> u64 {
    (hash & 0xfff).max(1)
}
/// Which slots of a bucket have a tag, one bit each. Looks at all of them without a branch: where among them the link is, is
/// anybody's guess.
#[inline(always)]
fn tagged(bucket: &[AtomicU64; WORDS], tag: u64) -> u32 {
    // Acquire: pairs with the Release stores of `place` and `take_out`, so that what follows is read after it.
    let has = |i: usize| u32::from(bucket[i].load(Ordering::Acquire) >> (2 * ID_BITS) == tag) << i;
    (0..SLOTS).fold(0, |all, i| all | has(i))
}
#[inline]
fn unpack(slot: u64) -> (u32, u32) {
    ((slot >> ID_BITS & ID_MASK) as u32, (slot & ID_MASK) as u32)
}

/// Where the passing count of a hash is in its word.
#[inline]
fn passing_shift(hash: u64) -> u32 {
    (hash >> 8 & 0x30) as u32
}
/// How many links with the same two bits of their hash passed a bucket. At its highest a count stays for good: probes go on
/// there.
#[inline]
fn passed(bucket: &[AtomicU64; WORDS], hash: u64) -> u64 {
    // Acquire: pairs with `count_passing`; a count that fell because links moved leads to the directory that says so.
    bucket[SLOTS].load(Ordering::Acquire) >> passing_shift(hash) & COUNT_MAX
}
/// Counts a link that passes a bucket, or passes it no more.
fn count_passing(bucket: &[AtomicU64; WORDS], hash: u64, comes: bool) {
    let (one, counts) = (1u64 << passing_shift(hash), &bucket[SLOTS]);
    let mut word = counts.load(Ordering::Relaxed);
    while (word / one) & COUNT_MAX != COUNT_MAX {
        let next = if comes { word + one } else { word - one };
        match counts.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => word = now,
        }
    }
}

impl Class {
    #[inline]
    fn home(self, hash: u64) -> u32 {
        ((u128::from(hash) * u128::from(self.buckets)) >> 64) as u32
    }
    /// The bucket `step` places behind `home`.
    #[inline]
    fn after(self, home: u32, step: u32) -> u32 {
        let i = home + step;
        if i < self.buckets { i } else { i - self.buckets }
    }
    fn slots(self) -> u64 {
        SLOTS as u64 * u64::from(self.buckets)
    }
    /// Three quarters of the slots: a table runs at most a few hundredths above that while its links move out.
    fn room(self) -> u64 {
        self.slots() * 3 / 4
    }
}

impl Edge {
    pub fn reserve(runs_max: u32, lanes: u32, site: &mut Site) -> Result<Self, ConfigError> {
        let mut classes = vec![Class { from: 0, buckets: BUCKETS_MIN }];
        let mut end = BUCKETS_MIN as usize;
        while classes[classes.len() - 1].room() < u64::from(runs_max) {
            let buckets = classes[classes.len() - 1].buckets;
            let buckets = buckets + buckets.div_ceil(2);
            let from = if buckets < CHUNK_BUCKETS { end } else { end.next_multiple_of(CHUNK_BUCKETS as usize) };
            classes.push(Class { from, buckets });
            end = from + buckets as usize;
        }
        debug_assert!(classes.len() <= 1 << CLASS_BITS && classes[classes.len() - 1].buckets <= ID_MASK as u32);
        Ok(Self {
            words: Region::reserve("child links", end * WORDS, site)?,
            classes: classes.into(),
            directory: AtomicU64::new(0),
            lanes: (0..lanes).map(|_| CachePadded::new(Mutex::new(()))).collect(),
            len: AtomicU64::new(0),
            step: Mutex::new(Vec::with_capacity(STEP_LINKS)),
        })
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
    /// Bytes of the table in use.
    pub fn bytes(&self) -> u64 {
        let at = self.directory();
        let (old, new) = (self.classes[at.class], self.classes[at.target()]);
        let there = u64::from(at.moved) * u64::from(new.buckets) / u64::from(old.buckets);
        (u64::from(old.buckets - at.moved) + there) * (WORDS * 8) as u64
    }
    /// As it is now: a rumour unless a lane's lock is held.
    fn directory(&self) -> Directory {
        Directory::unpack(self.directory.load(Ordering::Relaxed))
    }
    /// The class in which a link is, by the directory.
    #[inline]
    fn side(&self, at: Directory, hash: u64) -> Class {
        let class = self.classes[at.class];
        if at.to == Move::None || class.home(hash) >= at.moved { class } else { self.classes[at.target()] }
    }
    #[inline]
    fn bucket(&self, class: Class, i: u32) -> &[AtomicU64; WORDS] {
        self.words.group(class.from + i as usize)
    }

    /// Asks for the home bucket of a hash, to be probed soon.
    #[inline]
    pub fn expect(&self, hash: u64) {
        let class = self.side(self.directory(), hash);
        read_soon(self.bucket(class, class.home(hash)));
    }

    /// Finds a child. Takes no lock; `check` verifies candidates.
    #[inline(always)]
    pub fn find<R>(&self, hash: u64, mut check: impl FnMut(u32, u32) -> Check<R>) -> Found<R> {
        loop {
            // Acquire: pairs with the Release of `step`, so that the copied links are seen.
            let directory = self.directory.load(Ordering::Acquire);
            match self.probe(self.side(Directory::unpack(directory), hash), hash, &mut check) {
                Found::Miss => {}
                found => return found,
            }
            // Acquire fence: pairs with the Release stores that clear a copied link, or that put one into an area that came
            // into use again; if one of them was seen above, the load below sees the directory that was published before.
            fence(Ordering::Acquire);
            if self.directory.load(Ordering::Relaxed) == directory || injected(Fault::MissBelieved) {
                return Found::Miss;
            }
        }
    }

    #[inline(always)]
    fn probe<R>(&self, class: Class, hash: u64, check: &mut impl FnMut(u32, u32) -> Check<R>) -> Found<R> {
        let (tag, home) = (tag(hash), class.home(hash));
        let mut step = 0;
        loop {
            let bucket = self.bucket(class, class.after(home, step));
            let mut candidates = tagged(bucket, tag);
            while candidates != 0 {
                let slot = &bucket[candidates.trailing_zeros() as usize % WORDS];
                candidates &= candidates - 1;
                // Acquire: pairs with the Release of `place`; the run's header is seen as published. Read again, it may be
                // another link or none.
                let slot = slot.load(Ordering::Acquire);
                if slot >> (2 * ID_BITS) != tag {
                    continue;
                }
                let (run, granule) = unpack(slot);
                match check(run, granule) {
                    Check::Yes(found) => return Found::Hit(found),
                    Check::Busy => return Found::Busy,
                    Check::No => {}
                }
            }
            step += 1;
            if passed(bucket, hash) == 0 || step == class.buckets {
                return Found::Miss;
            }
        }
    }

    /// Adds a link. The caller knows that the key is absent and keeps others from adding it. `rehash` works out the hash of
    /// a linked run, for growth.
    pub fn insert(&self, lane: u32, hash: u64, run: u32, granule: u32, rehash: &dyn Fn(u32, u32) -> u64) {
        self.len.fetch_add(1, Ordering::Relaxed);
        self.advance(rehash);
        let early = injected(Fault::DirectoryBeforeLock).then(|| self.directory());
        let _own = self.lanes[lane as usize].lock();
        // Under a lane's lock no step goes on.
        let at = early.unwrap_or_else(|| self.directory());
        self.place(self.side(at, hash), hash, pack(hash, run, granule));
    }

    fn place(&self, class: Class, hash: u64, link: u64) {
        let home = class.home(hash);
        for step in 0..class.buckets {
            let bucket = self.bucket(class, class.after(home, step));
            for word in &bucket[..SLOTS] {
                // Release: pairs with the Acquire in `probe`.
                if word.load(Ordering::Relaxed) == 0
                    && word.compare_exchange(0, link, publishing(), Ordering::Relaxed).is_ok()
                {
                    return;
                }
            }
            count_passing(bucket, hash, true);
        }
        unreachable!("every run fits the largest class");
    }

    /// Takes a link out; whether it was there. The caller holds the LOCK of the run and of its parent's.
    pub fn remove(&self, lane: u32, hash: u64, run: u32) -> bool {
        let early = injected(Fault::DirectoryBeforeLock).then(|| self.directory());
        let _own = self.lanes[lane as usize].lock();
        let class = self.side(early.unwrap_or_else(|| self.directory()), hash);
        let home = class.home(hash);
        for step in 0..class.buckets {
            let i = class.after(home, step);
            let bucket = self.bucket(class, i);
            for (slot, word) in bucket[..SLOTS].iter().enumerate() {
                let link = word.load(Ordering::Relaxed);
                if link != 0 && link >> (2 * ID_BITS) == tag(hash) && unpack(link).0 == run {
                    self.take_out(class, hash, i, slot);
                    self.len.fetch_sub(1, Ordering::Relaxed);
                    return true;
                }
            }
            if passed(bucket, hash) == 0 {
                break;
            }
        }
        false
    }

    /// Empties a slot, and counts its link out of the buckets that it had passed.
    fn take_out(&self, class: Class, hash: u64, bucket: u32, slot: usize) {
        // Release, both: pair with the Acquire in `probe`.
        self.bucket(class, bucket)[slot].store(0, Ordering::Release);
        let mut passed = class.home(hash);
        while passed != bucket {
            count_passing(self.bucket(class, passed), hash, false);
            passed = class.after(passed, 1);
        }
    }

    /// What the table should do next: go on with a move, or begin one. Below three eighths of the slots it shrinks, which
    /// leaves a third of the way to the next growth.
    fn due(&self, at: Directory) -> Move {
        let (class, len) = (self.classes[at.class], self.len());
        if at.to != Move::None {
            at.to
        } else if len > class.room() && at.class + 1 < self.classes.len() {
            Move::Grow
        } else if at.class > 0 && len < class.slots() * 3 / 8 {
            Move::Shrink
        } else {
            Move::None
        }
    }

    /// Moves a few links if the table is growing or shrinking, or should. Called by a lane that holds no lock of the table,
    /// each time a link came or goes.
    #[inline]
    pub fn advance(&self, rehash: &dyn Fn(u32, u32) -> u64) {
        if self.due(self.directory()) != Move::None {
            self.with_every_lock(0, &mut || self.step(rehash));
        }
    }

    /// Takes the locks by recursion: guards of any number of lanes without memory for them.
    #[cold]
    fn with_every_lock(&self, lane: usize, then: &mut dyn FnMut()) {
        match self.lanes.get(lane) {
            Some(lock) => {
                let _held = lock.lock();
                self.with_every_lock(lane + 1, then);
            }
            None => then(),
        }
    }

    /// One step of a move, under every lane's lock.
    fn step(&self, rehash: &dyn Fn(u32, u32) -> u64) {
        let mut at = self.directory();
        at.to = self.due(at);
        if at.to == Move::None {
            return;
        }
        let (old, new) = (self.classes[at.class], self.classes[at.target()]);
        let from = at.moved;
        let end = (from + STEP_BUCKETS).min(old.buckets);
        let mut moving = self.step.lock();
        self.collect(old, from, end, rehash, &mut moving);
        for link in moving.iter() {
            self.place(new, link.hash, link.link);
        }
        if injected(Fault::ClearedBeforePublished) {
            moving.iter().for_each(|m| self.take_out(old, m.hash, m.bucket, m.slot as usize));
        }
        at.changes += 1;
        at.moved = end;
        let left = at.class;
        if end == old.buckets {
            at = Directory { class: at.target(), to: Move::None, moved: 0, changes: at.changes };
        }
        // Release: pairs with the Acquire in `find`.
        self.directory.store(at.pack(), Ordering::Release);
        if !injected(Fault::ClearedBeforePublished) {
            moving.iter().for_each(|m| self.take_out(old, m.hash, m.bucket, m.slot as usize));
        }
        moving.clear();
        self.give_back(self.classes[left], from, end);
    }

    /// The links with a home in `from..end`. They stand there or, in a row of passed buckets, behind it.
    fn collect(&self, old: Class, from: u32, end: u32, rehash: &dyn Fn(u32, u32) -> u64, moving: &mut Vec<Moving>) {
        for step in 0..old.buckets {
            if step >= end - from && self.bucket(old, old.after(from, step - 1))[SLOTS].load(Ordering::Relaxed) == 0 {
                break;
            }
            let bucket = old.after(from, step);
            for (slot, word) in self.bucket(old, bucket)[..SLOTS].iter().enumerate() {
                let link = word.load(Ordering::Relaxed);
                if link != 0 {
                    moving.push(Moving { bucket, slot: slot as u32, link, hash: 0 });
                }
            }
        }
        // Apart from the loop above: the reads of several links' headers and contents overlap.
        for link in moving.iter_mut() {
            let (run, granule) = unpack(link.link);
            link.hash = rehash(run, granule);
        }
        moving.retain(|m| (from..end).contains(&old.home(m.hash)));
    }

    /// Gives back the memory of chunks that the move has left, all of whose words are zero now. The first one goes last: the
    /// links that overflow the end of the table stand there.
    fn give_back(&self, old: Class, from: u32, end: u32) {
        if old.buckets < CHUNK_BUCKETS || cfg!(loom) {
            return;
        }
        let chunk = |buckets: u32| (buckets / CHUNK_BUCKETS * CHUNK_BUCKETS) as usize * WORDS;
        let (begin, first) = (old.from * WORDS, chunk(CHUNK_BUCKETS));
        if end == old.buckets {
            self.words.release(begin, first);
            let last = chunk(from).max(first);
            self.words.release(begin + last, old.buckets as usize * WORDS - last);
        } else if chunk(end) > chunk(from).max(first)
            && self.bucket(old, CHUNK_BUCKETS - 1)[SLOTS].load(Ordering::Relaxed) == 0
        {
            self.words.release(begin + chunk(from), chunk(end) - chunk(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKey;
    use std::collections::HashMap;

    fn full(edge: &Edge) -> f64 {
        let at = edge.directory();
        let buckets = (edge.bytes() / (WORDS as u64 * 8)) as f64;
        assert!(at.moved < edge.classes[at.class].buckets);
        edge.len() as f64 / (buckets * SLOTS as f64)
    }

    fn found(edge: &Edge, hash: u64, run: u32) -> Option<u32> {
        match edge.find(hash, |r, g| if r == run { Check::Yes(g) } else { Check::No }) {
            Found::Hit(granule) => Some(granule),
            _ => None,
        }
    }

    fn all_zero(edge: &Edge) -> bool {
        edge.words.clamped(0, usize::MAX / 2).iter().all(|w| w.load(Ordering::Relaxed) == 0)
    }

    /// Adds and takes away, more of the one and then more of the other, and compares every answer with a map's.
    fn against_a_map(keys: u32, steps: u32, rehash: &dyn Fn(u32, u32) -> u64) {
        let edge = Edge::reserve(1 << 16, 2, &mut Site::default()).unwrap();
        let mut map: HashMap<u32, u32> = HashMap::new();
        let mut x = 99u64;
        for step in 0..steps {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let run = (x >> 40) as u32 % keys;
            let grow = (step / (steps / 4)).is_multiple_of(2);
            let add = (x >> 30) % 10 < if grow { 8 } else { 1 };
            if add && !map.contains_key(&run) {
                edge.insert(step % 2, rehash(run, 0), run, run + 1, rehash);
                map.insert(run, run + 1);
            } else if !add {
                assert_eq!(edge.remove(step % 2, rehash(run, 0), run), map.remove(&run).is_some());
                edge.advance(rehash);
            }
            let probe = (x >> 20) as u32 % keys;
            assert_eq!(found(&edge, rehash(probe, 0), probe), map.get(&probe).copied(), "step {step}");
            assert!(full(&edge) <= 0.875, "{} full", full(&edge));
        }
        assert_eq!(edge.len(), map.len() as u64);
        map.drain().for_each(|(run, _)| {
            assert!(edge.remove(0, rehash(run, 0), run));
            edge.advance(rehash);
        });
        while edge.due(edge.directory()) != Move::None {
            edge.advance(rehash);
        }
        assert_eq!((edge.len(), edge.directory().class), (0, 0));
        assert!(all_zero(&edge), "a table that was emptied has no word set");
    }

    #[test]
    fn equals_a_map_through_growth_and_shrinking() {
        let key = HashKey::new(Some([3, 4]));
        against_a_map(40_000, 300_000, &|run, _| key.one(u64::from(run)));
    }

    #[test]
    fn equals_a_map_when_every_link_has_the_same_home() {
        for hash in [0, 77 << 50, u64::MAX] {
            against_a_map(300, 6_000, &|_, _| hash);
        }
        // The last homes: what overflows goes on at the first bucket.
        against_a_map(3_000, 40_000, &|run, _| u64::MAX - u64::from(run));
    }

    /// A step moves a bounded number of links, however large the table is.
    #[test]
    fn a_step_is_bounded() {
        let key = HashKey::new(Some([5, 6]));
        let rehash = |run: u32, _: u32| key.one(u64::from(run));
        let edge = Edge::reserve(1 << 20, 1, &mut Site::default()).unwrap();
        let (mut longest, calls) = (0, std::cell::Cell::new(0));
        let counted = |run: u32, granule: u32| {
            calls.set(calls.get() + 1);
            rehash(run, granule)
        };
        for run in 1..300_000 {
            calls.set(0);
            edge.insert(0, rehash(run, 0), run, run, &counted);
            longest = longest.max(calls.get());
            assert!(full(&edge) < 0.82, "{} full at {run}", full(&edge));
        }
        assert!((20..600).contains(&longest), "{longest} links looked at in one insert");
    }

    /// Whoever is there throughout is found at every moment of growth and shrinking.
    #[test]
    fn a_reader_never_misses_what_is_there() {
        let key = HashKey::new(Some([7, 8]));
        let rehash = |run: u32, _: u32| key.one(u64::from(run));
        let edge = Edge::reserve(1 << 18, 2, &mut Site::default()).unwrap();
        let steady = 1..200u32;
        steady.clone().for_each(|run| edge.insert(0, rehash(run, 0), run, run, &rehash));
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut lookups = 0u64;
                        while done.load(Ordering::Relaxed) == 0 {
                            for run in steady.clone() {
                                assert_eq!(found(&edge, rehash(run, 0), run), Some(run));
                            }
                            assert_eq!(found(&edge, rehash(1 << 20, 0), 1 << 20), None);
                            lookups += 200;
                        }
                        lookups
                    })
                })
                .collect();
            let (edge, rehash) = (&edge, &rehash);
            let writers = [0u32, 1].map(|lane| {
                scope.spawn(move || {
                    for round in 0..6 {
                        let mine = (1_000..if round % 2 == 0 { 60_000 } else { 3_000 }).filter(|r| r % 2 == lane);
                        mine.clone().for_each(|run| edge.insert(lane, rehash(run, 0), run, run, rehash));
                        mine.for_each(|run| {
                            assert!(edge.remove(lane, rehash(run, 0), run));
                            edge.advance(rehash);
                        });
                    }
                })
            });
            let written = writers.map(|w| w.join());
            done.store(1, Ordering::Relaxed);
            let lookups: u64 = readers.into_iter().map(|r| r.join().expect("a reader found everything")).sum();
            written.into_iter().for_each(|w| w.expect("a writer took out what it had put in"));
            assert!(lookups > 0);
        });
        assert_eq!(edge.len(), steady.len() as u64);
    }
}
