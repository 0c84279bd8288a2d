//! Whether a worker is there: its vetoes, judged. Pure, one machine for each worker: an input and its time in, what to do out.
//!
//! | veto | set | cleared |
//! |---|---|---|
//! | `unreachable` | a stream failed, and no stream of the worker was in contact for `stall` | the first contact on any stream |
//! | `wedged` | requests are outstanding, and no progress for `wedge`, or twice the predicted prefill that is left, if longer | the first progress |
//!
//! Idle is not dead: silence sets nothing. Only a failure makes a worker doubtful, and a doubtful worker is asked before it is
//! given up: the streams that still look alive are probed, since a worker that answers on one stream is there, however dead the
//! other looks. When it is given up, they are hung up, so that none hangs on a connection whose other end is gone.
//!
//! A stream that fails is doubtful until it is in contact again itself; the time without contact is the worker's, and begins
//! no earlier than the failure: up to it, the stream was there.

use std::time::Duration;

/// Longest time between two probes of a doubtful worker; a probe takes no longer than the time to the next.
const PROBE_PERIOD_MAX: Duration = Duration::from_secs(1);

/// How long a worker is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivenessLimits {
    /// Whether workers are judged at all.
    pub enabled: bool,
    /// Time without contact after a failure, until a worker counts as unreachable.
    pub stall: Duration,
    /// Time without progress while requests are outstanding, until a worker counts as wedged.
    pub wedge: Duration,
}

impl Default for LivenessLimits {
    fn default() -> Self {
        Self { enabled: true, stall: Duration::from_secs(2), wedge: Duration::from_secs(3) }
    }
}

impl LivenessLimits {
    /// Time between two probes of a doubtful worker: at least two of them come before it is given up.
    pub fn probe_period(&self) -> Duration {
        PROBE_PERIOD_MAX.min(self.stall / 2).max(Duration::from_millis(1))
    }
}

/// Why a worker is not offered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Veto {
    /// It cannot be reached.
    Unreachable,
    /// It can be reached, but does nothing.
    Wedged,
}

impl Veto {
    /// Every veto.
    pub const ALL: [Veto; 2] = [Veto::Unreachable, Veto::Wedged];

    /// The name in metrics, JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Veto::Unreachable => "UNREACHABLE",
            Veto::Wedged => "WEDGED",
        }
    }
}

/// What happened to a worker. A stream is the connection of one of its ranks, by the rank's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LivenessInput {
    /// A sign of life on a stream: connected, a batch, a replay's answer, an answered probe.
    Contact(u32),
    /// A stream failed: not connected, disconnected, a replay without any answer, an unanswered probe. The end of a stream on
    /// which events are pushed to us is none.
    Failed(u32),
    /// A request was sent to the worker.
    Dispatched {
        /// The prefill that it is predicted to take.
        prefill: Duration,
    },
    /// A token of a request, or a pass of the worker's scheduler.
    Progress {
        /// The predicted prefill that this shows to be done.
        prefill_done: Duration,
    },
    /// A request ended, however it did.
    Finished {
        /// The predicted prefill of it that was never seen done.
        prefill_left: Duration,
    },
    /// Time passed. Vetoes are set by this only, after every input from before was taken.
    Tick,
}

/// What has to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LivenessOutput {
    /// A veto begins.
    Set(Veto),
    /// A veto ends.
    Cleared(Veto),
    /// Ask the streams that look alive for a sign of life.
    Probe,
    /// End the streams that look alive.
    HangUp,
}

/// The state of one worker.
#[derive(Clone, Debug)]
pub struct Liveness {
    limits: LivenessLimits,
    contact_at: Duration,
    /// Streams that failed since their last contact, and when they first did.
    failing: Vec<(u32, Duration)>,
    probed_at: Option<Duration>,
    unreachable: bool,
    /// Requests that did not end yet.
    outstanding: u64,
    /// The part of their predicted prefill that was not seen done.
    prefill: Duration,
    /// The last progress, or the first dispatch after there was nothing to do.
    progress_at: Duration,
    wedged: bool,
}

impl Liveness {
    /// A worker of which nothing is known: not vetoed.
    pub fn new(limits: LivenessLimits) -> Self {
        Self {
            limits,
            contact_at: Duration::ZERO,
            failing: Vec::new(),
            probed_at: None,
            unreachable: false,
            outstanding: 0,
            prefill: Duration::ZERO,
            progress_at: Duration::ZERO,
            wedged: false,
        }
    }

    /// Takes one input of the time `now`, which is counted from any fixed origin, and appends what has to be done.
    pub fn step(&mut self, now: Duration, input: LivenessInput, out: &mut Vec<LivenessOutput>) {
        match input {
            LivenessInput::Contact(stream) => self.contact(now, stream, out),
            LivenessInput::Failed(stream) => {
                if self.failing.iter().all(|(failing, _)| *failing != stream) {
                    self.failing.push((stream, now));
                }
                self.probe(now, out);
            }
            LivenessInput::Dispatched { prefill } => {
                if self.outstanding == 0 {
                    self.progress_at = now;
                }
                self.outstanding = self.outstanding.saturating_add(1);
                self.prefill = self.prefill.saturating_add(prefill);
            }
            LivenessInput::Progress { prefill_done } => {
                self.prefill = self.prefill.saturating_sub(prefill_done);
                self.progress_at = self.progress_at.max(now);
                if std::mem::take(&mut self.wedged) {
                    out.push(LivenessOutput::Cleared(Veto::Wedged));
                }
            }
            LivenessInput::Finished { prefill_left } => {
                self.outstanding = self.outstanding.saturating_sub(1);
                let left = if self.outstanding == 0 { Duration::MAX } else { prefill_left };
                self.prefill = self.prefill.saturating_sub(left);
            }
            LivenessInput::Tick => self.tick(now, out),
        }
    }

    /// The veto that is shown: the graver one, if there are two.
    pub fn veto(&self) -> Option<Veto> {
        match (self.unreachable, self.wedged) {
            (true, _) => Some(Veto::Unreachable),
            (false, true) => Some(Veto::Wedged),
            (false, false) => None,
        }
    }

    /// When [`LivenessInput::Tick`] is due; `None` if nothing waits for time to pass.
    pub fn next_tick(&self) -> Option<Duration> {
        let probe = self.is_doubtful().then(|| self.probe_due());
        let due = [probe.flatten(), self.unreachable_due(), self.wedged_due()];
        due.into_iter().flatten().min()
    }

    /// Whether a contact may change something, so that it should be told at once.
    pub fn awaits_contact(&self) -> bool {
        self.unreachable || !self.failing.is_empty()
    }

    /// Whether progress changes anything: requests are outstanding, or the worker is given up for want of it.
    pub fn awaits_progress(&self) -> bool {
        self.outstanding > 0 || self.wedged
    }

    /// Whether the worker is wedged, whatever veto is shown.
    pub fn is_wedged(&self) -> bool {
        self.wedged
    }

    fn contact(&mut self, now: Duration, stream: u32, out: &mut Vec<LivenessOutput>) {
        self.failing.retain(|(failing, _)| *failing != stream);
        self.contact_at = self.contact_at.max(now);
        if std::mem::take(&mut self.unreachable) {
            out.push(LivenessOutput::Cleared(Veto::Unreachable));
        }
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<LivenessOutput>) {
        if self.unreachable_due().is_some_and(|due| now >= due) {
            self.unreachable = true;
            out.extend([LivenessOutput::Set(Veto::Unreachable), LivenessOutput::HangUp]);
        }
        if self.wedged_due().is_some_and(|due| now >= due) {
            self.wedged = true;
            out.push(LivenessOutput::Set(Veto::Wedged));
        }
        self.probe(now, out);
    }

    fn is_doubtful(&self) -> bool {
        !self.unreachable && !self.failing.is_empty()
    }

    fn probe(&mut self, now: Duration, out: &mut Vec<LivenessOutput>) {
        if self.is_doubtful() && self.probe_due().is_none_or(|due| now >= due) {
            self.probed_at = Some(now);
            out.push(LivenessOutput::Probe);
        }
    }

    /// `None`: at once.
    fn probe_due(&self) -> Option<Duration> {
        self.probed_at.map(|at| at.saturating_add(self.limits.probe_period()))
    }

    fn unreachable_due(&self) -> Option<Duration> {
        let failed_at = self.failing.iter().map(|(_, at)| *at).min().filter(|_| !self.unreachable)?;
        Some(failed_at.max(self.contact_at).saturating_add(self.limits.stall))
    }

    fn wedged_due(&self) -> Option<Duration> {
        let bound = self.limits.wedge.max(self.prefill.saturating_mul(2));
        (self.outstanding > 0 && !self.wedged).then(|| self.progress_at.saturating_add(bound))
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
