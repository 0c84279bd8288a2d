//! What a desk counts. Labels are names from the code and never a caller's, so their number is bounded.

use super::words::{Refusal, ReleasedBy};
use crate::routing::{Branch, PolicyName};
use std::collections::BTreeMap;

/// Bounds of the differences between predicted and actual cached tokens, in blocks; the last bucket has no bound.
pub const DIFFERENCE_BOUNDS: [u64; 11] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Predicted against actual cached tokens of the requests whose end told them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CachedTokens {
    /// Tokens predicted.
    pub predicted: u64,
    /// Tokens found cached.
    pub actual: u64,
    /// Tokens predicted and not found.
    pub missing: u64,
    /// Tokens found and not predicted.
    pub beyond: u64,
    /// Requests by the difference in blocks, rounded up: one bucket for each bound, and one for all above.
    pub differences: [u64; DIFFERENCE_BOUNDS.len() + 1],
    /// Sum of these differences, blocks.
    pub difference_sum: u64,
}

impl CachedTokens {
    fn compare(&mut self, predicted: u64, actual: u64, block_size: u32) {
        self.predicted = self.predicted.saturating_add(predicted);
        self.actual = self.actual.saturating_add(actual);
        self.missing = self.missing.saturating_add(predicted.saturating_sub(actual));
        self.beyond = self.beyond.saturating_add(actual.saturating_sub(predicted));
        let blocks = predicted.abs_diff(actual).div_ceil(u64::from(block_size.max(1)));
        self.differences[DIFFERENCE_BOUNDS.partition_point(|bound| *bound < blocks)] += 1;
        self.difference_sum = self.difference_sum.saturating_add(blocks);
    }

    fn add(&mut self, other: &Self) {
        self.predicted = self.predicted.saturating_add(other.predicted);
        self.actual = self.actual.saturating_add(other.actual);
        self.missing = self.missing.saturating_add(other.missing);
        self.beyond = self.beyond.saturating_add(other.beyond);
        self.differences.iter_mut().zip(other.differences).for_each(|(is, more)| *is += more);
        self.difference_sum = self.difference_sum.saturating_add(other.difference_sum);
    }

    /// Requests compared.
    pub fn requests(&self) -> u64 {
        self.differences.iter().sum()
    }
}

/// The counts of one desk, or of several added up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeskCounters {
    /// Decisions by policy, branch and detail (empty: none).
    pub decisions: BTreeMap<(PolicyName, Branch, &'static str), u64>,
    /// Refusals, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Decisions for which every ready worker was vetoed.
    pub all_vetoed: u64,
    /// Decisions for which every worker was overloaded.
    pub all_overloaded: u64,
    /// Bookings made.
    pub booked: u64,
    /// Decisions without the booking that was asked for, since the book was full.
    pub book_full: u64,
    /// Bookings released, in the order of [`ReleasedBy::ALL`].
    pub released: [u64; ReleasedBy::ALL.len()],
    /// Calls about bookings that were not open (any more).
    pub unknown_bookings: u64,
    /// Predicted against actual cached tokens.
    pub cached: CachedTokens,
}

impl DeskCounters {
    pub(super) fn released_by(&mut self, by: ReleasedBy) {
        self.released[by as usize] += 1;
    }

    pub(super) fn refused_for(&mut self, refusal: Refusal) {
        self.refused[refusal as usize] += 1;
    }

    pub(super) fn compare(&mut self, predicted: u64, actual: u64, block_size: u32) {
        self.cached.compare(predicted, actual, block_size);
    }

    /// Adds another desk's.
    pub fn add(&mut self, other: &Self) {
        for (labels, count) in &other.decisions {
            *self.decisions.entry(*labels).or_default() += count;
        }
        self.refused.iter_mut().zip(other.refused).for_each(|(is, more)| *is += more);
        self.released.iter_mut().zip(other.released).for_each(|(is, more)| *is += more);
        self.all_vetoed += other.all_vetoed;
        self.all_overloaded += other.all_overloaded;
        self.booked += other.booked;
        self.book_full += other.book_full;
        self.unknown_bookings += other.unknown_bookings;
        self.cached.add(&other.cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_counted_in_whole_blocks_and_both_directions_by_themselves() {
        let mut counters = DeskCounters::default();
        for (predicted, actual, bucket) in [(64, 64, 0), (64, 60, 1), (0, 17, 2), (16 * 513, 0, 11), (u64::MAX, 0, 11)]
        {
            let before = counters.cached.differences[bucket];
            counters.compare(predicted, actual, 16);
            assert_eq!(counters.cached.differences[bucket], before + 1, "{predicted} {actual}");
        }
        let CachedTokens { predicted, actual, missing, beyond, .. } = counters.cached;
        assert_eq!((predicted, actual, missing, beyond), (u64::MAX, 141, u64::MAX, 17));
        let mut sum = DeskCounters::default();
        sum.released_by(ReleasedBy::Ttl);
        sum.add(&counters);
        sum.add(&counters);
        assert_eq!((sum.cached.requests(), sum.released), (10, [0, 0, 1, 0]));
    }
}
