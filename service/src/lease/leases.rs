//! The leases of this service: steps as transactions of the store, what they came to counted, and watchers told.

use super::proof::{EndProof, IndexEvidence, Proof};
use super::record::{LeaseKey, Partition, Prefix, Record};
use super::settings::LeaseSettings;
use super::step::{Acquire, Lease, Lost, NotCommitted, Refused};
use super::store::{LeaseStore, StoreStatus, Stored, Swapped, Unavailable};
use super::sweep::Swept;
use super::target::{Present, Sequences, Target};
use crate::ingest::Counters;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// What the service knows of workers and of what they hold. Answers at once.
pub trait Workers: Send + Sync {
    /// Generation, incarnation and applied batches of a worker of the partition now; `None`: there is no such one.
    fn present(&self, partition: &Partition, worker: &str) -> Option<(u64, u64, Sequences)>;

    /// What the index says of a worker and the prefix with these blocks.
    fn evidence(&self, partition: &Partition, worker: &str, blocks: &[u64]) -> Option<IndexEvidence>;

    /// Whether the partition has workers.
    fn has_partition(&self, partition: &Partition) -> bool;
}

/// Grants leases. Shared by `Arc`.
pub struct Leases {
    settings: Arc<LeaseSettings>,
    store: Arc<dyn LeaseStore>,
    workers: Arc<dyn Workers>,
    /// Tells this replica's count of lives from others'.
    replica: u64,
    counters: Mutex<Counters>,
    /// For each watched partition the latest record that was seen here.
    watched: Mutex<HashMap<Partition, watch::Sender<Arc<Record>>>>,
    pub(super) swept: Mutex<Swept>,
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("store", &self.store.status().name).finish_non_exhaustive()
    }
}

/// The numbers of a status page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeasesStatus {
    /// The store.
    pub store: StoreStatus,
    /// Partitions with watchers.
    pub watched: u64,
    /// Prefixes whose owners are swept here.
    pub swept: u64,
    /// What happened since start, by reason.
    pub counters: Vec<(&'static str, u64)>,
}

impl Leases {
    /// Leases over this store.
    pub fn new(settings: Arc<LeaseSettings>, store: Arc<dyn LeaseStore>, workers: Arc<dyn Workers>) -> Self {
        Self {
            settings,
            store,
            workers,
            replica: RandomState::new().hash_one(0_u8).max(1),
            counters: Mutex::default(),
            watched: Mutex::default(),
            swept: Mutex::default(),
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> &Arc<LeaseSettings> {
        &self.settings
    }

    /// A worker of the partition as this replica knows it now; `None`: it knows none.
    pub fn present(&self, partition: &Partition, worker: &str) -> Option<Present> {
        let (generation, incarnation, sequences) = self.workers.present(partition, worker)?;
        Some(Present { target: self.target(worker.into(), generation, incarnation), sequences })
    }

    /// A worker in a life as this replica counts them.
    pub fn target(&self, worker: String, generation: u64, incarnation: u64) -> Target {
        Target { worker, generation, incarnation, replica: self.replica }
    }

    /// Whether the partition has workers.
    pub fn has_partition(&self, partition: &Partition) -> bool {
        self.workers.has_partition(partition)
    }

    /// Whether this replica counted the target's lives.
    pub(super) fn is_ours(&self, target: &Target) -> bool {
        target.replica == self.replica
    }

    pub(super) fn evidence(&self, partition: &Partition, worker: &str, blocks: &[u64]) -> Option<IndexEvidence> {
        self.workers.evidence(partition, worker, blocks)
    }

    /// Asks for a lease. `blocks` are the prefix's content hashes, if known: what its owners lose is seen by them.
    pub async fn acquire(
        &self,
        partition: &Partition,
        ask: &Acquire,
        target: &Target,
        blocks: Vec<u64>,
    ) -> Result<Result<Lease, Refused>, Unavailable> {
        let answer = self.step(partition, |r, now, s, c| r.acquire(now, ask, target, s, c)).await?;
        if answer.is_ok() {
            self.remember(partition, &ask.prefix, blocks);
        }
        Ok(answer)
    }

    /// Keeps a lease, and announces the dispatch.
    pub async fn renew(
        &self,
        partition: &Partition,
        key: LeaseKey,
        dispatching: bool,
    ) -> Result<Result<Duration, Lost>, Unavailable> {
        let worker = if dispatching { self.target_of(partition, key).await? } else { None };
        let present = worker.and_then(|target| self.present(partition, &target.worker));
        let announced = dispatching.then_some(present.as_ref());
        self.step(partition, |r, now, s, c| r.renew(now, key, announced, s, c)).await
    }

    /// Makes the target of a lease an owner. An index proof is looked up here.
    pub async fn commit(
        &self,
        partition: &Partition,
        key: LeaseKey,
        proof: Asked,
    ) -> Result<Result<u64, NotCommitted>, Unavailable> {
        let target = self.target_of(partition, key).await?;
        let worker = target.as_ref().map(|target| target.worker.as_str());
        let proof = match &proof {
            Asked::End(end) => Proof::End(end.clone()),
            Asked::Index(blocks) => Proof::Index(self.look(partition, worker, blocks)),
        };
        let present = worker.and_then(|worker| self.present(partition, worker)).map(|present| present.target);
        self.step(partition, |r, now, s, c| r.commit(now, key, &proof, present.as_ref(), s, c)).await
    }

    /// Gives a lease back; whether its token may be used again.
    pub async fn abort(&self, partition: &Partition, key: LeaseKey) -> Result<bool, Unavailable> {
        self.step(partition, |r, now, s, c| r.abort(now, key, s, c)).await
    }

    /// The partition now, with time passed. Nothing is written where nothing but time changed.
    pub async fn look_at(&self, partition: &Partition) -> Result<Arc<Record>, Unavailable> {
        self.step(partition, |r, now, s, c| {
            r.settle(now, s, c);
            Arc::new(r.clone())
        })
        .await
    }

    fn look(&self, partition: &Partition, worker: Option<&str>, blocks: &[u64]) -> IndexEvidence {
        let nothing = || IndexEvidence { holds: false, exact: false, sequences: Default::default() };
        worker.and_then(|worker| self.evidence(partition, worker, blocks)).unwrap_or_else(nothing)
    }

    async fn target_of(&self, partition: &Partition, key: LeaseKey) -> Result<Option<Target>, Unavailable> {
        let stored = self.read(partition).await?;
        let grant = stored.record.as_ref().and_then(Record::grant).filter(|grant| grant.is(key));
        Ok(grant.map(|grant| grant.target.clone()))
    }

    async fn read(&self, partition: &Partition) -> Result<Stored, Unavailable> {
        self.store.read(partition).await.inspect_err(|_| self.count("store_unavailable"))
    }

    /// One step of a partition as a transaction: read, step, swap, and again where another replica was faster.
    pub(super) async fn step<T>(
        &self,
        partition: &Partition,
        step: impl Fn(&mut Record, Duration, &LeaseSettings, &mut Counters) -> T,
    ) -> Result<T, Unavailable> {
        for _ in 0..self.settings.attempts_max {
            let stored = self.read(partition).await?;
            // A partition without workers, that nobody has asked for yet, is not worth a place in the store.
            let unwanted = stored.record.is_none() && !self.has_partition(partition);
            let (mut counts, before) = (Counters::default(), stored.record.as_ref());
            let mut record = before.cloned().unwrap_or_else(|| Record::new(stored.now, &self.settings));
            let answer = step(&mut record, stored.now, &self.settings, &mut counts);
            // Time alone is not worth a write: who reads next sees it pass as well.
            let same = before.is_some_and(|before| {
                let clock = before.clock;
                Record { clock, ..record.clone() } == *before
            });
            let swapped = if same || unwanted {
                Ok(Swapped::Yes)
            } else {
                self.store.swap(partition, stored.version, record.clone()).await
            };
            match swapped {
                Ok(Swapped::Yes) => {
                    self.add(&counts);
                    self.tell(partition, record);
                    return Ok(answer);
                }
                Ok(Swapped::No) => self.count("store_raced"),
                Err(error) => {
                    self.count("store_unavailable");
                    return Err(error);
                }
            }
        }
        let attempts = self.settings.attempts_max;
        Err(Unavailable(format!("others changed the partition {attempts} times meanwhile (limit lease.attempts_max)")))
    }

    /// The partition's latest record, and each that follows. Whoever reads slowly sees the newest only.
    pub(super) fn watch(
        &self,
        partition: &Partition,
        record: Arc<Record>,
    ) -> Result<watch::Receiver<Arc<Record>>, WatchesFull> {
        let mut watched = lock(&self.watched);
        watched.retain(|_, sender| sender.receiver_count() > 0);
        let limit = self.settings.watches_max;
        let open: usize = watched.values().map(watch::Sender::receiver_count).sum();
        if open >= limit {
            return Err(WatchesFull { limit });
        }
        let sender = watched.entry(partition.clone()).or_insert_with(|| watch::Sender::new(record.clone()));
        newest(sender, record);
        Ok(sender.subscribe())
    }

    fn tell(&self, partition: &Partition, record: Record) {
        if let Some(sender) = lock(&self.watched).get(partition) {
            newest(sender, Arc::new(record));
        }
    }

    fn remember(&self, partition: &Partition, prefix: &Prefix, blocks: Vec<u64>) {
        if !blocks.is_empty() && !lock(&self.swept).remember(partition, prefix, blocks, &self.settings) {
            self.count("sweep_full");
        }
    }

    pub(super) fn count(&self, reason: &'static str) {
        lock(&self.counters).bump(reason);
    }

    fn add(&self, counts: &Counters) {
        let mut sum = lock(&self.counters);
        counts.iter().for_each(|(reason, count)| sum.add(reason, count));
    }

    /// What a status page shows. Asks nobody.
    pub fn status(&self) -> LeasesStatus {
        LeasesStatus {
            store: self.store.status(),
            watched: lock(&self.watched).values().filter(|sender| sender.receiver_count() > 0).count() as u64,
            swept: lock(&self.swept).len() as u64,
            counters: lock(&self.counters).iter().collect(),
        }
    }
}

/// A proof as it is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// The request's own end.
    End(EndProof),
    /// Whether the index shows these blocks.
    Index(Vec<u64>),
}

/// As many watches as allowed are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{limit} watches are open (limit lease.watches_max)")]
pub struct WatchesFull {
    /// The limit.
    pub limit: usize,
}

/// Steps may end in another order than they were taken in.
fn newest(sender: &watch::Sender<Arc<Record>>, record: Arc<Record>) {
    sender.send_if_modified(|latest| {
        let newer = record.revision > latest.revision;
        if newer {
            *latest = record;
        }
        newer
    });
}

/// Nothing is left half done under these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
