//! A series: so many usable trials of each arm, in turn, disturbed ones replaced and counted. Pure.

use serde::{Deserialize, Serialize};

/// What became of an arm's trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Trials that count.
    pub usable: usize,
    /// Disturbed trials that were replaced.
    pub replaced: usize,
    /// Disturbed trials that count all the same, since no replacements were left: such a series is marked.
    pub kept_disturbed: usize,
}

/// A running series.
#[derive(Clone, Debug)]
pub struct Series {
    arms: Vec<Tally>,
    wanted: usize,
    replacements_max: usize,
}

impl Series {
    /// A series of `arms` arms with `wanted` trials each, of which each may replace `replacements_max`.
    pub fn new(arms: usize, wanted: usize, replacements_max: usize) -> Self {
        Self { arms: vec![Tally::default(); arms], wanted, replacements_max }
    }

    /// The arm whose turn it is: one with the fewest trials, and another one first in each round. `None` when all are done.
    pub fn next(&self) -> Option<usize> {
        let fewest = self.arms.iter().map(|a| a.usable).min().filter(|&n| n < self.wanted)?;
        let arms = self.arms.len();
        (0..arms).map(|i| (i + fewest) % arms).find(|&arm| self.arms[arm].usable == fewest)
    }

    /// Takes the arm's next trial. `false` when it is to be repeated.
    pub fn tell(&mut self, arm: usize, disturbed: bool) -> bool {
        let tally = &mut self.arms[arm];
        if disturbed && tally.replaced < self.replacements_max {
            tally.replaced += 1;
            return false;
        }
        tally.usable += 1;
        tally.kept_disturbed += usize::from(disturbed);
        true
    }

    /// What became of each arm's trials.
    pub fn tallies(&self) -> &[Tally] {
        &self.arms
    }

    /// Trials that are still to be made, at least.
    pub fn left(&self) -> usize {
        self.arms.iter().map(|a| self.wanted.saturating_sub(a.usable)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_take_turns_and_another_one_begins_each_round() {
        let mut series = Series::new(3, 3, 0);
        let mut order = Vec::new();
        while let Some(arm) = series.next() {
            order.push(arm);
            assert!(series.tell(arm, false));
        }
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert_eq!(series.left(), 0);
    }

    #[test]
    fn disturbed_trials_are_replaced_and_counted_until_none_may_be() {
        let mut series = Series::new(2, 2, 1);
        assert!(!series.tell(0, true), "replaced");
        assert_eq!(series.next(), Some(0));
        assert!(series.tell(0, true), "kept, but marked");
        assert_eq!(series.next(), Some(1));
        assert!(series.tell(1, false));
        assert_eq!(series.tallies()[0], Tally { usable: 1, replaced: 1, kept_disturbed: 1 });
        assert_eq!(series.left(), 2);
    }
}
