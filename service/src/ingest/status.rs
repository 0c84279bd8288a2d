//! What is known about one rank's stream, as every answer and every status page shows it.

use std::collections::BTreeMap;

/// How far an answer about a rank can be believed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Trust {
    /// No message of this rank was ever seen.
    #[default]
    NeverSeen,
    /// The first state is being fetched.
    Bootstrapping,
    /// Every event since the publisher's start (or its last clear) was applied.
    Exact,
    /// Events are contiguous, but what happened before the first one is unknown.
    Partial,
    /// Events were lost and could not be fetched again.
    Degraded,
    /// The rank's events do not fit its registration (block size, for one); nothing of it is credited.
    Misconfigured,
}

impl Trust {
    /// The name in metrics, JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Trust::NeverSeen => "NEVER_SEEN",
            Trust::Bootstrapping => "BOOTSTRAPPING",
            Trust::Exact => "EXACT",
            Trust::Partial => "PARTIAL",
            Trust::Degraded => "DEGRADED",
            Trust::Misconfigured => "MISCONFIGURED",
        }
    }
}

/// A snapshot of one rank's stream.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RankStatus {
    /// How far answers can be believed.
    pub trust: Trust,
    /// Answers about this rank may be too high (window groups beside a full group, report mode `full`): the reason.
    pub upper_bound: Option<&'static str>,
    /// Lives of the publisher seen so far; 0 before the first message.
    pub incarnation: u64,
    /// Last sequence applied.
    pub cursor: Option<u64>,
    /// Whether the event socket is connected.
    pub connected: bool,
    /// Unix time in milliseconds at which the newest batch was applied.
    pub last_event_ms: Option<u64>,
    /// The publisher's own time stamp of that batch, Unix seconds.
    pub last_event_engine_time: Option<f64>,
    /// Why the rank is not exact, in words.
    pub detail: Option<String>,
    /// Events and losses counted by reason (the names are the metric labels).
    pub counters: BTreeMap<&'static str, u64>,
}
