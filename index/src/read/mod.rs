//! Readers: lookups that take no lock, allocate nothing, and write to no shared memory.

mod cumulative;
mod each_tier;
mod explain;
mod found;
mod levels;
mod names;
pub(crate) mod walk;

use crate::index::Index;
use crate::layout::slot_of;
use crate::read::cumulative::Cumulative;
use crate::read::each_tier::EachTier;
use crate::read::found::Found;
use crate::read::names::{Names, Naming};
use crate::read::walk::Walk;
use crate::types::{ContentHash, HolderDepth, LookupOptions, Outcome, RankFilter, RankKey, Residency, Tier, WalkStep};
use std::sync::Arc;

pub use crate::read::levels::{Holders, Levels, RankTier};

/// Answers lookups. One for each thread that looks up; it owns the scratch memory of a walk.
pub struct Reader {
    index: Arc<Index>,
    each_tier: EachTier,
    cumulative: Cumulative,
    /// One for each shard.
    names: Vec<Names>,
    counters: ReaderCounters,
}

/// What a reader did so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReaderCounters {
    /// Lookups, each shard counted by itself.
    pub lookups: u64,
    /// Walks started again because a writer changed the path under them.
    pub restarts: u64,
    /// Lookups that gave up after too many restarts.
    pub busy: u64,
    /// Lookups that asked the slot table for each name, since ranks came or went around them.
    pub names_asked: u64,
    /// Runs that walks read, those of walks that were started again among them.
    pub runs: u64,
}

impl Reader {
    pub(crate) fn new(index: Arc<Index>) -> Self {
        let names = index.shards.iter().map(|_| Names::default()).collect();
        let counters = ReaderCounters::default();
        Self { index, each_tier: EachTier::new(), cumulative: Cumulative::default(), names, counters }
    }

    /// Finds every holder with at least one leading block of `query`, by depth. Replaces what the buffer had. Takes no lock,
    /// writes to no shared memory, and allocates only when `out` (or the reader's own scratch) has to grow.
    ///
    /// The answer is exact for every rank without an event in flight during the call; for the others each run's part was
    /// true at some moment of it. Holders are named when `out` is read, except under a filter.
    pub fn lookup_levels(&mut self, query: &[ContentHash], options: &LookupOptions<'_>, out: &mut Levels) -> Outcome {
        out.clear();
        let (mut shard, several) = (0, self.names.len() > 1);
        let outcome = self.each_shard(query, options.residency, |found, naming| {
            match (naming.table, options.filter) {
                (Some(table), None) if several => out.append(shard, found, table),
                (Some(table), None) => out.take(found, table),
                (None, None) => out.add_named(found, naming, |_| true),
                (_, Some(filter)) => out.add_named(found, naming, |rank| filter.contains(rank)),
            }
            shard += 1;
        });
        if several {
            out.arrange();
        }
        outcome
    }

    /// As [`Reader::lookup_levels`], as pairs in no order. Appends to `out`.
    pub fn lookup(
        &mut self,
        query: &[ContentHash],
        options: &LookupOptions<'_>,
        out: &mut Vec<HolderDepth>,
    ) -> Outcome {
        self.each_shard(query, options.residency, |found, naming| match (naming.table, options.filter) {
            (Some(table), None) => table.pairs(found, out),
            _ => {
                for part in &found.parts {
                    found.each_slot(part, |slot| out.extend(pair(naming, options.filter, slot, part.depth)));
                }
            }
        })
    }

    /// The deepest `count` holders, deepest first. Replaces what `out` had. Names and filters no more of them than it takes.
    pub fn lookup_best(
        &mut self,
        query: &[ContentHash],
        options: &LookupOptions<'_>,
        count: usize,
        out: &mut Vec<HolderDepth>,
    ) -> Outcome {
        out.clear();
        let several = self.names.len() > 1;
        let outcome = self.each_shard(query, options.residency, |found, naming| {
            let found = &*found;
            let parts = found.parts.iter().rev();
            let deepest_first = parts.flat_map(|part| found.slots_of(part).map(move |slot| (slot, part.depth)));
            let named = deepest_first.filter_map(|(slot, blocks)| pair(naming, options.filter, slot, blocks));
            out.extend(named.take(count));
        });
        if several {
            out.sort_by_key(|h| std::cmp::Reverse(h.blocks));
            out.truncate(count);
        }
        outcome
    }

    /// What this reader did so far.
    pub fn counters(&self) -> ReaderCounters {
        self.counters
    }

    /// Walks each shard and hands over what it found and how to name it.
    #[inline]
    fn each_shard(
        &mut self,
        query: &[ContentHash],
        residency: Residency,
        mut take: impl FnMut(&mut Found, Naming<'_>),
    ) -> Outcome {
        let mut outcome = Outcome::Exact;
        if query.is_empty() {
            return outcome;
        }
        for (shard, names) in self.index.shards.iter().zip(&mut self.names) {
            let count = names.begin(&shard.slots);
            let rank_words = shard.slots.rank_words();
            let (found, walked) = match residency {
                Residency::PerTier => {
                    self.each_tier.fit(rank_words);
                    let walked = Walk::new(shard, query, &mut self.each_tier).run();
                    (&mut self.each_tier.found, walked)
                }
                Residency::Cumulative => {
                    self.cumulative.fit(rank_words);
                    let walked = Walk::new(shard, query, &mut self.cumulative).run();
                    self.cumulative.arrange();
                    (&mut self.cumulative.found, walked)
                }
            };
            let naming = names.finish(&shard.slots, count);
            self.counters.lookups += 1;
            self.counters.restarts += u64::from(walked.restarts);
            self.counters.runs += u64::from(walked.runs);
            self.counters.names_asked += u64::from(naming.table.is_none());
            if let Some(table) = naming.table {
                table.hide(found);
            }
            if walked.outcome == Outcome::Busy {
                self.counters.busy += 1;
                outcome = Outcome::Busy;
            }
            take(found, naming);
        }
        outcome
    }

    /// The walk of a query for one rank and tier, run by run, as far as the content is known to anyone in the rank's shard.
    /// For explanations: finds the rank by a walk over all slots. Appends nothing for an unknown rank.
    pub fn walk(&mut self, query: &[ContentHash], rank: RankKey, tier: Tier, out: &mut Vec<WalkStep>) -> Outcome {
        for shard in &self.index.shards {
            if let Some(slot) = shard.slots.find(rank) {
                return explain::walk(shard, query, slot_of(slot, tier), out);
            }
        }
        Outcome::Exact
    }
}

#[inline]
fn pair(naming: Naming<'_>, filter: Option<&RankFilter>, slot: u32, blocks: u32) -> Option<HolderDepth> {
    let RankTier { rank, tier } = naming.holder(slot)?;
    filter.is_none_or(|f| f.contains(rank)).then_some(HolderDepth { rank, tier, blocks })
}
