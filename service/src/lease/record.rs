//! What a store keeps of one partition, and how time alone changes it.
//!
//! ```text
//! FREE --acquire--> HELD --dispatching(fence)--> SEEDING --commit--> COOLDOWN (committed) --> FREE
//! HELD, SEEDING --abort, expiry--> COOLDOWN (failed) --> FREE
//! ```

use super::owners::Prefixes;
use super::settings::LeaseSettings;
use super::target::{Sequences, Target};
use super::tokens::{TokenHash, Tokens};
use crate::ingest::Counters;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What never shares an owner set with another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Partition {
    /// The model.
    pub model: String,
    /// LoRA adapter and cache salt; empty for the base namespace.
    pub namespace: String,
    /// The pool of workers, which is a routing group; empty for the default one.
    pub pool: String,
}

/// A prefix: the chained hash of its blocks.
pub type Prefix = Vec<u8>;

/// Which lease a caller says that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseKey {
    /// Its number.
    pub lease_id: u64,
    /// Its fence.
    pub fence: u64,
}

/// A lease as the store has it. Times are the store's, since the Unix epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Its number.
    pub lease_id: u64,
    /// Larger than that of every lease of the partition before.
    pub fence: u64,
    /// Who has it.
    pub router: String,
    /// What it was paid with.
    pub token: TokenHash,
    /// Of which prefix.
    #[serde(with = "super::hex")]
    pub prefix: Prefix,
    /// Who is seeded.
    pub target: Target,
    /// Digest of the loads that the decision was made of, for the record.
    pub telemetry_digest: u64,
    /// When it ends, unless it is renewed.
    pub expires_at: Duration,
    /// When it ends however often it is renewed.
    pub hold_until: Duration,
    /// How far the target's events were applied when the dispatch was announced.
    pub dispatched: Option<Sequences>,
}

impl Grant {
    /// When it is over, renewals left out.
    pub fn end(&self) -> Duration {
        self.expires_at.min(self.hold_until)
    }

    pub(super) fn is(&self, key: LeaseKey) -> bool {
        (self.lease_id, self.fence) == (key.lease_id, key.fence)
    }
}

/// How the last lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    /// There was none.
    None,
    /// Its target became an owner, which gave the set this revision.
    Committed {
        /// The set's revision.
        revision: u64,
    },
    /// It was given back.
    Aborted {
        /// Whether the token came back.
        refunded: bool,
    },
    /// It ended by itself.
    Expired,
}

/// Where the partition's lease is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Nobody has it.
    Free,
    /// Somebody has it; it is SEEDING once the dispatch was announced.
    Granted(Grant),
    /// Nobody gets it until then.
    Cooldown {
        /// Until when.
        until: Duration,
        /// Number of the lease that ended; 0 for none.
        lease_id: u64,
        /// How it ended.
        ending: Ending,
    },
}

/// Everything of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Rises with every change that watchers see.
    pub revision: u64,
    /// The latest fence.
    pub fence: u64,
    /// The latest time seen: time does not go back, whichever replica's clock it was.
    pub clock: Duration,
    /// Where the lease is.
    pub phase: Phase,
    /// Owners and tombstones by prefix.
    pub prefixes: Prefixes,
    /// Admission tokens that were used.
    pub tokens: Tokens,
}

impl Record {
    /// A partition of which nothing is known: nobody gets a lease before whoever held one, when a store forgot it, has seen its end.
    pub fn new(now: Duration, settings: &LeaseSettings) -> Self {
        let until = now.saturating_add(settings.quiet());
        // Revisions begin at the clock, as fences do: what was seen of a store that forgot is never taken for the present.
        let revision = clock_number(now);
        Self {
            revision,
            fence: 0,
            clock: now,
            phase: Phase::Cooldown { until, lease_id: 0, ending: Ending::None },
            prefixes: Prefixes::new(revision),
            tokens: Tokens::default(),
        }
    }

    /// Lets time pass. Every step begins with it. The time that counts is given back.
    pub(super) fn settle(&mut self, now: Duration, settings: &LeaseSettings, counts: &mut Counters) -> Duration {
        let now = now.max(self.clock);
        self.clock = now;
        if let Phase::Granted(grant) = &self.phase
            && now >= grant.end()
        {
            let (lease_id, ended) = (grant.lease_id, grant.end());
            counts.bump("expired");
            let pause = settings.cooldown_failed.max(settings.quiet());
            self.cool_down(ended.saturating_add(pause), lease_id, Ending::Expired);
        }
        if let Phase::Cooldown { until, .. } = self.phase
            && now >= until
        {
            self.phase = Phase::Free;
            self.revision += 1;
        }
        self.tokens.forget(now, settings.token_lifetime);
        now
    }

    pub(super) fn cool_down(&mut self, until: Duration, lease_id: u64, ending: Ending) {
        self.phase = Phase::Cooldown { until, lease_id, ending };
        self.revision += 1;
    }

    /// The lease, if somebody has it. What it says about time is only true right after a step.
    pub fn grant(&self) -> Option<&Grant> {
        match &self.phase {
            Phase::Granted(grant) => Some(grant),
            Phase::Free | Phase::Cooldown { .. } => None,
        }
    }

    /// Whether forgetting the record would lose nothing: its fences begin at the clock, so later ones are larger all the same.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Free && self.prefixes.is_empty() && self.tokens.is_empty()
    }

    /// The next fence: larger than all before, and not smaller than the clock in milliseconds, so that the fences of a store which
    /// forgot go on rising.
    pub(super) fn next_fence(&self, now: Duration) -> u64 {
        self.fence.saturating_add(1).max(clock_number(now))
    }
}

/// Milliseconds of the clock, at least 1.
fn clock_number(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX >> 1).max(1)
}
