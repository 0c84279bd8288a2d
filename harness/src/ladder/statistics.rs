//! Medians and their bootstrap intervals. Pure and seeded: the same samples give the same interval.

use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 4000;
/// Seed of the resampling.
const SEED: u64 = 0x4b56_4154_4c41_5301;

/// A median with the interval that holds it with 95% confidence (percentile bootstrap).
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

/// The median; of an even number of samples the mean of the middle two. `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Median and interval of a series. `None` without samples.
pub fn interval(samples: &[f64]) -> Option<Interval> {
    let mut random = SplitMix(SEED);
    let resample = |random: &mut SplitMix| {
        let drawn: Vec<f64> = samples.iter().map(|_| samples[random.below(samples.len())]).collect();
        median(&drawn)
    };
    of_resamples(median(samples)?, samples.len(), (0..RESAMPLES).filter_map(|_| resample(&mut random)).collect())
}

/// The ratio of two medians, `over` / `under`, resampled independently. `None` without samples or if a median is 0.
pub fn ratio(over: &[f64], under: &[f64]) -> Option<Interval> {
    let mut random = SplitMix(SEED);
    let draw = |random: &mut SplitMix, of: &[f64]| {
        let drawn: Vec<f64> = of.iter().map(|_| of[random.below(of.len())]).collect();
        median(&drawn)
    };
    let quotient = |a: f64, b: f64| (b != 0.0).then(|| a / b);
    let middle = quotient(median(over)?, median(under)?)?;
    let resample = |random: &mut SplitMix| quotient(draw(random, over)?, draw(random, under)?);
    let resamples = (0..RESAMPLES).filter_map(|_| resample(&mut random)).collect();
    of_resamples(middle, over.len().min(under.len()), resamples)
}

fn of_resamples(median: f64, samples: usize, mut resamples: Vec<f64>) -> Option<Interval> {
    resamples.sort_by(f64::total_cmp);
    let at = |share: f64| resamples.get(((resamples.len() as f64 - 1.0) * share).round() as usize).copied();
    Some(Interval { median, low: at(0.025)?, high: at(0.975)?, samples })
}

/// SplitMix64, by its published constants: enough for drawing samples.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_generator_is_the_published_one() {
        // The first outputs for seed 1234567 of the reference implementation.
        let mut random = SplitMix(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn equal_samples_have_no_width_and_one_sample_is_its_own_interval() {
        assert_eq!(interval(&[5.0; 20]), Some(Interval { median: 5.0, low: 5.0, high: 5.0, samples: 20 }));
        assert_eq!(interval(&[7.0]), Some(Interval { median: 7.0, low: 7.0, high: 7.0, samples: 1 }));
        assert_eq!(interval(&[]), None);
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_its_order_statistics() {
        // For 1..=20 the 95% interval of the median by order statistics is [6, 15]; the percentile bootstrap of a median
        // of an even number of samples lies inside it, within one or two steps.
        let samples: Vec<f64> = (1..=20).map(f64::from).collect();
        let i = interval(&samples).unwrap();
        assert_eq!(i.median, 10.5);
        assert!((6.0..=8.0).contains(&i.low), "{i:?}");
        assert!((13.0..=15.0).contains(&i.high), "{i:?}");
    }

    #[test]
    fn ratios_are_of_medians() {
        let r = ratio(&[10.0, 20.0, 30.0], &[4.0, 5.0, 6.0]).unwrap();
        assert_eq!(r.median, 4.0);
        assert!(r.low >= 10.0 / 6.0 && r.high <= 30.0 / 4.0 && r.low < r.high);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
        assert_eq!(ratio(&[], &[1.0]), None);
    }
}
