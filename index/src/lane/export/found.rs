//! What of the shard is the rank's: its part of each run, and where its private names are.
//!
//! Runs have no list by holder, so every header is looked at, in the order of memory. Splits and merges by others meanwhile may
//! move a second half to a header that was passed already, or show the same blocks twice; so what was found is made disjoint and
//! counted, and as long as blocks are missing it goes on, round and round, with what was found before.

use crate::lane::Rank;
use crate::lane::alias::PLACES;
use crate::lane::export::{ExportError, Source};
use crate::layout::slot_of;
use crate::types::Tier;

/// Flag of a part that is held under private names.
const PRIVATE: u16 = 1 << 15;

/// How many blocks of a run a tier holds from its base on, and under which kind of names.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Part(u16);

impl Part {
    pub fn new(cut: u32, private: bool) -> Self {
        Self(cut as u16 | if private && cut > 0 { PRIVATE } else { 0 })
    }
    pub fn cut(self) -> u32 {
        u32::from(self.0 & !PRIVATE)
    }
    pub fn private(self) -> bool {
        self.0 & PRIVATE != 0
    }

    /// The longer one.
    fn or(self, other: Part) -> Part {
        if other.cut() > self.cut() { other } else { self }
    }

    /// What is before an offset, and what is from there on.
    fn split(self, at: u32) -> (Part, Part) {
        let part = |cut| Part::new(cut, self.private());
        (part(self.cut().min(at)), part(self.cut().saturating_sub(at)))
    }
}

/// A stretch of positions, of which each tier holds a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub base: u32,
    /// Position of the block before the first one.
    pub above: u32,
    pub parts: [Part; Tier::COUNT],
}

impl Found {
    /// Blocks from the base on that any tier holds.
    pub fn held(&self) -> u32 {
        self.parts.iter().map(|part| part.cut()).max().unwrap_or(0)
    }
}

/// Rounds over all runs after which a search is given up. Each round finds all but what is being split just then.
const ROUNDS_MAX: u32 = 64;

/// The search for the rank's part of each run.
pub(super) struct Finding {
    found: Vec<Found>,
    rounds: u32,
    /// The run looked at next.
    run: u32,
    /// Blocks that the rank holds and that were not seen.
    missing: u64,
}

impl Finding {
    pub fn new(of: &Rank) -> Self {
        Self { found: Vec::new(), rounds: 0, run: 1, missing: of.holders.iter().map(|h| h.held).sum() }
    }

    /// Looks at runs until all is found: then what, sorted and disjoint. An error after too many rounds.
    pub fn look(&mut self, from: Source<'_>, left: &mut i64) -> Result<Option<Vec<Found>>, ExportError> {
        let end = from.shard().alloc.lock().runs_end();
        while self.missing > 0 {
            if *left <= 0 {
                return Ok(None);
            }
            *left -= 1;
            if self.run >= end {
                self.rounds += 1;
                if self.rounds >= ROUNDS_MAX {
                    return Err(ExportError::Unsettled { missing: self.missing });
                }
                self.count(from.rank);
                self.run = 1;
                continue;
            }
            self.look_at(from, self.run);
            self.run += 1;
            if self.missing == 0 {
                self.count(from.rank);
            }
        }
        Ok(Some(std::mem::take(&mut self.found)))
    }

    /// The rank's part of a run, judged by the version.
    fn look_at(&mut self, from: Source<'_>, run: u32) {
        let shard = from.shard();
        let header = shard.header(run);
        if header.version().is_dead() {
            return;
        }
        while let Ok(sight) = shard.sight(run, u32::MAX) {
            let f = &sight.fields;
            let parts = Tier::ALL.map(|tier| match from.rank.holders[tier.index()].held {
                0 => Part::default(),
                _ => {
                    let (cut, private) = shard.cut(header, f, slot_of(from.rank.slot, tier));
                    Part::new(cut, private)
                }
            });
            if header.version().confirm(sight.seen) {
                let found = Found { base: f.base, above: f.parent, parts };
                let blocks: u32 = parts.iter().map(|part| part.cut()).sum();
                if blocks > 0 {
                    self.missing = self.missing.saturating_sub(blocks.into());
                    self.found.push(found);
                }
                return;
            }
        }
    }

    /// Makes what was found disjoint, and counts what is missing.
    fn count(&mut self, of: &Rank) {
        disjoint(&mut self.found);
        let held: u64 = of.holders.iter().map(|h| h.held).sum();
        let found: u64 = self.found.iter().flat_map(|f| f.parts).map(|part| u64::from(part.cut())).sum();
        debug_assert!(found <= held, "{found} blocks found of {held}");
        self.missing = held.saturating_sub(found);
    }
}

/// Sorts by position. Of stretches that overlap, because a run was seen before and after a split or twice, one remains.
fn disjoint(found: &mut Vec<Found>) {
    found.sort_unstable_by_key(|f| f.base);
    let mut kept = 0;
    for i in 0..found.len() {
        let mut next = found[i];
        if kept > 0 {
            let last = &mut found[kept - 1];
            if last.base == next.base {
                last.parts = std::array::from_fn(|t| last.parts[t].or(next.parts[t]));
                continue;
            }
            let at = next.base - last.base;
            if at < last.held() {
                for t in 0..Tier::COUNT {
                    let (before, behind) = last.parts[t].split(at);
                    last.parts[t] = before;
                    next.parts[t] = next.parts[t].or(behind);
                }
            }
        }
        found[kept] = next;
        kept += 1;
    }
    found.truncate(kept);
}

/// Where private names of a holder are: for each granule that has any, the position of its first place.
pub(super) type Granules = Vec<(u32, u32)>;

/// Looks for the granules of private names that are the rank's; the one to go on with, or `None` when all are found.
pub(super) fn private_names(
    from: Source<'_>,
    granule: u32,
    into: &mut [Granules; Tier::COUNT],
    left: &mut i64,
) -> Option<u32> {
    if from.rank.holders.iter().all(|h| h.private_len == 0) {
        return None;
    }
    let aliases = from.lane.lane_names().aliases();
    for granule in granule..aliases.end() {
        if *left <= 0 {
            return Some(granule);
        }
        *left -= 1;
        let Some(holder) = aliases.holder_of(granule) else { continue };
        for tier in Tier::ALL {
            if holder == from.slot(tier) {
                into[tier.index()].push((aliases.position(granule * PLACES), granule));
            }
        }
    }
    into.iter_mut().for_each(|granules| granules.sort_unstable());
    None
}

#[cfg(test)]
mod tests {
    use super::{Found, Part, disjoint};

    fn found(base: u32, cuts: [(u32, bool); 2]) -> Found {
        let [a, b] = cuts.map(|(cut, private)| Part::new(cut, private));
        Found { base, above: base - 1, parts: [a, b, Part::default(), Part::default()] }
    }

    /// A run seen whole, its second half seen again after a split, and a third part seen once more.
    #[test]
    fn what_was_seen_twice_counts_once() {
        let mut all = vec![
            found(20, [(10, true), (1, false)]),
            found(8, [(30, true), (13, false)]),
            found(100, [(3, false), (0, false)]),
            found(30, [(8, true), (0, false)]),
            found(100, [(5, false), (2, false)]),
            found(38, [(4, true), (0, false)]),
        ];
        disjoint(&mut all);
        let wanted = [
            found(8, [(12, true), (12, false)]),
            found(20, [(10, true), (1, false)]),
            found(30, [(8, true), (0, false)]),
            found(38, [(4, true), (0, false)]),
            found(100, [(5, false), (2, false)]),
        ];
        assert_eq!(all, wanted);
    }
}
