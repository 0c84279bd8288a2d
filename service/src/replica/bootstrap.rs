//! Which peer is asked, when, and when no more. Pure: an input and its time in, what to do out.
//!
//! | happens | then |
//! |---|---|
//! | the start, or a pause is over | the next peer is called |
//! | a copy breaks off, and something had come | the same peer is called again, from where it broke off |
//! | a call fails otherwise, or is silent for `silence_max` | the next peer, from where the last copy broke off; after the last one a pause, doubling |
//! | a peer says what does not fit together, or does not know the call | it is not asked again |
//! | a copy is complete, and ranks still want a seed | a pause, then the next peer, from the first rank on |
//! | no rank wants a seed any more, no peer is left, or `deadline` | done |

use super::assembly::{Assembly, Piece, Put, Resume};
use super::settings::ReplicaSettings;
use crate::ingest::Counters;
use crate::seed::Seed;
use std::time::Duration;

/// Why a call ended before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No connection, or it broke; the peer drains, is busy, or found us too slow.
    Broken,
    /// The peer does not know the call, or its message cannot be read: it never will be.
    Useless,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A piece of the copy that a call brought.
    Piece {
        /// Number of the call.
        call: u64,
        /// The piece.
        piece: Piece,
        /// Of a head: whether the rank wants a seed.
        wanted: bool,
    },
    /// The call ended.
    Failed {
        /// Number of the call.
        call: u64,
        /// Why.
        failure: Failure,
    },
    /// Time passed; see [`Bootstrap::next_tick`].
    Tick,
}

/// What to do, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Call this peer; an earlier call is over.
    Call {
        /// Number of the call.
        call: u64,
        /// Which peer, in the order of the settings.
        peer: usize,
        /// Where to begin.
        resume: Option<Resume>,
    },
    /// Give the call up.
    HangUp,
    /// Offer this seed to its rank.
    Offer(Box<Seed>),
    /// It is over; nothing comes any more.
    Done(Outcome),
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// No rank wants a seed.
    Complete,
    /// No peer is left that could be asked.
    NoPeer,
    /// It took as long as it may.
    Deadline,
}

impl Outcome {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::NoPeer => "no peer is left",
            Outcome::Deadline => "deadline",
        }
    }
}

enum Phase {
    /// Until then.
    Pause(Duration),
    Asking {
        call: u64,
        heard: Duration,
        /// How far the copies before had come.
        reached: Option<(String, u32, u32)>,
    },
    Done(Outcome),
}

/// The start from peers.
pub struct Bootstrap {
    settings: ReplicaSettings,
    phase: Phase,
    calls: u64,
    /// The peer that is asked, or was last.
    at: usize,
    /// Peers that are not asked again.
    useless: Vec<bool>,
    /// Calls since the last pause that failed.
    vain: usize,
    pause: Duration,
    /// Copies that came whole.
    passes: u64,
    assembly: Assembly,
    counters: Counters,
}

impl Bootstrap {
    /// Begins at time 0: the first [`Input::Tick`] calls the first peer.
    pub fn new(settings: ReplicaSettings) -> Self {
        Self {
            phase: Phase::Pause(Duration::ZERO),
            calls: 0,
            at: 0,
            useless: vec![false; settings.peers.len()],
            vain: 0,
            pause: settings.pause_min,
            passes: 0,
            assembly: Assembly::new(settings.rank_bytes_max),
            counters: Counters::default(),
            settings,
        }
    }

    /// Takes one input at `now`, measured from the start, and appends what to do. `left`: ranks that want a seed now.
    pub fn step(&mut self, now: Duration, left: usize, input: Input, out: &mut Vec<Output>) {
        if matches!(self.phase, Phase::Done(_)) {
            return;
        }
        match input {
            Input::Piece { call, piece, wanted } if self.is_on(call) => self.piece(now, piece, wanted, out),
            Input::Failed { call, failure } if self.is_on(call) => {
                self.counters.bump("calls_failed");
                self.failed(now, failure, out);
            }
            Input::Piece { .. } | Input::Failed { .. } | Input::Tick => {}
        }
        // What only a peer knows is known after one whole copy.
        let complete = left == 0 && (self.passes > 0 || !self.settings.register_workers);
        if complete {
            self.done(Outcome::Complete, out);
        } else if now >= self.settings.deadline {
            self.done(Outcome::Deadline, out);
        } else {
            self.tick(now, out);
        }
    }

    /// When [`Input::Tick`] is due; `None` when it is over.
    pub fn next_tick(&self) -> Option<Duration> {
        let due = match self.phase {
            Phase::Pause(until) => until,
            Phase::Asking { heard, .. } => heard + self.settings.silence_max,
            Phase::Done(_) => return None,
        };
        Some(due.min(self.settings.deadline))
    }

    /// Copies that came whole.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// The peer that is being asked.
    pub fn asking(&self) -> Option<&str> {
        matches!(self.phase, Phase::Asking { .. }).then(|| self.settings.peers[self.at].as_str())
    }

    /// How it ended, if it did.
    pub fn outcome(&self) -> Option<Outcome> {
        if let Phase::Done(outcome) = self.phase { Some(outcome) } else { None }
    }

    /// Counts by reason.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts something that happened outside.
    pub fn count(&mut self, reason: &'static str) {
        self.counters.bump(reason);
    }

    fn is_on(&self, call: u64) -> bool {
        matches!(self.phase, Phase::Asking { call: on, .. } if on == call)
    }

    fn piece(&mut self, now: Duration, piece: Piece, wanted: bool, out: &mut Vec<Output>) {
        if let Phase::Asking { heard, .. } = &mut self.phase {
            *heard = now;
        }
        match self.assembly.put(piece, wanted) {
            Ok(Put::More) => {}
            Ok(Put::Rank(seed)) => {
                self.counters.bump("ranks_offered");
                out.push(Output::Offer(seed));
            }
            Ok(Put::NoState) => self.counters.bump("ranks_without_state"),
            Ok(Put::LeftOut(why)) => self.counters.bump(why),
            Ok(Put::All) => {
                self.passes += 1;
                self.counters.bump("copies");
                (self.vain, self.at) = (0, self.at + 1);
                self.rest(now);
                out.push(Output::HangUp);
            }
            Err(misfit) => {
                self.counters.bump(misfit.label());
                out.push(Output::HangUp);
                self.failed(now, Failure::Useless, out);
            }
        }
    }

    fn failed(&mut self, now: Duration, failure: Failure, out: &mut Vec<Output>) {
        let Phase::Asking { reached, .. } = &self.phase else { return };
        if failure == Failure::Useless {
            self.useless[self.at] = true;
            self.counters.bump("peers_useless");
            // Nothing of it is believed, not even as a beginning.
            self.assembly.start_over();
        } else if self.assembly.reached() > *reached {
            // It got further than all before: the rest is as good as there.
            self.counters.bump("calls_resumed");
            self.call(now, out);
            return;
        } else {
            self.vain += 1;
        }
        self.at += 1;
        if self.vain >= self.useless.iter().filter(|useless| !**useless).count() {
            self.rest(now);
        } else {
            self.phase = Phase::Pause(now);
        }
    }

    /// Pauses, longer each time.
    fn rest(&mut self, now: Duration) {
        self.vain = 0;
        self.phase = Phase::Pause(now + self.pause);
        self.pause = (self.pause * 2).min(self.settings.pause_max);
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        match self.phase {
            Phase::Pause(until) if now >= until => {
                let peers = self.useless.len();
                let next = (0..peers).map(|i| (self.at + i) % peers).find(|&peer| !self.useless[peer]);
                match next {
                    Some(peer) => {
                        self.at = peer;
                        self.call(now, out);
                    }
                    None => self.done(Outcome::NoPeer, out),
                }
            }
            Phase::Asking { heard, .. } if now >= heard + self.settings.silence_max => {
                self.counters.bump("calls_silent");
                out.push(Output::HangUp);
                self.failed(now, Failure::Broken, out);
                if matches!(self.phase, Phase::Pause(_)) {
                    self.tick(now, out);
                }
            }
            Phase::Pause(_) | Phase::Asking { .. } | Phase::Done(_) => {}
        }
    }

    fn call(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.calls += 1;
        self.counters.bump("calls");
        let (call, reached) = (self.calls, self.assembly.reached());
        self.phase = Phase::Asking { call, heard: now, reached };
        out.push(Output::Call { call, peer: self.at, resume: self.assembly.begin() });
    }

    fn done(&mut self, outcome: Outcome, out: &mut Vec<Output>) {
        if matches!(self.phase, Phase::Asking { .. }) {
            out.push(Output::HangUp);
        }
        self.assembly.start_over();
        self.phase = Phase::Done(outcome);
        out.push(Output::Done(outcome));
    }
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
