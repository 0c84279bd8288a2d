//! Counts by reason. The names are the labels that metrics and status pages show.

use crate::ops::Applied;
use std::collections::BTreeMap;

/// Monotonic counts by reason; they stay at the largest number when they reach it. The reasons are fixed strings of this crate, so the set is bounded by the code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters(BTreeMap<&'static str, u64>);

impl Counters {
    /// Adds to a reason's count.
    pub fn add(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            // Some counts are a peer's word (batches lost between two sequences), so they may add up to anything.
            let sum = self.0.entry(reason).or_insert(0);
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds one.
    pub fn bump(&mut self, reason: &'static str) {
        self.add(reason, 1);
    }

    /// Adds what a batch did in the index.
    pub fn add_applied(&mut self, did: &Applied) {
        for (reason, count) in [
            ("blocks_stored", did.stored),
            ("block_copies", did.copies),
            ("blocks_moved", did.moved),
            ("orphans", did.orphans),
            ("orphans_dropped", did.orphans_dropped),
            ("orphans_attached", did.attached),
            ("blocks_removed", did.removed),
            ("block_copies_removed", did.copies_removed),
            ("unknown_removals", did.unknown_removals),
            ("unknown_adoptions", did.unknown_adoptions),
            ("self_parent", did.self_parent),
            ("limit_reached", did.limit_reached),
            ("blocks_cleared", did.cleared),
        ] {
            self.add(reason, count);
        }
    }

    /// The count of a reason; 0 if it never occurred.
    pub fn get(&self, reason: &str) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }

    /// All counts, by reason.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(&reason, &count)| (reason, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_a_peer_made_up_do_not_overflow() {
        let mut counters = Counters::default();
        counters.add("lost_batches", u64::MAX - 1);
        counters.add("lost_batches", u64::MAX - 1);
        assert_eq!(counters.get("lost_batches"), u64::MAX);
    }
}
