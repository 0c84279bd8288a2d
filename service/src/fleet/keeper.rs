//! The fleet's state file: every followed rank's seed, written on demand and when the service drains, and offered to the ranks of the
//! next run.

use super::registry::Fleet;
use super::view::RankEntry;
use crate::ingest::now_ms;
use crate::seed::{NoSeed, Seed, SeedStock, StateError, StateFile, StateWriter, Written};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

/// Ranks that tell their state at once: so many states are in memory while a file is written.
const TOLD_AT_ONCE: usize = 4;

/// Where the state is kept, and how much of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateSettings {
    /// The file; `None` keeps no state.
    pub file: Option<PathBuf>,
    /// Largest file that is written or read.
    pub file_bytes_max: u64,
    /// Time that ranks may take to tell their states, all together; the file has those that came.
    pub write_max: Duration,
}

impl Default for StateSettings {
    fn default() -> Self {
        Self { file: None, file_bytes_max: 4 << 30, write_max: Duration::from_secs(10) }
    }
}

/// Why no state was written.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// No file is set.
    #[error("no state file is set (setting state.file)")]
    Off,
    /// The file could not be written.
    #[error(transparent)]
    File(#[from] StateError),
    /// The thread that writes it is gone.
    #[error("the state file's writer failed")]
    Failed,
}

/// What became of state files and of the ranks in them, by reason.
#[derive(Debug, Default)]
pub struct StateCounters(Mutex<BTreeMap<&'static str, u64>>);

impl StateCounters {
    fn bump(&self, reason: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// All counts, by reason.
    pub fn all(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes and reads the state file. One write at a time.
#[derive(Debug)]
pub struct StateKeeper {
    settings: StateSettings,
    fleet: Arc<Fleet>,
    counters: StateCounters,
    turn: tokio::sync::Mutex<()>,
}

impl StateKeeper {
    /// The keeper of this fleet's state. Where a file is set, ranks that are registered from now on wait for it to be read.
    pub fn new(settings: StateSettings, fleet: Arc<Fleet>) -> Self {
        if settings.file.is_some() {
            fleet.seed_stock().await_file();
        }
        Self { settings, fleet, counters: StateCounters::default(), turn: tokio::sync::Mutex::new(()) }
    }

    /// Whether a file is set.
    pub fn is_on(&self) -> bool {
        self.settings.file.is_some()
    }

    /// What became of files and ranks.
    pub fn counters(&self) -> &StateCounters {
        &self.counters
    }

    /// Seeds of the file that was read which no rank has taken yet.
    pub fn seeds_left(&self) -> usize {
        self.fleet.seed_stock().len()
    }

    /// Writes the states of all ranks that can prove theirs. Each rank's feed waits while it tells. The old file stays until the new
    /// one is whole.
    pub async fn save(&self) -> Result<Written, KeepError> {
        let path = self.settings.file.clone().ok_or(KeepError::Off)?;
        let _turn = self.turn.lock().await;
        let saved = self.save_to(path).await;
        self.counters.bump(if saved.is_ok() { "files_written" } else { "files_not_written" });
        match &saved {
            Ok(Written { ranks, bytes }) => tracing::info!(ranks, bytes, "the state file was written"),
            Err(error) => tracing::error!(%error, "the state file was not written"),
        }
        saved
    }

    async fn save_to(&self, path: PathBuf) -> Result<Written, KeepError> {
        let bytes_max = self.settings.file_bytes_max;
        let mut writer = blocking(move || StateWriter::create(&path, bytes_max, now_ms())).await?;
        let deadline = Instant::now() + self.settings.write_max;
        let view = self.fleet.view();
        let ranks: Vec<Arc<RankEntry>> = view.ranks().filter(|rank| !rank.is_pushed()).cloned().collect();
        let mut told =
            futures_util::stream::iter(ranks).map(|rank| tell(rank, deadline)).buffer_unordered(TOLD_AT_ONCE);
        while let Some(seed) = told.next().await {
            match seed {
                Ok(seed) => {
                    writer = blocking(move || writer.rank(seed).map(|()| writer)).await?;
                    self.counters.bump("ranks_written");
                }
                Err(reason) => self.counters.bump(reason),
            }
        }
        blocking(move || writer.finish()).await
    }

    /// Reads the file of the run before and offers what is in it to the ranks that are registered, and to those that will be. A file
    /// that is not believed changes nothing.
    pub async fn load(&self) {
        let Some(path) = self.settings.file.clone() else { return };
        let bytes_max = self.settings.file_bytes_max;
        let shown = path.display().to_string();
        let has_directory = path.parent().is_none_or(|parent| parent.as_os_str().is_empty() || parent.is_dir());
        let read = match blocking(move || StateFile::open(&path, bytes_max)).await {
            Ok(Some(file)) => {
                self.counters.bump("files_read");
                let (ranks, bytes) = (file.ranks().len(), file.bytes());
                let age_ms = now_ms().saturating_sub(file.written_at_ms());
                tracing::info!(file = shown, ranks, bytes, age_ms, "the state file was read");
                Some(file)
            }
            Ok(None) => {
                self.counters.bump("files_missing");
                match has_directory {
                    true => tracing::info!(file = shown, "there is no state file yet"),
                    false => {
                        tracing::error!(file = shown, "the state file's directory is missing: no state can be kept")
                    }
                }
                None
            }
            Err(error) => {
                self.counters.bump("files_refused");
                tracing::error!(file = shown, %error, "the state file is refused: ranks are filled without it");
                None
            }
        };
        self.fleet.plant(read).await;
    }
}

async fn tell(rank: Arc<RankEntry>, deadline: Instant) -> Result<Seed, &'static str> {
    match timeout_at(deadline, rank.seeds.tell()).await {
        Ok(Ok(seed)) => Ok(seed),
        Ok(Err(NoSeed::NotFollowed)) => Err("ranks_not_followed"),
        Ok(Err(NoSeed::Unproven { .. })) => Err("ranks_unproven"),
        Ok(Err(NoSeed::UpperBound)) => Err("ranks_upper_bound"),
        Ok(Err(NoSeed::Busy)) => Err("ranks_busy"),
        Err(_) => Err("ranks_late"),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, KeepError> {
    spawn_blocking(work).await.map_err(|_| KeepError::Failed)?.map_err(KeepError::File)
}

/// Before a rank is followed: its seed lies on its desk, if there is one.
pub(super) async fn first_seed(stock: &SeedStock, rank: &RankEntry) {
    stock.file_read().await;
    // Before the look: a file that is read later is offered by whoever reads it.
    rank.seeds.begin();
    late_seed(stock, rank).await;
}

/// Offers a rank its seed, if there is one.
pub(super) async fn late_seed(stock: &SeedStock, rank: &RankEntry) {
    if let Some(seed) = stock.take(&rank.worker, rank.rank).await {
        // A rank that was removed meanwhile needs none.
        let _ = rank.seeds.offer(seed).await;
    }
}
