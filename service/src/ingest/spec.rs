//! What ingest has to know about a worker: the resolved settings, after configuration was checked.
//!
//! The layers above turn flags, files and RPCs into these; ingest sees nothing else of them.

use super::hash_choice::HashChoice;
use super::snapshot::SnapshotDialect;
use crate::wire::DecodeLimits;
use std::time::Duration;

/// Which engine a worker runs. Decides only what the wire leaves open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// Not said: nothing is taken for granted.
    #[default]
    Auto,
    /// vLLM.
    Vllm,
    /// SGLang. Its first batch is always the start-up clear, so a first live sequence of 1 has lost nothing.
    Sglang,
}

/// Where one data-parallel rank publishes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankEndpoint {
    /// Data-parallel rank.
    pub rank: u32,
    /// Event publisher: `tcp://host:port` or `ipc://path`.
    pub events: String,
    /// Replay endpoint, if the publisher has one.
    pub replay: Option<String>,
}

/// One worker as registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerSpec {
    /// Its name (a URL, commonly). Names it in logs and status pages.
    pub id: String,
    /// Model it serves.
    pub model: String,
    /// Routing group within the model.
    pub routing_group: String,
    /// Tokens in a block (the engine's page size), at least 1.
    pub block_size: u32,
    /// Which engine it is.
    pub engine: Engine,
    /// Its ranks, at least one, with distinct rank numbers.
    pub ranks: Vec<RankEndpoint>,
    /// Prefix of the topics to subscribe to; empty for all.
    pub topic: String,
    /// The engine announces reused blocks again (`kv_cache_report_mode=full`). Nothing on the wire says so. With it,
    /// answers are upper bounds.
    pub report_mode_full: bool,
    /// The engine hashes pairs of tokens (EAGLE): lookups of its blocks are made of pairs.
    pub bigram: bool,
    /// Recompute one of this many stored events the engine's own way, and count whether the hashes agree; 0 for never.
    pub hash_check_every: u32,
    /// The engine's hash seed (`PYTHONHASHSEED`), where it is set. Used where `hash_scheme` names no seed.
    pub hash_seed: Option<String>,
    /// Which scheme the recomputation follows.
    pub hash_scheme: HashChoice,
    /// How the engine is asked for its state, where it offers that: for ranks that are not exact and whose replay does not
    /// reach back far enough.
    pub snapshots: Option<SnapshotDialect>,
}

/// Bounds and deadlines of ingest, the same for every rank. Reaching one is counted and shown in the rank's status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IngestLimits {
    /// Largest message (all its frames together) that is read from a peer; more ends the connection.
    pub message_bytes_max: usize,
    /// Batches waiting between the socket and the cursor; more are dropped, seen as a gap and fetched again.
    pub queue_batches_max: usize,
    /// Bytes waiting there.
    pub queue_bytes_max: usize,
    /// Batches held behind a gap while its replay runs; more give the replay up.
    pub held_batches_max: usize,
    /// Bytes held there.
    pub held_bytes_max: usize,
    /// Batches that may be missing for good before the rank's blocks are dropped.
    pub repairable_batches_max: u64,
    /// A replay that says nothing for so long has failed.
    pub replay_silence_max: Duration,
    /// A replay that takes longer than this, all its requests together, has failed.
    pub replay_duration_max: Duration,
    /// Requests made to close one gap, as long as each gets further than the one before.
    pub replay_requests_max: u32,
    /// Applied batches whose payload hash is remembered, to recognise a publisher's next life.
    pub payload_hashes_max: usize,
    /// A connected rank that was silent for so long is asked for the batch it sent last.
    pub idle_probe: Duration,
    /// Attempts to make a rank exact again, in a row; then no more until its connection is made anew, a clear, or another life.
    /// 0 for none at all.
    pub recovery_attempts_max: u32,
    /// Pause after the first attempt that failed; doubles up to [`Self::recovery_backoff_max`].
    pub recovery_backoff_min: Duration,
    /// Longest pause between attempts; and how long a rank has to stay exact before pauses are short again.
    pub recovery_backoff_max: Duration,
    /// A state that takes longer to be told, waiting for room included, is given up.
    pub snapshot_duration_max: Duration,
    /// Bytes of a state that are taken; more give it up.
    pub snapshot_bytes_max: usize,
    /// States that are fetched at once, over all ranks.
    pub snapshots_in_flight_max: usize,
    /// KV-cache groups whose kind is remembered for one rank.
    pub groups_max: usize,
    /// How much of a message the decoder reads.
    pub decode: DecodeLimits,
    /// First pause before a connection is tried again; doubles up to [`Self::reconnect_max`].
    pub reconnect_min: Duration,
    /// Longest pause before a connection is tried again.
    pub reconnect_max: Duration,
    /// Time that connecting and the handshake may take together.
    pub handshake_max: Duration,
}

impl Default for IngestLimits {
    fn default() -> Self {
        Self {
            message_bytes_max: 64 << 20,
            queue_batches_max: 8_192,
            queue_bytes_max: 128 << 20,
            held_batches_max: 16_384,
            held_bytes_max: 128 << 20,
            repairable_batches_max: 64,
            replay_silence_max: Duration::from_secs(2),
            replay_duration_max: Duration::from_secs(60),
            replay_requests_max: 16,
            payload_hashes_max: 512,
            idle_probe: Duration::from_secs(10),
            recovery_attempts_max: 8,
            recovery_backoff_min: Duration::from_secs(1),
            recovery_backoff_max: Duration::from_secs(60),
            snapshot_duration_max: Duration::from_secs(30),
            snapshot_bytes_max: 256 << 20,
            snapshots_in_flight_max: 4,
            groups_max: 64,
            decode: DecodeLimits { payload_bytes_max: 64 << 20, ..DecodeLimits::default() },
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(2),
            handshake_max: Duration::from_secs(5),
        }
    }
}
