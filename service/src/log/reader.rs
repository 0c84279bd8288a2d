//! The reading side of one rank's stream. Pure: entries in, operations and a judgement out.
//!
//! | entry | place | what follows |
//! |---|---|---|
//! | first part of a state | anywhere | the state is collected; one that only repeats what is known is passed by |
//! | last part of a state | collecting | the rank is emptied and loaded; from here on batches are followed |
//! | batch that begins an empty life | anywhere | the rank is emptied; the batch, and what follows |
//! | batch of the same life, nothing missing before it | following | applied |
//! | anything else, or an entry that cannot be read | following | the stream is lost: searching for the next state |
//!
//! What the rank holds stays as it is while a state is searched for or collected, and the rank says that it is not exact. So it does
//! without a connection, while nobody writes the stream, and until everything was read that was there when the connection was
//! made.

use super::entry::{Entry, Says};
use super::id::EntryId;
use super::limits::LogLimits;
use crate::ingest::{Counters, Now, RankStatus, Trust};
use crate::ops::{Applied, Op, OpBatch};
use crate::relay::{Life, Part};

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum ReaderInput {
    /// The server answers again.
    Connected {
        /// The newest entry there is.
        tail: Option<EntryId>,
    },
    /// It does not.
    Disconnected,
    /// An entry, or why it is none.
    Entry {
        /// Its name.
        id: EntryId,
        /// What it says.
        read: Result<Entry, &'static str>,
    },
    /// Nothing came for a while.
    Quiet {
        /// The newest entry there is.
        tail: Option<EntryId>,
        /// Whether anybody has the lease to write the stream.
        writer: bool,
    },
}

/// What to do, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum ReaderOutput {
    /// This is believed of the rank from here on; tell it before anything else.
    Judge(Trust),
    /// Apply these operations.
    Apply(OpBatch),
    /// Empty the rank and apply these operations, in order: its state as of batch `sequence`.
    Load {
        /// The last batch that is in the state.
        sequence: u64,
        /// The state, in parts.
        parts: Vec<Vec<Op>>,
    },
}

#[derive(Debug)]
enum Place {
    /// For the next state.
    Searching,
    Collecting {
        life: Life,
        parts: Vec<Vec<Op>>,
        bytes: usize,
    },
    Following,
    /// By a state that is known.
    Passing,
}

/// The state machine of one rank's reader.
pub struct Reader {
    limits: LogLimits,
    /// The entry read last.
    last: Option<EntryId>,
    place: Place,
    /// The life that the rank's blocks belong to.
    life: Option<Life>,
    cursor: Option<u64>,
    /// What the stream said last of everything up to the cursor.
    said: Option<Trust>,
    upper_bound: bool,
    connected: bool,
    writer: bool,
    /// Until this was read, more is known to exist.
    reach: Option<EntryId>,
    lost: Option<&'static str>,
    misfit: bool,
    incarnation: u64,
    judged: Trust,
    last_event_ms: Option<u64>,
    last_event_engine_time: Option<f64>,
    counters: Counters,
}

impl Reader {
    /// A reader that has read nothing.
    pub fn new(limits: LogLimits) -> Self {
        Self {
            limits,
            last: None,
            place: Place::Searching,
            life: None,
            cursor: None,
            said: None,
            upper_bound: false,
            connected: false,
            writer: true,
            reach: None,
            lost: None,
            misfit: false,
            incarnation: 0,
            judged: Trust::NeverSeen,
            last_event_ms: None,
            last_event_engine_time: None,
            counters: Counters::default(),
        }
    }

    /// Takes one input and appends what to do.
    pub fn step(&mut self, now: Now, input: ReaderInput, out: &mut Vec<ReaderOutput>) {
        match input {
            ReaderInput::Connected { tail } => {
                self.counters.bump("connections");
                self.connected = true;
                self.on_tail(tail);
                self.reach = tail.filter(|_| tail > self.last);
            }
            ReaderInput::Disconnected => self.connected = false,
            ReaderInput::Quiet { tail, writer } => {
                self.on_tail(tail);
                self.writer = writer;
            }
            ReaderInput::Entry { id, read } => self.on_entry(now, id, read, out),
        }
        self.judge(out);
    }

    /// Takes back what the index did with operations.
    pub fn applied(&mut self, did: &Applied, out: &mut Vec<ReaderOutput>) {
        for (reason, count) in [
            ("blocks_stored", did.stored),
            ("block_copies", did.copies),
            ("orphans", did.orphans),
            ("orphans_dropped", did.orphans_dropped),
            ("blocks_removed", did.removed),
            ("unknown_removals", did.unknown_removals),
            ("limit_reached", did.limit_reached),
            ("blocks_cleared", did.cleared),
        ] {
            self.counters.add(reason, count);
        }
        if did.limit_reached > 0 {
            self.lose("a memory limit of the index was reached: the rank was emptied");
        } else if did.orphans_dropped > 0 {
            self.lose("blocks without a known parent were dropped: too many are waiting");
        }
        self.judge(out);
    }

    /// How far answers about the rank can be believed.
    pub fn trust(&self) -> Trust {
        match self.place {
            _ if self.misfit => Trust::Misconfigured,
            Place::Following | Place::Passing if self.is_current() => match self.said {
                Some(said) => said,
                None if self.was_judged() => Trust::Degraded,
                None => Trust::Bootstrapping,
            },
            _ if self.was_judged() => Trust::Degraded,
            _ if self.last.is_some() => Trust::Bootstrapping,
            _ => Trust::NeverSeen,
        }
    }

    /// A snapshot for status pages. Allocates.
    pub fn status(&self) -> RankStatus {
        let trust = self.trust();
        RankStatus {
            trust,
            upper_bound: self.upper_bound.then_some("as the log says, answers may be too high"),
            incarnation: self.incarnation,
            cursor: self.cursor,
            connected: self.connected,
            last_event_ms: self.last_event_ms,
            last_event_engine_time: self.last_event_engine_time,
            detail: (trust != Trust::Exact).then(|| self.why().to_owned()),
            counters: self.counters.iter().collect(),
        }
    }

    /// Counts something that happened outside.
    pub fn count(&mut self, reason: &'static str, count: u64) {
        self.counters.add(reason, count);
    }

    /// Whether the rank's first state is over and done with.
    fn was_judged(&self) -> bool {
        self.judged > Trust::Bootstrapping
    }

    fn is_current(&self) -> bool {
        self.connected && self.writer && self.reach.is_none()
    }

    fn why(&self) -> &'static str {
        match self.place {
            _ if self.misfit => "the log's rank has another block size or hash mode than the registration",
            _ if !self.connected => "no connection to the log",
            _ if !self.writer => "nobody writes the log of this rank",
            Place::Searching => self.lost.unwrap_or("no state of the rank is in the log yet"),
            Place::Collecting { .. } => "the rank's state is being read from the log",
            _ if self.reach.is_some() => "what was missed is being read from the log",
            Place::Following | Place::Passing => "the rank is not exact where the log is written",
        }
    }

    fn judge(&mut self, out: &mut Vec<ReaderOutput>) {
        let trust = self.trust();
        if std::mem::replace(&mut self.judged, trust) != trust {
            out.push(ReaderOutput::Judge(trust));
        }
    }

    /// The newest entry of the stream: an older one than what was read is another stream.
    fn on_tail(&mut self, tail: Option<EntryId>) {
        if tail < self.last {
            self.last = None;
            self.reach = None;
            self.lose("the log was emptied, or went back");
        }
    }

    fn on_entry(&mut self, now: Now, id: EntryId, read: Result<Entry, &'static str>, out: &mut Vec<ReaderOutput>) {
        if Some(id) <= self.last {
            self.counters.bump("entries_repeated");
            return;
        }
        let follows = self.last.is_some_and(|last| id.follows(last));
        self.last = Some(id);
        self.reach = self.reach.filter(|reach| *reach > id);
        self.writer = true;
        self.counters.bump("entries");
        let entry = match read {
            Ok(entry) => entry,
            Err(reason) => {
                self.counters.bump("entries_unreadable");
                self.counters.bump(reason);
                self.lose("an entry of the log could not be read");
                return;
            }
        };
        self.misfit = !entry.fits;
        if self.misfit {
            self.counters.bump("entries_of_another_kind");
            self.lose("the log's rank had another block size or hash mode");
            return;
        }
        self.upper_bound = entry.upper_bound;
        let begins = match entry.says {
            Says::Part { part, .. } => part.chunk == 0,
            Says::Batch { reset, .. } => reset,
            Says::Nothing => false,
        };
        if !follows && !begins {
            self.counters.bump(if matches!(self.place, Place::Searching) { "entries_before_a_state" } else { "gaps" });
            self.lose("entries of the log are missing");
            return;
        }
        match entry.says {
            Says::Part { part, sequence, ops } => {
                let at = (entry.life, part, sequence);
                self.on_part(follows, at, ops, (entry.bytes, entry.trust), out);
            }
            Says::Batch { reset, batch } => self.on_batch(now, (entry.life, entry.trust), reset, batch, out),
            Says::Nothing if matches!(self.place, Place::Following | Place::Passing) => self.said = entry.trust,
            Says::Nothing => {}
        }
    }

    fn on_part(
        &mut self,
        follows: bool,
        (life, part, sequence): (Life, Part, u64),
        ops: Vec<Op>,
        (size, trust): (usize, Option<Trust>),
        out: &mut Vec<ReaderOutput>,
    ) {
        if part.chunk == 0 {
            let known = follows && matches!(self.place, Place::Following) && self.life == Some(life);
            self.place = if known { Place::Passing } else { Place::Collecting { life, parts: Vec::new(), bytes: 0 } };
        }
        match &mut self.place {
            Place::Passing if part.last => {
                self.counters.bump("states_passed");
                self.place = Place::Following;
                self.said = trust.or(self.said);
                if self.cursor != Some(sequence) {
                    self.lose_counted("a state in the log is not the one that its batches lead to");
                }
            }
            Place::Passing => {}
            Place::Collecting { life: of, parts, bytes } if *of == life && parts.len() == part.chunk as usize => {
                parts.push(ops);
                *bytes += size;
                if *bytes > self.limits.state_bytes_max {
                    self.counters.bump("states_too_large");
                    self.lose("the rank's state is larger than shared_log.state_bytes_max");
                } else if part.last {
                    let parts = std::mem::take(parts);
                    self.load(life, sequence, trust, parts, out);
                }
            }
            Place::Collecting { .. } => {
                self.lose_counted("parts of a state in the log do not fit together");
            }
            Place::Searching => self.counters.bump("entries_before_a_state"),
            Place::Following => {
                self.lose_counted("a state in the log has no beginning");
            }
        }
    }

    fn load(
        &mut self,
        life: Life,
        sequence: u64,
        trust: Option<Trust>,
        parts: Vec<Vec<Op>>,
        out: &mut Vec<ReaderOutput>,
    ) {
        // While it is emptied and filled it is not what the engine holds.
        self.judge(out);
        self.counters.bump("states_loaded");
        self.enter(life);
        (self.cursor, self.said) = (Some(sequence), trust);
        out.push(ReaderOutput::Load { sequence, parts });
    }

    fn on_batch(
        &mut self,
        now: Now,
        (life, trust): (Life, Option<Trust>),
        reset: bool,
        batch: OpBatch,
        out: &mut Vec<ReaderOutput>,
    ) {
        let Some(sequence) = batch.sequence else { return };
        if reset {
            self.place = Place::Searching;
            self.judge(out);
            self.enter(life);
            let ops = vec![Op::Clear { tier: None }];
            out.push(ReaderOutput::Apply(OpBatch { ops, ..OpBatch::default() }));
        } else {
            match self.place {
                Place::Searching => return self.counters.bump("entries_before_a_state"),
                Place::Following if self.life == Some(life) => {}
                Place::Following => return self.lose_counted("another life begins in the log without its state"),
                Place::Collecting { .. } | Place::Passing => return self.lose_counted("a state in the log has no end"),
            }
            let next = self.cursor.map_or(0, |cursor| cursor.saturating_add(1));
            if sequence < next {
                return self.counters.bump("stale");
            }
            if sequence > next && !batch.lost_before {
                return self.lose_counted("batches are missing in the log");
            }
        }
        // What is not said of it is not exact.
        self.said = trust;
        self.cursor = Some(sequence);
        self.last_event_ms = Some(now.unix_ms);
        self.last_event_engine_time = batch.published_at.or(self.last_event_engine_time);
        self.counters.bump("batches");
        if self.trust() != Trust::Exact {
            self.judge(out);
        }
        out.push(ReaderOutput::Apply(batch));
    }

    fn enter(&mut self, life: Life) {
        if self.life != Some(life) {
            self.incarnation += 1;
        }
        (self.place, self.life, self.lost) = (Place::Following, Some(life), None);
    }

    fn lose_counted(&mut self, why: &'static str) {
        self.counters.bump("gaps");
        self.lose(why);
    }

    fn lose(&mut self, why: &'static str) {
        // The first cause says more than what follows from it.
        if !matches!(self.place, Place::Searching) || self.lost.is_none() {
            self.lost = Some(why);
        }
        self.place = Place::Searching;
        self.said = None;
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
