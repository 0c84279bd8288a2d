//! From the times a lane wrote down to quantiles. Lanes write two times an operation and nothing else; histograms are made
//! after the window.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest time a histogram keeps apart, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Significant digits of a histogram.
const DIGITS: u8 = 3;

/// One operation that was served, in the trial's clock.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Its place in the trial's stretch of the tape.
    pub operation: u32,
    /// When the lane took it.
    pub start_ns: u64,
    /// When it was done.
    pub end_ns: u64,
}

/// Quantiles of one kind of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Number of operations.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99 of 100 take at most this.
    pub p99: u64,
    /// 999 of 1,000 take at most this.
    pub p999: u64,
    /// Longest.
    pub max: u64,
}

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct Nanoseconds(Histogram<u64>);

impl Nanoseconds {
    /// Without any time in it.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("constant bounds are valid"))
    }

    /// Adds a time; longer than a minute counts as a minute.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds another thread's times.
    pub fn add(&mut self, other: &Nanoseconds) {
        self.0.add(&other.0).expect("equal bounds");
    }

    /// Its quantiles.
    pub fn quantiles(&self) -> Quantiles {
        let h = &self.0;
        let at = |q| h.value_at_quantile(q);
        Quantiles { count: h.len(), mean: h.mean(), p50: at(0.5), p99: at(0.99), p999: at(0.999), max: h.max() }
    }
}

impl Default for Nanoseconds {
    fn default() -> Self {
        Self::new()
    }
}

/// The three times of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// From taken to done.
    pub service: Quantiles,
    /// From scheduled to taken.
    pub queue_wait: Quantiles,
    /// From scheduled to done.
    pub scheduled_to_done: Quantiles,
}

/// Histograms of the three times, of one thread or of several.
#[derive(Clone, Debug, Default)]
pub struct Times {
    service: Nanoseconds,
    queue_wait: Nanoseconds,
    scheduled_to_done: Nanoseconds,
    /// Sum of all service times, in nanoseconds.
    pub busy_ns: u64,
}

impl Times {
    /// Adds an operation that was due at `due_ns`.
    pub fn record(&mut self, served: &Served, due_ns: u64) {
        let service = served.end_ns.saturating_sub(served.start_ns);
        self.service.record(service);
        self.queue_wait.record(served.start_ns.saturating_sub(due_ns));
        self.scheduled_to_done.record(served.end_ns.saturating_sub(due_ns));
        self.busy_ns += service;
    }

    /// Operations.
    pub fn count(&self) -> u64 {
        self.service.quantiles().count
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Times) {
        self.service.add(&other.service);
        self.queue_wait.add(&other.queue_wait);
        self.scheduled_to_done.add(&other.scheduled_to_done);
        self.busy_ns += other.busy_ns;
    }

    /// Quantiles of all three.
    pub fn latencies(&self) -> Latencies {
        Latencies {
            service: self.service.quantiles(),
            queue_wait: self.queue_wait.quantiles(),
            scheduled_to_done: self.scheduled_to_done.quantiles(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_times_over_two_threads() {
        let (mut one, mut two) = (Nanoseconds::new(), Nanoseconds::new());
        (1..=500).for_each(|ns| one.record(ns));
        (501..=1000).for_each(|ns| two.record(ns));
        one.add(&two);
        let q = one.quantiles();
        assert_eq!((q.count, q.p50, q.p99, q.p999, q.max), (1000, 500, 990, 999, 1000));
    }

    #[test]
    fn a_late_operation_is_charged_from_its_schedule() {
        let mut times = Times::default();
        times.record(&Served { operation: 0, start_ns: 900, end_ns: 1000 }, 100);
        times.record(&Served { operation: 1, start_ns: 50, end_ns: 60 }, 50);
        let l = times.latencies();
        assert_eq!((l.service.max, l.queue_wait.max, l.scheduled_to_done.max), (100, 800, 900));
        assert_eq!(times.busy_ns, 110);
    }
}
