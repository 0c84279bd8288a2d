//! The steps: what is asked of a partition, at a time, and what is answered. Pure; a store makes each of them one transaction.

use super::owners::{Owner, Tombstone};
use super::proof::{Proof, Rejected};
use super::record::{Ending, Grant, LeaseKey, Phase, Prefix, Record};
use super::settings::LeaseSettings;
use super::target::{Present, Sequences, Target};
use super::tokens::{TokenHash, TokenRefused};
use crate::ingest::Counters;
use std::time::Duration;

/// Asks for a lease.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Of which prefix.
    pub prefix: Prefix,
    /// Who asks.
    pub router: String,
    /// What pays for it.
    pub token: TokenHash,
    /// Who would be seeded, as the router knows it.
    pub target: Target,
    /// The owner set's revision as the router knows it; 0 where there is no owner.
    pub owner_revision: u64,
    /// Digest of the loads that the decision was made of.
    pub telemetry_digest: u64,
    /// Time to the request's own deadline.
    pub deadline: Option<Duration>,
}

/// A lease as its holder gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Which one.
    pub key: LeaseKey,
    /// Time until it expires, unless it is renewed. The holder counts from before it asked.
    pub ttl: Duration,
    /// Time until it expires however often it is renewed.
    pub max_hold: Duration,
}

/// Why there is no lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// Somebody else has it.
    Held,
    /// The last one ended too recently.
    Cooldown,
    /// The owner set is not what the router knows.
    RevisionMismatch,
    /// There are as many owners as allowed.
    Ceiling,
    /// The admission token was used before.
    TokenUsed,
    /// The target is an owner already.
    AlreadyOwner,
    /// The target lives another life than the router knows.
    TargetChanged,
    /// The partition knows as many prefixes as allowed, each with owners.
    PrefixesFull,
    /// The partition remembers as many used tokens as allowed.
    TokensFull,
}

impl Reason {
    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Held => "refused_held",
            Reason::Cooldown => "refused_cooldown",
            Reason::RevisionMismatch => "refused_revision_mismatch",
            Reason::Ceiling => "refused_ceiling",
            Reason::TokenUsed => "refused_token_used",
            Reason::AlreadyOwner => "refused_already_owner",
            Reason::TargetChanged => "refused_target_changed",
            Reason::PrefixesFull => "refused_prefixes_full",
            Reason::TokensFull => "refused_tokens_full",
        }
    }
}

/// No lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// Time until another attempt may succeed; zero where that is not known.
    pub retry_after: Duration,
    /// The owner set's revision.
    pub owner_revision: u64,
}

/// The lease is over: nothing may be dispatched or committed with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost;

/// Why a commit made no owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotCommitted {
    /// The lease is over.
    Lost,
    /// The proof proves nothing. The lease goes on: a better one may come.
    Rejected(Rejected),
    /// The target lives another life. The lease is over.
    TargetChanged,
}

impl Record {
    /// Grants the lease, or says why not. `target` is what the service knows of the worker now.
    pub fn acquire(
        &mut self,
        now: Duration,
        ask: &Acquire,
        target: &Target,
        settings: &LeaseSettings,
        counts: &mut Counters,
    ) -> Result<Lease, Refused> {
        let now = self.settle(now, settings, counts);
        match self.may_acquire(ask, target, settings) {
            Ok(()) => counts.bump("granted"),
            Err(reason) => {
                counts.bump(reason.name());
                return Err(self.refused(now, reason, &ask.prefix));
            }
        }
        let fence = self.next_fence(now);
        let max_hold = ask.deadline.unwrap_or(settings.hold_max).min(settings.hold_max);
        let lease_id = lease_id(fence, ask);
        self.tokens.take(now, ask.token);
        self.fence = fence;
        self.revision += 1;
        self.phase = Phase::Granted(Grant {
            lease_id,
            fence,
            router: ask.router.clone(),
            token: ask.token,
            prefix: ask.prefix.clone(),
            target: ask.target.clone(),
            telemetry_digest: ask.telemetry_digest,
            expires_at: now.saturating_add(settings.ttl),
            hold_until: now.saturating_add(max_hold),
            dispatched: None,
        });
        Ok(Lease { key: LeaseKey { lease_id, fence }, ttl: settings.ttl.min(max_hold), max_hold })
    }

    fn may_acquire(&mut self, ask: &Acquire, target: &Target, settings: &LeaseSettings) -> Result<(), Reason> {
        // What was used stays used, whoever has the lease meanwhile.
        self.tokens.check(ask.token, settings.tokens_max).map_err(|refused| match refused {
            TokenRefused::Used => Reason::TokenUsed,
            TokenRefused::Full => Reason::TokensFull,
        })?;
        match self.phase {
            Phase::Free => {}
            Phase::Granted(_) => return Err(Reason::Held),
            Phase::Cooldown { .. } => return Err(Reason::Cooldown),
        }
        if ask.target != *target {
            return Err(Reason::TargetChanged);
        }
        if let Some(set) = self.prefixes.get(&ask.prefix) {
            let agrees = set.revision == ask.owner_revision || set.owners.is_empty() && ask.owner_revision == 0;
            if !agrees {
                return Err(Reason::RevisionMismatch);
            }
            if set.has(&ask.target.worker) {
                return Err(Reason::AlreadyOwner);
            }
            if set.owners.len() >= settings.owners_max {
                return Err(Reason::Ceiling);
            }
        } else if ask.owner_revision != 0 {
            return Err(Reason::RevisionMismatch);
        }
        if self.prefixes.make_room(&ask.prefix, settings.prefixes_max) { Ok(()) } else { Err(Reason::PrefixesFull) }
    }

    fn refused(&self, now: Duration, reason: Reason, prefix: &[u8]) -> Refused {
        let until = match (&self.phase, reason) {
            (Phase::Granted(grant), Reason::Held) => grant.end(),
            (Phase::Cooldown { until, .. }, Reason::Cooldown) => *until,
            _ => now,
        };
        let owner_revision = self.prefixes.get(prefix).map_or(0, |set| set.revision);
        Refused { reason, retry_after: until.saturating_sub(now), owner_revision }
    }

    /// Keeps the lease; the time until it expires. With `dispatching`, which is allowed once, the seeded request counts as in flight
    /// from here on: `present` is what the service knows of the target then.
    pub fn renew(
        &mut self,
        now: Duration,
        key: LeaseKey,
        dispatching: Option<Option<&Present>>,
        settings: &LeaseSettings,
        counts: &mut Counters,
    ) -> Result<Duration, Lost> {
        let now = self.settle(now, settings, counts);
        let Some(grant) = self.held_by(key, counts) else { return Err(Lost) };
        if let Some(present) = dispatching {
            // Before anything else: a request is in flight, and whoever announces it again must not end its lease.
            if grant.dispatched.is_some() {
                counts.bump("dispatched_twice");
                return Err(Lost);
            }
            let Some(present) = present.filter(|present| present.target == grant.target) else {
                self.end(now, Ending::Aborted { refunded: false }, settings.cooldown_failed);
                counts.bump("target_changed");
                return Err(Lost);
            };
            grant.dispatched = Some(present.sequences.clone());
            self.revision += 1;
            counts.bump("dispatched");
        }
        let Phase::Granted(grant) = &mut self.phase else { return Err(Lost) };
        grant.expires_at = now.saturating_add(settings.ttl);
        Ok(grant.end().saturating_sub(now))
    }

    /// Makes the target an owner, if the proof is one; the owner set's revision. A repeated commit of the same lease is answered as
    /// the first. `target` is what the service knows of the worker now; `None`: it is gone.
    pub fn commit(
        &mut self,
        now: Duration,
        key: LeaseKey,
        proof: &Proof,
        target: Option<&Target>,
        settings: &LeaseSettings,
        counts: &mut Counters,
    ) -> Result<u64, NotCommitted> {
        let now = self.settle(now, settings, counts);
        if let Phase::Cooldown { lease_id, ending: Ending::Committed { revision }, .. } = self.phase
            && (lease_id, self.fence) == (key.lease_id, key.fence)
        {
            return Ok(revision);
        }
        let Some(grant) = self.held_by(key, counts) else { return Err(NotCommitted::Lost) };
        if target != Some(&grant.target) {
            self.end(now, Ending::Aborted { refunded: false }, settings.cooldown_failed);
            counts.bump("target_changed");
            return Err(NotCommitted::TargetChanged);
        }
        let grant = grant.clone();
        let proven = self.prove(&grant, proof, settings).map_err(|rejected| {
            counts.bump(rejected.name());
            NotCommitted::Rejected(rejected)
        })?;
        let revision = self.revision + 1;
        self.prefixes.join(&grant.prefix, Owner { target: grant.target, proven }, revision);
        self.end(now, Ending::Committed { revision }, settings.cooldown_committed);
        counts.bump("committed");
        Ok(revision)
    }

    fn prove(&self, grant: &Grant, proof: &Proof, settings: &LeaseSettings) -> Result<Sequences, Rejected> {
        let dispatched = grant.dispatched.as_ref().ok_or(Rejected::NotDispatched)?;
        let proven = proof.check(dispatched, settings)?;
        let buried = self.prefixes.get(&grant.prefix).is_some_and(|set| set.is_buried(&grant.target, &proven));
        if buried { Err(Rejected::Removed) } else { Ok(proven) }
    }

    /// Gives the lease back; whether its token may be used again. Repeated, or of a lease that is over, it does nothing.
    pub fn abort(&mut self, now: Duration, key: LeaseKey, settings: &LeaseSettings, counts: &mut Counters) -> bool {
        let now = self.settle(now, settings, counts);
        if let Phase::Cooldown { lease_id, ending: Ending::Aborted { refunded }, .. } = self.phase
            && (lease_id, self.fence) == (key.lease_id, key.fence)
        {
            return refunded;
        }
        let Some(grant) = self.grant().filter(|grant| grant.is(key)) else { return false };
        let (refunded, token) = (grant.dispatched.is_none(), grant.token);
        if refunded {
            self.tokens.refund(token);
        }
        self.end(now, Ending::Aborted { refunded }, settings.cooldown_failed);
        counts.bump("aborted");
        refunded
    }

    /// The target lost blocks of the prefix, seen in the index at `present.sequences`. Whether an owner went.
    pub fn removed(
        &mut self,
        now: Duration,
        prefix: &[u8],
        present: &Present,
        settings: &LeaseSettings,
        counts: &mut Counters,
    ) -> bool {
        let at = self.settle(now, settings, counts);
        let stone = Tombstone { target: present.target.clone(), sequences: present.sequences.clone(), at };
        let leased = self.grant().is_some_and(|grant| grant.prefix == prefix);
        let (limits, revision) = ((settings.prefixes_max, settings.tombstones_max), self.revision + 1);
        let changed = self.prefixes.removed(prefix, stone, leased, limits, revision);
        self.owners_changed(changed, counts)
    }

    /// A worker is gone, or lives another life: what it owned in this one is not owned any more. Whether an owner went.
    pub fn gone(&mut self, now: Duration, target: &Target, settings: &LeaseSettings, counts: &mut Counters) -> bool {
        self.settle(now, settings, counts);
        let changed = self.prefixes.gone(target, self.revision + 1);
        self.owners_changed(changed, counts)
    }

    fn owners_changed(&mut self, changed: bool, counts: &mut Counters) -> bool {
        if changed {
            self.revision += 1;
            counts.bump("revoked");
        }
        changed
    }

    /// The lease, if the caller has it. Call it after time has passed.
    fn held_by(&mut self, key: LeaseKey, counts: &mut Counters) -> Option<&mut Grant> {
        match &mut self.phase {
            Phase::Granted(grant) if grant.is(key) => Some(grant),
            _ => {
                counts.bump("fenced");
                None
            }
        }
    }

    fn end(&mut self, now: Duration, ending: Ending, pause: Duration) {
        if let Some(lease_id) = self.grant().map(|grant| grant.lease_id) {
            self.cool_down(now.saturating_add(pause), lease_id, ending);
        }
    }
}

/// A number of the lease beside its fence, other than those of leases that a store which forgot has granted.
fn lease_id(fence: u64, ask: &Acquire) -> u64 {
    let id = [ask.router.as_bytes(), &fence.to_le_bytes(), &ask.telemetry_digest.to_le_bytes()].concat();
    xxhash_rust::xxh3::xxh3_64_with_seed(&id, fence).max(1)
}
