//! The lane's own hash tables: cache-line buckets without tombstones, so that churn neither fills them up nor makes them grow.
//!
//! ```text
//! keyed bucket,  64 bytes:   5 x u64 key | u32 passed |  5 x u32 value
//! ```
//!
//! A value of 0 is an empty slot (position 0 is the root's, and nobody's). `passed` counts the entries that went past a bucket
//! on their way from home: it ends a probe, and makes a removal exact. The size follows the number of entries both ways, by
//! a quarter at a time, with a gap between growing and shrinking so that it does not flap. One thread only.

/// A table is grown beyond this load, in per cent of its slots.
const LOAD_MAX: usize = 80;
/// A table is shrunk below this load.
const LOAD_MIN: usize = 45;
/// Buckets that an empty table starts with.
const BUCKETS_MIN: usize = 4;

/// A bucket of a table.
pub(crate) trait Bucket: Copy {
    /// Slots.
    const SLOTS: usize;
    /// No entry, nothing passed.
    const EMPTY: Self;
    /// The value in a slot; 0 when it is empty.
    fn value(&self, slot: usize) -> u32;
    /// Whether the entry in a slot may be this key's.
    fn may_be(&self, slot: usize, hash: u64, key: u64) -> bool;
    /// The key in a slot, where the table keeps keys.
    fn key(&self, slot: usize) -> Option<u64>;
    /// Fills a slot.
    fn put(&mut self, slot: usize, hash: u64, key: u64, value: u32);
    /// The number of entries that passed.
    fn passed(&mut self) -> &mut u32;
    /// The same, to look at.
    fn was_passed(&self) -> bool;
}

/// Keys and values.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Keyed {
    keys: [u64; 5],
    passed: u32,
    values: [u32; 5],
}
const _: () = assert!(size_of::<Keyed>() == 64);

impl Bucket for Keyed {
    const SLOTS: usize = 5;
    const EMPTY: Self = Self { keys: [0; 5], passed: 0, values: [0; 5] };
    #[inline]
    fn value(&self, slot: usize) -> u32 {
        self.values[slot]
    }
    #[inline]
    fn may_be(&self, slot: usize, _hash: u64, key: u64) -> bool {
        self.keys[slot] == key
    }
    fn key(&self, slot: usize) -> Option<u64> {
        Some(self.keys[slot])
    }
    #[inline]
    fn put(&mut self, slot: usize, _hash: u64, key: u64, value: u32) {
        (self.keys[slot], self.values[slot]) = (key, value);
    }
    fn passed(&mut self) -> &mut u32 {
        &mut self.passed
    }
    #[inline]
    fn was_passed(&self) -> bool {
        self.passed != 0
    }
}

/// A table of buckets. An empty one has no memory.
pub(crate) struct Table<B> {
    buckets: Vec<B>,
    len: usize,
}

impl<B: Bucket> Table<B> {
    pub const fn new() -> Self {
        Self { buckets: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the buckets.
    pub fn bytes(&self) -> u64 {
        (self.buckets.capacity() * size_of::<B>()) as u64
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }
    #[inline]
    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// Bucket and slot of a key; `is` verifies a candidate's value.
    #[inline]
    fn place(&self, hash: u64, key: u64, is: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(hash);
        // Bounded: in a small table with much churn every bucket may have been passed.
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for slot in 0..B::SLOTS {
                let value = bucket.value(slot);
                if bucket.may_be(slot, hash, key) && value != 0 && is(value) {
                    return Some((at, slot));
                }
            }
            if !bucket.was_passed() {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// The value of a key.
    #[inline]
    pub fn find(&self, hash: u64, key: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.place(hash, key, is).map(|(bucket, slot)| self.buckets[bucket].value(slot))
    }

    /// Replaces the value of a key that is there; whether it was.
    pub fn replace(&mut self, hash: u64, key: u64, value: u32) -> bool {
        let Some((bucket, slot)) = self.place(hash, key, |_| true) else { return false };
        self.buckets[bucket].put(slot, hash, key, value);
        true
    }

    /// Adds a key that the caller knows to be absent. `rehash` works out the hash of an entry from its key, where the table
    /// keeps keys, and its value.
    #[inline]
    pub fn add(&mut self, hash: u64, key: u64, value: u32, rehash: impl Fn(Option<u64>, u32) -> u64) {
        debug_assert!(value != 0);
        if (self.len + 1) * 100 > self.buckets.len() * B::SLOTS * LOAD_MAX {
            let more = (self.buckets.len() / 4).max(BUCKETS_MIN);
            self.rebuild(self.buckets.len() + more, rehash);
        }
        self.put(hash, key, value);
        self.len += 1;
    }

    fn put(&mut self, hash: u64, key: u64, value: u32) {
        let mut at = self.home(hash);
        loop {
            if let Some(slot) = (0..B::SLOTS).find(|&slot| self.buckets[at].value(slot) == 0) {
                self.buckets[at].put(slot, hash, key, value);
                return;
            }
            *self.buckets[at].passed() += 1;
            at = self.next(at);
        }
    }

    /// Takes a key out; its value.
    pub fn remove(
        &mut self,
        hash: u64,
        key: u64,
        is: impl Fn(u32) -> bool,
        rehash: impl Fn(Option<u64>, u32) -> u64,
    ) -> Option<u32> {
        let (bucket, slot) = self.place(hash, key, is)?;
        let value = self.buckets[bucket].value(slot);
        self.buckets[bucket].put(slot, 0, 0, 0);
        let mut at = self.home(hash);
        while at != bucket {
            *self.buckets[at].passed() -= 1;
            at = self.next(at);
        }
        self.len -= 1;
        if self.len == 0 {
            self.buckets = Vec::new();
        } else if self.buckets.len() > BUCKETS_MIN && self.len * 100 < self.buckets.len() * B::SLOTS * LOAD_MIN {
            let fitting = self.len * 100 / (B::SLOTS * (LOAD_MAX + LOAD_MIN) / 2);
            self.rebuild((fitting + 1).max(BUCKETS_MIN), rehash);
        }
        Some(value)
    }

    #[cold]
    fn rebuild(&mut self, buckets: usize, rehash: impl Fn(Option<u64>, u32) -> u64) {
        let old = std::mem::replace(&mut self.buckets, vec![B::EMPTY; buckets]);
        for bucket in old {
            for slot in (0..B::SLOTS).filter(|&slot| bucket.value(slot) != 0) {
                let (key, value) = (bucket.key(slot), bucket.value(slot));
                self.put(rehash(key, value), key.unwrap_or(0), value);
            }
        }
    }

    /// Every entry: its key, where the table keeps keys, and its value.
    pub fn iter(&self) -> impl Iterator<Item = (Option<u64>, u32)> + '_ {
        self.buckets.iter().flat_map(|bucket| {
            (0..B::SLOTS).map(|slot| (bucket.key(slot), bucket.value(slot))).filter(|&(_, value)| value != 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS_MIN, Bucket, Keyed, LOAD_MAX, Table};
    use crate::hash::HashKey;
    use std::collections::HashMap;

    /// The key of a value, for the table that keeps none.
    fn key_of(value: u32) -> u64 {
        u64::from(value % 5_000)
    }

    fn equals_a_map<B: Bucket>() {
        let hash_key = HashKey::new(Some([5, 6]));
        let rehash = |key: Option<u64>, value: u32| hash_key.one(key.unwrap_or(key_of(value)));
        let mut table = Table::<B>::new();
        let mut map: HashMap<u64, u32> = HashMap::new();
        let mut x = 3u64;
        for step in 0..200_000u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = (x >> 33) % 5_000;
            let hash = hash_key.one(key);
            let value = key as u32 + 5_000 * (1 + step % 7);
            let grow = step / 40_000 % 2 == 0;
            if !map.contains_key(&key) && (x >> 20) % 10 < if grow { 8 } else { 2 } {
                table.add(hash, key, value, rehash);
                map.insert(key, value);
            } else {
                let got = table.remove(hash, key, |v| key_of(v) == key, rehash);
                assert_eq!(got, map.remove(&key), "step {step}");
            }
            let probe = (x >> 40) % 5_000;
            let found = table.find(hash_key.one(probe), probe, |v| key_of(v) == probe);
            assert_eq!(found, map.get(&probe).copied(), "step {step}");
            assert_eq!(table.len(), map.len());
            assert!(table.len() * 100 <= table.buckets.len() * B::SLOTS * LOAD_MAX);
            let room = map.len().max(1) * 100 / (B::SLOTS * 40) + BUCKETS_MIN + 1;
            assert!(table.buckets.len() <= room, "{} buckets for {} entries", table.buckets.len(), map.len());
        }
        let mut all: Vec<u32> = table.iter().map(|(_, v)| v).collect();
        let mut want: Vec<u32> = map.values().copied().collect();
        all.sort_unstable();
        want.sort_unstable();
        assert_eq!(all, want);
        for (key, value) in map {
            assert_eq!(table.remove(hash_key.one(key), key, |v| key_of(v) == key, rehash), Some(value));
        }
        assert_eq!((table.len(), table.bytes()), (0, 0));
    }

    #[test]
    fn keyed_equals_a_map_through_growth_and_shrinking() {
        equals_a_map::<Keyed>();
    }
}
