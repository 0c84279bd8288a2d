//! Medians and their bootstrap intervals.

/// The middle sample.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// 95% interval of the median: 2,000 resamples with a fixed seed.
pub fn interval(samples: &[f64]) -> (f64, f64) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        samples[(state % samples.len() as u64) as usize]
    };
    let mut medians: Vec<f64> =
        (0..2_000).map(|_| median(&(0..samples.len()).map(|_| draw()).collect::<Vec<_>>())).collect();
    medians.sort_by(f64::total_cmp);
    (medians[50], medians[1_949])
}
