//! The cursor of a rank that is followed through `SubscribeKvEvents`. Pure: what the stream did in, what to do out.
//!
//! A stream is asked for from the batch *before* the last one that was applied (the protocol's number is the last sequence that a
//! client has), so the first batch of a stream is the last one of the stream before. If it is the same, the publisher still lives
//! the same life; nothing else in the protocol says so. Within a stream nothing is lost on the way, so a gap is the server's.
//!
//! | first batch of a stream | means |
//! |---|---|
//! | the last one applied, with the same content | the same life: go on |
//! | the last one applied, with another content, or an earlier one | another life: clear, and from the start |
//! | a later one | nothing is proven: clear, and go on from there (PARTIAL) |
//!
//! | later batch | means |
//! |---|---|
//! | the next one | apply |
//! | one that was applied, with the same content | a repetition |
//! | any other that is not beyond the cursor | another life: clear; batch 0 or a clear begins it, else from the start |
//! | one too far ahead | a gap: asked for once more from the cursor; if it is still there, it is lost: DEGRADED, or too much for that: clear, PARTIAL |
//!
//! What is taken on trust: within one stream a server tells of another life (DATA_LOSS), or shows how it begins. One that does neither,
//! and goes on with the very sequence that came next, cannot be told from one where nothing happened.
//!
//! OUT_OF_RANGE and DATA_LOSS: clear, and from the start. Whatever taints the rank is tried to mend by asking for everything again,
//! with growing pauses: a stream that begins with batch 0 or a clear replaces all; any other changes nothing.

use crate::ingest::{Counters, IngestLimits, Trust};
use std::collections::VecDeque;
use std::time::Duration;

/// A batch as the cursor sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Its sequence.
    pub sequence: u64,
    /// Hash of its content.
    pub hash: u64,
    /// It holds a clear of the whole rank.
    pub clears: bool,
}

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The transport failed, or the server ended it: what was applied stays.
    Broken,
    /// The server cannot go on from where we are, or its publisher started over.
    StartOver,
    /// The server does not offer events.
    NotOffered,
}

/// What to do with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Apply it, after a clear of the rank or as it is.
    Apply {
        /// Drop everything of the rank first.
        clear_first: bool,
    },
    /// Nothing.
    Drop,
    /// End this stream and begin another one at once. `clear`: the rank is to be emptied.
    Again {
        /// Drop everything of the rank.
        clear: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No stream, or one that has said nothing yet.
    Asked,
    /// The same, from the start, to mend what is tainted.
    AskedForAll,
    Live,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Exact,
    Degraded,
    Partial,
}

/// The state of one rank's stream.
#[derive(Debug)]
pub struct StreamCursor {
    limits: IngestLimits,
    /// Batch 0 is known to be the engine's start-up clear: beginning with batch 1 misses nothing.
    first_is_clear: bool,
    connected: bool,
    phase: Phase,
    cursor: Option<u64>,
    standing: Standing,
    why: Option<&'static str>,
    incarnation: u64,
    /// The newest batches applied in this life.
    hashes: VecDeque<(u64, u64)>,
    /// The gap after this batch was asked for again.
    gap_after: Option<u64>,
    offered: bool,
    attempts: u32,
    pause: Duration,
    mend_at: Option<Duration>,
    counters: Counters,
}

impl StreamCursor {
    /// A cursor that has seen nothing. `first_is_clear`: the engine's batch 0 is always its start-up clear.
    pub fn new(limits: IngestLimits, first_is_clear: bool) -> Self {
        Self {
            limits,
            first_is_clear,
            connected: false,
            phase: Phase::Asked,
            cursor: None,
            standing: Standing::Exact,
            why: None,
            incarnation: 0,
            hashes: VecDeque::new(),
            gap_after: None,
            offered: true,
            attempts: 0,
            pause: limits.recovery_backoff_min,
            mend_at: None,
            counters: Counters::default(),
        }
    }

    /// The last sequence that the server is told we have; 0 for everything.
    pub fn start(&self) -> u64 {
        match self.phase {
            Phase::AskedForAll => 0,
            Phase::Asked | Phase::Live => self.cursor.map_or(0, |cursor| cursor.saturating_sub(1)),
        }
    }

    /// A stream was asked for.
    pub fn connected(&mut self) {
        self.connected = true;
    }

    /// A stream ended. Whether the rank is to be emptied.
    pub fn ended(&mut self, end: End) -> bool {
        self.connected = false;
        if self.phase == Phase::Live || end != End::Broken {
            self.phase = Phase::Asked;
        }
        match end {
            End::Broken => false,
            End::StartOver => {
                self.counters.bump("start_overs");
                self.forget()
            }
            End::NotOffered => {
                self.counters.bump("not_offered");
                self.offered = false;
                self.mend_at = None;
                self.forget()
            }
        }
    }

    /// Judges a batch. What is to be applied, is applied.
    pub fn batch(&mut self, now: Duration, header: Header) -> Verdict {
        self.offered = true;
        let verdict = self.judge(header);
        if let Verdict::Apply { clear_first } = verdict {
            self.take(header, clear_first);
        }
        self.plan(now);
        verdict
    }

    /// The batch that was applied held content that cannot be used.
    pub fn content_lost(&mut self, now: Duration, why: &'static str) {
        // It would be the same the next time.
        self.attempts = u32::MAX;
        self.taint(Standing::Degraded, why);
        self.plan(now);
    }

    /// What the rank held was dropped on the other side of the cursor, or not all of it was kept.
    pub fn history_lost(&mut self, now: Duration, partial: bool, why: &'static str) {
        self.taint(if partial { Standing::Partial } else { Standing::Degraded }, why);
        self.plan(now);
    }

    /// Time passed: whether the stream is to be ended and asked for from the start, to mend the rank.
    pub fn tick(&mut self, now: Duration) -> bool {
        if self.mend_at.is_none_or(|at| now < at) {
            return false;
        }
        self.mend_at = None;
        self.attempts = self.attempts.saturating_add(1);
        self.pause = (self.pause * 2).min(self.limits.recovery_backoff_max);
        self.counters.bump("recoveries_begun");
        self.phase = Phase::AskedForAll;
        true
    }

    /// When [`Self::tick`] is due.
    pub fn next_tick(&self) -> Option<Duration> {
        self.mend_at.filter(|_| self.connected)
    }

    /// How far answers about the rank can be believed.
    pub fn trust(&self) -> Trust {
        match self.standing {
            _ if !self.offered => Trust::Misconfigured,
            _ if self.incarnation == 0 => Trust::NeverSeen,
            Standing::Partial => Trust::Partial,
            Standing::Degraded => Trust::Degraded,
            // Until the stream has said that it is the same life.
            Standing::Exact if !self.connected || self.phase != Phase::Live => Trust::Degraded,
            Standing::Exact => Trust::Exact,
        }
    }

    /// Why the rank is not exact, if it is not.
    pub fn why(&self) -> Option<&'static str> {
        match self.trust() {
            Trust::Exact | Trust::NeverSeen => None,
            Trust::Misconfigured => Some("the server offers no events of this worker"),
            _ if self.standing != Standing::Exact => self.why,
            _ if !self.connected => Some("not connected: events may be missing"),
            _ => Some("the stream has not yet shown that the publisher is the same"),
        }
    }

    /// Last sequence applied.
    pub fn applied(&self) -> Option<u64> {
        self.cursor
    }

    /// Lives of the publisher seen so far.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether a stream was asked for and has not ended.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Counts by reason.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether nothing of the publisher's life comes before this batch.
    fn is_first(&self, sequence: u64) -> bool {
        sequence == 0 || self.first_is_clear && sequence == 1
    }

    fn judge(&mut self, header: Header) -> Verdict {
        let begins = header.clears || self.is_first(header.sequence);
        let Some(cursor) = self.cursor else {
            return Verdict::Apply { clear_first: false };
        };
        if self.phase == Phase::AskedForAll && begins {
            self.counters.bump("recovered");
            return Verdict::Apply { clear_first: true };
        }
        let same = self.hashes.iter().rev().find(|(sequence, _)| *sequence == header.sequence).map(|(_, hash)| *hash);
        match header.sequence {
            s if s <= cursor && same == Some(header.hash) => {
                self.counters.bump("stale_batches");
                if s == cursor {
                    self.phase = Phase::Live;
                }
                Verdict::Drop
            }
            s if s <= cursor => {
                self.counters.bump("restarts");
                if begins { Verdict::Apply { clear_first: true } } else { self.start_over() }
            }
            _ if self.phase == Phase::Asked => {
                self.counters.bump("unproven_resumes");
                self.lose(cursor, header.sequence);
                self.taint(Standing::Partial, "the server could not show that the publisher is the same");
                Verdict::Apply { clear_first: true }
            }
            s if s == cursor + 1 => Verdict::Apply { clear_first: false },
            s if self.phase == Phase::AskedForAll => {
                self.lose(cursor, s);
                self.taint(Standing::Degraded, "batches were lost");
                Verdict::Apply { clear_first: false }
            }
            s => self.gap(cursor, s),
        }
    }

    fn gap(&mut self, cursor: u64, sequence: u64) -> Verdict {
        if self.gap_after != Some(cursor) {
            self.gap_after = Some(cursor);
            self.counters.bump("gaps");
            self.phase = Phase::Asked;
            return Verdict::Again { clear: false };
        }
        let missing = sequence - cursor - 1;
        self.lose(cursor, sequence);
        if missing <= self.limits.repairable_batches_max {
            self.taint(Standing::Degraded, "batches were lost");
            return Verdict::Apply { clear_first: false };
        }
        self.taint(Standing::Partial, "too many batches were lost");
        Verdict::Apply { clear_first: true }
    }

    fn lose(&mut self, cursor: u64, sequence: u64) {
        self.counters.add("lost_batches", sequence - cursor - 1);
    }

    fn start_over(&mut self) -> Verdict {
        self.phase = Phase::Asked;
        Verdict::Again { clear: self.forget() }
    }

    /// Another life: whether there is anything to drop.
    fn forget(&mut self) -> bool {
        self.hashes.clear();
        self.gap_after = None;
        self.cursor.take().is_some()
    }

    /// Moves the cursor over a batch that is applied.
    fn take(&mut self, header: Header, clear_first: bool) {
        let first = self.cursor.is_none();
        if first || clear_first {
            self.incarnation += 1;
            self.hashes.clear();
        }
        if header.clears || self.is_first(header.sequence) && (first || clear_first) {
            self.standing = Standing::Exact;
            self.why = None;
            self.attempts = 0;
            self.mend_at = None;
        } else if first {
            self.taint(Standing::Partial, "the first batch was not the publisher's first");
        }
        self.phase = Phase::Live;
        self.gap_after = None;
        self.cursor = Some(header.sequence);
        self.hashes.push_back((header.sequence, header.hash));
        while self.hashes.len() > self.limits.payload_hashes_max {
            self.hashes.pop_front();
        }
    }

    fn taint(&mut self, standing: Standing, why: &'static str) {
        if self.standing != Standing::Partial {
            self.standing = standing;
        }
        self.why = Some(why);
    }

    fn plan(&mut self, now: Duration) {
        let attempts_left = self.attempts < self.limits.recovery_attempts_max;
        if self.standing == Standing::Exact {
            self.mend_at = None;
            self.pause = self.limits.recovery_backoff_min;
        } else if self.mend_at.is_none() && attempts_left && self.phase == Phase::Live {
            self.mend_at = Some(now + self.pause);
        }
    }
}
