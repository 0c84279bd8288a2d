//! A worker as somebody wants it registered, and what is checked before anything is done.

use super::error::FleetError;
use super::metrics_source::MetricsSource;
use super::shared_log::LOG_ENDPOINT;
use crate::ingest::socket::Endpoint;
use crate::ingest::{RankEndpoint, WorkerSpec};
use crate::smg::SmgEndpoint;
use crate::wire::HashMode;
use std::collections::BTreeMap;

/// Where a rank's events come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Feed {
    /// A subscriber connects to the engine's publisher.
    ZeroMq {
        /// Event publisher: `tcp://host:port` or `ipc://path`.
        events: String,
        /// Replay endpoint, if there is one.
        replay: Option<String>,
    },
    /// Somebody pushes them over gRPC.
    Push,
}

/// Limits of the fleet. Reaching one is [`FleetError::Full`] or [`FleetError::Invalid`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FleetLimits {
    /// Workers registered at once.
    pub workers_max: usize,
    /// Ranks of one worker.
    pub ranks_per_worker_max: usize,
    /// Bytes of a worker's id, a model's name, a routing group's name, an endpoint.
    pub name_bytes_max: usize,
    /// Largest block size, in tokens.
    pub block_size_max: u32,
    /// Changes that a watcher may be behind before it misses some.
    pub watch_lag_max: usize,
    /// Most ranks of a lane (and of a shard), in percent of the mean: as long as it is kept, ranks that share prompts are put
    /// onto the same lanes.
    pub lane_share_max_percent: u32,
}

impl Default for FleetLimits {
    fn default() -> Self {
        Self {
            workers_max: 4096,
            ranks_per_worker_max: 256,
            name_bytes_max: 1024,
            block_size_max: 1 << 16,
            watch_lag_max: 4096,
            lane_share_max_percent: 125,
        }
    }
}

/// A worker to register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The worker, with its ZeroMQ ranks in `ranks`.
    pub worker: WorkerSpec,
    /// Ranks whose events are pushed over gRPC.
    pub pushed_ranks: Vec<u32>,
    /// Where its load is polled while it pushes none; `None`: nowhere.
    pub metrics: Option<MetricsSource>,
}

impl Registration {
    /// How the worker cuts tokens into blocks.
    pub fn mode(&self) -> HashMode {
        if self.worker.bigram { HashMode::Bigram } else { HashMode::Plain }
    }

    /// Every rank with its feed, by number.
    pub fn feeds(&self) -> BTreeMap<u32, Feed> {
        let followed = self.worker.ranks.iter().map(|RankEndpoint { rank, events, replay }| {
            (*rank, Feed::ZeroMq { events: events.clone(), replay: replay.clone() })
        });
        followed.chain(self.pushed_ranks.iter().map(|rank| (*rank, Feed::Push))).collect()
    }

    /// Checks every field against its limit.
    pub fn check(&self, limits: &FleetLimits) -> Result<(), FleetError> {
        let worker = &self.worker;
        name("worker.id", &worker.id, limits)?;
        name("worker.model", &worker.model, limits)?;
        text("worker.routing_group", &worker.routing_group, limits)?;
        text("worker.topic", &worker.topic, limits)?;
        if !(1..=limits.block_size_max).contains(&worker.block_size) {
            let reason = format!("{} is outside 1..={}", worker.block_size, limits.block_size_max);
            return Err(FleetError::Invalid { field: "worker.block_size", reason });
        }
        let ranks = worker.ranks.len() + self.pushed_ranks.len();
        if ranks == 0 || ranks > limits.ranks_per_worker_max {
            let reason =
                format!("{ranks} ranks: from 1 to {} (limit ranks_per_worker_max)", limits.ranks_per_worker_max);
            return Err(FleetError::Invalid { field: "worker.ranks", reason });
        }
        if self.feeds().len() != ranks {
            return Err(FleetError::Invalid { field: "worker.ranks", reason: "a rank is named twice".into() });
        }
        text("worker.hash_seed", worker.hash_seed.as_deref().unwrap_or_default(), limits)?;
        if let Some(reason) = worker.hash_scheme.contradiction(worker.engine, worker.hash_seed.as_deref()) {
            return Err(FleetError::Invalid { field: "worker.hash_scheme", reason: reason.into() });
        }
        if let Some(metrics) = &self.metrics {
            text("worker.metrics", &metrics.to_string(), limits)?;
        }
        for endpoint in &worker.ranks {
            if endpoint.events == LOG_ENDPOINT {
                if endpoint.replay.is_some() || worker.snapshots.is_some() {
                    let reason = "a rank that is read from the log has no replay endpoint and no snapshots".into();
                    return Err(FleetError::Invalid { field: "worker.ranks.events_endpoint", reason });
                }
                continue;
            }
            if SmgEndpoint::is_meant(&endpoint.events) {
                smg_address(endpoint, limits)?;
                continue;
            }
            address("worker.ranks.events_endpoint", &endpoint.events, limits)?;
            if let Some(replay) = &endpoint.replay {
                address("worker.ranks.replay_endpoint", replay, limits)?;
            }
        }
        Ok(())
    }
}

fn name(field: &'static str, value: &str, limits: &FleetLimits) -> Result<(), FleetError> {
    if value.is_empty() {
        return Err(FleetError::Invalid { field, reason: "required".into() });
    }
    text(field, value, limits)
}

fn text(field: &'static str, value: &str, limits: &FleetLimits) -> Result<(), FleetError> {
    if value.len() > limits.name_bytes_max {
        let reason = format!("{} bytes, at most {} (limit name_bytes_max)", value.len(), limits.name_bytes_max);
        return Err(FleetError::Invalid { field, reason });
    }
    if value.chars().any(char::is_control) {
        return Err(FleetError::Invalid { field, reason: "control characters are not allowed".into() });
    }
    Ok(())
}

/// The protocol has no replay beside its stream.
fn smg_address(endpoint: &RankEndpoint, limits: &FleetLimits) -> Result<(), FleetError> {
    let field = "worker.ranks.events_endpoint";
    text(field, &endpoint.events, limits)?;
    let parsed = endpoint.events.parse::<SmgEndpoint>();
    parsed.map_err(|error| FleetError::Invalid { field, reason: error.to_string() })?;
    if endpoint.replay.is_none() {
        return Ok(());
    }
    let (field, reason) = ("worker.ranks.replay_endpoint", "a smg:// stream has no replay endpoint".into());
    Err(FleetError::Invalid { field, reason })
}

fn address(field: &'static str, value: &str, limits: &FleetLimits) -> Result<(), FleetError> {
    text(field, value, limits)?;
    let endpoint = value.parse::<Endpoint>();
    endpoint.map(drop).map_err(|error| FleetError::Invalid { field, reason: error.to_string() })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ingest::{Engine, HashChoice};

    pub(crate) fn pushed(id: &str, model: &str, block_size: u32) -> Registration {
        Registration {
            worker: WorkerSpec {
                id: id.into(),
                model: model.into(),
                routing_group: String::new(),
                block_size,
                engine: Engine::Auto,
                ranks: Vec::new(),
                topic: String::new(),
                report_mode_full: false,
                bigram: false,
                hash_check_every: 0,
                hash_seed: None,
                hash_scheme: HashChoice::default(),
                snapshots: None,
            },
            pushed_ranks: vec![0],
            metrics: None,
        }
    }

    fn followed(events: &str) -> Registration {
        let mut registration = pushed("w", "m", 4);
        registration.worker.ranks = vec![RankEndpoint { rank: 1, events: events.into(), replay: None }];
        registration
    }

    #[test]
    fn every_field_is_checked_and_named() {
        let limits = FleetLimits { ranks_per_worker_max: 2, name_bytes_max: 40, ..FleetLimits::default() };
        let mut two_ranks_alike = followed("tcp://h:1");
        two_ranks_alike.pushed_ranks = vec![1];
        let mut too_many = followed("tcp://h:1");
        too_many.pushed_ranks = vec![2, 3];
        let mut none = pushed("w", "m", 4);
        none.pushed_ranks.clear();
        let mut other_engine = pushed("w", "m", 4);
        other_engine.worker.hash_scheme = "sglang".parse().unwrap();
        other_engine.worker.engine = Engine::Vllm;
        let mut long_seed = pushed("w", "m", 4);
        long_seed.worker.hash_seed = Some("7".repeat(41));
        let mut far_metrics = pushed("w", "m", 4);
        far_metrics.metrics = Some(format!("http://{}", "w".repeat(41)).parse().unwrap());
        let mut smg_with_replay = followed("smg://host:1");
        smg_with_replay.worker.ranks[0].replay = Some("tcp://host:2".into());
        let cases = [
            (other_engine, "worker.hash_scheme"),
            (long_seed, "worker.hash_seed"),
            (far_metrics, "worker.metrics"),
            (pushed("", "m", 4), "worker.id"),
            (pushed(&"w".repeat(41), "m", 4), "worker.id"),
            (pushed("a\nb", "m", 4), "worker.id"),
            (pushed("w", "", 4), "worker.model"),
            (pushed("w", "m", 0), "worker.block_size"),
            (pushed("w", "m", 1 << 20), "worker.block_size"),
            (none, "worker.ranks"),
            (too_many, "worker.ranks"),
            (two_ranks_alike, "worker.ranks"),
            (followed("tcp://*:5557"), "worker.ranks.events_endpoint"),
            (followed("tcp://host:0"), "worker.ranks.events_endpoint"),
            (followed("tcp://host"), "worker.ranks.events_endpoint"),
            (followed("http://host:1"), "worker.ranks.events_endpoint"),
            (followed(""), "worker.ranks.events_endpoint"),
            (followed("smg://*:1"), "worker.ranks.events_endpoint"),
            (followed("smg://host"), "worker.ranks.events_endpoint"),
            (smg_with_replay, "worker.ranks.replay_endpoint"),
        ];
        for (registration, expected) in cases {
            match registration.check(&limits) {
                Err(FleetError::Invalid { field, .. }) => assert_eq!(field, expected, "{registration:?}"),
                other => panic!("{registration:?}: {other:?}"),
            }
        }
        for events in ["tcp://[::1]:5557", "tcp://10.0.0.7:5557", "ipc:///run/kv", "smg://pod:50051"] {
            assert_eq!(followed(events).check(&limits), Ok(()));
        }
    }
}
