//! Times in steps of about one per cent: small enough to be kept, and every quantile can be computed again.

use crate::sampling::{Estimate, estimate};
use serde::{Deserialize, Serialize};

/// Steps of each doubling; below this every nanosecond is a step of its own.
const STEPS: u64 = 64;

/// How many times fell on each step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct Histogram {
    counts: Vec<u32>,
}

impl Histogram {
    /// Counts a time.
    pub fn record(&mut self, ns: u64) {
        let step = step_of(ns);
        if self.counts.len() <= step {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
    }

    /// Counts everything that another one counted.
    pub fn add(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }

    /// How many times were counted.
    pub fn len(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `share` quantile (0 to 1) by nearest rank, in nanoseconds: the middle of its step. 0 without times.
    pub fn quantile(&self, share: f64) -> f64 {
        let all = self.len();
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut passed = 0;
        for (step, &count) in self.counts.iter().enumerate() {
            passed += u64::from(count);
            if passed >= rank {
                return middle_of(step);
            }
        }
        0.0
    }
}

impl FromIterator<f64> for Histogram {
    fn from_iter<I: IntoIterator<Item = f64>>(times: I) -> Self {
        let mut histogram = Histogram::default();
        times.into_iter().for_each(|ns| histogram.record(ns.max(0.0).round() as u64));
        histogram
    }
}

/// The `share` quantile of everything that some windows counted; the interval resamples windows.
pub fn quantile_over(windows: &[Histogram], share: f64) -> Estimate {
    let sums = Sums::of(windows);
    estimate(windows.len(), |picked| sums.quantile(picked, share))
}

/// That quantile of `over` by that of `under`, whose windows belong together: both are resampled alike.
pub fn ratio_over(over: &[Histogram], under: &[Histogram], share: f64) -> Estimate {
    let (count, over, under) = (over.len().min(under.len()), Sums::of(over), Sums::of(under));
    estimate(count, |picked| over.quantile(picked, share) / under.quantile(picked, share).max(1.0))
}

/// Counts up to each step of some windows, all as long as the longest.
struct Sums {
    windows: Vec<Vec<u64>>,
    steps: Vec<usize>,
}

impl Sums {
    fn of(windows: &[Histogram]) -> Self {
        let longest = windows.iter().map(|window| window.counts.len()).max().unwrap_or(0);
        let sum = |window: &Histogram| {
            let counts = window.counts.iter().copied().chain(std::iter::repeat(0)).take(longest);
            let mut passed = 0;
            counts
                .map(|count| {
                    passed += u64::from(count);
                    passed
                })
                .collect()
        };
        Self { windows: windows.iter().map(sum).collect(), steps: (0..longest).collect() }
    }

    /// By halving: the first step up to which the picked windows count enough.
    fn quantile(&self, picked: &[usize], share: f64) -> f64 {
        let up_to = |step: usize| picked.iter().map(|&window| self.windows[window][step]).sum::<u64>();
        let all = self.steps.last().map_or(0, |&last| up_to(last));
        if all == 0 {
            return 0.0;
        }
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all);
        middle_of(self.steps.partition_point(|&step| up_to(step) < rank))
    }
}

fn step_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let doublings = ns.ilog2() - STEPS.ilog2();
    (u64::from(doublings) * STEPS + (ns >> doublings)) as usize
}

fn middle_of(step: usize) -> f64 {
    let step = step as u64;
    if step < STEPS {
        return step as f64;
    }
    let doublings = step / STEPS - 1;
    let first = (step - doublings * STEPS) << doublings;
    first as f64 + ((1u64 << doublings) - 1) as f64 / 2.0
}

/// Pairs of how many empty steps are passed over and a count.
impl From<Histogram> for Vec<u32> {
    fn from(histogram: Histogram) -> Self {
        let (mut pairs, mut empty) = (Vec::new(), 0);
        for count in histogram.counts {
            if count == 0 {
                empty += 1;
            } else {
                pairs.extend([std::mem::take(&mut empty), count]);
            }
        }
        pairs
    }
}

impl From<Vec<u32>> for Histogram {
    fn from(pairs: Vec<u32>) -> Self {
        let mut counts = Vec::new();
        for pair in pairs.chunks_exact(2) {
            // No time has more steps than 64 doublings have: a file cannot ask for more memory than that.
            let empty = (pair[0] as usize).min(64 * STEPS as usize);
            counts.resize(counts.len() + empty, 0);
            counts.push(pair[1]);
        }
        Self { counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_kept_to_a_hundredth_part() {
        for ns in (0..2000).chain((1..40).map(|i| 1_000_003 * i)).chain([u64::MAX >> 12]) {
            let kept = [ns as f64].into_iter().collect::<Histogram>().quantile(0.5);
            assert!((kept - ns as f64).abs() <= ns as f64 / 127.0, "{ns} {kept}");
        }
    }

    #[test]
    fn quantiles_are_by_nearest_rank_and_sums_are_of_both() {
        let mut low: Histogram = (1..=50).map(f64::from).collect();
        assert_eq!((low.quantile(0.5), low.quantile(1.0), low.len()), (25.0, 50.0, 50));
        low.add(&(51..=60).map(f64::from).collect());
        assert_eq!((low.quantile(0.5), low.quantile(1.0), low.len()), (30.0, 60.0, 60));
        assert_eq!(Histogram::default().quantile(0.5), 0.0);
    }

    #[test]
    fn quantiles_over_windows_are_those_of_all_their_times() {
        let windows: Vec<Histogram> = (0..20u32).map(|w| (1..=50).map(|i| f64::from(i + w)).collect()).collect();
        let mut all = Histogram::default();
        windows.iter().for_each(|window| all.add(window));
        for share in [0.1, 0.5, 0.99, 1.0] {
            let found = quantile_over(&windows, share);
            assert_eq!(found.value, all.quantile(share));
            assert!(found.low <= found.value && found.value <= found.high);
        }
        assert_eq!(ratio_over(&windows, &windows, 0.5), Estimate::exactly(1.0), "resampled alike");
    }

    #[test]
    fn what_is_written_reads_back() {
        let histogram: Histogram = [0.0, 3.0, 3.0, 1e3, 7e6].into_iter().collect();
        let text = serde_json::to_string(&histogram).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
        assert!(text.len() < 40, "{text}");
    }
}
