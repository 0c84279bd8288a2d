//! Medians of trials with their bootstrap intervals, as the benchmarks compute them.

use kvatlas_benches::sampling::{self, Estimate};
use serde::{Deserialize, Serialize};

pub use kvatlas_benches::sampling::middle;

/// A median with the interval that holds it with 95% confidence (percentile bootstrap, seeded).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The median of the samples.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Number of samples.
    pub samples: usize,
}

impl Interval {
    /// One value that was not sampled.
    pub fn exactly(value: f64) -> Self {
        Self { median: value, low: value, high: value, samples: 1 }
    }

    fn new(found: Estimate, samples: usize) -> Self {
        Self { median: found.value, low: found.low, high: found.high, samples }
    }
}

/// Median and interval of a series. `None` without samples.
pub fn interval(samples: &[f64]) -> Option<Interval> {
    (!samples.is_empty()).then(|| Interval::new(sampling::median(samples), samples.len()))
}

/// The ratio of two medians, `over` / `under`, resampled independently. `None` without samples or if a median is 0.
pub fn ratio(over: &[f64], under: &[f64]) -> Option<Interval> {
    let known = !over.is_empty() && !under.is_empty() && middle(under) != 0.0;
    known.then(|| Interval::new(sampling::ratio_of_medians(over, under), over.len().min(under.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_samples_there_is_no_interval() {
        assert_eq!(interval(&[]), None);
        assert_eq!(ratio(&[], &[1.0]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
        assert_eq!(interval(&[7.0]), Some(Interval::exactly(7.0)));
    }
}
