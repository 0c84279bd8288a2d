//! The replay half of the cursor: what an answer proves, what it mends, and when it is given up.

use super::{Cursor, Output, Standing};
use crate::ingest::spec::IngestLimits;
use bytes::Bytes;
use std::time::Duration;

/// Why a replay runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Nothing of this life was applied yet: everything from batch 0.
    Bootstrap,
    /// Batches are missing.
    Repair,
    /// The connection was made anew: is it the same life, and what was missed?
    Reconnect,
    /// The rank was silent for long: was its last batch lost?
    Probe,
    /// The rank is not exact: does the publisher still have everything from the beginning? When it does, this becomes
    /// [`Purpose::Bootstrap`].
    Rebuild,
    /// A seed waits: does the publisher have the batch at its cursor? When it does, this becomes [`Purpose::Seeded`].
    Seed,
    /// A seed was loaded: what follows it.
    Seeded,
}

impl Purpose {
    /// Why a rank is not exact meanwhile.
    pub(super) fn words(self) -> Option<&'static str> {
        match self {
            Purpose::Bootstrap => Some("the history is being fetched"),
            Purpose::Repair => Some("missing batches are being fetched"),
            Purpose::Reconnect => Some("reconnected: what was missed is being fetched"),
            Purpose::Seed => Some("a state from elsewhere is being checked"),
            Purpose::Seeded => Some("what follows the loaded state is being fetched"),
            Purpose::Probe | Purpose::Rebuild => None,
        }
    }
}

/// A request in flight.
pub(super) struct Replay {
    pub(super) purpose: Purpose,
    request: u64,
    /// Requests made for the same purpose, this one included.
    attempt: u32,
    /// When the first of them was made.
    began: Duration,
    heard: Duration,
    /// A batch came back that is known, byte for byte; or none is known yet, so there is nothing to prove.
    proven: bool,
    /// A batch came back that was not applied before.
    progressed: bool,
    /// Any batch came back.
    answered: bool,
}

impl Replay {
    /// When it has failed by silence or by length.
    pub(super) fn deadline(&self, limits: &IngestLimits) -> Duration {
        (self.heard + limits.replay_silence_max).min(self.began + limits.replay_duration_max)
    }

    /// The rank was emptied, and everything comes from the beginning: there is nothing to be proven any more.
    pub(super) fn begins(&mut self) {
        (self.purpose, self.proven) = (Purpose::Bootstrap, true);
    }

    /// What the rank holds is known to be of the life that is asked.
    pub(super) fn is_proven(&mut self) {
        self.proven = true;
    }

    /// The state of a seed was loaded, which was proven by this answer or by the live stream.
    pub(super) fn follows_seed(&mut self) {
        (self.purpose, self.proven) = (Purpose::Seeded, true);
    }

    /// Whether it has taken too long, all its requests together, however much it still has to say.
    pub(super) fn is_overdue(&self, now: Duration, limits: &IngestLimits) -> bool {
        now >= self.began + limits.replay_duration_max
    }
}

impl Cursor {
    /// Asks for everything after the cursor, and for the batch at the cursor as the proof of identity.
    pub(super) fn request(&mut self, now: Duration, purpose: Purpose, out: &mut Vec<Output>) {
        self.ask(now, purpose, 1, out);
    }

    fn ask(&mut self, now: Duration, purpose: Purpose, attempt: u32, out: &mut Vec<Output>) {
        self.requests += 1;
        self.counters.bump("replay_requests");
        let request = self.requests;
        let began = self.replay.as_ref().filter(|_| attempt > 1).map_or(now, |replay| replay.began);
        self.replay = Some(Replay {
            purpose,
            request,
            attempt,
            began,
            heard: now,
            proven: self.applied.is_none(),
            progressed: false,
            answered: false,
        });
        let from = match purpose {
            Purpose::Rebuild => self.beginning(),
            Purpose::Seed => self.seed_cursor(),
            _ => self.applied.unwrap_or(0),
        };
        out.push(Output::RequestReplay { request, from });
    }

    /// Whether this is the request in flight; if so, it is alive.
    pub(super) fn answers(&mut self, now: Duration, request: u64) -> bool {
        match &mut self.replay {
            Some(replay) if replay.request == request => {
                replay.heard = now;
                true
            }
            _ => {
                self.counters.bump("replay_late");
                false
            }
        }
    }

    pub(super) fn on_replay_batch(&mut self, now: Duration, seq: u64, payload: Bytes, out: &mut Vec<Output>) {
        let Some(replay) = &mut self.replay else { return };
        replay.answered = true;
        self.replay_useful = true;
        if replay.purpose == Purpose::Seed && !self.judge_seed(now, seq, &payload, out) {
            return;
        }
        let Some(replay) = &mut self.replay else { return };
        if replay.purpose == Purpose::Rebuild && !self.begin_rebuild(now, seq, &payload, out) {
            return;
        }
        let Some(replay) = &mut self.replay else { return };
        if self.applied.is_some_and(|applied| seq <= applied) {
            match self.payloads.same(seq, &payload) {
                Some(true) => replay.proven = true,
                Some(false) => self.contradicted(now, out),
                None => {}
            }
            return;
        }
        if self.held.get(seq).is_some_and(|held| *held != payload) {
            self.contradicted(now, out);
            return;
        }
        let (purpose, progressed, attempt) = (replay.purpose, replay.progressed, replay.attempt);
        let mut linked = replay.proven || progressed;
        if seq > self.next() && progressed && attempt < self.limits.replay_requests_max {
            // A hole inside the answer: the publisher dropped replies that did not fit its send queue. Ask from there.
            self.counters.bump("replay_holes");
            self.ask(now, purpose, attempt + 1, out);
            return;
        }
        if let Some(replay) = &mut self.replay {
            replay.progressed = true;
        }
        // Whatever precedes the first batch of an answer is outside the publisher's window, unless it came live.
        // What came live may be of an older life than the answer, unless the answer has a batch of it.
        let same_as_live = self.held.get(seq).is_some();
        while self.held.first().is_some_and(|first| first < seq) {
            self.apply_held(out);
            linked &= same_as_live;
        }
        self.pass_over(seq, out);
        if !linked {
            // Contiguous, perhaps, but with which life? Said at once: the end of this answer may never come, and the next
            // question is about the batch applied here, which this publisher can prove whatever came before it.
            self.taint(Standing::Degraded, seq, "the replay does not reach back to a batch that is known");
        }
        self.apply(seq, payload, out);
        self.counters.bump("replayed");
        self.fetched = Some(seq);
        self.held.drop_to(seq);
    }

    pub(super) fn on_replay_end(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(replay) = &self.replay else { return };
        if replay.purpose == Purpose::Seed {
            self.drop_seed(now, "seed_dropped_unknown_batch", out);
            return;
        }
        if self.applied.is_some() && !replay.answered {
            // Nothing at or after the cursor. A publisher that keeps batches has the cursor's, if it is the same one.
            let (purpose, attempt) = (replay.purpose, replay.attempt);
            if self.held.first().is_some() && attempt == 1 {
                // What is held may have been published after the answer was written.
                self.ask(now, purpose, attempt + 1, out);
            } else if self.held.first().is_none() && self.replay_useful && purpose != Purpose::Bootstrap {
                self.restart(now, None, out);
            } else {
                self.counters.bump("replay_empty");
                self.on_replay_failed(now, out);
            }
            return;
        }
        self.finish(now, out);
    }

    /// The replay ended without its end marker.
    pub(super) fn on_replay_failed(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(replay) = &self.replay else { return };
        if replay.purpose == Purpose::Seed {
            self.drop_seed(now, "seed_dropped_no_answer", out);
            return;
        }
        out.push(Output::CancelReplay);
        let overdue = replay.is_overdue(now, &self.limits);
        if !overdue && replay.progressed && replay.attempt < self.limits.replay_requests_max {
            let (purpose, attempt) = (replay.purpose, replay.attempt);
            self.ask(now, purpose, attempt + 1, out);
            return;
        }
        if !overdue && replay.proven && replay.answered {
            // The batch at the cursor came, and after it nothing, not even the end marker: nothing more is there.
            self.counters.bump("replay_end_missing");
            self.finish(now, out);
            return;
        }
        self.give_up(now);
        self.drain(now, false, 1, out);
    }

    /// Ends the replay without what it was for.
    fn give_up(&mut self, now: Duration) {
        let Some(replay) = self.replay.take() else { return };
        self.heard = now;
        match replay.purpose {
            Purpose::Probe => self.probe_less(),
            Purpose::Reconnect if !replay.proven => {
                let why = "reconnected, and the replay endpoint does not show what happened in between";
                self.taint(Standing::Degraded, self.next(), why);
            }
            Purpose::Bootstrap if self.applied.is_none() => {
                self.probe_less();
                self.taint(Standing::Partial, 0, "the history could not be fetched");
            }
            Purpose::Bootstrap | Purpose::Repair | Purpose::Reconnect => {}
            Purpose::Rebuild | Purpose::Seed | Purpose::Seeded => {}
        }
        self.check_reach();
        self.recovery_given_up(now);
    }

    fn probe_less(&mut self) {
        self.probe_after = (self.probe_after * 2).min(self.limits.idle_probe * PROBE_BACKOFF_MAX);
    }

    /// The answer is complete as far as the publisher has it.
    fn finish(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(replay) = self.replay.take() else { return };
        self.heard = now;
        self.probe_after = self.limits.idle_probe;
        if self.applied.is_none() {
            self.standing = Standing::Exact;
            self.why = None;
        }
        self.check_reach();
        self.recovery_ended(now);
        // What is missing before a held batch may have been published after the answer was written.
        let again = (replay.progressed || replay.attempt == 1) && replay.attempt < self.limits.replay_requests_max;
        self.drain(now, again, replay.attempt + 1, out);
    }

    /// Applies what was held. A gap in it is asked for once more if that may help (`again`).
    pub(super) fn drain(&mut self, now: Duration, again: bool, attempt: u32, out: &mut Vec<Output>) {
        while let Some(first) = self.held.first() {
            if first > self.next() && again {
                let purpose = if self.applied.is_some() { Purpose::Repair } else { Purpose::Bootstrap };
                self.ask(now, purpose, attempt, out);
                return;
            }
            self.apply_held(out);
        }
    }

    fn apply_held(&mut self, out: &mut Vec<Output>) {
        if let Some((seq, payload)) = self.held.pop_first()
            && seq >= self.next()
        {
            self.pass_over(seq, out);
            self.apply(seq, payload, out);
        }
    }

    /// Holds a live batch behind the replay; if there is no room, the replay has taken too long.
    pub(super) fn hold(&mut self, now: Duration, seq: u64, payload: Bytes, out: &mut Vec<Output>) {
        if self.held.fits(&payload) {
            self.held.put(seq, payload);
            return;
        }
        self.counters.bump("held_overflows");
        self.seed_takes_too_long(now, out);
        self.give_up(now);
        out.push(Output::CancelReplay);
        self.drain(now, false, 1, out);
        if seq >= self.next() {
            self.pass_over(seq, out);
            self.apply(seq, payload, out);
        }
    }

    /// The publisher returns another batch than the one seen live, or applied, under the same sequence.
    pub(super) fn contradicted(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.replay.as_ref().is_none_or(|replay| replay.purpose != Purpose::Bootstrap) {
            self.restart(now, None, out);
            return;
        }
        // This life's own history contradicts its live stream: the endpoint belongs to another publisher. Asking it again
        // would go on for ever, so the live stream counts, and what came before it is unknown.
        self.counters.bump("replay_conflicts");
        let live = std::mem::replace(
            &mut self.held,
            super::Held::new(self.limits.held_batches_max, self.limits.held_bytes_max),
        );
        self.forget(out);
        self.held = live;
        let next = self.held.first().unwrap_or(0);
        self.taint(Standing::Partial, next, "the replay endpoint contradicts the event stream");
        self.drain(now, false, 1, out);
    }
}

/// How often the time between probes doubles while they fail, as a factor.
const PROBE_BACKOFF_MAX: u32 = 64;
