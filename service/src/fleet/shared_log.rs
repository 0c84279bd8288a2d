//! What the fleet asks of a shared log, whatever server it is on.

use super::feed::LaneSink;
use super::view::RankEntry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// `events_endpoint` of a rank that is read from the shared log.
pub const LOG_ENDPOINT: &str = "log";

/// A log that ranks are appended to and read from. Nothing here waits: both go on in tasks of their own until `stop` is
/// cancelled, and neither ever holds up the rank's events.
pub trait SharedLog: fmt::Debug + Send + Sync {
    /// Appends what is relayed of a rank, if this service appends at all.
    fn append(&self, rank: Arc<RankEntry>, stop: CancellationToken);

    /// Reads a rank.
    fn follow(&self, sink: LaneSink, stop: CancellationToken);

    /// How it stands with the log.
    fn status(&self) -> LogStatus;
}

/// The shared log as status pages show it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogStatus {
    /// The server, without credentials.
    pub server: String,
    /// Whether it answered last.
    pub connected: bool,
    /// Why it did not.
    pub detail: Option<String>,
    /// Ranks whose streams are written here.
    pub writing: u64,
    /// Ranks that another replica writes, or nobody can.
    pub standby: u64,
    /// Ranks that are read from it.
    pub reading: u64,
    /// What happened since start, by reason.
    pub counters: BTreeMap<&'static str, u64>,
}
