//! What is kept of a churn cell, and the figures that follow from it.

use crate::histogram::{Histogram, quantile_over, ratio_over};
use crate::sampling::{Estimate, estimate, median};
use kvatlas_corpora::Parameters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sums of a class in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 3]", into = "[u64; 3]")]
pub struct Sum {
    /// Nanoseconds.
    pub ns: u64,
    /// Blocks.
    pub blocks: u64,
    /// Events.
    pub events: u64,
}

impl Sum {
    /// Adds an event.
    pub fn add(&mut self, ns: f64, blocks: usize) {
        self.ns += ns.round() as u64;
        self.blocks += blocks as u64;
        self.events += 1;
    }

    /// Nanoseconds a block.
    pub fn ns_per_block(&self) -> f64 {
        self.ns as f64 / self.blocks.max(1) as f64
    }
}

impl From<[u64; 3]> for Sum {
    fn from([ns, blocks, events]: [u64; 3]) -> Self {
        Self { ns, blocks, events }
    }
}

impl From<Sum> for [u64; 3] {
    fn from(sum: Sum) -> Self {
        [sum.ns, sum.blocks, sum.events]
    }
}

/// What was measured of one index.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The index.
    pub name: String,
    /// Filling from empty: sums of the windows.
    pub fill: Vec<Sum>,
    /// Full-size store events while tables grow.
    pub fill_stores: Histogram,
    /// The same without what the system took of the slow ones ([`crate::laps`]); nothing is known, and nothing taken off, where an
    /// index has a thread of its own.
    #[serde(default)]
    pub fill_stores_worked: Histogram,
    /// Sums of each class in each window.
    pub windows: Vec<BTreeMap<String, Sum>>,
    /// Lookups of each window, caches as the other indexes left them.
    pub cold_lookups: Vec<Histogram>,
    /// The same where only lookups of this index came before.
    pub steady_lookups: Vec<Histogram>,
    /// The same beside one writing lane.
    pub busy_lookups: Vec<Histogram>,
    /// Processor time of that lane for its events, of each window.
    pub busy_events: Vec<Sum>,
    /// Bytes when the pools were full.
    pub bytes: u64,
    /// Bytes by the index's own account, where it has one.
    pub own_bytes: Option<u64>,
    /// Events that the index refused.
    pub refused: u64,
    /// What was taken off each event's time, in nanoseconds.
    pub overhead_ns: f64,
}

/// A cell's outcome.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The cell.
    pub cell: String,
    /// Of the corpus.
    pub parameters: Parameters,
    /// Holders of a block on average when the pools were full.
    pub holders_per_block: f64,
    /// Pairs of worker and block then.
    pub memberships: u64,
    /// Distinct blocks then.
    pub distinct: u64,
    /// What was measured of each index.
    pub indexes: Vec<Measured>,
}

/// Nanoseconds a block, ours and theirs, and how often ours goes into theirs.
pub(super) struct Compared {
    pub ours: f64,
    pub theirs: f64,
    pub ratio: Estimate,
}

impl Compared {
    /// Medians over windows, of the ratio too. `None` where a window has no such events.
    fn by_windows(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| theirs / ours.max(0.01)).collect();
        let known = !ratios.is_empty();
        known.then(|| Self { ours: median(ours).value, theirs: median(theirs).value, ratio: median(&ratios) })
    }

    /// A class of events.
    pub fn class(ours: &Measured, theirs: &Measured, class: &str) -> Option<Self> {
        let both = ours.windows.iter().zip(&theirs.windows).filter_map(|(a, b)| Some((a.get(class)?, b.get(class)?)));
        let (ours, theirs): (Vec<_>, Vec<_>) = both.map(|(a, b)| (a.ns_per_block(), b.ns_per_block())).unzip();
        Self::by_windows(&ours, &theirs)
    }

    /// Processor time of events beside lookups.
    pub fn busy_events(ours: &Measured, theirs: &Measured) -> Option<Self> {
        let each = |sums: &[Sum]| sums.iter().map(Sum::ns_per_block).collect::<Vec<_>>();
        Self::by_windows(&each(&ours.busy_events), &each(&theirs.busy_events))
    }

    /// Filling from empty: totals, resampled by windows.
    pub fn fill(ours: &Measured, theirs: &Measured) -> Option<Self> {
        let total = |of: &[Sum], picked: &[usize]| {
            let (ns, blocks) = picked.iter().fold((0, 0), |(ns, blocks), &i| (ns + of[i].ns, blocks + of[i].blocks));
            ns as f64 / blocks.max(1) as f64
        };
        let count = ours.fill.len().min(theirs.fill.len());
        let all: Vec<usize> = (0..count).collect();
        let ratio = estimate(count, |picked| total(&theirs.fill, picked) / total(&ours.fill, picked).max(0.01));
        (count > 0).then(|| Self { ours: total(&ours.fill, &all), theirs: total(&theirs.fill, &all), ratio })
    }

    /// A quantile of lookups over all windows.
    pub fn lookups(ours: &[Histogram], theirs: &[Histogram], share: f64) -> Option<Self> {
        let known = ours.len() == theirs.len() && !ours.is_empty();
        known.then(|| Self {
            ours: quantile_over(ours, share).value,
            theirs: quantile_over(theirs, share).value,
            ratio: ratio_over(theirs, ours, share),
        })
    }
}
