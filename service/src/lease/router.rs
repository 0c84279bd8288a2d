//! The router's side of one seeded request: what to do next, from the question for a lease to its end. Pure; whoever runs it carries
//! messages and tells the time.
//!
//! Ask, look again, announce, dispatch once, renew while it streams, commit or abort. Every doubt ends without an owner, and where
//! the lease's end is near by the router's own clock, the request is cut.

use super::proof::EndProof;
use super::record::LeaseKey;
use super::settings::LeaseSettings;
use super::step::{Lease, Refused};
use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

/// What happens to a seeder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The answer to `Acquire`.
    Acquired(Result<Lease, Refused>),
    /// The answer to `Recheck`: whether url, generation, telemetry's age and the owner set are still as they were.
    Rechecked(bool),
    /// The answer to a `Renew`: the time that it leaves, or nothing: the lease is lost.
    Renewed(Option<Duration>),
    /// The request ended.
    Ended(End),
    /// The answer to `Commit`.
    Committed(Answer),
    /// The store cannot be reached, or did not answer: what was asked may have been done or not.
    Unanswered,
    /// Time passed.
    Tick,
}

/// How a request ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// With everything that proves it.
    Usage(EndProof),
    /// Cleanly, but without usage: the index has to show the blocks.
    Clean,
    /// Cut, an error frame, or cancelled by its client.
    Failed,
}

/// What a commit came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The target is an owner.
    Done,
    /// Not proven yet.
    Rejected,
    /// Lost, or the target changed.
    Over,
}

/// What a seeder wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Ask for the lease.
    Acquire,
    /// Look again at everything that the decision was made of.
    Recheck,
    /// Renew; `dispatching` announces the dispatch.
    Renew {
        /// Which lease.
        key: LeaseKey,
        /// Whether the request is sent on the answer.
        dispatching: bool,
    },
    /// Send the request, with the fence beside it, without retries of its own.
    Dispatch {
        /// The fence.
        fence: u64,
    },
    /// Cut the request.
    Cut,
    /// Commit, with the end's proof or with the index's.
    Commit {
        /// Which lease.
        key: LeaseKey,
        /// The end; `None`: let the index prove it.
        end: Option<EndProof>,
    },
    /// Give the lease back.
    Abort {
        /// Which lease.
        key: LeaseKey,
        /// Why.
        reason: &'static str,
    },
    /// It is over.
    Finished(Outcome),
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// No lease: the request goes to an owner, or where admission sends it.
    NotGranted,
    /// The target is an owner.
    Seeded,
    /// A lease, but no owner.
    Given(&'static str),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Asking { since: Duration },
    Checking,
    Announcing { since: Duration },
    Streaming,
    Proving { end: Option<EndProof>, asked: bool },
    Over,
}

/// One seeded request of one router. A renewal or commit that is on its way is never sent again before it is answered.
#[derive(Clone, Debug)]
pub struct Seeder {
    state: State,
    lease: Option<Lease>,
    /// When the lease ends by this router's clock, counted from before the question.
    valid_until: Duration,
    hold_until: Duration,
    /// When a renewal that is not answered was asked for.
    renewing: Option<Duration>,
    next_renewal: Duration,
    renewal: Duration,
}

impl Seeder {
    /// Begins: preconditions are met and the local permit is taken.
    pub fn begin(now: Duration, settings: &LeaseSettings, out: &mut Vec<Wish>) -> Self {
        out.push(Wish::Acquire);
        Self {
            state: State::Asking { since: now },
            lease: None,
            valid_until: now,
            hold_until: now,
            renewing: None,
            next_renewal: now,
            renewal: settings.renewal,
        }
    }

    /// What to do about something that happened. Answers to questions that are no longer asked do nothing.
    pub fn step(&mut self, now: Duration, heard: Heard, out: &mut Vec<Wish>) {
        if self.lease.is_some() && now >= self.end() && self.state != State::Over {
            return self.lose("expired", out);
        }
        match (&self.state, heard) {
            (State::Asking { since }, Heard::Acquired(Ok(lease))) => self.granted(now, *since, lease, out),
            (State::Asking { .. }, Heard::Acquired(Err(_)) | Heard::Unanswered) => {
                self.finish(Outcome::NotGranted, out);
            }
            (State::Checking, Heard::Rechecked(true)) => {
                self.state = State::Announcing { since: now };
                self.with_key(out, |key| Wish::Renew { key, dispatching: true });
            }
            (State::Checking, Heard::Rechecked(false)) => self.give_back("conditions_changed", out),
            (State::Announcing { since }, Heard::Renewed(Some(left))) => self.dispatch(now, *since, left, out),
            // Whether it was announced is not known, and an announcement is good for one dispatch.
            (State::Announcing { .. }, Heard::Unanswered) => self.give_back("announcement_unanswered", out),
            (State::Announcing { .. }, Heard::Renewed(None)) => self.lose("lost", out),
            (State::Streaming | State::Proving { .. }, Heard::Renewed(answer)) => self.renewed(answer, out),
            (State::Streaming, Heard::Ended(End::Usage(end))) => self.prove(Some(end), out),
            (State::Streaming, Heard::Ended(End::Clean)) => self.prove(None, out),
            (State::Streaming, Heard::Ended(End::Failed)) => self.give_back("request_failed", out),
            (State::Proving { .. }, Heard::Committed(answer)) => self.committed(answer, out),
            // Asked again with the next renewal; the lease's end ends it otherwise.
            (State::Streaming, Heard::Unanswered) => self.renewing = None,
            (State::Proving { end, .. }, Heard::Unanswered) => {
                self.renewing = None;
                self.state = State::Proving { end: end.clone(), asked: false };
            }
            (State::Streaming | State::Proving { .. }, Heard::Tick) => self.tick(now, out),
            // Granted after it was given up.
            (State::Over, Heard::Acquired(Ok(lease))) if self.lease.is_none() => {
                self.lease = Some(lease);
                self.with_key(out, |key| Wish::Abort { key, reason: "answered_too_late" });
            }
            _ => {}
        }
    }

    /// When to step with [`Heard::Tick`] at the latest; `None`: nothing is due.
    pub fn next_tick(&self) -> Option<Duration> {
        match self.state {
            State::Asking { .. } | State::Over => None,
            State::Checking | State::Announcing { .. } => Some(self.end()),
            State::Streaming | State::Proving { .. } if self.renewing.is_some() => Some(self.end()),
            State::Streaming | State::Proving { .. } => Some(self.end().min(self.next_renewal)),
        }
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The lease's fence.
    pub fn fence(&self) -> Option<u64> {
        self.lease.map(|lease| lease.key.fence)
    }

    /// When the request is cut at the latest.
    pub fn end(&self) -> Duration {
        self.valid_until.min(self.hold_until)
    }

    fn granted(&mut self, now: Duration, since: Duration, lease: Lease, out: &mut Vec<Wish>) {
        self.lease = Some(lease);
        self.valid_until = since.saturating_add(lease.ttl);
        self.hold_until = since.saturating_add(lease.max_hold);
        if now >= self.end() {
            return self.give_back("answered_too_late", out);
        }
        self.state = State::Checking;
        out.push(Wish::Recheck);
    }

    fn dispatch(&mut self, now: Duration, since: Duration, left: Duration, out: &mut Vec<Wish>) {
        self.valid_until = since.saturating_add(left);
        if now >= self.end() {
            return self.give_back("answered_too_late", out);
        }
        self.state = State::Streaming;
        self.next_renewal = now.saturating_add(self.renewal);
        self.with_key(out, |key| Wish::Dispatch { fence: key.fence });
    }

    fn renewed(&mut self, answer: Option<Duration>, out: &mut Vec<Wish>) {
        let Some(since) = self.renewing.take() else { return };
        match answer {
            Some(left) => self.valid_until = self.valid_until.max(since.saturating_add(left)),
            None => self.lose("lost", out),
        }
    }

    fn prove(&mut self, end: Option<EndProof>, out: &mut Vec<Wish>) {
        self.state = State::Proving { end: end.clone(), asked: true };
        self.with_key(out, |key| Wish::Commit { key, end });
    }

    fn committed(&mut self, answer: Answer, out: &mut Vec<Wish>) {
        match answer {
            Answer::Done => self.finish(Outcome::Seeded, out),
            Answer::Over => self.finish(Outcome::Given("lost"), out),
            // The request's own end does not get better, but blocks may still appear in the index.
            Answer::Rejected => self.state = State::Proving { end: None, asked: false },
        }
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Wish>) {
        if now < self.next_renewal || self.renewing.is_some() {
            return;
        }
        self.next_renewal = now.saturating_add(self.renewal);
        self.renewing = Some(now);
        self.with_key(out, |key| Wish::Renew { key, dispatching: false });
        if let State::Proving { end, asked: asked @ false } = &mut self.state {
            *asked = true;
            let end = end.clone();
            self.with_key(out, |key| Wish::Commit { key, end });
        }
    }

    /// The lease is over or nearly so: nothing goes on under it. The store is told, for what that is worth.
    fn lose(&mut self, reason: &'static str, out: &mut Vec<Wish>) {
        if self.state == State::Streaming {
            out.push(Wish::Cut);
        }
        self.give_back(reason, out);
    }

    fn give_back(&mut self, reason: &'static str, out: &mut Vec<Wish>) {
        self.with_key(out, |key| Wish::Abort { key, reason });
        self.finish(Outcome::Given(reason), out);
    }

    fn finish(&mut self, outcome: Outcome, out: &mut Vec<Wish>) {
        self.state = State::Over;
        out.push(Wish::Finished(outcome));
    }

    fn with_key(&self, out: &mut Vec<Wish>, wish: impl FnOnce(LeaseKey) -> Wish) {
        if let Some(lease) = self.lease {
            out.push(wish(lease.key));
        }
    }
}

/// The local permit: of each partition, this router seeds one request at a time, so that it does not race itself for the lease.
#[derive(Debug)]
pub struct Permits<P>(HashSet<P>);

impl<P> Default for Permits<P> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<P: Hash + Eq> Permits<P> {
    /// Takes the partition's permit; whether it was there. Requests in flight bound the set.
    pub fn take(&mut self, partition: P) -> bool {
        self.0.insert(partition)
    }

    /// Gives it back.
    pub fn give(&mut self, partition: &P) {
        self.0.remove(partition);
    }
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
