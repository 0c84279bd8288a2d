//! Numbers that look random and are the same everywhere.

/// Mixes two words into one (one to one in `x` for a fixed `seed`).
#[inline]
pub fn mix(seed: u64, x: u64) -> u64 {
    let x = x.wrapping_add(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A sequence of random words from a seed.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    next: u64,
}

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed: mix(seed, 0x5EED), next: 0 }
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.next += 1;
        mix(self.seed, self.next)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound.max(1))) >> 64) as u64
    }

    /// Whether something of a chance in a thousand happens.
    pub fn happens(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// A waiting time with this mean, by halvings in integers so that it is the same on every machine: each half-life passed
    /// with chance one half, and evenly spread inside the last one. Its mean is 1.5 half-lives.
    pub fn waiting(&mut self, mean: u64) -> u64 {
        let half_life = mean * 2 / 3;
        let halvings = u64::from(self.word().trailing_ones().min(16));
        halvings * half_life + self.below(half_life.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_times_have_their_mean() {
        let mut random = Random::new(1);
        let mean = (0..100_000).map(|_| random.waiting(3000)).sum::<u64>() / 100_000;
        assert!((2900..3100).contains(&mean), "{mean}");
    }

    #[test]
    fn words_differ_by_seed_and_place() {
        let all: std::collections::HashSet<u64> = (0..4).flat_map(|s| (0..1000).map(move |x| mix(s, x))).collect();
        assert_eq!(all.len(), 4000);
    }
}
