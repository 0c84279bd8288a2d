//! Seeds of a state file that no rank has taken yet: a worker may be registered long after the file was read.

use super::{SavedRank, Seed, StateFile};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Time that a rank waits for a file that is being read before it begins without: fetching a whole history takes longer.
const FILE_AWAITED_MAX: Duration = Duration::from_secs(2);
/// Seeds that are read out of the file at once.
const READ_AT_ONCE: usize = 4;

/// The stock. Any thread may call it. The file stays mapped until its last seed is taken.
#[derive(Debug)]
pub struct SeedStock {
    stock: Mutex<Option<Stock>>,
    /// A file is being read.
    awaited: watch::Sender<bool>,
    room: Semaphore,
}

#[derive(Debug)]
struct Stock {
    file: Arc<StateFile>,
    /// By worker and rank.
    left: HashMap<(String, u32), SavedRank>,
}

impl Default for SeedStock {
    fn default() -> Self {
        Self { stock: Mutex::default(), awaited: watch::Sender::new(false), room: Semaphore::new(READ_AT_ONCE) }
    }
}

impl SeedStock {
    /// A file will be read: ranks that begin now wait for it a while.
    pub fn await_file(&self) {
        self.awaited.send_replace(true);
    }

    /// Takes a file's seeds in, if one was read; whoever waits goes on.
    pub fn fill(&self, file: Option<StateFile>) {
        if let Some(file) = file {
            let key = |rank: &SavedRank| (rank.identity.worker.clone(), rank.identity.rank);
            let left: HashMap<_, _> = file.ranks().iter().map(|rank| (key(rank), rank.clone())).collect();
            *self.lock() = (!left.is_empty()).then(|| Stock { file: Arc::new(file), left });
        }
        self.awaited.send_replace(false);
    }

    /// Waits for a file that is being read, but not for long.
    pub async fn file_read(&self) {
        // Neither end of the wait is an error: ranks can do without.
        let _ = timeout(FILE_AWAITED_MAX, self.awaited.subscribe().wait_for(|awaited| !awaited)).await;
    }

    /// Gives out the seed of a rank, once. Allocates its whole state.
    pub async fn take(&self, worker: &str, rank: u32) -> Option<Seed> {
        let (file, saved) = self.take_saved(worker, rank)?;
        let _room = self.room.acquire().await.ok()?;
        let seed = spawn_blocking(move || file.seed(&saved)).await.ok().flatten();
        if seed.is_none() {
            tracing::error!(worker, rank, "the state file was changed since it was checked");
        }
        seed
    }

    /// Seeds that nobody has taken yet.
    pub fn len(&self) -> usize {
        self.lock().as_ref().map_or(0, |stock| stock.left.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn take_saved(&self, worker: &str, rank: u32) -> Option<(Arc<StateFile>, SavedRank)> {
        let mut lock = self.lock();
        let stock = lock.as_mut()?;
        let saved = stock.left.remove(&(worker.to_owned(), rank))?;
        let file = stock.file.clone();
        if stock.left.is_empty() {
            *lock = None;
        }
        Some((file, saved))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Stock>> {
        // Whoever panicked with it in hand left whole entries behind.
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
