//! An answer by depth: the primary form of a lookup's answer. Pairs, dense arrays and the best few are made from it.
//!
//! Holders are kept as the index has them, as sets of slots, and named when somebody looks at them: a prompt that shares
//! its beginning with everyone is answered without a word about each.

use crate::read::found::{Form, Found, Part, SlotsOf};
use crate::read::names::{Naming, Table};
use crate::types::{HolderDepth, RankKey, Tier};
use std::sync::Arc;

/// A holder in an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RankTier {
    /// The rank's key.
    pub rank: RankKey,
    /// The tier.
    pub tier: Tier,
}

/// An answer by depth: each depth once, with the holders whose longest prefix it is. A buffer to be reused. It is right as of
/// its lookup, however much later it is read; cloning copies it, reading it allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    found: Found,
    /// Holders that had to be named at once.
    named: Vec<RankTier>,
    /// By shard: the names of the slots found there.
    tables: Vec<Arc<Table>>,
}

impl Levels {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Each depth in blocks with its holders, deepest first; the holders of one depth in no order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (u32, Holders<'_>)> {
        let levels = self.found.parts.chunk_by(|a, b| a.depth == b.depth).rev();
        levels.map(|parts| (parts[0].depth, Holders::new(self, parts)))
    }

    /// Every holder with its depth, deepest first.
    #[inline]
    pub fn pairs(&self) -> impl Iterator<Item = HolderDepth> {
        self.iter()
            .flat_map(|(blocks, holders)| holders.map(move |h| HolderDepth { rank: h.rank, tier: h.tier, blocks }))
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
        self.found.parts.chunk_by(|a, b| a.depth == b.depth).count()
    }

    /// Whether nobody holds a leading block.
    pub fn is_empty(&self) -> bool {
        self.found.parts.is_empty()
    }

    /// Holders of all depths.
    pub fn holders(&self) -> usize {
        self.found.parts.iter().map(|part| self.found.count(part)).sum()
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.found.clear();
        self.named.clear();
    }

    /// Where the only shard's walk puts what it finds; [`Levels::share`] says by which names.
    #[inline]
    pub(super) fn found(&mut self) -> &mut Found {
        &mut self.found
    }

    /// Adds what was found in one of several shards; [`Levels::arrange`] follows the last.
    pub(super) fn append(&mut self, shard: u32, found: &Found, table: &Arc<Table>) {
        self.found.append(found, shard);
        self.share(shard as usize, table);
    }

    /// Keeps a shard's table, which most often is there already.
    #[inline]
    pub(super) fn share(&mut self, shard: usize, table: &Arc<Table>) {
        match self.tables.get(shard) {
            Some(there) if Arc::ptr_eq(there, table) => {}
            _ => self.keep(shard, table),
        }
    }

    #[cold]
    fn keep(&mut self, shard: usize, table: &Arc<Table>) {
        while self.tables.len() <= shard {
            self.tables.push(Arc::clone(table));
        }
        self.tables[shard] = Arc::clone(table);
    }

    /// Names what the only shard's walk found, where its names were changing; who cannot be named is left out.
    #[cold]
    #[inline(never)]
    pub(super) fn name(&mut self, naming: Naming<'_>) {
        let found = std::mem::take(&mut self.found);
        self.add_named(&found, naming, |_| true);
    }

    /// Adds those that can be named and that `wanted` says yes to, with their names.
    pub(super) fn add_named(&mut self, found: &Found, naming: Naming<'_>, wanted: impl Fn(RankKey) -> bool) {
        for part in &found.parts {
            let start = self.named.len() as u32;
            let named = found.slots_of(part).filter_map(|slot| naming.holder(slot)).filter(|h| wanted(h.rank));
            self.named.extend(named);
            let end = self.named.len() as u32;
            if end > start {
                self.found.parts.push(Part { start, end, form: Form::Named, ..*part });
            }
        }
    }

    /// Puts what several shards found in order.
    pub(super) fn arrange(&mut self) {
        self.found.parts.sort_unstable_by_key(|part| (part.depth, part.shard));
    }
}

/// The holders of one depth, in no order; named as they come.
#[derive(Clone, Debug)]
pub struct Holders<'a> {
    levels: &'a Levels,
    /// The part at hand, and those that follow.
    parts: &'a [Part],
    slots: SlotsOf<'a>,
    named: std::slice::Iter<'a, RankTier>,
}

impl<'a> Holders<'a> {
    #[inline]
    fn new(levels: &'a Levels, parts: &'a [Part]) -> Self {
        let mut holders = Self { levels, parts, slots: SlotsOf::default(), named: [].iter() };
        holders.begin();
        holders
    }

    #[inline]
    fn begin(&mut self) {
        if let Some(part) = self.parts.first() {
            self.slots = self.levels.found.slots_of(part);
            let named = if part.form == Form::Named { &self.levels.named[part.range()] } else { &[] };
            self.named = named.iter();
        }
    }
}

impl Iterator for Holders<'_> {
    type Item = RankTier;

    #[inline]
    fn next(&mut self) -> Option<RankTier> {
        loop {
            let part = self.parts.first()?;
            if let Some(slot) = self.slots.next() {
                return Some(self.levels.tables[part.shard as usize].holder(slot));
            }
            if let Some(&holder) = self.named.next() {
                return Some(holder);
            }
            self.parts = &self.parts[1..];
            self.begin();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Form, Levels, Part, RankTier};
    use crate::types::{HolderDepth, RankKey, Tier};

    /// What a lookup adds that names at once.
    fn add(levels: &mut Levels, shard: u32, parts: &[(u32, &[u32])]) {
        for (depth, ranks) in parts {
            let start = levels.named.len() as u32;
            levels.named.extend(ranks.iter().map(|&rank| RankTier { rank: RankKey(rank), tier: Tier::Device }));
            let end = levels.named.len() as u32;
            levels.found.parts.push(Part { depth: *depth, start, end, form: Form::Named, shard });
        }
    }

    #[test]
    fn levels_of_two_shards_merge_and_adapt() {
        let mut levels = Levels::new();
        add(&mut levels, 0, &[(2, &[1, 2]), (5, &[3])]);
        add(&mut levels, 1, &[(2, &[4]), (3, &[5])]);
        levels.arrange();
        let all: Vec<_> = levels.iter().map(|(d, h)| (d, h.map(|h| h.rank.0).collect::<Vec<_>>())).collect();
        assert_eq!(all, [(5, vec![3]), (3, vec![5]), (2, vec![1, 2, 4])]);
        assert_eq!((levels.len(), levels.holders(), levels.is_empty()), (3, 5, false));
        let best: Vec<_> = levels.best(2).map(|HolderDepth { rank, blocks, .. }| (rank.0, blocks)).collect();
        assert_eq!(best, [(3, 5), (5, 3)]);
        let mut depths = [9; 5];
        levels.depths(Tier::Device, &mut depths);
        assert_eq!(depths, [0, 2, 2, 5, 2]);
    }

    #[test]
    fn lists_and_words_of_one_depth_are_one_level() {
        let mut levels = Levels::new();
        levels.found().push_all(2, &[4]);
        levels.found().add_words(2, 1, [7, 1].into_iter());
        levels.share(0, &Default::default());
        assert_eq!((levels.len(), levels.holders()), (1, 5));
        assert!(levels.iter().map(|(depth, holders)| (depth, holders.count())).eq([(2, 5)]));
    }
}
