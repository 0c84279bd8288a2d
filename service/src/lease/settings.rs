//! Times, limits and the store of the seeding lease.

use std::time::Duration;

/// `[lease]`. Reaching a limit is refused with an answer or an error that names it; nothing is granted instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseSettings {
    /// How long a lease lives after it was granted or renewed.
    pub ttl: Duration,
    /// How often its holder renews it.
    pub renewal: Duration,
    /// Longest hold, however often it is renewed; a request's own deadline may be shorter.
    pub hold_max: Duration,
    /// How long nobody gets a lease of the partition after a commit.
    pub cooldown_committed: Duration,
    /// The same after an abort or an expiry.
    pub cooldown_failed: Duration,
    /// Most by which the clocks of two replicas of the service, or of their store, differ.
    pub skew_max: Duration,
    /// Most owners of a prefix.
    pub owners_max: usize,
    /// Most partitions that the embedded store knows, and that this process sweeps.
    pub partitions_max: usize,
    /// Most prefixes of a partition.
    pub prefixes_max: usize,
    /// Most bytes of a prefix.
    pub prefix_bytes_max: usize,
    /// Most blocks of a prefix.
    pub prefix_blocks_max: usize,
    /// Removals remembered for each prefix, one a worker.
    pub tombstones_max: usize,
    /// Most used admission tokens remembered for each partition.
    pub tokens_max: usize,
    /// How long a used admission token is remembered: longer than any token lives.
    pub token_lifetime: Duration,
    /// Most bytes of a model, namespace, pool, worker, router, token or reason.
    pub name_bytes_max: usize,
    /// Finish reasons that end a request as it should.
    pub finish_reasons: Vec<String>,
    /// Blocks by which an engine's count of prompt tokens may differ from the router's.
    pub prompt_slack_blocks: u32,
    /// How often the blocks of owned prefixes are looked up, so that an owner that lost them is none any more.
    pub sweep_period: Duration,
    /// Prefixes whose blocks this process remembers for that.
    pub swept_prefixes_max: usize,
    /// Most watches at once.
    pub watches_max: usize,
    /// How often a watched partition is read, since time and other replicas change it, too.
    pub watch_poll: Duration,
    /// Times that a step is tried again because another replica changed the partition meanwhile.
    pub attempts_max: u32,
    /// Where records are kept.
    pub store: StoreSettings,
}

/// Where records are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreSettings {
    /// In this process: for one replica.
    Embedded,
    /// On etcd: for any number.
    Etcd(EtcdSettings),
}

/// A cluster of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdSettings {
    /// `http://host:port` of its members.
    pub endpoints: Vec<String>,
    /// First word of every key. Replicas with the same word share their leases.
    pub prefix: String,
    /// Longest time to an answer.
    pub response_max: Duration,
}

impl Default for EtcdSettings {
    fn default() -> Self {
        Self { endpoints: Vec::new(), prefix: "kvatlas".into(), response_max: Duration::from_secs(1) }
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(5),
            renewal: Duration::from_secs(1),
            hold_max: Duration::from_secs(120),
            cooldown_committed: Duration::from_secs(5),
            cooldown_failed: Duration::from_secs(30),
            skew_max: Duration::from_secs(1),
            owners_max: 4,
            partitions_max: 1024,
            prefixes_max: 512,
            prefix_bytes_max: 64,
            prefix_blocks_max: 8192,
            tombstones_max: 8,
            tokens_max: 4096,
            token_lifetime: Duration::from_secs(3600),
            name_bytes_max: 256,
            finish_reasons: ["stop", "length", "eos", "tool_calls", "function_call"].map(String::from).to_vec(),
            prompt_slack_blocks: 1,
            sweep_period: Duration::from_secs(1),
            swept_prefixes_max: 4096,
            watches_max: 256,
            watch_poll: Duration::from_millis(500),
            attempts_max: 16,
            store: StoreSettings::Embedded,
        }
    }
}

impl LeaseSettings {
    /// How long after an expiry, or after a store forgot a partition, nobody gets a lease at least: whoever held one has seen its end
    /// by then, whichever clock it was granted by.
    pub fn quiet(&self) -> Duration {
        self.ttl.saturating_add(self.skew_max)
    }
}
