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

mod bucket;
mod directory;
mod grow;
#[cfg(test)]
mod tests;

use crate::error::ConfigError;
use crate::fault::{Fault, injected};
use crate::place::Site;
use crate::prefetch::read_soon;
use crate::region::Region;
use crate::sync::{AtomicU64, Mutex, Ordering, fence};
use crate::version::publishing;
use bucket::{ID_BITS, ID_MASK, SLOTS, WORDS, count_passing, pack, passed, tag, tagged, unpack};
use crossbeam_utils::CachePadded;
use directory::{CLASS_BITS, Class, Directory, Move};
use grow::{CHUNK_BUCKETS, Moving, STEP_LINKS};

/// Buckets of the smallest table.
const BUCKETS_MIN: u32 = if cfg!(loom) { 2 } else { 8 };

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
        // Release, as that of the counts: they pair with the Acquires in `probe`.
        let order = if injected(Fault::ClearedRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        self.bucket(class, bucket)[slot].store(0, order);
        let mut passed = class.home(hash);
        while passed != bucket {
            count_passing(self.bucket(class, passed), hash, false);
            passed = class.after(passed, 1);
        }
    }
}
