//! Child links of a shard: one hash table from (parent position, first content) to a run.
//!
//! ```text
//! bucket, 64 bytes:  7 x u64 slot: tag 12 | run 26 | first granule 26     0 = empty
//!                    u64: entries that passed this bucket on their way from home
//! ```
//!
//! Keys are not kept: a candidate is verified by its header's parent and its first content, so a stale slot is harmless.
//! The passing counts end a probe and make removal exact without tombstones. Readers probe without a lock. A lane inserts
//! and removes under a lock of its own (so lanes do not wait for each other); two lanes never work on one key at once, since
//! both hold the LOCK of the run that covers the parent (the root's children have a striped lock instead). Growing and
//! shrinking take every lane's lock, build the other size class's area and publish it in the directory word, whose count
//! rises each time; a reader that misses reads the word again.

use crate::error::ConfigError;
use crate::region::Region;
use crate::sync::{AtomicU64, Mutex, Ordering, fence};
use crossbeam_utils::CachePadded;

const SLOTS: usize = 7;
const WORDS: usize = 8;
/// Buckets of the smallest table, as a power of two.
const CLASS_MIN: u32 = 3;
const ID_BITS: u32 = 26;
const ID_MASK: u64 = (1 << ID_BITS) - 1;

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
    /// Class k's buckets are `2^k..2^(k+1)`.
    buckets: Region<AtomicU64>,
    /// Changes so far << 8 | class.
    directory: AtomicU64,
    lanes: Box<[CachePadded<Mutex<()>>]>,
    len: AtomicU64,
    class_max: u32,
}

fn pack(hash: u64, run: u32, granule: u32) -> u64 {
    tag(hash) << (2 * ID_BITS) | u64::from(run) << ID_BITS | u64::from(granule)
}
#[inline]
fn tag(hash: u64) -> u64 {
    (hash & 0xfff).max(1)
}
#[inline]
fn unpack(slot: u64) -> (u32, u32) {
    ((slot >> ID_BITS & ID_MASK) as u32, (slot & ID_MASK) as u32)
}

impl Edge {
    pub fn reserve(runs_max: u32, lanes: u32) -> Result<Self, ConfigError> {
        // At three quarters of seven slots a bucket, every run fits the largest class.
        let class_max = (u64::from(runs_max) * 4 / (3 * SLOTS as u64) + 1).next_power_of_two().trailing_zeros();
        let class_max = class_max.max(CLASS_MIN);
        Ok(Self {
            buckets: Region::reserve("child links", (2 << class_max) * WORDS)?,
            directory: AtomicU64::new(u64::from(CLASS_MIN)),
            lanes: (0..lanes).map(|_| CachePadded::new(Mutex::new(()))).collect(),
            len: AtomicU64::new(0),
            class_max,
        })
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
    /// Bytes of the table in use.
    pub fn bytes(&self) -> u64 {
        ((WORDS * 8) as u64) << self.class()
    }
    fn class(&self) -> u32 {
        (self.directory.load(Ordering::Relaxed) & 0xff) as u32
    }

    #[inline]
    fn bucket(&self, class: u32, hash: u64, step: u64) -> &[AtomicU64] {
        let i = ((hash >> (64 - class)) + step) & ((1 << class) - 1);
        self.buckets.clamped(((1 << class) + i as usize) * WORDS, WORDS)
    }

    /// Finds a child. Takes no lock; `check` verifies candidates.
    #[inline]
    pub fn find<R>(&self, hash: u64, mut check: impl FnMut(u32, u32) -> Check<R>) -> Found<R> {
        loop {
            // Acquire: pairs with the Release of `resize`, so that the area's slots are seen.
            let directory = self.directory.load(Ordering::Acquire);
            match self.probe((directory & 0xff) as u32, hash, &mut check) {
                Found::Miss => {}
                found => return found,
            }
            // Acquire fence: pairs with the Release slot stores of an area that came into use again; if one of them was
            // seen above, the load below sees the directory that retired the area.
            fence(Ordering::Acquire);
            if self.directory.load(Ordering::Relaxed) == directory {
                return Found::Miss;
            }
        }
    }

    #[inline]
    fn probe<R>(&self, class: u32, hash: u64, check: &mut impl FnMut(u32, u32) -> Check<R>) -> Found<R> {
        let tag = tag(hash);
        for step in 0..1u64 << class {
            let bucket = self.bucket(class, hash, step);
            for slot in &bucket[..SLOTS] {
                // Acquire: pairs with the Release of `place`; the run's header is seen as published.
                let slot = slot.load(Ordering::Acquire);
                if slot >> (2 * ID_BITS) == tag {
                    let (run, granule) = unpack(slot);
                    match check(run, granule) {
                        Check::Yes(found) => return Found::Hit(found),
                        Check::Busy => return Found::Busy,
                        Check::No => {}
                    }
                }
            }
            if bucket[SLOTS].load(Ordering::Acquire) == 0 {
                break;
            }
        }
        Found::Miss
    }

    /// Adds a link. The caller knows that the key is absent and keeps others from adding it. `rehash` works out the hash of
    /// a linked run, for growth.
    pub fn insert(&self, lane: u32, hash: u64, run: u32, granule: u32, rehash: &dyn Fn(u32, u32) -> u64) {
        let len = self.len.fetch_add(1, Ordering::Relaxed) + 1;
        if len > self.room() && self.class() < self.class_max {
            self.resize(true, rehash);
        }
        let _own = self.lanes[lane as usize].lock();
        self.place(self.class(), hash, pack(hash, run, granule));
    }

    /// Three quarters of the slots: a table never runs above 7/8 full, even while every lane adds at once.
    fn room(&self) -> u64 {
        ((SLOTS as u64) << self.class()) * 3 / 4
    }

    fn place(&self, class: u32, hash: u64, slot: u64) {
        for step in 0..1u64 << class {
            let bucket = self.bucket(class, hash, step);
            for word in &bucket[..SLOTS] {
                // Release: pairs with the Acquire in `probe`.
                if word.load(Ordering::Relaxed) == 0
                    && word.compare_exchange(0, slot, Ordering::Release, Ordering::Relaxed).is_ok()
                {
                    return;
                }
            }
            bucket[SLOTS].fetch_add(1, Ordering::AcqRel);
        }
        unreachable!("every run fits the largest class");
    }

    /// Takes a link out; whether it was there. The caller holds the LOCK of the run and of its parent's.
    pub fn remove(&self, lane: u32, hash: u64, run: u32) -> bool {
        let _own = self.lanes[lane as usize].lock();
        let class = self.class();
        for step in 0..1u64 << class {
            let bucket = self.bucket(class, hash, step);
            for word in &bucket[..SLOTS] {
                let slot = word.load(Ordering::Relaxed);
                if slot != 0 && slot >> (2 * ID_BITS) == tag(hash) && unpack(slot).0 == run {
                    // Release: pairs with the Acquire in `probe`.
                    word.store(0, Ordering::Release);
                    for passed in 0..step {
                        self.bucket(class, hash, passed)[SLOTS].fetch_sub(1, Ordering::AcqRel);
                    }
                    self.len.fetch_sub(1, Ordering::Relaxed);
                    return true;
                }
            }
            if bucket[SLOTS].load(Ordering::Acquire) == 0 {
                break;
            }
        }
        false
    }

    /// Halves the table when it is less than an eighth full. Called by a lane that holds no lock of the table.
    pub fn shrink(&self, rehash: &dyn Fn(u32, u32) -> u64) {
        if self.class() > CLASS_MIN && self.len() < ((SLOTS as u64) << self.class()) / 8 {
            self.resize(false, rehash);
        }
    }

    #[cold]
    fn resize(&self, grow: bool, rehash: &dyn Fn(u32, u32) -> u64) {
        let _all: Vec<_> = self.lanes.iter().map(|l| l.lock()).collect();
        let directory = self.directory.load(Ordering::Relaxed);
        let (old, len) = ((directory & 0xff) as u32, self.len());
        let class = match grow {
            true if len > self.room() && old < self.class_max => old + 1,
            false if old > CLASS_MIN && len < ((SLOTS as u64) << old) / 8 => old - 1,
            _ => return,
        };
        for i in 0..1usize << old {
            let bucket = self.buckets.clamped(((1 << old) + i) * WORDS, SLOTS);
            for slot in bucket.iter().map(|w| w.load(Ordering::Relaxed)).filter(|&s| s != 0) {
                let (run, granule) = unpack(slot);
                let hash = rehash(run, granule);
                self.place(class, hash, pack(hash, run, granule));
            }
        }
        // Release: pairs with the Acquire in `find`.
        self.directory.store(((directory >> 8) + 1) << 8 | u64::from(class), Ordering::Release);
        self.wipe(old);
    }

    /// Empties a retired area, so that it is ready for its next use. A reader still inside misses and reads the directory
    /// again.
    fn wipe(&self, class: u32) {
        let (from, count) = ((1usize << class) * WORDS, WORDS << class);
        // Release fence: pairs with the Acquire fence in `find`: a reader that saw a word wiped here, or one stored into
        // this area later, sees the directory that retired it.
        fence(Ordering::Release);
        if class >= 12 && cfg!(not(loom)) {
            self.buckets.release(from, count);
        } else {
            self.buckets.clamped(from, count).iter().for_each(|w| w.store(0, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKey;
    use std::collections::HashMap;

    #[test]
    fn equals_a_map_through_growth_and_shrinking() {
        let edge = Edge::reserve(1 << 16, 2).unwrap();
        let key = HashKey::new(Some([3, 4]));
        let mut map: HashMap<u32, u32> = HashMap::new();
        let rehash = |run: u32, _: u32| key.one(u64::from(run % 20_000));
        let mut x = 99u64;
        for step in 0..120_000u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let run = (x >> 40) as u32 % 20_000;
            let grow = step / 30_000 % 2 == 0;
            let add = (x >> 30) % 10 < if grow { 8 } else { 1 };
            if add && !map.contains_key(&run) {
                edge.insert(step % 2, rehash(run, 0), run, run + 1, &rehash);
                map.insert(run, run + 1);
            } else if !add {
                assert_eq!(edge.remove(step % 2, rehash(run, 0), run), map.remove(&run).is_some());
                edge.shrink(&rehash);
            }
            let probe = (x >> 20) as u32 % 20_000;
            let found = edge.find(rehash(probe, 0), |r, g| if r == probe { Check::Yes(g) } else { Check::No });
            let found = if let Found::Hit(granule) = found { Some(granule) } else { None };
            assert_eq!(found, map.get(&probe).copied(), "step {step}");
            let full = edge.len() as f64 / ((SLOTS as u64) << edge.class()) as f64;
            assert!(full <= 0.875, "{full} full");
        }
        assert_eq!(edge.len(), map.len() as u64);
        map.drain().for_each(|(run, _)| {
            assert!(edge.remove(0, rehash(run, 0), run));
            edge.shrink(&rehash);
        });
        assert_eq!((edge.len(), edge.class()), (0, CLASS_MIN));
        assert!(edge.buckets.clamped(0, usize::MAX / 2).iter().all(|w| w.load(Ordering::Relaxed) == 0));
    }
}
