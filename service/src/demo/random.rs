//! The demo's only source of chance: SplitMix64, so that one seed gives one run on every machine.

/// A seeded generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// An independent generator for a part of the demo, named by `stream`.
    pub fn fork(&mut self, stream: u64) -> Self {
        Self::new(self.next() ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `low..=high`. The bias of the modulus is far below what a demo could show.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// An index below `len`, which must not be 0.
    pub fn below(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// So many token ids of a vocabulary of 32,000.
    pub fn tokens(&mut self, count: u64) -> Vec<u32> {
        (0..count).map(|_| self.between(3, 31_999) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence_and_bounds_hold() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            let n = a.between(5, 9);
            assert_eq!(n, b.between(5, 9));
            assert!((5..=9).contains(&n));
        }
        assert_ne!(a.fork(1).next(), b.fork(2).next());
    }
}
