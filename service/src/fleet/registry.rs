//! The writing side of the fleet: registration, deregistration, and who is told about them.

use super::error::FleetError;
use super::feed;
use super::keeper;
use super::keys::RankKeys;
use super::liveness::{LivenessLimits, Veto};
use super::load_cell::LoadCell;
use super::placement::{self, Placement, RankLoad, Sharing};
use super::push::{self, PushBatch, PushOutcome, PushState};
use super::registration::{Feed, FleetLimits, Registration};
use super::republished;
use super::shared_log::{LOG_ENDPOINT, SharedLog};
use super::view::{FleetView, RankEntry, WorkerEntry};
use super::watcher::{self, VetoCell, VetoCounters};
use crate::ingest::{IngestLimits, RankStatus, Trust};
use crate::lanes::{LaneError, LaneHandle, RankLane};
use crate::relay::{RankRelay, RelayLimits, RelayShared, WireLog};
use crate::republish::WireSettings;
use crate::seed::{SeedStock, StateFile};
use arc_swap::ArcSwap;
use kvatlas_index::RankKey;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokio::sync::{Mutex, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

/// A change in the fleet, as watchers see it.
#[derive(Clone, Debug)]
pub enum FleetEvent {
    /// A worker was registered.
    Registered(Arc<WorkerEntry>),
    /// A worker is gone.
    Deregistered(Arc<WorkerEntry>),
    /// A rank's trust changed.
    TrustChanged {
        /// The worker's id.
        worker: Arc<str>,
        /// The worker's model.
        model: Arc<str>,
        /// Data-parallel rank.
        rank: u32,
        /// Before.
        from: Trust,
        /// Now.
        to: Trust,
        /// Why, in words.
        detail: Option<String>,
    },
    /// A worker is vetoed, or no longer, or by another veto.
    VetoChanged {
        /// The worker's id.
        worker: Arc<str>,
        /// The worker's model.
        model: Arc<str>,
        /// Before; `None` for offered.
        from: Option<Veto>,
        /// Now.
        to: Option<Veto>,
        /// When, in Unix milliseconds.
        since_ms: u64,
    },
}

/// Publishes statuses and changes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct FleetEvents(broadcast::Sender<FleetEvent>);

impl FleetEvents {
    /// Publishes a rank's status and tells watchers if its trust changed. One writer for a rank at a time. A rank that was
    /// closed says nothing any more: its worker's name may be another registration's.
    pub(super) fn publish_status(&self, rank: &RankEntry, status: RankStatus) {
        if rank.is_closed() {
            return;
        }
        let (to, detail) = (status.trust, status.detail.clone());
        let from = rank.status.publish(status).trust;
        if from != to {
            let (worker, model) = (rank.worker.clone(), rank.model.clone());
            self.send(FleetEvent::TrustChanged { worker, model, rank: rank.rank, from, to, detail });
        }
    }

    /// Tells watchers that a worker's veto changed. A worker whose registration is over says nothing any more.
    pub(super) fn publish_veto(&self, entry: &WorkerEntry, from: Option<Veto>, to: Option<Veto>, since_ms: u64) {
        let Some(rank) = entry.ranks.first().filter(|r| !r.is_closed()) else { return };
        let (worker, model) = (rank.worker.clone(), rank.model.clone());
        self.send(FleetEvent::VetoChanged { worker, model, from, to, since_ms });
    }

    fn send(&self, event: FleetEvent) {
        // No watcher is not an error.
        let _ = self.0.send(event);
    }
}

/// What a registration led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registered {
    /// Number of the registration.
    pub generation: u64,
    /// Whether the worker was there with the same specification already.
    pub unchanged: bool,
}

/// How evenly lanes are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneBalance {
    /// Work of the busiest lane, in percent of the mean of its shard.
    pub busiest_percent: u64,
    /// Ranks that would have to change their lane for `lane_share_max_percent` to hold; counted up to 64.
    pub moves_wanted: usize,
}

fn shards_of(lanes: &[LaneHandle]) -> Vec<u32> {
    lanes.iter().map(LaneHandle::shard).collect()
}

fn rank_load(rank: &RankEntry) -> RankLoad {
    let status = rank.status.full();
    // Subscribers and pushed ranks count stored blocks under different reasons; a rank has only one of them.
    let stored = ["blocks_stored", "stored"].iter().filter_map(|reason| status.counters.get(reason)).sum();
    RankLoad { rank: rank.key.0, lane: rank.lane.lane().number() as usize, work: stored }
}

/// The fleet. Shared by `Arc`; any thread may call it.
#[derive(Debug)]
pub struct Fleet {
    view: ArcSwap<FleetView>,
    registry: Mutex<Registry>,
    events: FleetEvents,
    lanes: Vec<LaneHandle>,
    limits: FleetLimits,
    ingest: IngestLimits,
    relay: Arc<RelayShared>,
    wire: WireSettings,
    /// Room for the states that are fetched from engines at once.
    snapshot_room: Arc<Semaphore>,
    seed_stock: Arc<SeedStock>,
    liveness: LivenessLimits,
    vetoes: Arc<VetoCounters>,
    log: Option<Arc<dyn SharedLog>>,
}

/// What only the one registration at a time needs.
#[derive(Debug)]
struct Registry {
    generation_last: u64,
    keys: RankKeys,
    /// Ranks of each lane.
    placement: Placement,
    /// What stops the subscribers of each worker, by generation.
    subscribers: HashMap<u64, CancellationToken>,
}

impl Fleet {
    /// An empty fleet over these lanes. `ranks_max` is the number of ranks that the index takes in all.
    pub fn new(
        lanes: Vec<LaneHandle>,
        ranks_max: u32,
        limits: FleetLimits,
        ingest: IngestLimits,
        relay: RelayLimits,
        liveness: LivenessLimits,
    ) -> Self {
        let registry = Registry {
            generation_last: 0,
            keys: RankKeys::new(ranks_max),
            placement: Placement::new(&shards_of(&lanes), limits.lane_share_max_percent),
            subscribers: HashMap::new(),
        };
        Self {
            view: ArcSwap::default(),
            registry: Mutex::new(registry),
            events: FleetEvents(broadcast::channel(limits.watch_lag_max).0),
            lanes,
            limits,
            snapshot_room: Arc::new(Semaphore::new(ingest.snapshots_in_flight_max)),
            seed_stock: Arc::default(),
            ingest,
            relay: Arc::new(RelayShared::new(relay, RandomState::new().hash_one(0_u8))),
            wire: WireSettings::default(),
            liveness,
            vetoes: Arc::default(),
            log: None,
        }
    }

    /// Republishes workers that are registered from now on.
    pub fn with_wire(self, wire: WireSettings) -> Self {
        Self { wire, ..self }
    }

    /// Workers that are registered from now on may be read from this log, and are appended to it.
    pub fn with_log(self, log: Option<Arc<dyn SharedLog>>) -> Self {
        Self { log, ..self }
    }

    /// The shared log, if there is one.
    pub fn log(&self) -> Option<&Arc<dyn SharedLog>> {
        self.log.as_ref()
    }

    /// What the relays of all ranks share.
    pub fn relay(&self) -> &Arc<RelayShared> {
        &self.relay
    }

    /// Seeds of a state file that no rank has taken yet.
    pub fn seed_stock(&self) -> &SeedStock {
        &self.seed_stock
    }

    /// Takes the seeds of a state file, if one was read, to the ranks that are registered, and to those that will be.
    pub async fn plant(&self, file: Option<StateFile>) {
        self.seed_stock.fill(file);
        // Ranks that are not followed yet look for themselves.
        for rank in self.view().ranks().filter(|rank| rank.seeds.has_begun()) {
            keeper::late_seed(&self.seed_stock, rank).await;
        }
    }

    /// Vetoes since start.
    pub fn vetoes(&self) -> &VetoCounters {
        &self.vetoes
    }

    /// The fleet now. Takes no lock.
    pub fn view(&self) -> Arc<FleetView> {
        self.view.load_full()
    }

    /// The lanes.
    pub fn lanes(&self) -> &[LaneHandle] {
        &self.lanes
    }

    /// How evenly the lanes are loaded, by the blocks that their ranks have stored. Takes time in proportion to the ranks.
    pub fn balance(&self) -> LaneBalance {
        let shard_of_lane = shards_of(&self.lanes);
        let loads: Vec<RankLoad> = self.view().ranks().map(|rank| rank_load(rank)).collect();
        LaneBalance {
            busiest_percent: placement::imbalance_percent(&loads, &shard_of_lane),
            moves_wanted: placement::plan(&loads, &shard_of_lane, self.limits.lane_share_max_percent).len(),
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> &FleetLimits {
        &self.limits
    }

    /// Changes from now on. Take the view afterwards: a change may then be in both, but none is missed.
    pub fn watch(&self) -> broadcast::Receiver<FleetEvent> {
        self.events.0.subscribe()
    }

    /// Registers a worker and starts to follow its ranks. Runs to its end also when the caller stops waiting.
    pub async fn register(
        self: &Arc<Self>,
        registration: Registration,
        is_static: bool,
        replace: bool,
    ) -> Result<Registered, FleetError> {
        registration.check(&self.limits)?;
        if self.log.is_none() && registration.worker.ranks.iter().any(|rank| rank.events == LOG_ENDPOINT) {
            let (field, reason) =
                ("worker.ranks.events_endpoint", "log: no log is configured (shared_log.url)".to_owned());
            return Err(FleetError::Invalid { field, reason });
        }
        let fleet = self.clone();
        let task = tokio::spawn(async move { fleet.register_in_order(registration, is_static, replace).await });
        task.await.unwrap_or(Err(FleetError::Lane(LaneError::Stopped)))
    }

    /// Forgets a worker; returns the blocks that it held. Runs to its end also when the caller stops waiting.
    pub async fn deregister(self: &Arc<Self>, worker: &str, generation: Option<u64>) -> Result<u64, FleetError> {
        let (fleet, worker) = (self.clone(), worker.to_owned());
        let task = tokio::spawn(async move {
            let mut registry = fleet.registry.lock().await;
            let entry = fleet.view().worker(&worker)?.clone();
            if let Some(asked) = generation.filter(|g| *g != entry.generation) {
                return Err(FleetError::StaleGeneration { worker, asked, current: entry.generation });
            }
            fleet.remove(&mut registry, &entry).await
        });
        task.await.unwrap_or(Err(FleetError::Lane(LaneError::Stopped)))
    }

    /// Applies a batch that was pushed for a rank. `None`: the rank is fed by its engine's own publisher.
    pub async fn push(&self, rank: &RankEntry, batch: PushBatch) -> Option<Result<PushOutcome, LaneError>> {
        push::push(rank, batch, &self.events).await
    }

    /// Stops every subscriber. Blocks stay until the index goes.
    pub async fn stop_following(&self) {
        let mut registry = self.registry.lock().await;
        registry.subscribers.drain().for_each(|(_, stop)| stop.cancel());
    }

    async fn register_in_order(
        &self,
        registration: Registration,
        is_static: bool,
        replace: bool,
    ) -> Result<Registered, FleetError> {
        let mut registry = self.registry.lock().await;
        let view = self.view();
        if let Ok(entry) = view.worker(&registration.worker.id) {
            if entry.registration == registration {
                return Ok(Registered { generation: entry.generation, unchanged: true });
            }
            if !replace {
                return Err(FleetError::WorkerExists { worker: registration.worker.id });
            }
            self.check_replacement(&view, entry, &registration, &registry)?;
            self.remove(&mut registry, &entry.clone()).await?;
        } else {
            self.check_room(&view, &registration, &registry)?;
        }
        let entry = self.open(&mut registry, registration, is_static).await?;
        self.change_view(|view| view.insert(&entry));
        self.events.send(FleetEvent::Registered(entry.clone()));
        let stop = CancellationToken::new();
        let shared = feed::Shared {
            limits: self.ingest,
            events: self.events.clone(),
            snapshot_room: self.snapshot_room.clone(),
            seed_stock: self.seed_stock.clone(),
            log: self.log.clone(),
        };
        feed::follow(&entry.registration, &entry.ranks, &shared, &stop);
        self.append_to_log(&entry, &stop);
        watcher::watch(&entry, self.liveness, self.ingest, &self.events, &self.vetoes, &stop);
        republished::republish(&entry, &self.wire, &stop).await;
        registry.subscribers.insert(entry.generation, stop);
        Ok(Registered { generation: entry.generation, unchanged: false })
    }

    /// What is read from the log is not written to it again.
    fn append_to_log(&self, entry: &WorkerEntry, stop: &CancellationToken) {
        let Some(log) = &self.log else { return };
        let read: Vec<u32> =
            entry.registration.worker.ranks.iter().filter(|r| r.events == LOG_ENDPOINT).map(|r| r.rank).collect();
        for rank in entry.ranks.iter().filter(|rank| !read.contains(&rank.rank)) {
            log.append(rank.clone(), stop.clone());
        }
    }

    /// A replacement is judged as if the worker that it replaces were gone already, before anything is done.
    fn check_replacement(
        &self,
        view: &FleetView,
        old: &WorkerEntry,
        new: &Registration,
        registry: &Registry,
    ) -> Result<(), FleetError> {
        let mut without = view.clone();
        without.remove(old);
        without.check_group(new)?;
        self.check_ranks(new, registry.keys.left() + old.ranks.len())
    }

    fn check_room(&self, view: &FleetView, new: &Registration, registry: &Registry) -> Result<(), FleetError> {
        let limit = self.limits.workers_max;
        if view.workers().len() >= limit {
            return Err(FleetError::Full { what: "workers", setting: "workers_max", limit: limit as u64 });
        }
        view.check_group(new)?;
        self.check_ranks(new, registry.keys.left())
    }

    fn check_ranks(&self, new: &Registration, left: usize) -> Result<(), FleetError> {
        if new.feeds().len() <= left {
            return Ok(());
        }
        Err(FleetError::Full { what: "ranks", setting: "index.ranks_max", limit: left as u64 })
    }

    /// Opens every rank of a new worker; on a failure those that were opened are closed again.
    async fn open(
        &self,
        registry: &mut Registry,
        registration: Registration,
        is_static: bool,
    ) -> Result<Arc<WorkerEntry>, FleetError> {
        registry.generation_last += 1;
        let generation = registry.generation_last;
        let mut ranks = Vec::new();
        let veto = Arc::new(VetoCell::new(self.liveness));
        let sharing = Sharing::of(&registration);
        for (rank, feed) in registration.feeds() {
            let opened = self.open_rank(registry, generation, &sharing).await;
            let (key, lane) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    self.close_all(registry, &ranks, &sharing).await;
                    return Err(error);
                }
            };
            let push = (feed == Feed::Push).then(PushState::default);
            let republished = self.wire.rule(&registration.worker.id).is_some();
            let wire = republished.then(|| Arc::new(WireLog::new(self.relay.clone())));
            let relay = Arc::new(RankRelay::new(self.relay.clone()).with_wire(wire));
            ranks.push(Arc::new(RankEntry::new(&registration, rank, key, lane, relay, push, veto.clone())));
        }
        Ok(Arc::new(WorkerEntry { registration, generation, is_static, ranks, veto, loads: LoadCell::default() }))
    }

    async fn open_rank(
        &self,
        registry: &mut Registry,
        generation: u64,
        sharing: &Sharing,
    ) -> Result<(RankKey, RankLane), FleetError> {
        let full = FleetError::Full { what: "ranks", setting: "index.ranks_max", limit: 0 };
        let key = registry.keys.take().ok_or(full)?;
        let at = registry.placement.choose(sharing);
        match self.lanes[at].open(key, generation).await {
            Ok(lane) => {
                registry.placement.opened(at, sharing);
                Ok((key, lane))
            }
            Err(error) => {
                registry.keys.give(key);
                Err(error.into())
            }
        }
    }

    /// The order matters: out of the view, marked closed, no subscriber, no blocks; only then are the numbers free again.
    async fn remove(&self, registry: &mut Registry, entry: &Arc<WorkerEntry>) -> Result<u64, FleetError> {
        self.change_view(|view| view.remove(entry));
        entry.ranks.iter().for_each(|r| r.close());
        if let Some(stop) = registry.subscribers.remove(&entry.generation) {
            stop.cancel();
        }
        let sharing = Sharing::of(&entry.registration);
        let dropped = self.close_all(registry, &entry.ranks, &sharing).await;
        self.events.send(FleetEvent::Deregistered(entry.clone()));
        Ok(dropped)
    }

    async fn close_all(&self, registry: &mut Registry, ranks: &[Arc<RankEntry>], sharing: &Sharing) -> u64 {
        let mut dropped = 0;
        for rank in ranks {
            rank.close();
            match rank.lane.close().await {
                Ok(cleared) => dropped += cleared.blocks,
                Err(error) => {
                    tracing::warn!(worker = %rank.worker, rank = rank.rank, %error, "the rank could not be closed")
                }
            }
            registry.placement.closed(rank.lane.lane().number() as usize, sharing);
            registry.keys.give(rank.key);
        }
        dropped
    }

    /// Callers hold the registry, so there is one writer.
    fn change_view(&self, change: impl FnOnce(&mut FleetView)) {
        let mut view = FleetView::clone(&self.view.load());
        change(&mut view);
        self.view.store(Arc::new(view));
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
