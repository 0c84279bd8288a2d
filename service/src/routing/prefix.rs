//! Names of prefixes: a running hash over a prompt's content hashes, keyed, so that nobody who sends prompts can make two
//! prefixes bear one name.
//!
//! Each step is a multiplication of 64 by 64 bits with a secret key, folded by xor of its halves.

use kvatlas_index::ContentHash;

/// The secret of one desk.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixKey([u64; 3]);

impl PrefixKey {
    /// A key from a seed.
    pub fn new(seed: u64) -> Self {
        let start = spread(seed);
        let one = spread(start);
        Self([start, one | 1, spread(one) | 1])
    }

    /// The name before the first block.
    pub fn start(self) -> u64 {
        self.0[0]
    }

    /// The name of the prefix that is one block longer.
    #[inline]
    pub fn next(self, name: u64, content: ContentHash) -> u64 {
        let [_, one, two] = self.0;
        fold(fold(content.0 ^ two, one) ^ name, two)
    }

    /// The name of a whole prefix. A nanosecond or two for each block.
    pub fn name(self, contents: &[ContentHash]) -> u64 {
        contents.iter().fold(self.start(), |name, content| self.next(name, *content))
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Spreads the bits of a word over all of it, one to one (the finalizer of SplitMix64).
fn spread(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn prefixes_have_names_of_their_own_under_every_key() {
        for seed in [0, 1, u64::MAX] {
            let key = PrefixKey::new(seed);
            let mut names = HashSet::from([key.start()]);
            for a in 0..64 {
                for b in 0..64 {
                    names.insert(key.name(&[ContentHash(a), ContentHash(b)]));
                }
                names.insert(key.name(&[ContentHash(a)]));
            }
            assert_eq!(names.len(), 1 + 64 * 64 + 64, "seed {seed}");
        }
        let names: HashSet<_> = (0..64).map(|seed| PrefixKey::new(seed).name(&[ContentHash(1)])).collect();
        assert_eq!(names.len(), 64, "and other ones under another key");
    }

    #[test]
    fn a_name_goes_on_where_the_shorter_one_ended() {
        let key = PrefixKey::new(7);
        let chain: Vec<_> = (0..9).map(ContentHash).collect();
        assert_eq!(key.name(&chain), chain[4..].iter().fold(key.name(&chain[..4]), |name, c| key.next(name, *c)));
    }
}
