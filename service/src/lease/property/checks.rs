//! The invariants, judged by what really happened and not by what the machines say of themselves.

use super::super::*;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// What happened so far, and the first violation.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) violation: Option<String>,
    /// Fences in the order in which they were granted.
    granted: Vec<u64>,
    /// The highest fence that an engine let in.
    let_in: u64,
    /// Leases and dispatches paid with each token, and whether it came back.
    tokens: HashMap<TokenHash, (u32, u32)>,
    /// Requests that an engine ended as it should, by fence.
    ended: HashSet<u64>,
    owners: Vec<(Prefix, Target)>,
}

/// A commit that was answered with an owner.
pub(super) struct Commit<'a> {
    pub(super) fence: u64,
    pub(super) prefix: &'a Prefix,
    pub(super) target: &'a Target,
    /// The target's life now, and whether it really holds the prefix.
    pub(super) life: &'a Target,
    pub(super) holds: bool,
    /// Whether a removal was told that is later than what the proof can know.
    pub(super) removed_since: bool,
}

impl Checks {
    fn violated(&mut self, invariant: &str, what: String) {
        self.violation.get_or_insert_with(|| format!("{invariant}: {what}"));
    }

    /// I1: of seeded requests in flight there is one at most. `flying` are those of routers that run, and of stopped ones until their
    /// lease ends; a router that stands still longer cannot know, and its request can neither commit nor dispatch again (I5).
    pub(super) fn in_flight(&mut self, now: Duration, flying: &[(usize, u64)]) {
        if flying.len() > 1 {
            self.violated("I1", format!("at {now:?} in flight at once, router and fence: {flying:?}"));
        }
    }

    pub(super) fn granted(&mut self, fence: u64, token: TokenHash) {
        if self.granted.last().is_some_and(|last| fence <= *last) {
            self.violated("I5", format!("fence {fence} after {:?}", self.granted.last()));
        }
        self.granted.push(fence);
        let paid = self.tokens.entry(token).or_default();
        paid.0 += 1;
        if paid.0 > 1 {
            self.violated("I6", format!("fence {fence} was paid with a token that was used"));
        }
    }

    pub(super) fn refunded(&mut self, token: TokenHash) {
        let paid = self.tokens.entry(token).or_default();
        paid.0 = paid.0.saturating_sub(1);
        if paid.1 > 0 {
            self.violated("I6", "a token came back although something was dispatched".into());
        }
    }

    /// A router sends its request.
    pub(super) fn dispatched(&mut self, fence: u64, token: TokenHash) {
        let paid = self.tokens.entry(token).or_default();
        paid.1 += 1;
        if paid.1 > 1 {
            self.violated("I6", format!("fence {fence} dispatched with a token that was used"));
        }
    }

    /// An engine lets a request in.
    pub(super) fn let_in(&mut self, fence: u64) {
        if fence <= self.let_in {
            self.violated("I5", format!("an engine let fence {fence} in after {}", self.let_in));
        }
        self.let_in = self.let_in.max(fence);
    }

    pub(super) fn ended(&mut self, fence: u64) {
        self.ended.insert(fence);
    }

    /// A commit was answered with an owner for the first time.
    pub(super) fn committed(&mut self, commit: &Commit<'_>) {
        let fence = commit.fence;
        if self.granted.last() != Some(&fence) {
            self.violated("I5", format!("fence {fence} committed after {:?} was granted", self.granted.last()));
        }
        if !self.ended.contains(&fence) && !commit.holds {
            self.violated("I3", format!("fence {fence} committed, and nothing proves it"));
        }
        if commit.target != commit.life {
            self.violated("I4", format!("fence {fence} committed {:?}, which is {:?} now", commit.target, commit.life));
        }
        if commit.removed_since {
            self.violated("I3", format!("fence {fence} committed what was removed since"));
        }
    }

    /// I2, I3: the owners, after a step. Only a commit adds one, and only its own target.
    pub(super) fn owners(&mut self, record: &Record, commit: Option<&Commit<'_>>) {
        let now: Vec<(Prefix, Target)> = record
            .prefixes
            .iter()
            .flat_map(|(prefix, set)| set.owners.iter().map(|owner| (prefix.clone(), owner.target.clone())))
            .collect();
        for owner in now.iter().filter(|owner| !self.owners.contains(owner)) {
            if !commit.is_some_and(|commit| (commit.prefix, commit.target) == (&owner.0, &owner.1)) {
                self.violation.get_or_insert_with(|| format!("I2: {owner:?} is an owner without a commit"));
            }
        }
        for (_, set) in record.prefixes.iter() {
            if set.owners.len() > LeaseSettings::default().owners_max {
                self.violation.get_or_insert_with(|| "I2: above the ceiling".into());
            }
        }
        self.owners = now;
    }
}
