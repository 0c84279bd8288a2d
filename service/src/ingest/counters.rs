//! Counts by reason. The names are the labels that metrics and status pages show.

use std::collections::BTreeMap;

/// Monotonic counts by reason. The reasons are fixed strings of this crate, so the set is bounded by the code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters(BTreeMap<&'static str, u64>);

impl Counters {
    /// Adds to a reason's count.
    pub fn add(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry(reason).or_insert(0) += count;
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
