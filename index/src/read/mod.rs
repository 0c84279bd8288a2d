//! Readers: lookups that take no lock, allocate nothing, and write to no shared memory.

mod explain;
mod walk;

use crate::index::Index;
use crate::read::walk::{Scratch, Walk};
use crate::sync::{Ordering, fence};
use crate::types::{ContentHash, HolderDepth, LookupOptions, Outcome, RankKey, Residency, Tier, WalkStep};
use std::sync::Arc;

/// Answers lookups. One for each thread that looks up; it owns the scratch memory of a walk.
pub struct Reader {
    index: Arc<Index>,
    scratch: Scratch,
}

/// An answer by depth: holders that share a depth stand together, deepest first. A buffer to be reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    holders: Vec<HolderDepth>,
}

impl Levels {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Each depth in blocks with its holders, deepest first; holders of one depth by rank and tier.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[HolderDepth])> {
        self.holders.chunk_by(|a, b| a.blocks == b.blocks).map(|level| (level[0].blocks, level))
    }
}

impl Reader {
    pub(crate) fn new(index: Arc<Index>) -> Self {
        let words = index.shards.iter().map(|s| s.slots.capacity() as usize * Tier::COUNT / 64).max().unwrap_or(0);
        Self { index, scratch: Scratch::new(words) }
    }

    /// Appends every holder with at least one leading block of `query` to `out`, in no order. Takes no lock, writes to no
    /// shared memory, and allocates only when `out` (or the reader's own scratch, once) has to grow.
    ///
    /// The answer is exact for every rank without an event in flight during the call; for the others each run's part was
    /// true at some moment of it.
    pub fn lookup(
        &mut self,
        query: &[ContentHash],
        options: &LookupOptions<'_>,
        out: &mut Vec<HolderDepth>,
    ) -> Outcome {
        let mut outcome = Outcome::Exact;
        if query.is_empty() {
            return outcome;
        }
        for shard in &self.index.shards {
            let count = shard.slots.count();
            self.scratch.begin(shard.slots.words());
            let cumulative = options.residency == Residency::Cumulative;
            if Walk::new(shard, query, cumulative, &mut self.scratch).run() == Outcome::Busy {
                outcome = Outcome::Busy;
            }
            // Acquire fence: pairs with the fence(Release) of `RankSlots::mask`: entries were read above, names follow.
            fence(Ordering::Acquire);
            let found = &mut self.scratch.found;
            if cumulative {
                keep_further_tiers(found);
            }
            out.extend(found.iter().filter_map(|&(slot, blocks)| {
                let rank = shard.slots.name(slot / Tier::COUNT as u32, count)?;
                let tier = Tier::from_index(slot as usize % Tier::COUNT)?;
                options.filter.is_none_or(|f| f.contains(rank)).then_some(HolderDepth { rank, tier, blocks })
            }));
        }
        outcome
    }

    /// As [`Reader::lookup`], by depth. Replaces what the buffer had.
    pub fn lookup_levels(&mut self, query: &[ContentHash], options: &LookupOptions<'_>, out: &mut Levels) -> Outcome {
        out.holders.clear();
        let outcome = self.lookup(query, options, &mut out.holders);
        out.holders.sort_unstable_by_key(|h| (std::cmp::Reverse(h.blocks), h.rank, h.tier));
        outcome
    }

    /// The walk of a query for one rank and tier, run by run, as far as the content is known to anyone in the rank's shard.
    /// For explanations: finds the rank by a walk over all slots. Appends nothing for an unknown rank.
    pub fn walk(&mut self, query: &[ContentHash], rank: RankKey, tier: Tier, out: &mut Vec<WalkStep>) -> Outcome {
        for shard in &self.index.shards {
            if let Some(slot) = shard.slots.find(rank) {
                return explain::walk(shard, query, slot * Tier::COUNT as u32 + tier.index() as u32, out);
            }
        }
        Outcome::Exact
    }
}

/// Leaves, of each rank's cumulative tiers, those that reach further than the tier before. A tier may stand several times:
/// its deepest counts.
fn keep_further_tiers(found: &mut Vec<(u32, u32)>) {
    found.sort_unstable_by_key(|&(slot, blocks)| (slot, std::cmp::Reverse(blocks)));
    let (mut rank, mut deepest) = (u32::MAX, 0);
    found.retain(|&(slot, blocks)| {
        if slot / Tier::COUNT as u32 != rank {
            (rank, deepest) = (slot / Tier::COUNT as u32, 0);
        }
        let further = blocks > deepest;
        deepest = deepest.max(blocks);
        further
    });
}
