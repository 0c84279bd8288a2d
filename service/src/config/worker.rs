//! A static worker as written in a file or a flag.

use super::limit::refused;
use super::raw::ConfigError;
use crate::fleet::{LOG_ENDPOINT, MetricsSource, Registration};
use crate::ingest::{Engine, HashChoice, RankEndpoint, SnapshotDialect, WorkerSpec};
use crate::smg::SmgEndpoint;
use serde::{Deserialize, Serialize};

/// Data-parallel ranks that one worker may ask for in short form; the fleet's own limit comes after.
const DP_SIZE_MAX: u32 = 4096;

/// `[[workers]]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawWorker {
    /// The name that answers carry.
    pub id: String,
    /// The model's name.
    pub model: String,
    /// Routing group; empty for the default one.
    #[serde(default)]
    pub routing_group: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// `vllm`, `sglang` or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Event publisher of rank 0; rank `r` is at the port plus `r`. None: events are pushed over gRPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<String>,
    /// Replay endpoint of rank 0; rank `r` is at the port plus `r`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Data-parallel ranks; none stands for 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dp_size: Option<u32>,
    /// Topic prefix; empty for all.
    #[serde(default)]
    pub topic: String,
    /// The engine announces reused blocks again.
    #[serde(default)]
    pub report_mode_full: bool,
    /// The engine hashes pairs of tokens.
    #[serde(default)]
    pub bigram: bool,
    /// Recompute one of this many stores the engine's own way; 0 for never. None stands for 16 if `hash_scheme` names a
    /// scheme, else for 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_check_every: Option<u32>,
    /// The engine's hash seed (`PYTHONHASHSEED`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_seed: Option<String>,
    /// How the engine names its blocks, for example `vllm:sha256_cbor:seed=42` or `sglang:dynamo`; `off` for no check.
    /// None stands for the engine's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_scheme: Option<String>,
    /// How the engine is asked for its state: `vllm:replay`. None: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<String>,
    /// Where the engine's own metrics are, for example `http://10.0.0.7:8000/metrics`: the worker's load is polled there while it
    /// pushes none. None: it is not polled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Milliseconds between two polls. None stands for `routing.load.poll_interval_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_poll_ms: Option<u64>,
}

impl RawWorker {
    /// Reads `key=value,key=value`, with the keys of the file.
    pub fn from_flag(text: &str) -> Result<Self, ConfigError> {
        let error = |reason: String| refused(&format!("--worker {text:?}"), reason);
        let mut worker = Self::default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| error(format!("{part:?} is not key=value")))?;
            let number = || value.parse::<u32>().map_err(|e| error(format!("{key}: {e}")));
            let truth = || value.parse::<bool>().map_err(|e| error(format!("{key}: {e}")));
            let some = || Some(value.to_owned());
            match key.trim() {
                "id" => worker.id = value.into(),
                "model" => worker.model = value.into(),
                "routing_group" => worker.routing_group = value.into(),
                "block_size" => worker.block_size = number()?,
                "engine" => worker.engine = some(),
                "events" => worker.events = some(),
                "replay" => worker.replay = some(),
                "dp_size" => worker.dp_size = Some(number()?),
                "topic" => worker.topic = value.into(),
                "report_mode_full" => worker.report_mode_full = truth()?,
                "bigram" => worker.bigram = truth()?,
                "hash_check_every" => worker.hash_check_every = Some(number()?),
                "hash_seed" => worker.hash_seed = some(),
                "hash_scheme" => worker.hash_scheme = some(),
                "snapshots" => worker.snapshots = some(),
                "metrics" => worker.metrics = some(),
                "load_poll_ms" => worker.load_poll_ms = Some(number()?.into()),
                other => return Err(error(format!("unknown key {other:?}"))),
            }
        }
        Ok(worker)
    }

    /// The worker as the fleet takes it.
    pub fn resolve(&self) -> Result<Registration, ConfigError> {
        let error = |field: &str, reason: String| refused(&format!("workers[{}].{field}", self.id), reason);
        let engine = match self.engine.as_deref().unwrap_or("auto") {
            "auto" => Engine::Auto,
            "vllm" => Engine::Vllm,
            "sglang" => Engine::Sglang,
            other => return Err(error("engine", format!("{other:?} is none of auto, vllm, sglang"))),
        };
        let hash_scheme = HashChoice::from_setting(self.hash_scheme.as_deref())
            .map_err(|reason| error("hash_scheme", reason.to_string()))?;
        let snapshots = self.snapshots.as_deref().map(str::parse::<SnapshotDialect>).transpose();
        let snapshots = snapshots.map_err(|reason| error("snapshots", reason.to_string()))?;
        let metrics = MetricsSource::from_setting(self.metrics.as_deref(), self.load_poll_ms)
            .map_err(|reason| error(reason.field(), reason.to_string()))?;
        let dp_size = self.dp_size.unwrap_or(1);
        if !(1..=DP_SIZE_MAX).contains(&dp_size) {
            return Err(error("dp_size", format!("{dp_size} is outside 1..={DP_SIZE_MAX}")));
        }
        if self.events.is_none() && self.replay.is_some() {
            return Err(error("replay", "without events".into()));
        }
        let mut ranks = Vec::new();
        for rank in 0..dp_size {
            let Some(events) = &self.events else { break };
            let at = |field, endpoint: &str| rank_address(endpoint, rank).map_err(|reason| error(field, reason));
            let replay = self.replay.as_deref().map(|r| at("replay", r)).transpose()?;
            ranks.push(RankEndpoint { rank, events: at("events", events)?, replay });
        }
        let pushed_ranks = if self.events.is_none() { (0..dp_size).collect() } else { Vec::new() };
        Ok(Registration {
            worker: WorkerSpec {
                id: self.id.clone(),
                model: self.model.clone(),
                routing_group: self.routing_group.clone(),
                block_size: self.block_size,
                engine,
                ranks,
                topic: self.topic.clone(),
                report_mode_full: self.report_mode_full,
                bigram: self.bigram,
                hash_check_every: hash_scheme.every(self.hash_check_every),
                hash_seed: self.hash_seed.clone(),
                hash_scheme,
                snapshots,
            },
            pushed_ranks,
            metrics,
        })
    }
}

/// Both engines give rank `r` the base port plus `r`.
fn rank_address(endpoint: &str, rank: u32) -> Result<String, String> {
    // A servicer streams all ranks of its worker.
    if rank == 0 || endpoint == LOG_ENDPOINT || SmgEndpoint::is_meant(endpoint) {
        return Ok(endpoint.to_owned());
    }
    let (host, port) =
        endpoint.rsplit_once(':').ok_or_else(|| format!("{endpoint:?} has no port to add the rank to"))?;
    let port: u16 = port.parse().map_err(|_| format!("{endpoint:?} has no port to add the rank to"))?;
    let port = u16::try_from(u32::from(port) + rank).map_err(|_| format!("rank {rank}: port beyond 65535"))?;
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::HASH_CHECK_EVERY_DEFAULT;

    #[test]
    fn a_flag_says_what_a_file_says() {
        let flag = "id=http://w:8000,model=m,block_size=16,engine=vllm,events=tcp://w:5557,replay=tcp://w:5657,dp_size=3,snapshots=vllm:replay,metrics=http://w:8000,load_poll_ms=500";
        let registration = RawWorker::from_flag(flag).unwrap().resolve().unwrap();
        let ranks: Vec<_> = registration.worker.ranks.iter().map(|r| (r.rank, r.events.as_str())).collect();
        assert_eq!(ranks, [(0, "tcp://w:5557"), (1, "tcp://w:5558"), (2, "tcp://w:5559")]);
        assert_eq!(registration.worker.ranks[2].replay.as_deref(), Some("tcp://w:5659"));
        assert_eq!(registration.worker.snapshots, Some(SnapshotDialect::VllmReplay));
        let metrics = registration.metrics.unwrap();
        assert_eq!(metrics.to_string(), "http://w:8000/metrics");
        assert_eq!(metrics.every(), Some(std::time::Duration::from_millis(500)));
        assert_eq!((registration.worker.engine, registration.worker.id.as_str()), (Engine::Vllm, "http://w:8000"));
        let pushed = RawWorker::from_flag("id=p,model=m,block_size=4,dp_size=2").unwrap().resolve().unwrap();
        assert_eq!(pushed.pushed_ranks, [0, 1]);
    }

    #[test]
    fn a_hash_scheme_is_read_from_flags_and_files_alike() {
        let flag = "id=w,model=m,block_size=16,engine=vllm,hash_scheme=vllm:sha256_cbor:seed=42";
        let from_flag = RawWorker::from_flag(flag).unwrap();
        let file = "id='w'\nmodel='m'\nblock_size=16\nengine='vllm'\nhash_scheme='vllm:sha256_cbor:seed=42'";
        assert_eq!(toml::from_str::<RawWorker>(file).unwrap(), from_flag);
        let worker = from_flag.resolve().unwrap().worker;
        assert_eq!(worker.hash_scheme, "vllm:sha256_cbor:seed=42".parse().unwrap());
        assert_eq!(worker.hash_check_every, HASH_CHECK_EVERY_DEFAULT);
        let every = |more: &str| {
            let worker = RawWorker::from_flag(&format!("id=w,model=m,block_size=16{more}")).unwrap();
            worker.resolve().unwrap().worker.hash_check_every
        };
        assert_eq!(every(""), 0);
        assert_eq!(every(",hash_check_every=3"), 3);
        assert_eq!(every(",hash_check_every=3,hash_scheme=off"), 0);
        assert_eq!(every(",hash_check_every=0,hash_scheme=sglang"), 0);
    }

    #[test]
    fn mistakes_are_named() {
        for (flag, expected) in [
            ("id", "not key=value"),
            ("id=a,color=red", "color"),
            ("id=a,block_size=x", "block_size"),
            ("id=a,bigram=maybe", "bigram"),
            ("id=a,engine=tgi", "tgi"),
            ("id=a,hash_scheme=vllm:sha1", "workers[a].hash_scheme"),
            ("id=a,hash_scheme=vllm:sha1", "off, sglang, sglang:dynamo"),
            ("id=a,hash_scheme=", "workers[a].hash_scheme"),
            ("id=a,dp_size=0", "dp_size"),
            ("id=a,snapshots=zip", "workers[a].snapshots"),
            ("id=a,replay=tcp://h:1", "without events"),
            ("id=a,metrics=https://h:1", "workers[a].metrics"),
            ("id=a,metrics=http://h:1,load_poll_ms=0", "workers[a].load_poll_ms"),
            ("id=a,load_poll_ms=5", "without metrics"),
            ("id=a,events=ipc:///x,dp_size=2", "no port"),
            ("id=a,events=tcp://h:65535,dp_size=2", "65535"),
        ] {
            let error = RawWorker::from_flag(flag).and_then(|w| w.resolve().map(drop)).unwrap_err().to_string();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }
}
