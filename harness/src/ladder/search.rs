//! The search for the sustained rate: brackets by doubling or halving, then bisects. Pure: it says which rate to try next
//! and is told how it went.

use serde::{Deserialize, Serialize};

/// Fresh processes that must all sustain a rate.
pub const CONFIRMATIONS: u32 = 3;
/// The bracket is narrow enough when its upper end is at most this much above the lower one.
pub const PRECISION: f64 = 1.10;
/// Rates tried at most: bounds a search whose answers contradict each other.
pub const PROBES_MAX: u32 = 32;
/// Lowest rate tried.
pub const RATE_MIN: u64 = 1_000;
/// Highest rate tried.
pub const RATE_MAX: u64 = 20_000_000_000;

/// How a process did at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// At least 99% of what was offered was done in time, drain included.
    Sustained,
    /// It fell behind.
    Behind,
    /// The generator could not offer this rate, or the tape is too short for it: nothing is known about the indexer.
    NotOffered,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// Bracketed and bisected to the precision.
    Bisected,
    /// No rate that could be offered was too much: the sustained rate is at least `low`.
    GeneratorBound,
    /// Not even the lowest rate is sustained.
    NotAtAll,
    /// Too many probes.
    ProbesSpent,
    /// The time of the run was over.
    OutOfTime,
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The highest rate that three processes sustained; 0 if none.
    pub sustained: u64,
    /// The lowest rate that is known not to be sustained (or not to be offered), if any.
    pub not_sustained: Option<u64>,
    /// Why the search ended.
    pub ended: Ended,
}

/// A running search.
#[derive(Clone, Debug)]
pub struct Search {
    rate: u64,
    confirmed: u32,
    low: u64,
    high: Option<u64>,
    /// Whether the upper end is the generator's limit rather than the indexer's.
    high_not_offered: bool,
    probes: u32,
}

impl Search {
    /// A search that begins at an estimate.
    pub fn from_estimate(rate: u64) -> Self {
        let rate = rate.clamp(RATE_MIN, RATE_MAX);
        Self { rate, confirmed: 0, low: 0, high: None, high_not_offered: false, probes: 0 }
    }

    /// The rate that the next fresh process tries.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Takes the next verdict for [`Search::rate`]. `Some` when the search is over.
    pub fn tell(&mut self, verdict: Verdict) -> Option<Found> {
        if verdict == Verdict::Sustained {
            self.confirmed += 1;
            if self.confirmed < CONFIRMATIONS {
                return None;
            }
            self.low = self.rate;
        } else {
            self.high = Some(self.rate);
            self.high_not_offered = verdict == Verdict::NotOffered;
        }
        self.confirmed = 0;
        self.probes += 1;
        self.next_rate()
    }

    /// What is known when there is no time for more.
    pub fn give_up(&self) -> Found {
        Found { sustained: self.low, not_sustained: self.high, ended: Ended::OutOfTime }
    }

    fn next_rate(&mut self) -> Option<Found> {
        let ended = match self.high {
            _ if self.probes >= PROBES_MAX => Some(Ended::ProbesSpent),
            None if self.low >= RATE_MAX => Some(Ended::GeneratorBound),
            Some(high) if self.low == 0 && high <= RATE_MIN => Some(Ended::NotAtAll),
            Some(high) if self.low > 0 && high as f64 <= self.low as f64 * PRECISION => {
                Some(if self.high_not_offered { Ended::GeneratorBound } else { Ended::Bisected })
            }
            _ => None,
        };
        if let Some(ended) = ended {
            return Some(Found { sustained: self.low, not_sustained: self.high, ended });
        }
        self.rate = match self.high {
            None => (self.low * 2).min(RATE_MAX),
            Some(high) if self.low == 0 => (high / 2).max(RATE_MIN),
            // The geometric middle: the precision is a ratio.
            Some(high) => ((self.low as f64 * high as f64).sqrt() as u64).clamp(self.low + 1, high),
        };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search against an indexer that sustains up to `limit` and a generator that offers up to `offered`.
    fn run(estimate: u64, limit: u64, offered: u64) -> (Found, u32) {
        let mut search = Search::from_estimate(estimate);
        let mut processes = 0;
        loop {
            let rate = search.rate();
            processes += 1;
            let verdict = match () {
                () if rate > offered => Verdict::NotOffered,
                () if rate > limit => Verdict::Behind,
                () => Verdict::Sustained,
            };
            if let Some(found) = search.tell(verdict) {
                return (found, processes);
            }
        }
    }

    #[test]
    fn every_estimate_ends_within_ten_percent_below_the_limit() {
        for estimate in [1, 5_000, 900_000, 1_000_000, 77_000_000, u64::MAX] {
            let (found, _) = run(estimate, 1_000_000, u64::MAX);
            assert_eq!(found.ended, Ended::Bisected);
            assert!(found.sustained <= 1_000_000 && found.sustained as f64 * PRECISION >= 1_000_000.0, "{found:?}");
            assert!(found.not_sustained.unwrap() > 1_000_000);
        }
    }

    #[test]
    fn a_rate_counts_only_after_three_processes() {
        let mut search = Search::from_estimate(10_000);
        assert_eq!(search.tell(Verdict::Sustained), None);
        assert_eq!(search.tell(Verdict::Sustained), None);
        assert_eq!(search.rate(), 10_000);
        assert_eq!(search.tell(Verdict::Behind), None, "one of three fell behind");
        assert_eq!(search.rate(), 5_000);
        for _ in 0..3 {
            assert_eq!(search.rate(), 5_000);
            assert_eq!(search.tell(Verdict::Sustained), None);
        }
        assert_eq!(search.rate(), 7_071);
    }

    #[test]
    fn a_good_estimate_costs_few_processes() {
        let (_, processes) = run(950_000, 1_000_000, u64::MAX);
        assert!(processes <= 12, "{processes}");
    }

    #[test]
    fn what_the_generator_cannot_offer_is_not_held_against_the_indexer() {
        let (found, _) = run(1_000, u64::MAX, 3_000_000);
        assert_eq!(found.ended, Ended::GeneratorBound);
        assert!(found.sustained > 2_700_000);
        let (found, _) = run(1_000, u64::MAX, u64::MAX);
        assert_eq!((found.ended, found.sustained), (Ended::GeneratorBound, RATE_MAX));
    }

    #[test]
    fn an_indexer_that_sustains_nothing_and_one_that_contradicts_itself_end_the_search() {
        let (found, _) = run(1_000_000, 0, u64::MAX);
        assert_eq!((found.ended, found.sustained), (Ended::NotAtAll, 0));
        let mut search = Search::from_estimate(1 << 20);
        search.high = Some(1 << 40);
        search.low = 1;
        search.probes = PROBES_MAX - 1;
        assert_eq!(search.tell(Verdict::Behind).unwrap().ended, Ended::ProbesSpent);
    }
}
