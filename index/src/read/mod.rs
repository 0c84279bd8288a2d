//! Readers: lookups that take no lock, allocate nothing, and write to no shared memory.

mod cumulative;
mod each_tier;
mod explain;
pub(crate) mod found;
mod levels;
mod names;
mod slot_set;
pub(crate) mod walk;

use crate::index::Index;
use crate::layout::slot_of;
use crate::read::cumulative::Cumulative;
use crate::read::each_tier::EachTier;
use crate::read::found::Found;
use crate::read::names::{Names, Naming};
use crate::read::walk::walk;
use crate::types::{ContentHash, HolderDepth, LookupOptions, Outcome, RankFilter, RankKey, Residency, Tier, WalkStep};
use std::sync::Arc;

pub use crate::read::levels::{Holders, Levels, RankTier};

/// Answers lookups. One for each thread that looks up; it owns the scratch memory of a walk.
pub struct Reader {
    index: Arc<Index>,
    each_tier: EachTier,
    counters: ReaderCounters,
    /// One for each shard.
    names: Vec<Names>,
    cumulative: Cumulative,
    /// What was found, where the answer does not keep it as it is.
    found: Found,
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
        Self {
            index,
            each_tier: EachTier::new(),
            counters: ReaderCounters::default(),
            names,
            cumulative: Cumulative::default(),
            found: Found::default(),
        }
    }

    /// Finds every holder with at least one leading block of `query`, by depth. Replaces what the buffer had. Takes no lock,
    /// writes to no shared memory, and allocates only when `out` (or the reader's own scratch) has to grow.
    ///
    /// The answer is exact for every rank without an event in flight during the call; for the others each run's part was
    /// true at some moment of it. Holders are named when `out` is read, except under a filter.
    pub fn lookup_levels(&mut self, query: &[ContentHash], options: &LookupOptions<'_>, out: &mut Levels) -> Outcome {
        out.clear();
        if self.names.len() != 1 || options.filter.is_some() {
            return self.lookup_named(query, options, out);
        }
        // What is found stays where the walk put it.
        let (outcome, naming) = self.ask(0, query, options.residency, out.found());
        match naming.table {
            Some(table) => out.share(0, table),
            None => out.name(naming),
        }
        outcome
    }

    /// The same of several shards, or for a filter.
    #[inline(never)]
    fn lookup_named(&mut self, query: &[ContentHash], options: &LookupOptions<'_>, out: &mut Levels) -> Outcome {
        let mut shard = 0;
        let outcome = self.each_shard(query, options.residency, |found, naming| {
            match (naming.table, options.filter) {
                (Some(table), None) => out.append(shard, found, table),
                (None, None) => out.add_named(found, naming, |_| true),
                (_, Some(filter)) => out.add_named(found, naming, |rank| filter.contains(rank)),
            }
            shard += 1;
        });
        if shard > 1 {
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
    fn each_shard(
        &mut self,
        query: &[ContentHash],
        residency: Residency,
        mut take: impl FnMut(&Found, Naming<'_>),
    ) -> Outcome {
        let mut outcome = Outcome::Exact;
        let mut found = std::mem::take(&mut self.found);
        for shard in 0..self.names.len() {
            let (of_shard, naming) = self.ask(shard, query, residency, &mut found);
            if of_shard == Outcome::Busy {
                outcome = Outcome::Busy;
            }
            take(&found, naming);
        }
        self.found = found;
        outcome
    }

    /// Walks one shard: what is found there, and how to name it.
    #[inline]
    fn ask(
        &mut self,
        shard: usize,
        query: &[ContentHash],
        residency: Residency,
        found: &mut Found,
    ) -> (Outcome, Naming<'_>) {
        let (of, names) = (&self.index.shards[shard], &mut self.names[shard]);
        let count = names.begin(&of.slots);
        if query.is_empty() {
            found.clear();
            return (Outcome::Exact, names.finish(&of.slots, count));
        }
        let walked = match residency {
            Residency::PerTier => walk(of, query, &mut self.each_tier, found),
            Residency::Cumulative => {
                self.cumulative.fit(of.slots.rank_words());
                let walked = walk(of, query, &mut self.cumulative, found);
                self.cumulative.arrange(found);
                walked
            }
        };
        let naming = names.finish(&of.slots, count);
        self.counters.lookups += 1;
        self.counters.restarts += u64::from(walked.restarts);
        self.counters.runs += u64::from(walked.runs);
        match naming.table {
            Some(table) => table.hide(found),
            None => self.counters.names_asked += 1,
        }
        self.counters.busy += u64::from(walked.outcome == Outcome::Busy);
        (walked.outcome, naming)
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
