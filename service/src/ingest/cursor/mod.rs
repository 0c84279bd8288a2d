//! The cursor of one rank: which batch comes next, what is missing, and whether the publisher is still the same one.
//!
//! Pure: `step(now, input)` appends outputs; no clock, no socket. One cursor follows one publisher.
//!
//! A batch is applied when it follows the one before. A batch further on is held, and the publisher is asked for what lies
//! between, once for each gap, *starting with the last batch that was applied*: its payload comes back byte for byte if the
//! publisher is the same one, so each answer also proves (or disproves) that this is the life of the publisher that the
//! rank's blocks belong to. Nothing else on the wire says so. The same question is asked after every reconnection and after
//! a long silence.
//!
//! What is known about everything before the cursor is the *standing*. A clear of the engine's, a new life of the publisher, or
//! everything fetched again from the beginning makes a tainted standing exact again; the last of these is tried by itself
//! (`recovery.rs`).
//!
//! A state from elsewhere (a seed) takes the place of the first history, if the publisher proves that it is of its life (`seeded.rs`).
//!
//! Not here: decoding. Whoever applies the batches reports clears and unreadable content back ([`Cursor::cleared`],
//! [`Cursor::content_lost`]).

mod held;
mod payloads;
#[cfg(test)]
mod property;
mod recovery;
#[cfg(test)]
mod recovery_tests;
mod replay;
#[cfg(test)]
mod seed_tests;
mod seeded;
#[cfg(test)]
mod tests;

use super::counters::Counters;
use super::spec::IngestLimits;
use super::status::Trust;
use crate::seed::Cut;
use bytes::Bytes;
use held::Held;
use payloads::Payloads;
use recovery::Recovery;
use replay::{Purpose, Replay};
use seeded::Seeding;
use std::time::Duration;

/// What happened. Times are passed beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// The event connection was made. Nothing that an earlier connection missed will come by itself.
    Connected,
    /// The event connection ended.
    Disconnected,
    /// A batch of the live stream.
    Live {
        /// Its sequence.
        seq: u64,
        /// Its payload.
        payload: Bytes,
    },
    /// A batch of a replay.
    ReplayBatch {
        /// Number of the request that it answers.
        request: u64,
        /// Its sequence.
        seq: u64,
        /// Its payload.
        payload: Bytes,
    },
    /// The end marker of a replay.
    ReplayEnd {
        /// Number of the request.
        request: u64,
    },
    /// A replay cannot be carried on: no connection, or an answer that is none.
    ReplayFailed {
        /// Number of the request.
        request: u64,
    },
    /// A state that was asked for has come whole: everything before batch `next`.
    SnapshotReady {
        /// Number of the request.
        request: u64,
        /// Sequence of the batch that follows.
        next: u64,
    },
    /// A state that was asked for does not come, or is none.
    SnapshotFailed {
        /// Number of the request.
        request: u64,
    },
    /// A state of the rank that was cut elsewhere, or in another run: to be loaded if it is proven. It takes the place of one that
    /// waits.
    Seed(Cut),
    /// Time passed; see [`Cursor::next_tick`].
    Tick,
}

/// What to do, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Apply this batch.
    Apply {
        /// Its sequence.
        seq: u64,
        /// Its payload.
        payload: Bytes,
    },
    /// Drop everything that the rank holds.
    Clear,
    /// Ask the publisher for its batches from `from` on; give an earlier request up.
    RequestReplay {
        /// Number of the request, for the inputs that answer it.
        request: u64,
        /// First sequence asked for.
        from: u64,
    },
    /// Give the request in flight up.
    CancelReplay,
    /// Ask the publisher for its state.
    RequestSnapshot {
        /// Number of the request, for the input that answers it.
        request: u64,
    },
    /// Give that up.
    CancelSnapshot,
    /// Drop everything that the rank holds and take the state that has come instead; it ends with batch `seq`.
    Load {
        /// The last batch that is in the state.
        seq: u64,
    },
    /// Drop everything that the rank holds and take the state of the seed instead; it ends with batch `seq`.
    LoadSeed {
        /// The last batch that is in the state.
        seq: u64,
    },
    /// Nothing comes of the seed.
    DropSeed,
}

/// What is known about everything before the cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Exact,
    Degraded,
    Partial,
}

/// The state machine of one rank's stream.
pub struct Cursor {
    limits: IngestLimits,
    has_replay: bool,
    has_snapshots: bool,
    /// The publisher's batch 0 is known to be a clear, so beginning with batch 1 misses nothing.
    first_is_clear: bool,
    standing: Standing,
    /// First batch that comes after the cause of a tainted standing: a clear in it or later mends the standing.
    tainted_at: u64,
    why: Option<&'static str>,
    /// Newest batch with a clear of the whole rank, in this life.
    last_clear: Option<u64>,
    incarnation: u64,
    applied: Option<u64>,
    /// Highest sequence applied out of a replay since the connection was made: up to there, live batches may repeat.
    fetched: Option<u64>,
    payloads: Payloads,
    connected: bool,
    /// Highest live sequence of this connection.
    last_live: Option<u64>,
    heard: Duration,
    held: Held,
    replay: Option<Replay>,
    requests: u64,
    /// The replay endpoint returned a batch at least once, so an empty answer of it says something.
    replay_useful: bool,
    probe_after: Duration,
    recovery: Recovery,
    seeding: Seeding,
    /// Applied in this life before it was all fetched again: to be reached once more.
    reach: Option<u64>,
    counters: Counters,
}

impl Cursor {
    /// A cursor that has seen nothing. `first_is_clear`: the engine's batch 0 is always its start-up clear.
    pub fn new(limits: IngestLimits, has_replay: bool, first_is_clear: bool) -> Self {
        Self {
            has_replay,
            has_snapshots: false,
            first_is_clear,
            standing: Standing::Exact,
            tainted_at: 0,
            why: None,
            last_clear: None,
            incarnation: 0,
            applied: None,
            fetched: None,
            payloads: Payloads::new(limits.payload_hashes_max),
            connected: false,
            last_live: None,
            heard: Duration::ZERO,
            held: Held::new(limits.held_batches_max, limits.held_bytes_max),
            replay: None,
            requests: 0,
            replay_useful: false,
            probe_after: limits.idle_probe,
            recovery: Recovery::default(),
            seeding: Seeding::default(),
            reach: None,
            counters: Counters::default(),
            limits,
        }
    }

    /// The publisher can be asked for its state.
    pub fn with_snapshots(self, has_snapshots: bool) -> Self {
        Self { has_snapshots, ..self }
    }

    /// Takes one input at `now` (measured from any fixed origin, never falling) and appends what to do.
    pub fn step(&mut self, now: Duration, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Connected => self.on_connected(now, out),
            Input::Disconnected => {
                self.connected = false;
                self.cancel_snapshot(now, out);
            }
            Input::Live { seq, payload } => self.on_live(now, seq, payload, out),
            Input::ReplayBatch { request, seq, payload } => {
                if self.answers(now, request) {
                    // Looked at here as well: where answers never stop coming, no tick gets its turn.
                    if self.replay.as_ref().is_some_and(|replay| replay.is_overdue(now, &self.limits)) {
                        self.on_tick(now, out);
                    } else {
                        self.on_replay_batch(now, seq, payload, out);
                    }
                }
            }
            Input::ReplayEnd { request } => {
                if self.answers(now, request) {
                    self.on_replay_end(now, out);
                }
            }
            Input::ReplayFailed { request } => {
                if self.answers(now, request) {
                    self.counters.bump("replay_failed");
                    self.on_replay_failed(now, out);
                }
            }
            Input::SnapshotReady { request, next } => self.on_snapshot_ready(now, request, next, out),
            Input::SnapshotFailed { request } => self.on_snapshot_failed(now, request),
            Input::Seed(cut) => self.on_seed(now, cut, out),
            Input::Tick => self.on_tick(now, out),
        }
        self.plan_seed(now, out);
        self.plan_recovery(now);
    }

    /// The batch `seq`, which was applied, held a clear of the whole rank: nothing before it matters any more.
    pub fn cleared(&mut self, seq: u64) {
        self.last_clear = Some(seq);
        if seq >= self.tainted_at {
            self.standing = Standing::Exact;
            self.why = None;
            self.recovery.begin_anew();
        }
    }

    /// The batch `seq`, which was applied, held content that could not be used, and would not the next time.
    pub fn content_lost(&mut self, seq: u64, why: &'static str) {
        if self.last_clear.is_none_or(|clear| clear <= seq) {
            self.recovery.content_unusable();
            self.taint(Standing::Degraded, seq.saturating_add(1), why);
        }
    }

    /// The batch `seq`, which was applied, led to content that the index did not keep.
    pub fn content_dropped(&mut self, seq: u64, why: &'static str) {
        if self.last_clear.is_none_or(|clear| clear <= seq) {
            self.taint(Standing::Degraded, seq.saturating_add(1), why);
        }
    }

    /// A message was refused unread: the batch after the cursor, or a later one. A clear beyond it mends that.
    pub fn unreadable(&mut self, why: &'static str) {
        self.recovery.content_unusable();
        self.taint(Standing::Degraded, self.next().saturating_add(1), why);
    }

    /// The rank's blocks were dropped on the other side of the cursor (a memory limit).
    pub fn history_lost(&mut self, why: &'static str) {
        self.taint(Standing::Partial, self.next(), why);
    }

    /// Last sequence applied.
    pub fn applied(&self) -> Option<u64> {
        self.applied
    }

    /// Lives of the publisher seen so far.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Why the rank is not exact, if it is not.
    pub fn why(&self) -> Option<&'static str> {
        match &self.replay {
            Some(replay) => replay.purpose.words().or(self.why),
            None if !self.connected && self.why.is_none() => Some("not connected: events may be missing"),
            None => self.why,
        }
    }

    /// How far answers about the rank can be believed.
    pub fn trust(&self) -> Trust {
        let purpose = self.replay.as_ref().map(|r| r.purpose);
        match (purpose, self.standing) {
            (Some(Purpose::Bootstrap | Purpose::Seeded), _) => Trust::Bootstrapping,
            _ if self.seed_comes_first() => Trust::Bootstrapping,
            _ if self.incarnation == 0 => Trust::NeverSeen,
            (_, Standing::Partial) => Trust::Partial,
            (_, Standing::Degraded) => Trust::Degraded,
            (Some(Purpose::Repair | Purpose::Reconnect | Purpose::Rebuild | Purpose::Seed), Standing::Exact) => {
                Trust::Degraded
            }
            (Some(Purpose::Probe) | None, Standing::Exact) if !self.connected => Trust::Degraded,
            (Some(Purpose::Probe) | None, Standing::Exact) => Trust::Exact,
        }
    }

    /// Counts by reason.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// When [`Input::Tick`] is due at the latest, on the scale of `now`; `None` if nothing waits for time to pass.
    pub fn next_tick(&self) -> Option<Duration> {
        let asked = self.asked_tick();
        let snapshot = self.snapshot_tick();
        asked.into_iter().chain(snapshot).min()
    }

    fn asked_tick(&self) -> Option<Duration> {
        match &self.replay {
            Some(replay) => Some(replay.deadline(&self.limits)),
            None if self.connected && self.has_replay => {
                let probe = self.heard + self.probe_after;
                Some(self.recovery_tick().map_or(probe, |tick| tick.min(probe)))
            }
            None => None,
        }
    }

    /// The sequence that comes next.
    fn next(&self) -> u64 {
        self.applied.map_or(0, |seq| seq.saturating_add(1))
    }

    fn on_connected(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.connected = true;
        self.heard = now;
        self.last_live = None;
        self.fetched = None;
        self.counters.bump("connections");
        self.cancel_snapshot(now, out);
        self.recovery_over(now, "recovery_abandoned");
        self.recovery.connected();
        // What is held came over the connection before, perhaps from the life before: the replay has it, if it counts.
        self.held.clear();
        match self.applied {
            Some(_) if !self.has_replay => {
                let why = "reconnected, and without a replay endpoint nothing shows what happened in between";
                self.taint(Standing::Degraded, self.next(), why);
            }
            Some(_) => self.request(now, Purpose::Reconnect, out),
            None if self.has_replay => self.begin(now, out),
            None => {}
        }
    }

    fn on_live(&mut self, now: Duration, seq: u64, payload: Bytes, out: &mut Vec<Output>) {
        self.heard = now;
        self.probe_after = self.limits.idle_probe;
        self.judge_seed_live(now, seq, &payload, out);
        let backwards = self.last_live.is_some_and(|last| seq <= last);
        if self.applied.is_some_and(|applied| seq <= applied) {
            let repeated = match self.payloads.same(seq, &payload) {
                Some(same) => same,
                // Too old to compare. Live sequences only rise within one life, and only a replay runs ahead of them.
                None => !backwards && self.fetched.is_some_and(|fetched| seq <= fetched),
            };
            if !repeated {
                self.restart(now, Some((seq, payload)), out);
                return;
            }
            self.counters.bump("stale");
            self.last_live = self.last_live.max(Some(seq));
            return;
        }
        if self.replay.is_some() {
            if backwards {
                if self.held.get(seq).is_some_and(|held| *held == payload) {
                    self.counters.bump("stale");
                } else {
                    self.restart(now, Some((seq, payload)), out);
                }
                return;
            }
            self.last_live = Some(seq);
            self.hold(now, seq, payload, out);
            return;
        }
        self.last_live = Some(seq);
        self.admit(now, seq, payload, out);
    }

    /// A batch beyond the cursor while no replay runs.
    fn admit(&mut self, now: Duration, seq: u64, payload: Bytes, out: &mut Vec<Output>) {
        if seq == self.next() || !self.has_replay {
            if seq != self.next() && self.applied.is_some() {
                self.counters.bump("gaps");
            }
            self.pass_over(seq, out);
            self.apply(seq, payload, out);
            return;
        }
        let purpose = match self.applied {
            None => Purpose::Bootstrap,
            Some(_) => Purpose::Repair,
        };
        self.counters.bump(if purpose == Purpose::Repair { "gaps" } else { "late_joins" });
        self.held.put(seq, payload);
        self.request(now, purpose, out);
    }

    /// Accepts that whatever lies between the cursor and `seq` will not come.
    fn pass_over(&mut self, seq: u64, out: &mut Vec<Output>) {
        let missing = seq - self.next();
        match self.applied {
            None if missing == 0 || (missing == 1 && self.first_is_clear) => {
                self.standing = Standing::Exact;
                self.why = None;
            }
            None => {
                if self.has_replay {
                    self.recovery.window_missed();
                }
                self.taint(Standing::Partial, seq, "joined late: what was cached before is unknown");
            }
            Some(_) if missing == 0 => {}
            Some(_) if missing <= self.limits.repairable_batches_max => {
                self.counters.add("lost_batches", missing);
                self.taint(Standing::Degraded, seq, "batches were lost and could not be fetched again");
            }
            Some(_) => {
                self.counters.add("lost_batches", missing);
                self.counters.bump("gap_clears");
                self.taint(Standing::Partial, seq, "too many batches were lost: the rank was emptied");
                out.push(Output::Clear);
            }
        }
    }

    fn apply(&mut self, seq: u64, payload: Bytes, out: &mut Vec<Output>) {
        debug_assert!(seq >= self.next());
        self.incarnation = self.incarnation.max(1);
        self.applied = Some(seq);
        self.payloads.note(seq, &payload);
        out.push(Output::Apply { seq, payload });
    }

    /// Another life of the publisher: nothing of the one before counts.
    fn restart(&mut self, now: Duration, first: Option<(u64, Bytes)>, out: &mut Vec<Output>) {
        self.counters.bump("restarts");
        self.forget_interrupted();
        self.incarnation += 1;
        self.cancel_snapshot(now, out);
        self.recovery_over(now, "recovery_abandoned");
        self.recovery.begin_anew();
        self.reach = None;
        self.forget(out);
        self.standing = Standing::Exact;
        self.why = None;
        self.tainted_at = 0;
        self.last_live = first.as_ref().map(|&(seq, _)| seq);
        if self.has_replay {
            if let Some((seq, payload)) = first {
                self.held.put(seq, payload);
            }
            self.request(now, Purpose::Bootstrap, out);
        } else if let Some((seq, payload)) = first {
            self.pass_over(seq, out);
            self.apply(seq, payload, out);
        }
    }

    /// Drops all state of the stream, and the rank's blocks.
    fn forget(&mut self, out: &mut Vec<Output>) {
        if self.replay.take().is_some() {
            out.push(Output::CancelReplay);
        }
        self.applied = None;
        self.fetched = None;
        self.last_clear = None;
        self.payloads.clear();
        self.held.clear();
        out.push(Output::Clear);
    }

    fn taint(&mut self, standing: Standing, at: u64, why: &'static str) {
        self.tainted_at = self.tainted_at.max(at);
        // A partial standing is the worse one: a loss after it adds nothing.
        if self.standing != Standing::Partial || standing == Standing::Partial {
            self.standing = standing;
            self.why = Some(why);
        }
    }

    fn on_tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.snapshot_tick().is_some_and(|deadline| now >= deadline) {
            self.cancel_snapshot(now, out);
        }
        match &self.replay {
            Some(replay) if now >= replay.deadline(&self.limits) => {
                self.counters.bump("replay_timeouts");
                self.on_replay_failed(now, out);
            }
            Some(_) => {}
            None if self.connected && self.has_replay && now >= self.heard + self.probe_after => {
                let purpose = if self.applied.is_some() { Purpose::Probe } else { Purpose::Bootstrap };
                self.counters.bump("probes");
                self.request(now, purpose, out);
            }
            None => self.on_recovery_tick(now, out),
        }
    }
}
