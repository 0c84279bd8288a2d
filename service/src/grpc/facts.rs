//! What the calls about the service itself tell, and only the whole service knows.

use crate::ingest::Trust;
use crate::lease::LeasesStatus;
use crate::replica::ProgressReport;
use crate::topology::{Machine, Pinned};
use std::time::Duration;

/// What only the whole service knows about itself.
pub trait ServiceFacts: Send + Sync + 'static {
    /// Whether it is ready.
    fn ready(&self) -> bool;
    /// Whether it is draining.
    fn draining(&self) -> bool;
    /// Milliseconds since start.
    fn uptime_ms(&self) -> u64;
    /// The machine that shards and threads were placed on.
    fn machine(&self) -> &Machine;
    /// What came of pinning the threads that answer lookups. Allocates.
    fn lookup_threads(&self) -> Vec<Pinned>;
    /// What is still waited for before the service is ready. Allocates.
    fn waiting_for(&self) -> Waiting;
    /// How far the start from peers is; `None` where there are no peers. Allocates.
    fn copies(&self) -> Option<ProgressReport>;
    /// The seeding leases. Allocates.
    fn leases(&self) -> LeasesStatus;
}

/// What the service waits for before it is ready.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// Ranks that were not exact yet, and have some time left.
    pub ranks: Vec<WaitingRank>,
    /// Whether a peer's first copy is awaited, which may name more ranks.
    pub copy: bool,
}

/// A rank that is waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingRank {
    /// The worker's id.
    pub worker: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// How far it can be believed.
    pub trust: Trust,
    /// Time after which nothing waits for it any more.
    pub left: Duration,
}

impl Waiting {
    /// Whether nothing is waited for.
    pub fn is_over(&self) -> bool {
        self.ranks.is_empty() && !self.copy
    }
}
