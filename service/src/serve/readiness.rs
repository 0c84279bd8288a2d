//! Whether every rank that is known was exact once, or has had its time.
//!
//! A rank is given `lifecycle.ready_deadline_ms` from the moment it is known: to its engine's replay, to a peer's copy. Where peers are
//! asked, their first copy is waited for as well, since it may name ranks that nobody here knows. Ranks whose events are pushed say
//! nothing before their publisher comes, so nothing waits for them.

use crate::fleet::FleetView;
use crate::grpc::{Waiting, WaitingRank};
use crate::ingest::Trust;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// What was seen of the ranks so far.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// When each registration was seen first, by generation.
    known: HashMap<u64, Duration>,
    /// Ranks that were exact once, by generation and number.
    settled: HashSet<(u64, u32)>,
}

impl Readiness {
    /// Looks at the ranks at `now`, counted from the start of the service; what is waited for. `copy`: a peer's first copy is.
    pub(super) fn observe(&mut self, now: Duration, deadline: Duration, view: &FleetView, copy: bool) -> Waiting {
        let mut ranks = Vec::new();
        for rank in view.ranks().filter(|rank| !rank.is_pushed()) {
            let since = *self.known.entry(rank.generation).or_insert(now);
            let id = (rank.generation, rank.rank);
            let trust = rank.status.brief().trust;
            if trust == Trust::Exact {
                self.settled.insert(id);
            }
            let left = (since + deadline).saturating_sub(now);
            if !left.is_zero() && !self.settled.contains(&id) {
                ranks.push(WaitingRank { worker: rank.worker.to_string(), rank: rank.rank, trust, left });
            }
        }
        Waiting { ranks, copy: copy && now < deadline }
    }
}
