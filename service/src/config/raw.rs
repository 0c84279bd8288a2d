//! What the operator wrote: every setting with its default, and the sources it comes from.

use super::lease::RawLease;
use super::limit::to_millis;
use super::liveness::RawLiveness;
use super::log::RawLog;
use super::relay::RawRelay;
use super::replicas::RawReplicas;
use super::routing::{RawRouting, RoutingFlags};
use super::state::RawState;
use super::worker::RawWorker;
use crate::fleet::FleetLimits;
use crate::grpc::GrpcLimits;
use crate::ingest::IngestLimits;
use crate::lookup::LookupLimits;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use kvatlas_index::{HugePages, IndexConfig};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Variables with our prefix that are no settings of the service.
const ENV_ELSEWHERE: [&str; 3] = ["log", "endpoint", "config"];

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A source cannot be read, or has a key that is not known, or a value of the wrong type.
    #[error("{0}")]
    Source(#[from] Box<figment::Error>),
    /// A value is outside its range or does not fit another one.
    #[error("{setting}: {reason}")]
    Value {
        /// The setting.
        setting: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// What flags say, over everything else.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// `grpc.listen`.
    pub listen: Option<String>,
    /// `admin.listen`.
    pub admin_listen: Option<String>,
    /// `index.lanes_per_shard`.
    pub lanes: Option<u32>,
    /// `lanes.pin`.
    pub pin: bool,
    /// `index.numa`.
    pub numa: Option<RawNuma>,
    /// `index.huge_pages`.
    pub huge_pages: Option<RawHugePages>,
    /// More of `replicas.peers`.
    pub peers: Vec<String>,
    /// `state.file`.
    pub state_file: Option<String>,
    /// Some of `routing`.
    pub routing: RoutingFlags,
    /// More workers, as `id=..,model=..,block_size=16,events=tcp://..`.
    pub workers: Vec<String>,
}

/// The whole configuration as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Raw {
    /// The gRPC port.
    pub grpc: RawGrpc,
    /// The admin port.
    pub admin: RawAdmin,
    /// Readiness and drain.
    pub lifecycle: RawLifecycle,
    /// The lane threads.
    pub lanes: RawLanes,
    /// The threads that answer lookups.
    pub lookups: RawLookups,
    /// The index.
    pub index: RawIndex,
    /// Limits of calls.
    pub limits: RawLimits,
    /// Limits of the fleet.
    pub fleet: RawFleet,
    /// Limits and deadlines of ingest.
    pub ingest: RawIngest,
    /// The relay.
    pub relay: RawRelay,
    /// Which workers are offered.
    pub liveness: RawLiveness,
    /// The seeding lease.
    pub lease: RawLease,
    /// The other replicas.
    pub replicas: RawReplicas,
    /// The shared log.
    pub shared_log: RawLog,
    /// What is kept from one run to the next.
    pub state: RawState,
    /// Where requests go.
    pub routing: RawRouting,
    /// Static workers. Left out of a printed configuration when there are none, so that `[[workers]]` can be added to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<RawWorker>,
}

/// `[grpc]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawGrpc {
    /// Address and port; port 0 takes a free one.
    pub listen: String,
    /// Whether server reflection is on.
    pub reflection: bool,
}

impl Default for RawGrpc {
    fn default() -> Self {
        Self { listen: "127.0.0.1:50071".into(), reflection: true }
    }
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawAdmin {
    /// Address and port; port 0 takes a free one, an empty text turns the admin port off.
    pub listen: String,
}

impl Default for RawAdmin {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9571".into() }
    }
}

/// `[lifecycle]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawLifecycle {
    /// Milliseconds after which the service is ready although a static rank has not been seen.
    pub ready_deadline_ms: u64,
    /// Milliseconds between NOT_SERVING and the end of streams, for load balancers to notice.
    pub drain_delay_ms: u64,
    /// Milliseconds that calls may still take after that.
    pub drain_max_ms: u64,
}

impl Default for RawLifecycle {
    fn default() -> Self {
        Self { ready_deadline_ms: 30_000, drain_delay_ms: 0, drain_max_ms: 10_000 }
    }
}

/// `[lanes]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawLanes {
    /// Batches that may wait for one lane.
    pub queue_batches_max: usize,
    /// Batches that a lane sees beyond the one at work, to ask for the memory of their operations ahead of time; at most 64. 0,
    /// the default, for none: what looking ahead gains depends on the fleet. In `peers` whole events became about 7 % faster at low
    /// sharing, 4 to 15 % slower at high sharing, and 8 to 30 % slower where removals carry one name each, as vLLM's do.
    pub look_ahead_batches: usize,
    /// Whether lanes are pinned to cores also where nodes do not ask for it (`index.numa`).
    pub pin: bool,
}

impl Default for RawLanes {
    fn default() -> Self {
        Self { queue_batches_max: 1024, look_ahead_batches: 0, pin: false }
    }
}

/// `[lookups]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawLookups {
    /// Threads of the runtime, which answer lookups and read events from sockets. 0: the cores; with pins, those that lanes leave
    /// over.
    pub threads: usize,
    /// Whether they are pinned to cores also where nodes do not ask for it.
    pub pin: bool,
}

/// `index.numa`: how shards and memory nodes go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RawNuma {
    /// As `prefer` where the machine has several memory nodes, else as `off`.
    #[default]
    Auto,
    /// Nothing is placed on account of nodes.
    Off,
    /// A shard for each node, with its memory and threads there; other nodes' memory when the node is full.
    Prefer,
    /// The same with no memory but the node's.
    Bind,
}

/// `index.huge_pages`: which pages the index asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RawHugePages {
    /// What the system does by itself.
    Off,
    /// Memory in use throughout is made into huge pages, by a thread of its own.
    #[default]
    Collapse,
    /// Transparent ones from the first touch on.
    Transparent,
    /// Those of the reserved pool, all taken at the start.
    Explicit,
}

/// `[index]`: as `kvatlas_index::IndexConfig`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `kvatlas_index::IndexConfig`")]
pub struct RawIndex {
    /// 0: one for each memory node, as `numa` says.
    pub shards: u32,
    /// 0: half of the shard's share of the cores, from 1 to 8.
    pub lanes_per_shard: u32,
    pub numa: RawNuma,
    pub huge_pages: RawHugePages,
    /// Of `collapse`: milliseconds between two scans.
    pub huge_pages_scan_ms: u64,
    /// Of `collapse`: huge pages that a scan makes at most.
    pub huge_pages_per_scan: u32,
    pub ranks_max: u32,
    pub blocks_max: u32,
    pub runs_max: u32,
    pub exts_max: u32,
    pub orphans_max_per_rank: u32,
    pub names_max_per_holder: u64,
    pub private_names_max_per_lane: u32,
}

impl Default for RawIndex {
    fn default() -> Self {
        let index = IndexConfig::default();
        Self {
            shards: 0,
            lanes_per_shard: 0,
            numa: RawNuma::default(),
            huge_pages: RawHugePages::default(),
            huge_pages_scan_ms: to_millis(HugePages::TENDED_EVERY),
            huge_pages_per_scan: HugePages::COLLAPSES_MAX,
            ranks_max: index.ranks_max,
            blocks_max: index.blocks_max,
            runs_max: index.runs_max,
            exts_max: index.exts_max,
            orphans_max_per_rank: index.orphans_max_per_rank,
            names_max_per_holder: index.names_max_per_holder,
            private_names_max_per_lane: index.private_names_max_per_lane,
        }
    }
}

/// `[limits]`: as [`LookupLimits`] and [`GrpcLimits`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `LookupLimits` or `GrpcLimits`")]
pub struct RawLimits {
    pub message_bytes_max: usize,
    pub lookup_tokens_max: usize,
    pub lookup_blocks_max: usize,
    pub lookup_holders_max: usize,
    pub lookup_items_max: usize,
    pub lookup_item_blocks_max: usize,
    pub lookups_in_flight_max: usize,
    pub lookups_per_batch_max: usize,
    pub events_per_batch_max: usize,
    pub event_blocks_max: usize,
    pub explain_ranks_max: usize,
    pub streams_per_connection_max: u32,
    pub stream_answers_max: usize,
    pub copies_in_flight_max: usize,
}

impl Default for RawLimits {
    fn default() -> Self {
        let (lookup, grpc) = (LookupLimits::default(), GrpcLimits::default());
        Self {
            message_bytes_max: grpc.message_bytes_max,
            lookup_tokens_max: lookup.tokens_max,
            lookup_blocks_max: lookup.blocks_max,
            lookup_holders_max: lookup.holders_max,
            lookup_items_max: lookup.items.items_max,
            lookup_item_blocks_max: lookup.items.item_blocks_max,
            lookups_in_flight_max: grpc.lookups_in_flight_max,
            lookups_per_batch_max: grpc.lookups_per_batch_max,
            events_per_batch_max: grpc.events_per_batch_max,
            event_blocks_max: grpc.event_blocks_max,
            explain_ranks_max: grpc.explain_ranks_max,
            streams_per_connection_max: grpc.streams_per_connection_max,
            stream_answers_max: grpc.stream_answers_max,
            copies_in_flight_max: grpc.copies_in_flight_max,
        }
    }
}

/// `[fleet]`: as [`FleetLimits`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `FleetLimits`")]
pub struct RawFleet {
    pub workers_max: usize,
    pub ranks_per_worker_max: usize,
    pub name_bytes_max: usize,
    pub block_size_max: u32,
    pub watch_lag_max: usize,
    pub lane_share_max_percent: u32,
}

impl Default for RawFleet {
    fn default() -> Self {
        let fleet = FleetLimits::default();
        Self {
            workers_max: fleet.workers_max,
            ranks_per_worker_max: fleet.ranks_per_worker_max,
            name_bytes_max: fleet.name_bytes_max,
            block_size_max: fleet.block_size_max,
            watch_lag_max: fleet.watch_lag_max,
            lane_share_max_percent: fleet.lane_share_max_percent,
        }
    }
}

/// `[ingest]`: as [`IngestLimits`], durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `IngestLimits` or `DecodeLimits`")]
pub struct RawIngest {
    pub message_bytes_max: usize,
    pub queue_batches_max: usize,
    pub queue_bytes_max: usize,
    pub held_batches_max: usize,
    pub held_bytes_max: usize,
    pub repairable_batches_max: u64,
    pub replay_silence_max_ms: u64,
    pub replay_duration_max_ms: u64,
    pub replay_requests_max: u32,
    pub payload_hashes_max: usize,
    pub idle_probe_ms: u64,
    pub recovery_attempts_max: u32,
    pub recovery_backoff_min_ms: u64,
    pub recovery_backoff_max_ms: u64,
    pub snapshot_duration_max_ms: u64,
    pub snapshot_bytes_max: usize,
    pub snapshots_in_flight_max: usize,
    pub groups_max: usize,
    pub payload_bytes_max: usize,
    pub events_per_batch_max: usize,
    pub hashes_per_event_max: usize,
    pub hashes_per_batch_max: usize,
    pub tokens_per_event_max: usize,
    pub text_bytes_max: usize,
    pub reconnect_min_ms: u64,
    pub reconnect_max_ms: u64,
    pub handshake_max_ms: u64,
}

impl Default for RawIngest {
    fn default() -> Self {
        let ingest = IngestLimits::default();
        Self {
            message_bytes_max: ingest.message_bytes_max,
            queue_batches_max: ingest.queue_batches_max,
            queue_bytes_max: ingest.queue_bytes_max,
            held_batches_max: ingest.held_batches_max,
            held_bytes_max: ingest.held_bytes_max,
            repairable_batches_max: ingest.repairable_batches_max,
            replay_silence_max_ms: to_millis(ingest.replay_silence_max),
            replay_duration_max_ms: to_millis(ingest.replay_duration_max),
            replay_requests_max: ingest.replay_requests_max,
            payload_hashes_max: ingest.payload_hashes_max,
            idle_probe_ms: to_millis(ingest.idle_probe),
            recovery_attempts_max: ingest.recovery_attempts_max,
            recovery_backoff_min_ms: to_millis(ingest.recovery_backoff_min),
            recovery_backoff_max_ms: to_millis(ingest.recovery_backoff_max),
            snapshot_duration_max_ms: to_millis(ingest.snapshot_duration_max),
            snapshot_bytes_max: ingest.snapshot_bytes_max,
            snapshots_in_flight_max: ingest.snapshots_in_flight_max,
            groups_max: ingest.groups_max,
            payload_bytes_max: ingest.decode.payload_bytes_max,
            events_per_batch_max: ingest.decode.events_max,
            hashes_per_event_max: ingest.decode.hashes_per_event_max,
            hashes_per_batch_max: ingest.decode.hashes_per_batch_max,
            tokens_per_event_max: ingest.decode.tokens_per_event_max,
            text_bytes_max: ingest.decode.text_bytes_max,
            reconnect_min_ms: to_millis(ingest.reconnect_min),
            reconnect_max_ms: to_millis(ingest.reconnect_max),
            handshake_max_ms: to_millis(ingest.handshake_max),
        }
    }
}

impl Raw {
    /// Reads every source.
    pub fn load(flags: &Flags) -> Result<Raw, ConfigError> {
        Self::load_with(flags, Env::prefixed("KVATLAS_").ignore(&ENV_ELSEWHERE).split("__"))
    }

    fn load_with(flags: &Flags, env: Env) -> Result<Raw, ConfigError> {
        let mut sources = Figment::from(Serialized::defaults(Raw::default()));
        if let Some(file) = &flags.file {
            sources = sources.merge(Toml::file_exact(file));
        }
        let mut raw: Raw = sources.merge(env).extract().map_err(Box::new)?;
        if let Some(listen) = &flags.listen {
            raw.grpc.listen.clone_from(listen);
        }
        if let Some(listen) = &flags.admin_listen {
            raw.admin.listen.clone_from(listen);
        }
        if let Some(lanes) = flags.lanes {
            raw.index.lanes_per_shard = lanes;
        }
        raw.lanes.pin |= flags.pin;
        raw.index.numa = flags.numa.unwrap_or(raw.index.numa);
        raw.index.huge_pages = flags.huge_pages.unwrap_or(raw.index.huge_pages);
        raw.replicas.peers.extend(flags.peers.iter().cloned());
        if let Some(file) = &flags.state_file {
            raw.state.file.clone_from(file);
        }
        flags.routing.apply(&mut raw.routing);
        for worker in &flags.workers {
            raw.workers.push(RawWorker::from_flag(worker)?);
        }
        Ok(raw)
    }

    /// The configuration as a file that gives the same one again.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain tables and arrays can always be written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use figment::Jail;

    fn load(flags: &Flags) -> Result<Raw, ConfigError> {
        Raw::load(flags)
    }

    #[test]
    #[allow(clippy::result_large_err, reason = "the closure's type is figment's")]
    fn later_sources_win_and_workers_add_up() {
        Jail::expect_with(|jail| {
            jail.create_file(
                "kvatlas.toml",
                r#"
                [grpc]
                listen = "127.0.0.1:1"
                reflection = false
                [limits]
                lookup_tokens_max = 10
                [[workers]]
                id = "a"
                model = "m"
                block_size = 16
                events = "tcp://h:5557"
                "#,
            )?;
            jail.set_env("KVATLAS_GRPC__LISTEN", "127.0.0.1:2");
            jail.set_env("KVATLAS_ADMIN__LISTEN", "127.0.0.1:3");
            jail.set_env("KVATLAS_LOG", "info");
            let flags = Flags {
                file: Some("kvatlas.toml".into()),
                admin_listen: Some("127.0.0.1:4".into()),
                workers: vec!["id=b,model=m,block_size=16".into()],
                ..Flags::default()
            };
            let raw = load(&flags).unwrap();
            assert_eq!((raw.grpc.listen.as_str(), raw.admin.listen.as_str()), ("127.0.0.1:2", "127.0.0.1:4"));
            assert!(!raw.grpc.reflection);
            assert_eq!(raw.limits, RawLimits { lookup_tokens_max: 10, ..RawLimits::default() });
            assert_eq!(raw.workers.iter().map(|w| w.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);

            jail.create_file("again.toml", &raw.to_toml())?;
            jail.clear_env();
            let again = load(&Flags { file: Some("again.toml".into()), ..Flags::default() }).unwrap();
            assert_eq!(again, raw);
            Ok(())
        });
    }

    #[test]
    #[allow(clippy::result_large_err, reason = "the closure's type is figment's")]
    fn workers_come_from_the_environment_too() {
        Jail::expect_with(|jail| {
            let worker = r#"[{id="w",model="m",block_size=16,hash_scheme="vllm:sha256:seed=0",hash_check_every=4}]"#;
            jail.set_env("KVATLAS_WORKERS", worker);
            let raw = load(&Flags::default()).unwrap();
            let flag = "id=w,model=m,block_size=16,hash_scheme=vllm:sha256:seed=0,hash_check_every=4";
            assert_eq!(raw.workers, [RawWorker::from_flag(flag).unwrap()]);
            Ok(())
        });
    }

    #[test]
    #[allow(clippy::result_large_err, reason = "the closure's type is figment's")]
    fn unknown_keys_are_errors_wherever_they_are() {
        Jail::expect_with(|jail| {
            jail.create_file("a.toml", "[grpc]\nlistne = \"127.0.0.1:1\"\n")?;
            let error = load(&Flags { file: Some("a.toml".into()), ..Flags::default() }).unwrap_err().to_string();
            assert!(error.contains("listne"), "{error}");
            jail.create_file("b.toml", "[[workers]]\nid = \"a\"\nmodel = \"m\"\nblock_size = 1\nblocksize = 2\n")?;
            let error = load(&Flags { file: Some("b.toml".into()), ..Flags::default() }).unwrap_err().to_string();
            assert!(error.contains("blocksize"), "{error}");
            let missing = load(&Flags { file: Some("none.toml".into()), ..Flags::default() });
            assert!(matches!(missing, Err(ConfigError::Source(_))), "{missing:?}");
            jail.set_env("KVATLAS_GRPC__LISTNE", "x");
            let error = load(&Flags::default()).unwrap_err().to_string();
            assert!(error.contains("listne"), "{error}");
            Ok(())
        });
    }
}
