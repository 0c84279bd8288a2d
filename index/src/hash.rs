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

impl HashKey {
    pub fn new(key: Option<[u64; 2]>) -> Self {
        Self(key.unwrap_or_else(|| {
            let system = std::collections::hash_map::RandomState::new();
            [system.hash_one(1u64), system.hash_one(2u64)]
        }))
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
