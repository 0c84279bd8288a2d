//! What was resolved and checked.

use super::limit::{PLACES_MAX, at_least, at_most, millis, refused, size, some_millis};
use super::log::LogSettings;
use super::raw::{ConfigError, Raw, RawHugePages, RawIngest, RawNuma};
use crate::fleet::{FleetError, FleetLimits, LivenessLimits, Registration, StateSettings};
use crate::grpc::GrpcLimits;
use crate::ingest::IngestLimits;
use crate::lanes::LaneSettings;
use crate::lease::LeaseSettings;
use crate::lookup::{ItemLimits, LookupLimits};
use crate::relay::RelayLimits;
use crate::replica::ReplicaSettings;
use crate::republish::WireSettings;
use crate::routing::RoutingSettings;
use crate::topology::{Asked, Machine, Numa, Plan, Spot, TendingSettings};
use crate::wire::DecodeLimits;
use kvatlas_index::{HugePages, IndexConfig, NodePolicy};
use std::net::SocketAddr;
use std::time::Duration;

/// Most changes that a watcher may lag behind: the ring of them is made at the start.
const WATCH_LAG_MAX: usize = 1 << 20;
/// Most threads that answer lookups.
const LOOKUP_THREADS_MAX: usize = 1024;
/// Smallest `fleet.lane_share_max_percent`: every lane has its even share.
const LANE_SHARE_MIN_PERCENT: u32 = 100;
/// Largest `lanes.look_ahead_batches`: a lane walks over the batches that it sees for each operation that it looks at.
const LOOK_AHEAD_BATCHES_MAX: usize = 64;

/// The settings in force. Every value is in its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Where gRPC is served.
    pub grpc_listen: SocketAddr,
    /// Whether server reflection is on.
    pub reflection: bool,
    /// Where metrics and probes are served; `None` for nowhere.
    pub admin_listen: Option<SocketAddr>,
    /// Time after which the service is ready although a static rank has not been seen.
    pub ready_deadline: Duration,
    /// Time between NOT_SERVING and the end of streams.
    pub drain_delay: Duration,
    /// Time that calls may still take after that.
    pub drain_max: Duration,
    /// The machine that shards, lanes and lookup threads were placed on.
    pub machine: Machine,
    /// The lane threads.
    pub lanes: LaneSettings,
    /// Where each thread that answers lookups runs; empty for as many as the runtime likes, anywhere.
    pub lookup_spots: Vec<Option<Spot>>,
    /// The index.
    pub index: IndexConfig,
    /// The thread that makes huge pages; `None` where none is needed.
    pub tending: Option<TendingSettings>,
    /// Limits of lookups.
    pub lookup: LookupLimits,
    /// Limits of the gRPC face.
    pub grpc: GrpcLimits,
    /// Limits of the fleet.
    pub fleet: FleetLimits,
    /// Limits and deadlines of ingest.
    pub ingest: IngestLimits,
    /// Limits of the relay.
    pub relay: RelayLimits,
    /// Ranks that are republished on the engines' own wire.
    pub wire: WireSettings,
    /// When a worker is not offered.
    pub liveness: LivenessLimits,
    /// The seeding lease.
    pub lease: LeaseSettings,
    /// The other replicas.
    pub replicas: ReplicaSettings,
    /// The shared log, if there is one.
    pub shared_log: Option<LogSettings>,
    /// What is kept from one run to the next.
    pub state: StateSettings,
    /// Where requests go.
    pub routing: RoutingSettings,
    /// Static workers.
    pub workers: Vec<Registration>,
}

impl Resolved {
    /// Checks everything that was written, for the machine that this process runs on. Reads its topology, so call it before any
    /// thread is pinned.
    pub fn new(raw: &Raw) -> Result<Self, ConfigError> {
        Self::on(raw, Machine::this())
    }

    /// Checks everything that was written, for a machine with this topology.
    pub fn on(raw: &Raw, machine: Machine) -> Result<Self, ConfigError> {
        let plan = Plan::new(&machine, &asked(raw)?);
        let index = index(raw, &plan);
        index.check().map_err(|error| refused("index", error.to_string()))?;
        let fleet = FleetLimits {
            workers_max: size("fleet.workers_max", raw.fleet.workers_max)?,
            ranks_per_worker_max: size("fleet.ranks_per_worker_max", raw.fleet.ranks_per_worker_max)?,
            name_bytes_max: size("fleet.name_bytes_max", raw.fleet.name_bytes_max)?,
            block_size_max: size("fleet.block_size_max", raw.fleet.block_size_max as usize)? as u32,
            watch_lag_max: at_most(
                WATCH_LAG_MAX,
                "fleet.watch_lag_max",
                size("fleet.watch_lag_max", raw.fleet.watch_lag_max)?,
            )?,
            lane_share_max_percent: at_least(
                LANE_SHARE_MIN_PERCENT,
                "fleet.lane_share_max_percent",
                raw.fleet.lane_share_max_percent,
            )?,
        };
        let workers = raw.workers.iter().map(|w| w.resolve()).collect::<Result<Vec<_>, _>>()?;
        for worker in &workers {
            let named = |error: FleetError| refused(&format!("workers[{}]", worker.worker.id), error.to_string());
            worker.check(&fleet).map_err(named)?;
        }
        let admin_listen =
            if raw.admin.listen.is_empty() { None } else { Some(address("admin.listen", &raw.admin.listen)?) };
        let tending = tending(raw, &plan, &machine)?;
        Ok(Self {
            grpc_listen: address("grpc.listen", &raw.grpc.listen)?,
            reflection: raw.grpc.reflection,
            admin_listen,
            ready_deadline: millis("lifecycle.ready_deadline_ms", raw.lifecycle.ready_deadline_ms)?,
            drain_delay: millis("lifecycle.drain_delay_ms", raw.lifecycle.drain_delay_ms)?,
            drain_max: millis("lifecycle.drain_max_ms", raw.lifecycle.drain_max_ms)?,
            lanes: LaneSettings {
                queue_batches_max: size("lanes.queue_batches_max", raw.lanes.queue_batches_max)?,
                look_ahead_batches: at_most(
                    LOOK_AHEAD_BATCHES_MAX,
                    "lanes.look_ahead_batches",
                    raw.lanes.look_ahead_batches,
                )?,
                spots: plan.lanes,
            },
            lookup_spots: plan.lookups,
            machine,
            index,
            tending,
            lookup: lookup(raw)?,
            grpc: grpc(raw)?,
            fleet,
            ingest: ingest(&raw.ingest)?,
            relay: raw.relay.resolve()?,
            wire: raw.relay.resolve_wire()?,
            liveness: raw.liveness.resolve()?,
            lease: raw.lease.resolve()?,
            replicas: raw.replicas.resolve()?,
            shared_log: raw.shared_log.resolve()?,
            state: raw.state.resolve()?,
            routing: raw.routing.resolve()?,
            workers,
        })
    }
}

/// What the plan is made of. Numbers that it would make lists of are checked first.
fn asked(raw: &Raw) -> Result<Asked, ConfigError> {
    let (shards, lanes_per_shard) = (raw.index.shards.max(1), raw.index.lanes_per_shard.max(1));
    let limits = IndexConfig { shards, lanes_per_shard, ..IndexConfig::default() };
    limits.check().map_err(|error| refused("index", error.to_string()))?;
    Ok(Asked {
        numa: match raw.index.numa {
            RawNuma::Auto => Numa::Auto,
            RawNuma::Off => Numa::Off,
            RawNuma::Prefer => Numa::Prefer,
            RawNuma::Bind => Numa::Bind,
        },
        shards: raw.index.shards,
        lanes_per_shard: raw.index.lanes_per_shard,
        pin_lanes: raw.lanes.pin,
        lookup_threads: at_most(LOOKUP_THREADS_MAX, "lookups.threads", raw.lookups.threads)?,
        pin_lookups: raw.lookups.pin,
    })
}

fn index(raw: &Raw, plan: &Plan) -> IndexConfig {
    IndexConfig {
        shards: plan.shards.len() as u32,
        lanes_per_shard: plan.lanes_per_shard,
        memory_nodes: plan.shards.clone(),
        node_policy: if raw.index.numa == RawNuma::Bind { NodePolicy::Bind } else { NodePolicy::Prefer },
        huge_pages: match raw.index.huge_pages {
            RawHugePages::Off => HugePages::Off,
            RawHugePages::Collapse => HugePages::Collapse,
            RawHugePages::Transparent => HugePages::Transparent,
            RawHugePages::Explicit => HugePages::Explicit,
        },
        ranks_max: raw.index.ranks_max,
        blocks_max: raw.index.blocks_max,
        runs_max: raw.index.runs_max,
        exts_max: raw.index.exts_max,
        orphans_max_per_rank: raw.index.orphans_max_per_rank,
        names_max_per_holder: raw.index.names_max_per_holder,
        private_names_max_per_lane: raw.index.private_names_max_per_lane,
        ..IndexConfig::default()
    }
}

fn tending(raw: &Raw, plan: &Plan, machine: &Machine) -> Result<Option<TendingSettings>, ConfigError> {
    let period = some_millis("index.huge_pages_scan_ms", raw.index.huge_pages_scan_ms)?;
    let collapses_max = size("index.huge_pages_per_scan", raw.index.huge_pages_per_scan as usize)? as u32;
    let cores = TendingSettings::cores_beside(&plan.lanes, &machine.cores);
    let collapses = raw.index.huge_pages == RawHugePages::Collapse;
    Ok(collapses.then_some(TendingSettings { period, collapses_max, cores }))
}

fn lookup(raw: &Raw) -> Result<LookupLimits, ConfigError> {
    let limits = &raw.limits;
    Ok(LookupLimits {
        tokens_max: size("limits.lookup_tokens_max", limits.lookup_tokens_max)?,
        blocks_max: size("limits.lookup_blocks_max", limits.lookup_blocks_max)?,
        holders_max: size("limits.lookup_holders_max", limits.lookup_holders_max)?,
        items: items(raw)?,
    })
}

fn items(raw: &Raw) -> Result<ItemLimits, ConfigError> {
    let limits = &raw.limits;
    Ok(ItemLimits {
        items_max: limits.lookup_items_max,
        item_blocks_max: size("limits.lookup_item_blocks_max", limits.lookup_item_blocks_max)?,
    })
}

fn grpc(raw: &Raw) -> Result<GrpcLimits, ConfigError> {
    let limits = &raw.limits;
    Ok(GrpcLimits {
        message_bytes_max: size("limits.message_bytes_max", limits.message_bytes_max)?,
        lookups_in_flight_max: size("limits.lookups_in_flight_max", limits.lookups_in_flight_max)?,
        lookups_per_batch_max: size("limits.lookups_per_batch_max", limits.lookups_per_batch_max)?,
        events_per_batch_max: size("limits.events_per_batch_max", limits.events_per_batch_max)?,
        items: items(raw)?,
        event_blocks_max: size("limits.event_blocks_max", limits.event_blocks_max)?,
        explain_ranks_max: size("limits.explain_ranks_max", limits.explain_ranks_max)?,
        streams_per_connection_max: limits.streams_per_connection_max.max(1),
        stream_answers_max: size("limits.stream_answers_max", limits.stream_answers_max)?,
        copies_in_flight_max: limits.copies_in_flight_max.min(PLACES_MAX),
    })
}

fn ingest(raw: &RawIngest) -> Result<IngestLimits, ConfigError> {
    Ok(IngestLimits {
        message_bytes_max: size("ingest.message_bytes_max", raw.message_bytes_max)?,
        queue_batches_max: size("ingest.queue_batches_max", raw.queue_batches_max)?,
        queue_bytes_max: size("ingest.queue_bytes_max", raw.queue_bytes_max)?,
        held_batches_max: size("ingest.held_batches_max", raw.held_batches_max)?,
        held_bytes_max: size("ingest.held_bytes_max", raw.held_bytes_max)?,
        repairable_batches_max: raw.repairable_batches_max,
        replay_silence_max: millis("ingest.replay_silence_max_ms", raw.replay_silence_max_ms)?,
        replay_duration_max: millis("ingest.replay_duration_max_ms", raw.replay_duration_max_ms)?,
        replay_requests_max: raw.replay_requests_max,
        payload_hashes_max: size("ingest.payload_hashes_max", raw.payload_hashes_max)?,
        idle_probe: millis("ingest.idle_probe_ms", raw.idle_probe_ms)?,
        recovery_attempts_max: raw.recovery_attempts_max,
        recovery_backoff_min: millis("ingest.recovery_backoff_min_ms", raw.recovery_backoff_min_ms.max(1))?,
        recovery_backoff_max: millis(
            "ingest.recovery_backoff_max_ms",
            raw.recovery_backoff_max_ms.max(raw.recovery_backoff_min_ms).max(1),
        )?,
        snapshot_duration_max: millis("ingest.snapshot_duration_max_ms", raw.snapshot_duration_max_ms)?,
        snapshot_bytes_max: size("ingest.snapshot_bytes_max", raw.snapshot_bytes_max)?,
        snapshots_in_flight_max: size("ingest.snapshots_in_flight_max", raw.snapshots_in_flight_max)?.min(PLACES_MAX),
        groups_max: size("ingest.groups_max", raw.groups_max)?,
        decode: DecodeLimits {
            payload_bytes_max: size("ingest.payload_bytes_max", raw.payload_bytes_max)?,
            events_max: size("ingest.events_per_batch_max", raw.events_per_batch_max)?,
            hashes_per_event_max: size("ingest.hashes_per_event_max", raw.hashes_per_event_max)?,
            hashes_per_batch_max: size("ingest.hashes_per_batch_max", raw.hashes_per_batch_max)?,
            tokens_per_event_max: size("ingest.tokens_per_event_max", raw.tokens_per_event_max)?,
            text_bytes_max: size("ingest.text_bytes_max", raw.text_bytes_max)?,
        },
        reconnect_min: millis("ingest.reconnect_min_ms", raw.reconnect_min_ms.max(1))?,
        reconnect_max: millis("ingest.reconnect_max_ms", raw.reconnect_max_ms.max(raw.reconnect_min_ms).max(1))?,
        handshake_max: millis("ingest.handshake_max_ms", raw.handshake_max_ms.max(1))?,
    })
}

fn address(setting: &str, value: &str) -> Result<SocketAddr, ConfigError> {
    let reason = || format!("{value:?} is not an address and port, for example 127.0.0.1:50071");
    value.parse().map_err(|_| refused(setting, reason()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawWorker;

    #[test]
    fn the_defaults_bind_to_loopback_only() {
        let resolved = Resolved::new(&Raw::default()).unwrap();
        assert!(resolved.grpc_listen.ip().is_loopback());
        assert!(resolved.admin_listen.unwrap().ip().is_loopback());
        assert_eq!(resolved.ingest, IngestLimits::default());
        assert_eq!(resolved.grpc, GrpcLimits::default());
        assert_eq!(resolved.lookup, LookupLimits::default());
        assert_eq!(resolved.fleet, FleetLimits::default());
    }

    #[test]
    fn huge_pages_are_made_of_memory_in_use_unless_told_otherwise() {
        let resolved = Resolved::new(&Raw::default()).unwrap();
        assert_eq!(resolved.index.huge_pages, HugePages::Collapse);
        assert!(resolved.tending.is_some());
        for (other, pages) in [
            (RawHugePages::Off, HugePages::Off),
            (RawHugePages::Transparent, HugePages::Transparent),
            (RawHugePages::Explicit, HugePages::Explicit),
        ] {
            let mut raw = Raw::default();
            raw.index.huge_pages = other;
            let resolved = Resolved::new(&raw).unwrap();
            assert_eq!((resolved.index.huge_pages, resolved.tending), (pages, None));
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Change = fn(&mut Raw);
        let cases: [(Change, &str); 20] = [
            (|r| r.grpc.listen = "localhost".into(), "grpc.listen"),
            (|r| r.admin.listen = "x".into(), "admin.listen"),
            (|r| r.index.shards = 1000, "shards"),
            (|r| r.index.lanes_per_shard = u32::MAX, "lanes_per_shard"),
            (|r| r.index.huge_pages_scan_ms = 0, "index.huge_pages_scan_ms"),
            (|r| r.index.huge_pages_per_scan = 0, "index.huge_pages_per_scan"),
            (|r| r.lookups.threads = usize::MAX, "lookups.threads"),
            (|r| r.fleet.lane_share_max_percent = 99, "fleet.lane_share_max_percent"),
            (|r| r.limits.lookup_tokens_max = 0, "limits.lookup_tokens_max"),
            (|r| r.lanes.queue_batches_max = 0, "lanes.queue_batches_max"),
            (|r| r.lanes.queue_batches_max = usize::MAX, "lanes.queue_batches_max"),
            (|r| r.limits.lookups_in_flight_max = usize::MAX, "limits.lookups_in_flight_max"),
            (|r| r.limits.stream_answers_max = usize::MAX >> 1, "limits.stream_answers_max"),
            (|r| r.ingest.queue_batches_max = usize::MAX, "ingest.queue_batches_max"),
            (|r| r.ingest.queue_bytes_max = usize::MAX, "ingest.queue_bytes_max"),
            (|r| r.fleet.watch_lag_max = 1_000_000_000, "fleet.watch_lag_max"),
            (|r| r.fleet.workers_max = usize::MAX, "fleet.workers_max"),
            (|r| r.lanes.look_ahead_batches = 65, "lanes.look_ahead_batches"),
            (|r| r.lifecycle.drain_max_ms = u64::MAX, "lifecycle.drain_max_ms"),
            (|r| r.workers.push(RawWorker { id: "w".into(), model: "m".into(), ..RawWorker::default() }), "block_size"),
        ];
        for (change, expected) in cases {
            let mut raw = Raw::default();
            change(&mut raw);
            let error = Resolved::new(&raw).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
