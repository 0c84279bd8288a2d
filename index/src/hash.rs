//! Keyed mixing for every table, so that crafted hashes cannot pile up in one place.
//!
//! Two folded multiplications with a secret key (the folding step multiplies to 128 bits and xors the halves). The key is
//! drawn from the system once an index, or set for repeatable tests.

use std::hash::{BuildHasher, Hasher};

/// The secret of one index.
#[derive(Clone, Copy)]
pub(crate) struct HashKey([u64; 2]);

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Spreads the bits of a word over all of it, one to one.
pub(crate) fn spread(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl HashKey {
    pub fn new(key: Option<[u64; 2]>) -> Self {
        let [k0, k1] = key.unwrap_or_else(|| {
            let system = std::collections::hash_map::RandomState::new();
            [system.hash_one(1u64), system.hash_one(2u64)]
        });
        // A multiplier of 1 would cancel the word out, and a key set by hand may be small.
        Self([spread(k0), spread(!k1) | 1 << 63])
    }

    /// Mixes one word.
    #[inline]
    pub fn one(self, x: u64) -> u64 {
        let [k0, k1] = self.0;
        fold(fold(x ^ k0, k1 | 1) ^ x, 0x9E37_79B9_7F4A_7C15 ^ (k0 | 1))
    }

    /// Mixes a position and a hash.
    #[inline]
    pub fn two(self, position: u32, x: u64) -> u64 {
        self.one(x ^ (u64::from(position) + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }
}

/// A hasher of single integers for the lane's own maps.
#[derive(Clone, Copy)]
pub(crate) struct IntHasher {
    key: HashKey,
    state: u64,
}

impl Hasher for IntHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.state = self.key.one(self.state ^ u64::from(b));
        }
    }
    #[inline]
    fn write_u64(&mut self, x: u64) {
        self.state = self.key.one(self.state ^ x);
    }
    #[inline]
    fn write_u32(&mut self, x: u32) {
        self.write_u64(u64::from(x));
    }
}

impl BuildHasher for HashKey {
    type Hasher = IntHasher;
    #[inline]
    fn build_hasher(&self) -> IntHasher {
        IntHasher { key: *self, state: 0 }
    }
}

/// A map of a lane's own, with keyed hashing.
pub(crate) type IntMap<K, V> = hashbrown::HashMap<K, V, HashKey>;

/// Gives a map's memory back when entries went, with a gap to the next growth so that it does not flap; all but room for `kept`
/// entries, which stays. Up to half as many come and go without the heap, once the room is there.
pub(crate) fn shrink<K: Eq + std::hash::Hash, V>(map: &mut IntMap<K, V>, kept: usize) {
    if map.capacity() > kept && map.len() < map.capacity() / 4 {
        map.shrink_to(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::HashKey;
    use std::collections::HashSet;

    /// A key set by hand is often small: it must hide and spread as well as a drawn one.
    #[test]
    fn small_keys_spread() {
        for key in [[0, 0], [0, 1], [7, 0], [7, 1], [u64::MAX, 0], [0, u64::MAX]] {
            let key = HashKey::new(Some(key));
            for hash in [
                |k: HashKey, i: u64| k.one(i),
                |k: HashKey, i: u64| k.two(i as u32, 9),
                |k: HashKey, i: u64| k.one(i << 40),
            ] {
                let all: Vec<u64> = (0..4096).map(|i| hash(key, i)).collect();
                let places = |bits: fn(u64) -> u64| all.iter().map(|&h| bits(h)).collect::<HashSet<_>>().len();
                assert_eq!(places(|h| h), 4096, "whole hashes");
                assert!(places(|h| h >> 52) > 2300, "{} of 4096 places by the high bits", places(|h| h >> 52));
                assert!(places(|h| h & 0xfff) > 2300, "{} of 4096 tags", places(|h| h & 0xfff));
            }
        }
    }
}
