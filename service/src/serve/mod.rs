//! The whole service in one process: index, lanes, fleet, gRPC and admin port, from start to drain.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use kvatlas_service::config::{Raw, Resolved};
//! let mut resolved = Resolved::new(&Raw::default())?;
//! resolved.grpc_listen = "127.0.0.1:0".parse()?;
//! let running = kvatlas_service::serve::start(resolved).await?;
//! println!("gRPC at {}", running.grpc_addr());
//! running.shutdown().await;
//! # Ok(()) }
//! ```

mod facts;
mod health;
mod readiness;

use crate::admin::{AdminState, MetricSources, Metrics, router};
use crate::config::Resolved;
use crate::desks::Router;
use crate::fleet::{Fleet, FleetError, SharedLog, StateKeeper};
use crate::grpc::proto::event_service_server::EventServiceServer;
use crate::grpc::proto::index_service_server::IndexServiceServer;
use crate::grpc::proto::lease_service_server::LeaseServiceServer;
use crate::grpc::proto::routing_service_server::RoutingServiceServer;
use crate::grpc::proto::worker_service_server::WorkerServiceServer;
use crate::grpc::{
    Admission, EventApi, IndexApi, LeaseApi, RoutingApi, ServiceFacts, SmgApi, WorkerApi, follow_bookings, proto,
    start_from_peers,
};
use crate::lanes::spawn_lanes;
use crate::lease::{EmbeddedStore, EtcdSettings, IndexedWorkers, LeaseStore, Leases, StoreSettings};
use crate::loads::{Loads, poll_all};
use crate::lookup::{LookupEngine, LookupTimes};
use crate::replica::Progress;
use crate::smg::proto::sglang_scheduler_server::SglangSchedulerServer;
use crate::smg::proto::vllm_engine_server::VllmEngineServer;
use crate::topology::{LookupPins, Tending, TendingSettings, log_placement, shard_reports};
use facts::Facts;
use health::Health;
use kvatlas_index::Index;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle as ThreadHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Pings on a silent connection, so that a vanished peer's streams end. Stricter servers drop clients that ping more often.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time that a ping may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the service did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The index refused its settings, or the system the memory.
    #[error("index: {0}")]
    Index(#[from] kvatlas_index::ConfigError),
    /// A thread could not be started.
    #[error("lane thread: {0}")]
    Lane(std::io::Error),
    /// The thread that makes huge pages could not be started.
    #[error("thread for huge pages: {0}")]
    Tending(std::io::Error),
    /// A port could not be bound.
    #[error("{setting} = {addr}: {error}")]
    Bind {
        /// The setting.
        setting: &'static str,
        /// Its value.
        addr: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// A static worker was refused.
    #[error("worker {worker}: {error}")]
    Worker {
        /// Its id.
        worker: String,
        /// Why.
        error: FleetError,
    },
    /// The shared log's address is none.
    #[error("shared_log.url: {0}")]
    Log(String),
    /// The addresses of the lease's store are none.
    #[error("lease.etcd_endpoints: {0}")]
    LeaseStore(String),
    /// Server reflection refused our own descriptors.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A service that runs. Dropping it without [`Running::shutdown`] leaves its tasks to the runtime.
pub struct Running {
    grpc_addr: SocketAddr,
    admin_addr: Option<SocketAddr>,
    fleet: Arc<Fleet>,
    loads: Arc<Loads>,
    engine: Arc<LookupEngine>,
    desks: Arc<Router>,
    keeper: Arc<StateKeeper>,
    facts: Arc<Facts>,
    health: Health,
    closing: CancellationToken,
    drain_delay: Duration,
    drain_max: Duration,
    tasks: Vec<JoinHandle<()>>,
    lanes: Vec<ThreadHandle<()>>,
    tending: Option<Tending>,
}

/// A runtime whose threads run where the configuration says, and what came of pinning them.
pub fn runtime(resolved: &Resolved) -> std::io::Result<(Runtime, Arc<LookupPins>)> {
    let pins = Arc::new(LookupPins::new(resolved.lookup_spots.clone()));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if !resolved.lookup_spots.is_empty() {
        builder.worker_threads(resolved.lookup_spots.len());
    }
    // The runtime starts its workers first and helpers for blocking calls only when something asks for them.
    let pin = pins.clone();
    let runtime = builder.enable_all().on_thread_start(move || pin.pin_next_thread()).build()?;
    Ok((runtime, pins))
}

/// Starts the service on the caller's runtime: when this returns, both ports are bound and every static worker is registered.
pub async fn start(resolved: Resolved) -> Result<Running, StartError> {
    start_on(resolved, Arc::default()).await
}

/// As [`start`], on a runtime of [`runtime`], whose pins are shown in the status.
pub async fn start_on(resolved: Resolved, pins: Arc<LookupPins>) -> Result<Running, StartError> {
    let ranks_max = resolved.index.ranks_max.saturating_mul(resolved.index.shards);
    let (index, lanes) = Index::new(resolved.index.clone())?;
    let (handles, lanes) = spawn_lanes(lanes, resolved.lanes.clone()).map_err(StartError::Lane)?;
    log_placement(&resolved.machine, &shard_reports(&index, &resolved.machine), handles.iter().map(|l| l.pinned()));
    let tend = |settings: TendingSettings| Tending::start(index.clone(), settings);
    let tending = resolved.tending.clone().map(tend).transpose().map_err(StartError::Tending)?;
    let (relay, liveness) = (resolved.relay, resolved.liveness);
    let fleet = Fleet::new(handles, ranks_max, resolved.fleet, resolved.ingest, relay, liveness);
    let fleet = fleet.with_wire(resolved.wire.clone()).with_log(shared_log(&resolved)?);
    let fleet = Arc::new(fleet);
    let engine = Arc::new(LookupEngine::new(index, fleet.clone(), resolved.lookup));
    let desks = Router::new(fleet.clone(), engine.clone(), resolved.routing.clone());
    let desks = Arc::new(desks.exchanging(resolved.replicas.peers.len(), resolved.routing.bookings.history_max));
    let grpc = bind("grpc.listen", resolved.grpc_listen).await?;
    let admin = match resolved.admin_listen {
        Some(addr) => Some(bind("admin.listen", addr).await?),
        None => None,
    };
    // Read while workers are registered: their ranks wait for it, nothing else does.
    let closing = CancellationToken::new();
    let keeper = Arc::new(StateKeeper::new(resolved.state.clone(), fleet.clone()));
    let loading = load_state(keeper.clone(), closing.clone());
    for registration in &resolved.workers {
        let worker = registration.worker.id.clone();
        fleet
            .register(registration.clone(), true, false)
            .await
            .map_err(|error| StartError::Worker { worker, error })?;
    }
    let leases = leases(&resolved, &fleet, &engine)?;
    let copies = (!resolved.replicas.peers.is_empty()).then(Arc::<Progress>::default);
    let facts =
        Arc::new(Facts::new(resolved.ready_deadline, resolved.machine.clone(), pins, copies.clone(), leases.clone()));
    let admission = Admission::new(resolved.grpc.lookups_in_flight_max, closing.clone());
    let times = Arc::new(LookupTimes::default());
    let (health, health_service) = Health::new();
    let loads = Arc::new(Loads::new(resolved.routing.load.clone()));
    loads.tell(desks.clone());
    let parts = Parts { fleet, loads, engine, desks, keeper, facts, admission, times, leases };
    parts.facts.observe(&parts.fleet.view());
    health.set(parts.facts.ready()).await;
    let (grpc_addr, admin_addr) = (grpc.1, admin.as_ref().map(|a| a.1));
    let mut tasks = vec![
        serve_grpc(&resolved, &parts, health_service, grpc.0, closing.clone())?,
        tokio::spawn(poll_all(parts.fleet.clone(), parts.loads.clone(), closing.clone())),
        tokio::spawn(watch_readiness(parts.fleet.clone(), parts.facts.clone(), health.clone(), closing.clone())),
        tokio::spawn(parts.desks.clone().run(closing.clone())),
        loading,
    ];
    if let Some((listener, _)) = admin {
        tasks.push(serve_admin(&parts, listener, closing.clone()));
    }
    let (swept, until) = (parts.leases.clone(), closing.clone());
    tasks.push(tokio::spawn(async move { swept.sweep_until(until).await }));
    if !resolved.replicas.peers.is_empty() {
        let (desks, settings) = (parts.desks.clone(), resolved.replicas.clone());
        let follow = follow_bookings(desks, settings, resolved.grpc.message_bytes_max, closing.clone());
        tasks.push(tokio::spawn(follow));
    }
    if let Some(copies) = copies {
        let (fleet, settings, bytes_max) =
            (parts.fleet.clone(), resolved.replicas.clone(), resolved.grpc.message_bytes_max);
        tasks.push(tokio::spawn(start_from_peers(fleet, settings, bytes_max, copies, closing.clone())));
    }
    let Parts { fleet, loads, engine, desks, keeper, facts, .. } = parts;
    let (drain_delay, drain_max) = (resolved.drain_delay, resolved.drain_max);
    Ok(Running {
        grpc_addr,
        admin_addr,
        fleet,
        loads,
        engine,
        desks,
        keeper,
        facts,
        health,
        closing,
        drain_delay,
        drain_max,
        tasks,
        lanes,
        tending,
    })
}

/// The client of the shared log, if one is configured. It connects by and by.
#[cfg(feature = "redis")]
fn shared_log(resolved: &Resolved) -> Result<Option<Arc<dyn SharedLog>>, StartError> {
    let Some(settings) = resolved.shared_log.clone() else { return Ok(None) };
    let log = crate::log::RedisLog::start(settings, resolved.grpc).map_err(StartError::Log)?;
    Ok(Some(Arc::new(log)))
}

#[cfg(not(feature = "redis"))]
fn shared_log(_: &Resolved) -> Result<Option<Arc<dyn SharedLog>>, StartError> {
    Ok(None)
}

/// The seeding leases, over their store.
fn leases(resolved: &Resolved, fleet: &Arc<Fleet>, engine: &Arc<LookupEngine>) -> Result<Arc<Leases>, StartError> {
    let store: Arc<dyn LeaseStore> = match &resolved.lease.store {
        StoreSettings::Embedded => Arc::new(EmbeddedStore::new(resolved.lease.partitions_max)),
        StoreSettings::Etcd(settings) => etcd(settings)?,
    };
    let workers = Arc::new(IndexedWorkers::new(fleet.clone(), engine.clone()));
    Ok(Arc::new(Leases::new(Arc::new(resolved.lease.clone()), store, workers)))
}

#[cfg(feature = "etcd")]
fn etcd(settings: &EtcdSettings) -> Result<Arc<dyn LeaseStore>, StartError> {
    Ok(Arc::new(crate::lease::EtcdStore::new(settings.clone()).map_err(StartError::LeaseStore)?))
}

/// The configuration refuses a cluster already.
#[cfg(not(feature = "etcd"))]
fn etcd(_: &EtcdSettings) -> Result<Arc<dyn LeaseStore>, StartError> {
    Err(StartError::LeaseStore("this binary was built without the feature `etcd`".into()))
}

/// What the ports share.
struct Parts {
    fleet: Arc<Fleet>,
    loads: Arc<Loads>,
    engine: Arc<LookupEngine>,
    desks: Arc<Router>,
    keeper: Arc<StateKeeper>,
    facts: Arc<Facts>,
    admission: Admission,
    times: Arc<LookupTimes>,
    leases: Arc<Leases>,
}

async fn bind(setting: &'static str, addr: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let error = |error| StartError::Bind { setting, addr, error };
    let listener = TcpListener::bind(addr).await.map_err(error)?;
    let bound = listener.local_addr().map_err(error)?;
    Ok((listener, bound))
}

fn serve_grpc(
    resolved: &Resolved,
    parts: &Parts,
    health: health::HealthService,
    listener: TcpListener,
    closing: CancellationToken,
) -> Result<JoinHandle<()>, StartError> {
    let limits = resolved.grpc;
    let (fleet, loads, admission) = (parts.fleet.clone(), parts.loads.clone(), parts.admission.clone());
    let facts: Arc<dyn ServiceFacts> = parts.facts.clone();
    let index =
        IndexApi::new(parts.engine.clone(), fleet.clone(), parts.times.clone(), admission.clone(), limits, facts);
    let events = EventApi::new(fleet.clone(), loads.clone(), admission.clone(), limits);
    let smg = SmgApi::new(fleet.clone(), admission.clone(), limits, resolved.ingest.decode);
    let routing = RoutingApi::new(parts.desks.clone(), admission.clone(), limits);
    let workers = WorkerApi::new(fleet, loads, admission, limits);
    let leases = LeaseApi::new(parts.leases.clone(), parts.admission.clone(), limits);
    let message_bytes_max = limits.message_bytes_max;
    let mut router = Server::builder()
        .max_concurrent_streams(limits.streams_per_connection_max)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(health)
        .add_service(IndexServiceServer::new(index).max_decoding_message_size(message_bytes_max))
        .add_service(EventServiceServer::new(events).max_decoding_message_size(message_bytes_max))
        .add_service(WorkerServiceServer::new(workers).max_decoding_message_size(message_bytes_max))
        .add_service(RoutingServiceServer::new(routing).max_decoding_message_size(message_bytes_max))
        .add_service(LeaseServiceServer::new(leases).max_decoding_message_size(message_bytes_max))
        .add_service(VllmEngineServer::new(smg.clone()).max_decoding_message_size(message_bytes_max))
        .add_service(SglangSchedulerServer::new(smg).max_decoding_message_size(message_bytes_max));
    if resolved.reflection {
        router = router.add_service(reflection().build_v1()?).add_service(reflection().build_v1alpha()?);
    }
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Ok(tokio::spawn(async move {
        let served = router.serve_with_incoming_shutdown(incoming, closing.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the gRPC server ended");
        }
    }))
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn serve_admin(parts: &Parts, listener: TcpListener, closing: CancellationToken) -> JoinHandle<()> {
    let facts: Arc<dyn ServiceFacts> = parts.facts.clone();
    let metrics = Metrics::new(MetricSources {
        fleet: parts.fleet.clone(),
        engine: parts.engine.clone(),
        desks: parts.desks.clone(),
        times: parts.times.clone(),
        admission: parts.admission.clone(),
        keeper: parts.keeper.clone(),
        facts: facts.clone(),
    });
    let app = router(AdminState { metrics: Arc::new(metrics), keeper: parts.keeper.clone(), facts });
    tokio::spawn(async move {
        let served = axum::serve(listener, app).with_graceful_shutdown(closing.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the admin server ended");
        }
    })
}

/// Reads the state file beside everything else.
fn load_state(keeper: Arc<StateKeeper>, closing: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::select! {
            () = keeper.load() => {}
            () = closing.cancelled() => {}
        }
    })
}

/// Looks at the ranks until the service is ready once.
async fn watch_readiness(fleet: Arc<Fleet>, facts: Arc<Facts>, health: Health, closing: CancellationToken) {
    let mut period = tokio::time::interval(facts::READY_PERIOD);
    while !facts.ready() {
        tokio::select! {
            _ = period.tick() => facts.observe(&fleet.view()),
            () = closing.cancelled() => return,
        }
    }
    if !facts.draining() {
        health.set(true).await;
    }
}

impl Running {
    /// Where gRPC is served.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where metrics and probes are served.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// The workers.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Where the workers' loads go in.
    pub fn loads(&self) -> &Arc<Loads> {
        &self.loads
    }

    /// The index.
    pub fn index(&self) -> &Arc<Index> {
        self.engine.index()
    }

    /// Where requests are routed, for whoever does so in this process.
    pub fn desks(&self) -> &Arc<Router> {
        &self.desks
    }

    /// Whether the service is ready.
    pub fn ready(&self) -> bool {
        self.facts.ready()
    }

    /// Drains: readiness goes, then, after the delay, streams end with UNAVAILABLE, calls finish, subscribers and lanes stop. Calls
    /// that do not finish in time are cut. Ends when nothing of the service runs any more.
    pub async fn shutdown(self) {
        self.facts.set_draining();
        // At once, and beside everything else: whoever is killed for taking too long has its state on the disk already.
        let keeper = self.keeper;
        let saving = keeper.is_on().then(|| tokio::spawn(async move { keeper.save().await }));
        self.health.set(false).await;
        tokio::time::sleep(self.drain_delay).await;
        self.closing.cancel();
        self.health.end().await;
        let deadline = tokio::time::Instant::now() + self.drain_max;
        for mut task in self.tasks {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                tracing::warn!("calls did not finish in time and are cut");
                task.abort();
            }
        }
        if let Some(saving) = saving {
            // What came of it is logged there.
            let _ = saving.await;
        }
        self.fleet.stop_following().await;
        tracing::info!("drained");
        // The lanes end when the last handle of them goes, as does the thread for huge pages; a cut call may still hold one for a moment, so nothing waits here.
        drop((self.fleet, self.engine, self.desks, self.lanes, self.tending));
    }
}
