//! The reading side: an immutable snapshot of the fleet.

use super::error::FleetError;
use super::load_cell::LoadCell;
use super::push::PushState;
use super::registration::Registration;
use super::status_cell::StatusCell;
use super::watcher::VetoCell;
use crate::ingest::Pulse;
use crate::lanes::RankLane;
use crate::relay::RankRelay;
use crate::seed::SeedDesk;
use crate::wire::HashMode;
use kvatlas_index::{RankFilter, RankKey};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One registered rank.
#[derive(Debug)]
pub struct RankEntry {
    /// The worker's id.
    pub worker: Arc<str>,
    /// The worker's model.
    pub model: Arc<str>,
    /// Data-parallel rank.
    pub rank: u32,
    /// Its number in answers of the index.
    pub key: RankKey,
    /// The registration that it belongs to.
    pub generation: u64,
    /// Tokens in a block.
    pub block_size: u32,
    /// How its tokens are cut.
    pub mode: HashMode,
    /// Whether its engine announces reused blocks again, so that stores at position 0 do not count copies.
    pub report_mode_full: bool,
    /// Its way into its lane.
    pub lane: RankLane,
    /// What was applied for it, for whoever subscribes.
    pub relay: Arc<RankRelay>,
    /// How far it can be believed.
    pub status: StatusCell,
    /// When its publisher was in contact, and when it failed.
    pub pulse: Arc<Pulse>,
    /// Where its state is told and taken.
    pub seeds: SeedDesk,
    /// The veto of its worker.
    pub veto: Arc<VetoCell>,
    /// The cursor, where events are pushed over gRPC; `None` where a subscriber follows an engine.
    pub(super) push: Option<tokio::sync::Mutex<PushState>>,
    closed: AtomicBool,
}

impl RankEntry {
    pub(super) fn new(
        registration: &Registration,
        rank: u32,
        key: RankKey,
        lane: RankLane,
        relay: Arc<RankRelay>,
        push: Option<PushState>,
        veto: Arc<VetoCell>,
    ) -> Self {
        Self {
            worker: registration.worker.id.as_str().into(),
            model: registration.worker.model.as_str().into(),
            rank,
            key,
            generation: lane.generation(),
            block_size: registration.worker.block_size,
            mode: registration.mode(),
            report_mode_full: registration.worker.report_mode_full,
            lane,
            relay,
            status: StatusCell::default(),
            pulse: veto.pulse(),
            seeds: if push.is_some() { SeedDesk::closed() } else { SeedDesk::default() },
            veto,
            push: push.map(tokio::sync::Mutex::new),
            closed: AtomicBool::new(false),
        }
    }

    /// Whether events are pushed over gRPC (and not read from an engine's publisher).
    pub fn is_pushed(&self) -> bool {
        self.push.is_some()
    }

    /// Whether the registration is over. Once true, rows of the index with this rank's number may be another rank's.
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `close`, which comes before the number can be given again.
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.relay.close();
    }
}

/// One registered worker.
#[derive(Debug)]
pub struct WorkerEntry {
    /// What was registered.
    pub registration: Registration,
    /// Number of the registration.
    pub generation: u64,
    /// Whether it comes from the configuration.
    pub is_static: bool,
    /// Its ranks, by number.
    pub ranks: Vec<Arc<RankEntry>>,
    /// Whether it is offered.
    pub veto: Arc<VetoCell>,
    /// Its load.
    pub loads: LoadCell,
}

impl WorkerEntry {
    /// Whether the registration is over.
    pub fn is_closed(&self) -> bool {
        self.ranks.iter().all(|rank| rank.is_closed())
    }
}

/// The ranks that may answer for one (model, routing group).
#[derive(Clone, Debug)]
pub struct Group {
    /// Tokens in a block.
    pub block_size: u32,
    /// How tokens are cut.
    pub mode: HashMode,
    /// The ranks as the index wants them.
    pub filter: RankFilter,
    /// The ranks, by worker and number.
    pub ranks: Vec<Arc<RankEntry>>,
}

/// The fleet at one moment.
#[derive(Clone, Debug, Default)]
pub struct FleetView {
    workers: BTreeMap<Arc<str>, Arc<WorkerEntry>>,
    /// By model, then by routing group, so that a lookup borrows both names.
    groups: HashMap<String, HashMap<String, Arc<Group>>>,
    by_key: Vec<Option<Arc<RankEntry>>>,
}

impl FleetView {
    /// The workers, by id.
    pub fn workers(&self) -> impl ExactSizeIterator<Item = &Arc<WorkerEntry>> {
        self.workers.values()
    }

    /// One worker.
    pub fn worker(&self, id: &str) -> Result<&Arc<WorkerEntry>, FleetError> {
        self.workers.get(id).ok_or_else(|| FleetError::UnknownWorker { worker: id.into() })
    }

    /// One rank of a worker.
    pub fn rank(&self, worker: &str, rank: u32) -> Result<&Arc<RankEntry>, FleetError> {
        let ranks = &self.worker(worker)?.ranks;
        let at = ranks.binary_search_by_key(&rank, |r| r.rank);
        at.map(|i| &ranks[i]).map_err(|_| FleetError::UnknownRank { worker: worker.into(), rank })
    }

    /// The ranks that answer for a model and routing group.
    pub fn group(&self, model: &str, group: &str) -> Result<&Arc<Group>, FleetError> {
        let groups = self.groups.get(model).ok_or_else(|| FleetError::UnknownModel { model: model.into() })?;
        groups.get(group).ok_or_else(|| FleetError::UnknownGroup { model: model.into(), group: group.into() })
    }

    /// The models, in no order.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// The rank with a number of the index, unless its registration is over.
    pub fn by_key(&self, key: RankKey) -> Option<&Arc<RankEntry>> {
        self.by_key.get(key.0 as usize)?.as_ref().filter(|r| !r.is_closed())
    }

    /// Registered ranks.
    pub fn ranks(&self) -> impl Iterator<Item = &Arc<RankEntry>> {
        self.workers.values().flat_map(|w| &w.ranks)
    }

    /// Whether the registration may join the workers that are there.
    pub(super) fn check_group(&self, registration: &Registration) -> Result<(), FleetError> {
        let worker = &registration.worker;
        let Ok(group) = self.group(&worker.model, &worker.routing_group) else { return Ok(()) };
        let (model, name) = (worker.model.clone(), worker.routing_group.clone());
        if group.block_size != worker.block_size {
            let (registered, asked) = (group.block_size, worker.block_size);
            return Err(FleetError::BlockSizeMismatch { model, group: name, registered, asked });
        }
        if group.mode != registration.mode() {
            return Err(FleetError::HashModeMismatch { model, group: name });
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, entry: &Arc<WorkerEntry>) {
        let worker = &entry.registration.worker;
        for rank in &entry.ranks {
            let key = rank.key.0 as usize;
            if self.by_key.len() <= key {
                self.by_key.resize(key + 1, None);
            }
            self.by_key[key] = Some(rank.clone());
        }
        let groups = self.groups.entry(worker.model.clone()).or_default();
        let group = groups.entry(worker.routing_group.clone()).or_insert_with(|| {
            Arc::new(Group {
                block_size: worker.block_size,
                mode: entry.registration.mode(),
                filter: RankFilter::new(),
                ranks: Vec::new(),
            })
        });
        let group = Arc::make_mut(group);
        for rank in &entry.ranks {
            group.filter.insert(rank.key);
            let at = group.ranks.partition_point(|r| (&r.worker, r.rank) < (&rank.worker, rank.rank));
            group.ranks.insert(at, rank.clone());
        }
        self.workers.insert(worker.id.as_str().into(), entry.clone());
    }

    pub(super) fn remove(&mut self, entry: &WorkerEntry) {
        let worker = &entry.registration.worker;
        self.workers.remove(worker.id.as_str());
        for rank in &entry.ranks {
            self.by_key[rank.key.0 as usize] = None;
        }
        let Some(groups) = self.groups.get_mut(&worker.model) else { return };
        if let Some(group) = groups.get_mut(&worker.routing_group) {
            let group = Arc::make_mut(group);
            group.ranks.retain(|r| r.generation != entry.generation);
            entry.ranks.iter().for_each(|r| group.filter.remove(r.key));
            if group.ranks.is_empty() {
                groups.remove(&worker.routing_group);
            }
        }
        if groups.is_empty() {
            self.groups.remove(&worker.model);
        }
    }
}
