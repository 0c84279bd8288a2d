//! How far the start from peers is, for probes, status pages and metrics.

use super::bootstrap::{Bootstrap, Outcome};
use crate::ingest::Counters;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The start as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgressReport {
    /// The peer that is being asked.
    pub asking: Option<String>,
    /// Copies that came whole.
    pub passes: u64,
    /// How it ended, if it did.
    pub outcome: Option<Outcome>,
    /// Counts by reason.
    pub counters: Counters,
}

/// Written by whoever drives the start, read by anybody. Held for moments.
#[derive(Debug, Default)]
pub struct Progress(Mutex<ProgressReport>);

impl Progress {
    /// The start as it is. Allocates.
    pub fn report(&self) -> ProgressReport {
        self.lock().clone()
    }

    /// Whether it is known which ranks there are: a whole copy came, or none will.
    pub fn ranks_are_known(&self) -> bool {
        let report = self.lock();
        report.passes > 0 || report.outcome.is_some()
    }

    /// Takes note of where it is.
    pub fn note(&self, bootstrap: &Bootstrap) {
        let report = ProgressReport {
            asking: bootstrap.asking().map(str::to_owned),
            passes: bootstrap.passes(),
            outcome: bootstrap.outcome(),
            counters: bootstrap.counters().clone(),
        };
        *self.lock() = report;
    }

    fn lock(&self) -> MutexGuard<'_, ProgressReport> {
        // Whoever panicked with it in hand left a whole report behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
