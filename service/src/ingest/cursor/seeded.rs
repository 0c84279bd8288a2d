//! A seed that waits for its proof: what it is asked for, what is taken for the proof, and what becomes of it otherwise.
//!
//! The publisher is asked for the batch at the seed's cursor and what follows. If that batch comes back with the payload that the
//! seed remembers, the publisher is in the life that the seed was cut from, whatever happened in between: sequences start again
//! from 0 in another life, and its payloads are others. Then the state is loaded, and the same answer goes on with what follows.
//! Until that moment nothing is touched, so a seed that proves nothing costs one question.
//!
//! | while a seed waits | then |
//! |---|---|
//! | nothing is asked, the rank is connected and not exact | the publisher is asked |
//! | the first history is being fetched | that is put off |
//! | the rank is exact already | dropped: not needed |
//! | the answer begins with the batch at the cursor, same payload | loaded; another life than what was applied: that first |
//! | a live batch at or before the cursor has the remembered payload | loaded; the answer goes on if it comes |
//! | another payload, in either | dropped: another life |
//! | the answer begins later | dropped: rolled over |
//! | the answer is empty | dropped: the publisher does not know the batch |
//! | no answer in time | dropped: no answer |
//! | no replay endpoint, and the first live batch proves nothing | dropped: no replay |

use super::replay::Purpose;
use super::{Cursor, Output, Standing};
use crate::ingest::status::Trust;
use crate::seed::{Cut, PROOFS_MAX, Proof};
use bytes::Bytes;
use std::cmp::Ordering;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// A cut that waits, and what it put off.
#[derive(Default)]
pub(super) struct Seeding {
    waits: Option<Cut>,
    /// A history that was being fetched is to be gone on with if nothing comes of it.
    interrupted: bool,
}

impl Cursor {
    /// What a seed of the rank says about its stream, if a publisher could prove it: the payload of the batch at the cursor is
    /// remembered.
    pub fn cut(&self) -> Option<Cut> {
        let cursor = self.applied?;
        let proofs: Vec<Proof> = self.payloads.newest(PROOFS_MAX).collect();
        proofs.last().filter(|proof| proof.sequence == cursor)?;
        let trust = match self.standing {
            Standing::Exact => Trust::Exact,
            Standing::Degraded => Trust::Degraded,
            Standing::Partial => Trust::Partial,
        };
        Some(Cut { cursor, incarnation: self.incarnation, trust, proofs })
    }

    /// The seed that waits for its proof.
    pub fn waiting_cut(&self) -> Option<&Cut> {
        self.seeding.waits.as_ref()
    }

    /// Takes a seed; it takes the place of one that waits.
    pub(super) fn on_seed(&mut self, now: Duration, cut: Cut, out: &mut Vec<Output>) {
        if self.seeding.waits.replace(cut).is_some() {
            self.counters.bump("seed_dropped_replaced");
            if self.asks_for_seed() {
                self.request(now, Purpose::Seed, out);
            }
        }
    }

    /// The first question of a connection: the seed's, where one waits, or else the history.
    pub(super) fn begin(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.seeding.waits.is_none() {
            self.request(now, Purpose::Bootstrap, out);
        } else if self.replay.take().is_some() {
            out.push(Output::CancelReplay);
        }
    }

    /// Whether the first history is put off for a seed that is being asked about.
    pub(super) fn seed_comes_first(&self) -> bool {
        self.asks_for_seed() && (self.applied.is_none() || self.seeding.interrupted)
    }

    /// Asks for what proves the seed that waits, as soon as nothing else is being asked for.
    pub(super) fn plan_seed(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(cut) = self.seeding.waits.as_ref().filter(|_| self.connected && !self.asks_for_seed()) else { return };
        let improves = self.standing != Standing::Exact && cut.trust == Trust::Exact;
        match self.replay.as_ref().map(|replay| replay.purpose) {
            Some(Purpose::Bootstrap) if self.has_replay && !self.recovery_runs() => self.seeding.interrupted = true,
            Some(_) => return,
            None if self.applied.is_some() && !improves => {
                self.drop_seed(now, "seed_dropped_not_needed", out);
                return;
            }
            None if !self.has_replay => {
                // The first live batch decides. If it was applied already, nothing can be joined on.
                if self.applied.is_some() {
                    self.drop_seed(now, "seed_dropped_no_replay", out);
                }
                return;
            }
            None => {}
        }
        self.request(now, Purpose::Seed, out);
    }

    /// Whether the request in flight is the seed's.
    fn asks_for_seed(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.purpose == Purpose::Seed)
    }

    /// First sequence that the seed's question asks for.
    pub(super) fn seed_cursor(&self) -> u64 {
        self.seeding.waits.as_ref().map_or(0, |cut| cut.cursor)
    }

    /// What a live batch says about the seed that waits, before it is looked at otherwise.
    pub(super) fn judge_seed_live(&mut self, now: Duration, seq: u64, payload: &Bytes, out: &mut Vec<Output>) {
        let Some(cut) = self.seeding.waits.as_ref().filter(|_| self.asks_for_seed() || !self.has_replay) else {
            return;
        };
        match cut.payload_hash(seq).map(|hash| hash == xxh3_64(payload)) {
            Some(true) => self.load_seed(now, out),
            Some(false) => self.drop_seed(now, "seed_dropped_other_life", out),
            None if self.has_replay => {}
            None => self.drop_seed(now, "seed_dropped_no_replay", out),
        }
    }

    /// A reply to the seed's question. Says whether it is to be looked at further, as the first one after a loaded state.
    pub(super) fn judge_seed(&mut self, now: Duration, seq: u64, payload: &Bytes, out: &mut Vec<Output>) -> bool {
        let Some(cut) = &self.seeding.waits else { return false };
        let same = cut.payload_hash(seq).map(|hash| hash == xxh3_64(payload));
        match (seq.cmp(&cut.cursor), same) {
            (Ordering::Greater, _) => self.drop_seed(now, "seed_dropped_rolled_over", out),
            (_, Some(false)) => self.drop_seed(now, "seed_dropped_other_life", out),
            (Ordering::Equal, _) if self.is_of_another_life(seq, payload) => self.contradicted(now, out),
            (Ordering::Equal, _) => {
                self.load_seed(now, out);
                return true;
            }
            // More than was asked for.
            (Ordering::Less, _) => {}
        }
        false
    }

    /// Whether what was applied, or came live, is of another life than this reply.
    fn is_of_another_life(&self, seq: u64, payload: &Bytes) -> bool {
        self.payloads.same(seq, payload) == Some(false) || self.held.get(seq).is_some_and(|held| held != payload)
    }

    /// The publisher is in the life of the seed: its state takes the place of what the rank holds.
    fn load_seed(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(cut) = self.seeding.waits.take() else { return };
        self.seeding.interrupted = false;
        self.counters.bump("seeds_loaded");
        self.cancel_snapshot(now, out);
        self.recovery.begin_anew();
        self.incarnation = self.incarnation.max(cut.incarnation).max(1);
        // Of the same life, so what was applied beyond the seed is reached again, or something is missing.
        self.reach = self.reach.max(self.applied);
        self.applied = Some(cut.cursor);
        // The live stream may still bring what the state has already.
        self.fetched = Some(cut.cursor);
        self.last_clear = None;
        self.payloads.restore(&cut.proofs);
        self.held.drop_to(cut.cursor);
        if !self.connected {
            self.held.clear();
        }
        let why = "the state that was loaded was not exact";
        (self.standing, self.why, self.tainted_at) = match cut.trust {
            Trust::Exact => (Standing::Exact, None, 0),
            Trust::Degraded => (Standing::Degraded, Some(why), cut.cursor.saturating_add(1)),
            _ => (Standing::Partial, Some(why), cut.cursor.saturating_add(1)),
        };
        out.push(Output::LoadSeed { seq: cut.cursor });
        if let Some(replay) = &mut self.replay {
            replay.follows_seed();
        }
    }

    /// Nothing comes of the seed; the rank is filled as if there had been none.
    pub(super) fn drop_seed(&mut self, now: Duration, reason: &'static str, out: &mut Vec<Output>) {
        let asked = self.asks_for_seed();
        let interrupted = std::mem::take(&mut self.seeding.interrupted);
        if self.seeding.waits.take().is_none() {
            return;
        }
        self.counters.bump(reason);
        out.push(Output::DropSeed);
        if !asked {
            return;
        }
        self.replay = None;
        out.push(Output::CancelReplay);
        self.heard = now;
        if !self.connected {
            return;
        }
        match self.applied {
            None => self.request(now, Purpose::Bootstrap, out),
            // The publisher may have begun another life since.
            Some(_) if interrupted => self.request(now, Purpose::Reconnect, out),
            Some(_) => self.drain(now, true, 1, out),
        }
    }

    /// What waits behind the seed's question has become too much.
    pub(super) fn seed_takes_too_long(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.asks_for_seed() {
            self.drop_seed(now, "seed_dropped_overflow", out);
        }
    }

    /// Another life begins: a history that the seed put off is of no use.
    pub(super) fn forget_interrupted(&mut self) {
        self.seeding.interrupted = false;
    }
}
