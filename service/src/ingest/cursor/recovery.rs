//! How a rank that is not exact becomes so again by itself: when an attempt is due, what it asks for, and what came of it.
//!
//! An attempt asks the publisher for everything from the beginning: from its first batch, or from the newest batch that is
//! known to have cleared the rank. If the answer begins there, the rank is emptied and filled again; if it begins later, nothing
//! is touched, and the attempt has failed. So an attempt never costs a rank blocks that it cannot give back at once.
//!
//! Where the publisher can be asked for its state, the next attempt does that, and the stream goes on meanwhile. A state that has
//! come whole takes the place of what the rank holds; what came between it and the live stream is then asked for like any gap. It
//! is of the life that is connected: with the connection it is given up.
//!
//! | happens | then |
//! |---|---|
//! | a standing is tainted, the publisher is connected, nothing else is asked | first attempt at once |
//! | an attempt failed | the next one after `recovery_backoff_min`, doubling to `recovery_backoff_max` |
//! | `recovery_attempts_max` attempts | none any more until the connection is made anew, a clear, or another life |
//! | a replay began too late twice on one connection | as above: a window only moves on |
//! | the rank was exact for less than `recovery_backoff_max` | the pauses go on growing where they were |
//! | content that could not be read | no replay: the same batch would come back; a state may help |

use super::replay::Purpose;
use super::{Cursor, Output, Standing};
use crate::ingest::spec::IngestLimits;
use bytes::Bytes;
use std::time::Duration;

/// Replays that began too late before the window is believed to be past the beginning: the first reply may have been lost.
const WINDOW_MISSES_MAX: u32 = 2;

/// What an attempt asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Everything from the beginning.
    Replay,
    /// The state: waited for until so long.
    Snapshot { request: u64, deadline: Duration },
    /// The state was taken, and what follows it is being fetched.
    Loaded,
}

/// What is remembered between attempts.
#[derive(Default)]
pub(super) struct Recovery {
    /// Attempts since the rank was exact for long enough.
    attempts: u32,
    due: Option<Duration>,
    running: Option<Way>,
    recovered_at: Option<Duration>,
    window_misses: u32,
    /// Something was lost that no replay brings back: a batch or an event that cannot be read.
    unusable: bool,
}

impl Recovery {
    /// Attempts that ask for one thing after the other belong together: there is no pause between them.
    fn pause(&self, limits: &IngestLimits, ways: u32) -> Duration {
        let misses = u32::from(self.window_misses > 0 && ways == 1);
        if !self.attempts.is_multiple_of(ways) {
            return Duration::ZERO;
        }
        match (self.attempts / ways).max(misses) {
            0 => Duration::ZERO,
            n => limits.recovery_backoff_min.saturating_mul(1 << (n - 1).min(20)).min(limits.recovery_backoff_max),
        }
    }

    /// The connection was made anew: worth another row of attempts.
    pub(super) fn connected(&mut self) {
        (self.attempts, self.window_misses) = (0, 0);
        self.due = None;
    }

    /// A clear, or another life: what was lost before does not matter. The clear that an attempt begins with is no news.
    pub(super) fn begin_anew(&mut self) {
        if self.running.is_none() {
            *self = Self { recovered_at: self.recovered_at, ..Self::default() };
        }
    }

    /// Content was lost in a way that a replay repeats.
    pub(super) fn content_unusable(&mut self) {
        self.unusable = true;
    }

    /// A replay that was asked for the beginning began later.
    pub(super) fn window_missed(&mut self) {
        self.window_misses += 1;
    }
}

impl Cursor {
    /// Whether an attempt may help now, or later.
    fn wants_recovery(&self) -> bool {
        self.standing != Standing::Exact
            && self.connected
            && self.applied.is_some()
            && self.recovery.running.is_none()
            && (self.replay_may_help() || self.has_snapshots)
            && self.recovery.attempts < self.limits.recovery_attempts_max
    }

    fn replay_may_help(&self) -> bool {
        self.has_replay && !self.recovery.unusable && self.recovery.window_misses < WINDOW_MISSES_MAX
    }

    fn ways(&self) -> u32 {
        1 + u32::from(self.replay_may_help() && self.has_snapshots)
    }

    /// When the next attempt is due. While a replay runs there is none.
    pub(super) fn recovery_tick(&self) -> Option<Duration> {
        // Not planned yet, since the standing was tainted after the step: at once, for a tick plans.
        self.wants_recovery().then(|| self.recovery.due.unwrap_or(Duration::ZERO))
    }

    /// Says when the next attempt is due, if one is wanted and nothing else is being asked for.
    pub(super) fn plan_recovery(&mut self, now: Duration) {
        let recovery = &mut self.recovery;
        if recovery.recovered_at.is_some_and(|at| now >= at + self.limits.recovery_backoff_max) {
            (recovery.attempts, recovery.recovered_at) = (0, None);
        }
        if !self.wants_recovery() {
            self.recovery.due = None;
        } else if self.replay.is_none() && self.recovery.due.is_none() {
            self.recovery.due = Some(now + self.recovery.pause(&self.limits, self.ways()));
        }
    }

    /// Makes an attempt if one is due. Nothing else is being asked for.
    pub(super) fn on_recovery_tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.wants_recovery() && self.recovery.due.is_some_and(|due| now >= due) {
            let replay_first = !self.has_snapshots || self.recovery.attempts.is_multiple_of(2);
            self.recovery.attempts += 1;
            self.recovery.due = None;
            self.counters.bump("recoveries");
            if self.replay_may_help() && replay_first {
                self.recovery.running = Some(Way::Replay);
                self.request(now, Purpose::Rebuild, out);
            } else {
                self.requests += 1;
                let (request, deadline) = (self.requests, now + self.limits.snapshot_duration_max);
                self.recovery.running = Some(Way::Snapshot { request, deadline });
                out.push(Output::RequestSnapshot { request });
            }
        }
    }

    /// When a state that was asked for is given up.
    pub(super) fn snapshot_tick(&self) -> Option<Duration> {
        match self.recovery.running {
            Some(Way::Snapshot { deadline, .. }) => Some(deadline),
            _ => None,
        }
    }

    /// Whether an attempt is being made.
    pub(super) fn recovery_runs(&self) -> bool {
        self.recovery.running.is_some()
    }

    /// Gives a state up that was asked for, if one was.
    pub(super) fn cancel_snapshot(&mut self, now: Duration, out: &mut Vec<Output>) {
        if matches!(self.recovery.running, Some(Way::Snapshot { .. })) {
            out.push(Output::CancelSnapshot);
            self.recovery_over(now, "recovery_snapshot_abandoned");
        }
    }

    fn is_asked(&self, request: u64) -> bool {
        matches!(self.recovery.running, Some(Way::Snapshot { request: asked, .. }) if asked == request)
    }

    pub(super) fn on_snapshot_failed(&mut self, now: Duration, request: u64) {
        if self.is_asked(request) {
            self.recovery_over(now, "recovery_snapshot_failed");
        }
    }

    pub(super) fn on_snapshot_ready(&mut self, now: Duration, request: u64, next: u64, out: &mut Vec<Output>) {
        if !self.is_asked(request) {
            return;
        }
        // Where something else is being asked for, what it brings could not be joined on.
        let Some(seq) = next.checked_sub(1).filter(|_| self.replay.is_none() && self.standing != Standing::Exact)
        else {
            self.recovery_over(now, "recovery_snapshot_abandoned");
            return;
        };
        self.reach = self.reach.max(self.applied);
        self.applied = Some(seq);
        // The live stream may still bring what the state has already.
        self.fetched = Some(seq);
        self.last_clear = None;
        self.payloads.clear();
        (self.standing, self.why, self.tainted_at) = (Standing::Exact, None, 0);
        self.recovery.unusable = false;
        self.recovery.running = Some(Way::Loaded);
        out.push(Output::Load { seq });
        // The end of this replay says whether all that was applied before is reached again.
        self.request(now, Purpose::Repair, out);
        if let Some(replay) = &mut self.replay {
            replay.is_proven();
        }
    }

    /// The beginning of the rank's state, as far as it is known: where a replay has to begin.
    pub(super) fn beginning(&self) -> u64 {
        self.last_clear.unwrap_or(0)
    }

    /// The first reply of an attempt. Empties the rank if it is the beginning, and says whether it is.
    pub(super) fn begin_rebuild(&mut self, now: Duration, seq: u64, payload: &Bytes, out: &mut Vec<Output>) -> bool {
        let another = self.payloads.same(seq, payload) == Some(false);
        if another || self.held.get(seq).is_some_and(|held| held != payload) {
            self.contradicted(now, out);
            return false;
        }
        let from = self.beginning();
        if seq != from && !(seq == 1 && from == 0 && self.first_is_clear) {
            self.recovery.window_missed();
            self.recovery_over(now, "recovery_out_of_window");
            self.replay = None;
            out.push(Output::CancelReplay);
            self.heard = now;
            self.drain(now, true, 1, out);
            return false;
        }
        self.reach = self.reach.max(self.applied);
        self.applied = from.checked_sub(1);
        self.fetched = None;
        // Whoever applies the batch says again that it is a clear, and so mends the standing.
        self.last_clear = None;
        self.payloads.clear();
        (self.standing, self.why) = (Standing::Partial, Some("the history is being fetched again"));
        self.tainted_at = seq;
        self.recovery.unusable = false;
        out.push(Output::Clear);
        if let Some(replay) = &mut self.replay {
            replay.begins();
        }
        true
    }

    /// What was applied before a rebuild has to be reached again, or something is missing at the end.
    pub(super) fn check_reach(&mut self) {
        let Some(reach) = self.reach.take() else { return };
        if self.applied < Some(reach) {
            let why = "the history was fetched again, but not up to where it was";
            self.taint(Standing::Degraded, reach.saturating_add(1), why);
        }
    }

    /// A replay has ended, perhaps that of an attempt.
    pub(super) fn recovery_ended(&mut self, now: Duration) {
        let exact = self.standing == Standing::Exact;
        match self.recovery.running {
            Some(Way::Replay) if exact => self.recovery_over(now, "recovered_by_replay"),
            Some(Way::Loaded) if exact => self.recovery_over(now, "recovered_by_snapshot"),
            Some(Way::Snapshot { .. }) => {}
            _ => self.recovery_over(now, "recovery_failed"),
        }
    }

    /// A replay was given up, perhaps that of an attempt.
    pub(super) fn recovery_given_up(&mut self, now: Duration) {
        if !matches!(self.recovery.running, Some(Way::Snapshot { .. })) {
            self.recovery_over(now, "recovery_failed");
        }
    }

    /// An attempt is over, if one was being made.
    pub(super) fn recovery_over(&mut self, now: Duration, outcome: &'static str) {
        if self.recovery.running.take().is_none() {
            return;
        }
        self.counters.bump(outcome);
        if matches!(outcome, "recovered_by_replay" | "recovered_by_snapshot") {
            self.recovery.recovered_at = Some(now);
            self.recovery.window_misses = 0;
        } else if self.recovery.attempts >= self.limits.recovery_attempts_max {
            self.counters.bump("recovery_given_up");
        }
    }
}
