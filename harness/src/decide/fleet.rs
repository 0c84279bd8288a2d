//! A service's inside without its ports: index, lanes, fleet and router, with caches filled through the lanes.

use super::corpus::{CorpusSpec, Held, build};
use kvatlas_index::{Index, IndexConfig, StoreKind, Tier};
use kvatlas_service::desks::Router;
use kvatlas_service::fleet::{Fleet, FleetLimits, LivenessLimits, PushBatch, PushHeader};
use kvatlas_service::grpc::{proto, registration_from_proto};
use kvatlas_service::ingest::IngestLimits;
use kvatlas_service::lanes::{LaneSettings, spawn_lanes};
use kvatlas_service::lookup::{LookupEngine, LookupLimits};
use kvatlas_service::ops::Op;
use kvatlas_service::relay::RelayLimits;
use kvatlas_service::routing::{LoadReport, LoadSource, RankLoad, RoutingSettings};
use rand::RngExt;
use rand::rngs::StdRng;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The model of every worker.
pub const MODEL: &str = "m";

/// A fleet to decide about.
pub struct Inside {
    /// The way in.
    pub router: Arc<Router>,
    /// Prompts to ask with.
    pub prompts: Vec<Vec<u32>>,
    /// (worker, block) pairs that the index holds.
    pub memberships: u64,
    workers: u32,
    _runtime: Runtime,
}

fn name(worker: u32) -> String {
    format!("w{worker:04}")
}

impl Inside {
    /// Fills a fleet. Takes seconds.
    pub fn new(spec: &CorpusSpec, settings: RoutingSettings) -> Result<Self, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let config = IndexConfig { ranks_max: spec.workers.max(64), ..IndexConfig::default() };
        let (index, lanes) = Index::new(config)?;
        let settings_of_lanes = LaneSettings { queue_batches_max: 1024, look_ahead_batches: 0, spots: Vec::new() };
        let (handles, _) = spawn_lanes(lanes, settings_of_lanes)?;
        // What was applied is of no use here: a history of one batch.
        let relay = RelayLimits { history_batches_max: 1, ..RelayLimits::default() };
        let limits =
            (FleetLimits::default(), IngestLimits::default(), LivenessLimits { enabled: false, ..Default::default() });
        let fleet = Arc::new(Fleet::new(handles, spec.workers.max(64), limits.0, limits.1, relay, limits.2));
        let engine = Arc::new(LookupEngine::new(index.clone(), fleet.clone(), LookupLimits::default()));
        let router = Arc::new(Router::new(fleet.clone(), engine, settings));
        let prompts = runtime.block_on(fill(&fleet, spec))?;
        let memberships = index.stats().held;
        Ok(Self { router, prompts, memberships, workers: spec.workers, _runtime: runtime })
    }

    /// Workers.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// A load of one worker, as an engine that is busy but not full would tell it.
    pub fn tell_load(&self, worker: u32, random: &mut StdRng) {
        let rank = RankLoad {
            running: random.random_range(1..32),
            waiting: random.random_range(0..4),
            token_usage: random.random_range(0.2..0.7),
            gen_throughput: random.random_range(500.0..2000.0),
            ..RankLoad::default()
        };
        let (source, fresh_for) = (LoadSource::Pushed, Duration::from_secs(15));
        self.router.load(&name(worker), LoadReport { rank_count: 1, ranks: vec![rank], source, fresh_for });
    }

    /// One of every worker.
    pub fn tell_loads(&self, random: &mut StdRng) {
        (0..self.workers).for_each(|worker| self.tell_load(worker, random));
    }
}

async fn fill(fleet: &Arc<Fleet>, spec: &CorpusSpec) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    for worker in 0..spec.workers {
        let worker = proto::WorkerSpec {
            id: name(worker),
            model: MODEL.into(),
            block_size: spec.block_size as u32,
            ..proto::WorkerSpec::default()
        };
        fleet.register(registration_from_proto(worker)?, false, false).await?;
    }
    let mut held = Vec::new();
    let prompts = build(spec, |chain| held.push(chain));
    let view = fleet.view();
    let mut sequences = vec![0; spec.workers as usize];
    for Held { worker, contents, names } in held {
        let rank = view.rank(&name(worker), 0)?;
        let sequence = sequences[worker as usize];
        sequences[worker as usize] += 1;
        let ops = vec![Op::Store { tier: Tier::Device, parent: None, names, contents, kind: StoreKind::Copy }];
        let header = PushHeader { sequence, reset: false, lost_before: false };
        let pushed = fleet.push(rank, PushBatch { header, published_at: None, ops, payload: None }).await;
        pushed.ok_or("a rank that is not pushed")??;
    }
    Ok(prompts)
}
