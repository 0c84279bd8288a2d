//! Medians with the interval that the samples support, and what a clock reading costs. The ladder uses the same.

use kvatlas_corpora::Random;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 1000;
/// Seed of the resampling: the same samples give the same interval.
const SEED: u64 = 95;

/// A figure with its bootstrap 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The figure over all samples.
    pub value: f64,
    /// 2.5 % of the resamples lie below.
    pub low: f64,
    /// 2.5 % of the resamples lie above.
    pub high: f64,
}

impl Estimate {
    /// A figure that is known exactly, or only once.
    pub fn exactly(value: f64) -> Self {
        Self { value, low: value, high: value }
    }

    /// How often `under` goes into this one, the interval as wide as both allow.
    pub fn over(self, under: Estimate) -> Self {
        let per = |over: f64, under: f64| over / under.max(1e-9);
        Self { value: per(self.value, under.value), low: per(self.low, under.high), high: per(self.high, under.low) }
    }
}

/// The `share` quantile (0 to 1) by nearest rank. `samples` is put in order. 0 without samples.
pub fn quantile(samples: &mut [f64], share: f64) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let rank = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len()) - 1;
    *samples.select_nth_unstable_by(rank, f64::total_cmp).1
}

/// The middle sample, or the mean of the middle two. 0 without samples.
pub fn middle(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// The median of the samples.
pub fn median(samples: &[f64]) -> Estimate {
    estimate(samples.len(), |picked| middle(&picked.iter().map(|&i| samples[i]).collect::<Vec<_>>()))
}

/// Any figure of `count` samples: computed over all, and over resamples with replacement that are the same in every run.
pub fn estimate(count: usize, figure: impl Fn(&[usize]) -> f64) -> Estimate {
    let value = figure(&(0..count).collect::<Vec<_>>());
    if count < 2 {
        return Estimate::exactly(value);
    }
    bootstrap(value, |random| figure(&draw(count, random)))
}

/// The median of `over` by that of `under`, each resampled by itself.
pub fn ratio_of_medians(over: &[f64], under: &[f64]) -> Estimate {
    let pick = |of: &[f64], random: &mut Random| {
        middle(&draw(of.len(), random).into_iter().map(|i| of[i]).collect::<Vec<_>>())
    };
    let value = middle(over) / middle(under);
    bootstrap(value, |random| pick(over, random) / pick(under, random))
}

/// Places of as many samples as there are, with replacement.
fn draw(count: usize, random: &mut Random) -> Vec<usize> {
    (0..count).map(|_| random.below(count as u64) as usize).collect()
}

/// A figure with the percentile interval of its resamples; those that come to nothing are left out.
fn bootstrap(value: f64, mut resample: impl FnMut(&mut Random) -> f64) -> Estimate {
    let mut random = Random::new(SEED);
    let mut figures: Vec<f64> = (0..RESAMPLES).map(|_| resample(&mut random)).filter(|f| f.is_finite()).collect();
    Estimate { value, low: quantile(&mut figures, 0.025), high: quantile(&mut figures, 0.975) }
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
    fn medians_of_odd_and_even_numbers_of_samples() {
        assert_eq!(middle(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(middle(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(middle(&[]), 0.0);
    }

    #[test]
    fn intervals_hold_the_median() {
        let samples: Vec<f64> = (0..101).map(f64::from).collect();
        let Estimate { value, low, high } = median(&samples);
        assert!(value == 50.0 && low < 50.0 && high > 50.0 && high - low < 50.0, "{low} {high}");
        assert_eq!(median(&[5.0; 20]), Estimate::exactly(5.0), "equal samples have no width");
        assert_eq!(median(&[7.0]), Estimate::exactly(7.0));
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_its_order_statistics() {
        // For 1..=20 the 95% interval of the median by order statistics is [6, 15]; the percentile bootstrap of a median
        // of an even number of samples lies inside it, within one or two steps.
        let samples: Vec<f64> = (1..=20).map(f64::from).collect();
        let found = median(&samples);
        assert_eq!(found.value, 10.5);
        assert!((6.0..=8.0).contains(&found.low), "{found:?}");
        assert!((13.0..=15.0).contains(&found.high), "{found:?}");
    }

    #[test]
    fn ratios_are_of_medians() {
        let found = ratio_of_medians(&[10.0, 20.0, 30.0], &[4.0, 5.0, 6.0]);
        assert_eq!(found.value, 4.0);
        assert!(found.low >= 10.0 / 6.0 && found.high <= 30.0 / 4.0 && found.low < found.high);
    }
}
