//! Medians with the interval that the samples support, and what a clock reading costs.

use kvatlas_corpora::Random;
use serde::Serialize;
use std::time::Instant;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 400;

/// A figure with its bootstrap 95 % interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Estimate {
    /// The figure over all samples.
    pub value: f64,
    /// 2.5 % of the resamples lie below.
    pub low: f64,
    /// 2.5 % of the resamples lie above.
    pub high: f64,
}

/// The `share` quantile (0 to 1) by nearest rank. `samples` is put in order. 0 without samples.
pub fn quantile(samples: &mut [f64], share: f64) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let rank = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len()) - 1;
    *samples.select_nth_unstable_by(rank, f64::total_cmp).1
}

/// The median of the samples.
pub fn median(samples: &[f64]) -> Estimate {
    estimate(samples.len(), |picked| quantile(&mut picked.iter().map(|&i| samples[i]).collect::<Vec<_>>(), 0.5))
}

/// Any figure of `count` samples: computed over all, and over resamples with replacement that are the same in every run.
pub fn estimate(count: usize, figure: impl Fn(&[usize]) -> f64) -> Estimate {
    let all: Vec<usize> = (0..count).collect();
    let value = figure(&all);
    if count < 2 {
        return Estimate { value, low: value, high: value };
    }
    let mut random = Random::new(95);
    let mut figures: Vec<f64> = (0..RESAMPLES)
        .map(|_| figure(&(0..count).map(|_| random.below(count as u64) as usize).collect::<Vec<_>>()))
        .collect();
    let (low, high) = (quantile(&mut figures, 0.025), quantile(&mut figures, 0.975));
    Estimate { value, low, high }
}

/// Nanoseconds that one clock reading costs here: the median of many pairs.
pub fn clock_ns() -> f64 {
    let mut pairs: Vec<f64> = (0..10_000)
        .map(|_| {
            let begin = Instant::now();
            begin.elapsed().as_nanos() as f64
        })
        .collect();
    quantile(&mut pairs, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let mut samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut samples, 0.5), 50.0);
        assert_eq!(quantile(&mut samples, 0.99), 99.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn intervals_hold_the_median() {
        let samples: Vec<f64> = (0..101).map(f64::from).collect();
        let Estimate { value, low, high } = median(&samples);
        assert!(value == 50.0 && low < 50.0 && high > 50.0 && high - low < 50.0, "{low} {high}");
    }
}
