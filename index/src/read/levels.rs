//! An answer by depth: the primary form of a lookup's answer. Pairs, dense arrays and the best few are made from it.

use crate::read::found::Found;
use crate::read::names::Naming;
use crate::types::{HolderDepth, RankKey, Tier};

/// A holder in an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RankTier {
    /// The rank's key.
    pub rank: RankKey,
    /// The tier.
    pub tier: Tier,
}

const NOBODY: RankTier = RankTier { rank: RankKey(u32::MAX), tier: Tier::Device };

/// An answer by depth: each depth once, with the holders whose longest prefix it is. A buffer to be reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// (depth in blocks, place of the first holder), shallowest first.
    pub(super) levels: Vec<(u32, u32)>,
    pub(super) holders: Vec<RankTier>,
}

impl Levels {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Each depth in blocks with its holders, deepest first; the holders of one depth in no order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[RankTier])> {
        (0..self.levels.len()).rev().map(|i| {
            let (depth, start) = self.levels[i];
            let end = self.levels.get(i + 1).map_or(self.holders.len(), |next| next.1 as usize);
            (depth, &self.holders[start as usize..end])
        })
    }

    /// Every holder with its depth, deepest first.
    #[inline]
    pub fn pairs(&self) -> impl Iterator<Item = HolderDepth> {
        self.iter().flat_map(|(blocks, holders)| {
            holders.iter().map(move |&RankTier { rank, tier }| HolderDepth { rank, tier, blocks })
        })
    }

    /// The deepest `count` holders, deepest first. Touches no others.
    pub fn best(&self, count: usize) -> impl Iterator<Item = HolderDepth> {
        self.pairs().take(count)
    }

    /// Writes the depths of one tier into a dense array indexed by rank key: blocks, 0 for who has none. Keys beyond the
    /// array are left out.
    pub fn depths(&self, tier: Tier, out: &mut [u32]) {
        out.fill(0);
        for pair in self.pairs().filter(|p| p.tier == tier) {
            if let Some(depth) = out.get_mut(pair.rank.0 as usize) {
                *depth = pair.blocks;
            }
        }
    }

    /// Depths.
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// Whether nobody holds a leading block.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Holders of all depths.
    pub fn holders(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn clear(&mut self) {
        self.levels.clear();
        self.holders.clear();
    }

    /// Adds all that was found, if every one of it can be named at once.
    #[inline]
    pub(super) fn add_all(&mut self, found: &Found, naming: Naming<'_>) -> bool {
        let start = self.holders.len() as u32;
        let named = naming.all(&found.slots, &mut self.holders);
        if named {
            self.levels.extend(found.levels.iter().map(|&(depth, at)| (depth, start + at)));
        }
        named
    }

    /// Adds a level of this depth with those of `slots` that `name` names, unless there are none.
    #[inline]
    pub(super) fn add(&mut self, depth: u32, slots: &[u32], name: impl Fn(u32) -> Option<RankTier>) {
        let start = self.holders.len();
        // Written over at once: a check for room at each would cost more.
        self.holders.resize(start + slots.len(), NOBODY);
        let mut end = start;
        for &slot in slots {
            if let Some(holder) = name(slot) {
                self.holders[end] = holder;
                end += 1;
            }
        }
        self.holders.truncate(end);
        if end > start {
            self.levels.push((depth, start as u32));
        }
    }

    /// Merges levels that were added by several shards, each shallowest first.
    pub(super) fn merge(&mut self) {
        if self.levels.is_sorted_by(|a, b| a.0 < b.0) {
            return;
        }
        let all = self.holders.len() as u32;
        let ends = self.levels.iter().skip(1).map(|l| l.1).chain([all]);
        let mut parts: Vec<(u32, u32, u32)> = self.levels.iter().zip(ends).map(|(l, end)| (l.0, l.1, end)).collect();
        parts.sort_unstable();
        let holders = std::mem::take(&mut self.holders);
        self.levels.clear();
        self.holders.reserve(holders.len());
        for (depth, start, end) in parts {
            if self.levels.last().is_none_or(|l| l.0 != depth) {
                self.levels.push((depth, self.holders.len() as u32));
            }
            self.holders.extend_from_slice(&holders[start as usize..end as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Levels, RankTier};
    use crate::types::{HolderDepth, RankKey, Tier};

    fn holder(rank: u32) -> RankTier {
        RankTier { rank: RankKey(rank), tier: Tier::Device }
    }

    #[test]
    fn levels_of_two_shards_merge_and_adapt() {
        let mut levels = Levels::new();
        for (depth, ranks) in [(2, &[1, 2][..]), (5, &[3]), (7, &[6]), (2, &[6, 4]), (3, &[5, 6])] {
            levels.add(depth, ranks, |r| (r != 6).then(|| holder(r)));
        }
        levels.merge();
        let all: Vec<_> = levels.iter().map(|(d, h)| (d, h.iter().map(|h| h.rank.0).collect::<Vec<_>>())).collect();
        assert_eq!(all, [(5, vec![3]), (3, vec![5]), (2, vec![1, 2, 4])]);
        assert_eq!((levels.len(), levels.holders(), levels.is_empty()), (3, 5, false));
        let best: Vec<_> = levels.best(2).map(|HolderDepth { rank, blocks, .. }| (rank.0, blocks)).collect();
        assert_eq!(best, [(3, 5), (5, 3)]);
        let mut depths = [9; 5];
        levels.depths(Tier::Device, &mut depths);
        assert_eq!(depths, [0, 2, 2, 5, 2]);
    }
}
