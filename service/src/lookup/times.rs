//! How long lookups took, counted without a shared hot word.

use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Buckets: bucket `i` counts lookups of less than `2^i` microseconds; the last one all that took longer.
pub const BUCKETS_LEN: usize = 24;
/// Threads beyond this number share stripes.
const STRIPES_LEN: usize = 32;

static THREADS_SEEN: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static STRIPE: Cell<usize> = Cell::new(THREADS_SEEN.fetch_add(1, Ordering::Relaxed) % STRIPES_LEN);
}

#[derive(Debug, Default)]
struct Stripe {
    buckets: [AtomicU64; BUCKETS_LEN],
    nanos: AtomicU64,
}

/// A histogram with one stripe for each thread, summed when somebody reads it.
#[derive(Debug, Default)]
pub struct LookupTimes {
    stripes: [CachePadded<Stripe>; STRIPES_LEN],
}

/// The sum over all threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimesSum {
    /// Lookups in each bucket (not cumulated).
    pub buckets: [u64; BUCKETS_LEN],
    /// Nanoseconds in all.
    pub nanos: u64,
}

impl TimesSum {
    /// Lookups in all.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl LookupTimes {
    /// Counts one lookup. Never blocks; writes to a cache line that few other threads write to.
    pub fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = ((u64::BITS - micros.leading_zeros()) as usize).min(BUCKETS_LEN - 1);
        let stripe = &self.stripes[STRIPE.with(Cell::get)];
        stripe.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        stripe.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The sum now. Lookups that end meanwhile may be in one figure and not yet in another.
    pub fn sum(&self) -> TimesSum {
        let mut sum = TimesSum::default();
        for stripe in &self.stripes {
            for (total, bucket) in sum.buckets.iter_mut().zip(&stripe.buckets) {
                *total += bucket.load(Ordering::Relaxed);
            }
            sum.nanos = sum.nanos.wrapping_add(stripe.nanos.load(Ordering::Relaxed));
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lookup_is_in_the_bucket_below_its_bound() {
        let times = LookupTimes::default();
        for (micros, bucket) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1 << 21, 22), (1 << 22, 23), (u64::MAX, 23)] {
            let before = times.sum().buckets[bucket];
            times.record(Duration::from_micros(micros));
            assert_eq!(times.sum().buckets[bucket], before + 1, "{micros}");
        }
        assert_eq!(times.sum().count(), 8);
    }

    #[test]
    fn threads_are_summed() {
        let times = LookupTimes::default();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| times.record(Duration::from_micros(5)))));
        });
        assert_eq!((times.sum().count(), times.sum().nanos), (4, 20_000));
    }
}
