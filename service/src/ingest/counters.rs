//! Counts by reason. The names are the labels that metrics and status pages show.

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
