//! The writing side of one rank's stream. Pure: at most one command is on its way to the server at a time, and every answer, or the
//! lack of one, is an input.
//!
//! | what happens | what follows |
//! |---|---|
//! | the lease is another's | nothing is appended; looked at again and again |
//! | the lease is ours | a new epoch, larger than the newest entry's; the rank's state, then its batches |
//! | no answer | the newest entry is looked at: what is not there is appended again, under the same names |
//! | entries are gone that were there | a new epoch, with the state |
//! | a name is refused | another one writes: the lease decides who goes on |
//! | an entry is refused for another reason | a new epoch after a pause, with the state |
//! | enough came after the state | the state again; once it is there, everything before it is trimmed |

use super::id::EntryId;
use super::limits::LogLimits;
use crate::ingest::{Counters, Now};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;

/// An entry to append.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The entry, written.
    pub bytes: Bytes,
    /// A state begins with it.
    pub begins: bool,
    /// A state is complete with it.
    pub ends: bool,
}

/// What became of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The server has them.
    Taken,
    /// It has newer ones, which are not ours.
    Fenced,
    /// It has no such stream any more, or no room.
    Refused,
    /// Nobody knows.
    Unanswered,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AppenderInput {
    /// Whose the lease is, and whether the stream is there.
    Lease {
        /// It is ours for a while.
        ours: bool,
        /// The stream exists.
        stream: bool,
    },
    /// The newest entry of the stream.
    Tail(Option<EntryId>),
    /// What became of the entries.
    Appended(Outcome),
    /// What was before a state is gone.
    Trimmed,
    /// The lease, the newest entry or the trimming: no answer.
    Unanswered,
    /// The subscription gives this.
    Piece(Piece),
    /// The subscription is over; what the stream should say of that.
    Over(Bytes),
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AppenderOutput {
    /// Take the lease or prolong it.
    Lease,
    /// Look at the newest entry.
    Tail,
    /// Append these, in order.
    Append {
        /// Name of the first; the others count on.
        first: EntryId,
        /// The entries.
        entries: Vec<Bytes>,
    },
    /// Trim what is before this.
    Trim {
        /// The oldest entry that stays.
        from: EntryId,
    },
    /// Remove the stream: no name is left.
    Delete,
    /// Subscribe to the rank, from its state on. A subscription that there is goes on to where the new one begins.
    Subscribe,
    /// End the subscription.
    Unsubscribe,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Another one writes, or nobody can.
    Standby,
    /// The lease is ours: what is in the stream already?
    Claim,
    /// The stream is full of names.
    Delete,
    /// Entries are appended.
    Write,
}

/// The state machine of one rank's writer.
pub struct Appender {
    limits: LogLimits,
    /// Keeps epochs of writers apart that begin in the same millisecond.
    nonce: u64,
    role: Role,
    /// A command is on its way.
    asked: bool,
    lease_at: Duration,
    /// Nothing is asked before this.
    retry_at: Duration,
    pause: Duration,
    /// What is in the stream is to be looked at before anything is appended.
    verify: bool,
    epoch: u64,
    /// Entries of this epoch that the server has.
    taken: u64,
    queue: VecDeque<Piece>,
    queue_bytes: usize,
    /// Of the queue, so many are on their way.
    sent: usize,
    /// A state was asked for and is not complete in the stream.
    state_underway: bool,
    /// Where the state that is being appended begins.
    state_from: Option<u64>,
    /// Entries and bytes after the newest complete state.
    since: (u64, u64),
    trim_from: Option<u64>,
    counters: Counters,
}

impl Appender {
    /// A writer that has not written. `nonce`: a random number.
    pub fn new(limits: LogLimits, nonce: u64) -> Self {
        Self {
            nonce: nonce & EPOCH_NONCE,
            role: Role::Standby,
            asked: false,
            lease_at: Duration::ZERO,
            retry_at: Duration::ZERO,
            pause: limits.retry_min,
            verify: false,
            epoch: 0,
            taken: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            sent: 0,
            state_underway: false,
            state_from: None,
            since: (0, 0),
            trim_from: None,
            counters: Counters::default(),
            limits,
        }
    }

    /// Takes one input and appends what to do, in order.
    pub fn step(&mut self, now: Now, input: AppenderInput, out: &mut Vec<AppenderOutput>) {
        use AppenderInput::{Appended, Lease, Over, Piece, Tail, Tick, Trimmed, Unanswered};
        // Anything else is an answer.
        self.asked &= matches!(input, Piece(_) | Over(_) | Tick);
        match input {
            Lease { ours, stream } => self.on_lease(now, ours, stream, out),
            Tail(tail) => self.on_tail(now, tail, out),
            Appended(Outcome::Taken) => self.on_taken(out),
            Appended(Outcome::Fenced) => self.begin_anew(now, "fenced", out),
            Appended(Outcome::Refused) => self.begin_anew(now, "refused", out),
            Appended(Outcome::Unanswered) | Unanswered => self.on_unanswered(now, out),
            Trimmed => self.on_trimmed(),
            Piece(piece) => self.on_piece(now, piece, out),
            Over(word) => {
                self.on_piece(now, super::Piece { bytes: word, begins: false, ends: false }, out);
                self.counters.bump("subscriptions_over");
                if self.role == Role::Write {
                    self.subscribe(out);
                }
            }
            Tick => {}
        }
        self.ask(now, out);
    }

    /// Whether there is room for what the subscription gives.
    pub fn wants_more(&self) -> bool {
        self.role == Role::Write
            && self.queue.len() < self.limits.queue_entries_max
            && self.queue_bytes < self.limits.queue_bytes_max
    }

    /// When [`AppenderInput::Tick`] is due; `None` while an answer is.
    pub fn next_tick(&self) -> Option<Duration> {
        let due = if self.has_work() { self.retry_at } else { self.lease_at.max(self.retry_at) };
        (!self.asked).then_some(due)
    }

    /// Whether entries are appended.
    pub fn is_writing(&self) -> bool {
        self.role == Role::Write
    }

    /// Counts by reason since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    fn has_work(&self) -> bool {
        match self.role {
            Role::Standby => false,
            Role::Claim | Role::Delete => true,
            Role::Write => self.verify || self.trim_from.is_some() || !self.queue.is_empty(),
        }
    }

    /// The next command, if none is on its way.
    fn ask(&mut self, now: Now, out: &mut Vec<AppenderOutput>) {
        if self.asked || now.elapsed < self.retry_at {
            return;
        }
        let name = |number| EntryId { epoch: self.epoch, number };
        let command = match self.role {
            _ if now.elapsed >= self.lease_at => AppenderOutput::Lease,
            Role::Standby => return,
            Role::Claim => AppenderOutput::Tail,
            Role::Delete => AppenderOutput::Delete,
            Role::Write if self.verify => AppenderOutput::Tail,
            Role::Write => match self.trim_from {
                Some(from) => AppenderOutput::Trim { from: name(from) },
                None if self.queue.is_empty() => return,
                None => {
                    self.sent = self.queue.len();
                    let entries = self.queue.iter().map(|piece| piece.bytes.clone()).collect();
                    AppenderOutput::Append { first: name(self.taken), entries }
                }
            },
        };
        self.asked = true;
        out.push(command);
    }

    fn on_lease(&mut self, now: Now, ours: bool, stream: bool, out: &mut Vec<AppenderOutput>) {
        self.lease_at = now.elapsed + self.limits.renewal();
        if !ours {
            if self.role == Role::Write {
                self.counters.bump("leases_lost");
            }
            self.stand_by(out);
        } else if self.role == Role::Standby {
            self.counters.bump("leases");
            self.role = Role::Claim;
        } else if self.role == Role::Write && self.taken > 0 && !stream {
            self.claim_again("stream_gone", out);
        }
    }

    fn on_tail(&mut self, now: Now, tail: Option<EntryId>, out: &mut Vec<AppenderOutput>) {
        match self.role {
            Role::Claim => self.claim(now, tail, out),
            Role::Write if self.verify => {
                self.verify = false;
                let ours = tail.filter(|tail| tail.epoch == self.epoch).map_or(0, |tail| tail.number.saturating_add(1));
                if tail.is_some_and(|tail| tail.epoch > self.epoch) || ours > self.taken + self.sent as u64 {
                    self.begin_anew(now, "fenced", out);
                } else if ours < self.taken {
                    self.claim_again("entries_lost", out);
                } else {
                    self.take((ours - self.taken) as usize, out);
                    self.sent = 0;
                }
            }
            Role::Standby | Role::Write | Role::Delete => {}
        }
    }

    /// A new epoch after everything that is in the stream.
    fn claim(&mut self, now: Now, tail: Option<EntryId>, out: &mut Vec<AppenderOutput>) {
        let clock = now.unix_ms.checked_mul(EPOCH_NONCE + 1).map_or(0, |ms| ms | self.nonce);
        let newest = tail.map_or(0, |tail| tail.epoch).max(self.epoch);
        let Some(after) = newest.checked_add(1) else {
            self.counters.bump("names_used_up");
            (self.role, self.epoch) = (Role::Delete, 0);
            return;
        };
        self.epoch = after.max(clock);
        self.counters.bump("epochs");
        (self.role, self.taken) = (Role::Write, 0);
        self.subscribe(out);
    }

    fn on_taken(&mut self, out: &mut Vec<AppenderOutput>) {
        self.pause = self.limits.retry_min;
        let sent = std::mem::take(&mut self.sent);
        self.take(sent, out);
    }

    /// So many entries at the head of the queue are in the stream.
    fn take(&mut self, count: usize, out: &mut Vec<AppenderOutput>) {
        for _ in 0..count {
            let Some(piece) = self.queue.pop_front() else { break };
            self.queue_bytes -= piece.bytes.len();
            self.counters.bump("entries_appended");
            self.counters.add("bytes_appended", piece.bytes.len() as u64);
            self.since = (self.since.0 + 1, self.since.1 + piece.bytes.len() as u64);
            if piece.begins {
                self.state_from = Some(self.taken);
            }
            if piece.ends {
                self.counters.bump("states_appended");
                self.trim_from = self.state_from.take();
                (self.since, self.state_underway) = ((0, 0), false);
            }
            self.taken += 1;
        }
        let enough = self.since.0 >= self.limits.entries_max || self.since.1 >= self.limits.bytes_max;
        if enough && !self.state_underway {
            self.subscribe(out);
        }
    }

    fn on_trimmed(&mut self) {
        self.counters.bump("trims");
        if self.role == Role::Delete {
            self.role = Role::Claim;
        }
        self.trim_from = None;
    }

    fn on_piece(&mut self, now: Now, piece: Piece, out: &mut Vec<AppenderOutput>) {
        if self.role != Role::Write {
            return;
        }
        if piece.bytes.len() > self.limits.entry_bytes_max {
            self.begin_anew(now, "entries_too_large", out);
            return;
        }
        self.queue_bytes += piece.bytes.len();
        self.queue.push_back(piece);
    }

    fn on_unanswered(&mut self, now: Now, out: &mut Vec<AppenderOutput>) {
        self.counters.bump("unanswered");
        self.wait(now);
        match self.role {
            // A state on its way takes up the relay's room.
            Role::Write if self.state_underway => self.stand_by(out),
            Role::Write => self.verify = true,
            Role::Claim | Role::Delete => self.role = Role::Standby,
            Role::Standby => {}
        }
    }

    /// Something is wrong with the stream, or with what should be appended: after a pause the lease decides who goes on.
    fn begin_anew(&mut self, now: Now, reason: &'static str, out: &mut Vec<AppenderOutput>) {
        self.counters.bump(reason);
        self.wait(now);
        self.stand_by(out);
    }

    /// The stream lost entries: a new epoch at once.
    fn claim_again(&mut self, reason: &'static str, out: &mut Vec<AppenderOutput>) {
        self.counters.bump(reason);
        self.stand_by(out);
        self.role = Role::Claim;
    }

    /// Gives everything up that was to be appended.
    fn stand_by(&mut self, out: &mut Vec<AppenderOutput>) {
        self.queue.clear();
        (self.queue_bytes, self.sent, self.since) = (0, 0, (0, 0));
        (self.verify, self.state_underway, self.state_from, self.trim_from) = (false, false, None, None);
        // Whoever writes has a subscription, and nobody else.
        if std::mem::replace(&mut self.role, Role::Standby) == Role::Write {
            out.push(AppenderOutput::Unsubscribe);
        }
    }

    fn subscribe(&mut self, out: &mut Vec<AppenderOutput>) {
        self.state_underway = true;
        out.push(AppenderOutput::Subscribe);
    }

    fn wait(&mut self, now: Now) {
        self.retry_at = now.elapsed + self.pause;
        // The lease may be over by then.
        self.lease_at = self.retry_at;
        self.pause = (self.pause * 2).min(self.limits.retry_max);
    }
}

/// The bits of an epoch below its milliseconds.
const EPOCH_NONCE: u64 = 0x3ff;

#[cfg(test)]
#[path = "appender_tests.rs"]
mod tests;
