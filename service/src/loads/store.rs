//! The latest load of every worker, what was counted on the way, and who is told.

use crate::fleet::WorkerEntry;
use crate::routing::{LoadReport, LoadSettings, LoadSource, Malformed, RankLoad, WorkerLoad};
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Pushed loads are believed for so many times the time between the last two.
const HEARTBEATS: u32 = 3;
/// At least so long.
const PUSHED_FRESH_MIN: Duration = Duration::from_secs(3);

/// Who decides by loads. Called for valid and malformed reports alike, on the thread that took them; must not block.
pub trait LoadSink: Send + Sync + std::fmt::Debug {
    /// A worker's report, as it came.
    fn load(&self, worker: &WorkerEntry, report: LoadReport);
}

/// Why a report was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Its worker is not registered.
    #[error("the worker is not registered")]
    UnknownWorker,
    /// A field of it.
    #[error("{} is malformed", .0.name())]
    Malformed(Malformed),
}

impl Refused {
    /// The name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Refused::UnknownWorker => "unknown_worker",
            Refused::Malformed(field) => field.name(),
        }
    }
}

/// What is known of one worker's loads.
#[derive(Clone, Debug, Default)]
pub struct WorkerLoads {
    generation: u64,
    /// The latest valid report, and when it came.
    pub latest: Option<(Instant, LoadReport)>,
    /// Whether a malformed one came after it: nothing is known then.
    pub darkened: bool,
    pushed_at: Option<Instant>,
    /// Reports and polls by what became of them.
    pub counters: BTreeMap<&'static str, u64>,
}

impl WorkerLoads {
    /// Whether the latest report can be believed now.
    pub fn is_fresh(&self, now: Instant) -> bool {
        let fresh = |(at, report): &(Instant, LoadReport)| now.duration_since(*at) <= report.fresh_for;
        !self.darkened && self.latest.as_ref().is_some_and(fresh)
    }

    fn count(&mut self, reason: &'static str) {
        *self.counters.entry(reason).or_default() += 1;
    }
}

/// The loads. Shared by `Arc`; any thread may call it, and none waits for longer than another call takes.
#[derive(Debug, Default)]
pub struct Loads {
    workers: Mutex<HashMap<Arc<str>, WorkerLoads>>,
    settings: ArcSwap<LoadSettings>,
    sink: OnceLock<Arc<dyn LoadSink>>,
}

impl Loads {
    /// None yet.
    pub fn new(settings: LoadSettings) -> Self {
        Self { settings: ArcSwap::from_pointee(settings), ..Self::default() }
    }

    /// Who is told from now on. The first one stays.
    pub fn tell(&self, sink: Arc<dyn LoadSink>) {
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
    /// worker's load until the next. `every` is the time between two polls, where it was polled.
    pub fn take(&self, worker: &WorkerEntry, ranks: Vec<RankLoad>, every: Option<Duration>) -> Result<(), Refused> {
        let (now, settings) = (Instant::now(), self.settings.load());
        let source = if every.is_some() { LoadSource::Polled } else { LoadSource::Pushed };
        let rank_count = worker.ranks.len() as u32;
        let mut report = LoadReport { rank_count, ranks, source, fresh_for: Duration::ZERO };
        let checked = WorkerLoad::from_report(&report).map(drop).map_err(Refused::Malformed);
        {
            let mut workers = self.workers();
            // A worker that is closed is forgotten after that: what is put in here before is taken out then.
            let Some(first) = worker.ranks.first().filter(|rank| !rank.is_closed()) else {
                return Err(Refused::UnknownWorker);
            };
            let is = workers.entry(first.worker.clone()).or_default();
            if is.generation != worker.generation {
                *is = WorkerLoads { generation: worker.generation, ..WorkerLoads::default() };
            }
            report.fresh_for = match every {
                Some(every) => settings.polled_fresh_for(every),
                None => {
                    let gap = is.pushed_at.replace(now).map_or(Duration::ZERO, |before| now.duration_since(before));
                    let most = settings.pushed_fresh_for;
                    gap.saturating_mul(HEARTBEATS).clamp(PUSHED_FRESH_MIN.min(most), most)
                }
            };
            is.count(match checked {
                Ok(()) => source.name(),
                Err(refused) => refused.name(),
            });
            is.darkened = checked.is_err();
            if checked.is_ok() {
                is.latest = Some((now, report.clone()));
            }
        }
        if let Some(sink) = self.sink.get() {
            sink.load(worker, report);
        }
        checked
    }

    /// Whether a worker pushed its load within a time: it needs no poll then.
    pub fn pushed_within(&self, worker: &str, time: Duration) -> bool {
        let pushed_at = self.workers().get(worker).and_then(|is| is.pushed_at);
        pushed_at.is_some_and(|at| at.elapsed() < time)
    }

    /// Counts a poll that brought nothing.
    pub fn poll_failed(&self, worker: &WorkerEntry, reason: &'static str) {
        let Some(first) = worker.ranks.first().filter(|rank| !rank.is_closed()) else { return };
        let mut workers = self.workers();
        let is = workers.entry(first.worker.clone()).or_default();
        if is.generation != worker.generation {
            *is = WorkerLoads { generation: worker.generation, ..WorkerLoads::default() };
        }
        is.count(reason);
    }

    /// Forgets a worker whose registration is over.
    pub fn forget(&self, worker: &str, generation: u64) {
        let mut workers = self.workers();
        if workers.get(worker).is_some_and(|is| is.generation <= generation) {
            workers.remove(worker);
        }
    }

    /// What is known of a worker's loads. Allocates.
    pub fn of(&self, worker: &str) -> Option<WorkerLoads> {
        self.workers().get(worker).cloned()
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<Arc<str>, WorkerLoads>> {
        // Every change is a few plain stores: whoever panicked with it in hand left nothing half done that matters.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
