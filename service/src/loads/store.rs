//! Reports on their way: to what is known of their worker, and to whoever decides by them.

use crate::fleet::{LoadTaken, WorkerEntry};
use crate::routing::{LoadReport, LoadSettings, Malformed, RankLoad};
use arc_swap::ArcSwap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Who decides by loads. Called for valid and malformed reports alike, on the thread that took them, in order for each worker; must
/// not block, and hand in no report of that worker.
pub trait LoadSink: Send + Sync {
    /// A worker's report, as it came.
    fn load(&self, worker: &WorkerEntry, report: LoadReport);
}

/// Why a report was not taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Refused {
    /// Its worker is not registered (any more).
    #[error("the worker is not registered")]
    UnknownWorker,
    /// More records than a worker may have ranks (`limits.ranks_per_worker_max`): not looked at.
    #[error("more records than a worker may have ranks")]
    TooManyRanks,
    /// A field of it.
    #[error("{} is malformed", .0.name())]
    Malformed(Malformed),
}

impl Refused {
    /// The name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Refused::UnknownWorker => "unknown_worker",
            Refused::TooManyRanks => "too_many_ranks",
            Refused::Malformed(field) => field.name(),
        }
    }
}

/// Where reports go in. Shared by `Arc`; any thread may call it.
#[derive(Default)]
pub struct Loads {
    settings: ArcSwap<LoadSettings>,
    sink: OnceLock<Arc<dyn LoadSink>>,
}

impl std::fmt::Debug for Loads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loads").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Loads {
    /// Nobody is told yet.
    pub fn new(settings: LoadSettings) -> Self {
        Self { settings: ArcSwap::from_pointee(settings), sink: OnceLock::new() }
    }

    /// Who is told from now on. The first one stays.
    pub fn tell(&self, sink: Arc<dyn LoadSink>) {
        // A second one is a mistake of whoever starts the service, and changes nothing.
        let _ = self.sink.set(sink);
    }

    /// Takes other settings from now on.
    pub fn configure(&self, settings: LoadSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<LoadSettings> {
        self.settings.load_full()
    }

    /// Takes a worker's records, one for each of its ranks. A malformed field refuses all of them, and nothing is known of the
    /// worker's load until the next. `every` is the time between two polls, where it was polled. Waits no longer than another report
    /// of the worker takes; time in proportion to the square of the ranks.
    pub fn take(&self, worker: &WorkerEntry, ranks: Vec<RankLoad>, every: Option<Duration>) -> Result<(), Refused> {
        if worker.is_closed() {
            return Err(Refused::UnknownWorker);
        }
        let report = LoadReport { rank_count: worker.ranks.len() as u32, ranks, ..LoadReport::default() };
        let settings = self.settings.load();
        let taken = worker.loads.take(Instant::now(), report, every, &settings, |report, LoadTaken { passed, .. }| {
            if passed {
                worker.veto.progress(Duration::ZERO);
            }
            if let Some(sink) = self.sink.get() {
                sink.load(worker, report);
            }
        });
        taken.map(drop).map_err(Refused::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_name_and_a_sentence_of_its_own() {
        let all = Malformed::ALL.map(Refused::Malformed);
        let all = all.into_iter().chain([Refused::UnknownWorker, Refused::TooManyRanks]);
        let mut names: Vec<_> = all.clone().map(Refused::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Malformed::ALL.len() + 2);
        assert!(all.into_iter().all(|refused| !refused.to_string().is_empty()));
    }
}
