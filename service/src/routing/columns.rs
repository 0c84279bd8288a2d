//! What is known of each worker, as columns: entry `i` of each belongs to the worker in slot `i`, so that a decision reads only
//! the columns that it needs, in order.

use super::load::WorkerLoad;
use super::overload::WorkerOverload;
use super::settings::LoadSettings;
use super::tally::Tally;
use std::sync::Arc;
use std::time::Duration;

/// A worker's place in the columns. Stays the same while the worker is registered, and is given again afterwards.
pub type Slot = u32;

/// Why a worker may not be chosen, as bits. 0: it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status(pub u8);

impl Status {
    /// Nobody is in the slot.
    pub const ABSENT: u8 = 1;
    /// The worker is leaving, or its circuit breaker is open.
    pub const NOT_READY: u8 = 2;
    /// The worker is vetoed: it cannot be reached, or does nothing.
    pub const VETOED: u8 = 4;
    /// The last record said that it is overloaded.
    pub const OVERLOADED: u8 = 8;

    /// Whether any of these bits is set.
    pub const fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    /// Sets or clears a bit.
    pub fn put(&mut self, bit: u8, on: bool) {
        if on { self.0 |= bit } else { self.0 &= !bit }
    }
}

/// The columns. Changed by what happens, read by decisions.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// The workers' ids; `None`: the slot is free.
    pub names: Vec<Option<Arc<str>>>,
    /// Why a worker may not be chosen.
    pub status: Vec<Status>,
    /// Until when the latest record may be believed, in nanoseconds of the clock; 0: there is no valid one.
    pub fresh_until: Vec<u64>,
    /// Whether a malformed record is the reason that there is no valid one.
    pub malformed: Vec<bool>,
    /// The worker's own thresholds of overload protection.
    pub overload: Vec<WorkerOverload>,
    /// The latest valid record.
    pub load: Vec<WorkerLoad>,
    /// When it came.
    pub received_at: Vec<Duration>,
    /// Tokens queued: the reported ones, or the waiting requests times the mean prefill.
    pub queued: Vec<f64>,
    /// Live rate, tokens per second; 0: none.
    pub rate: Vec<f64>,
    /// Price of KV pressure, seconds.
    pub pressure: Vec<f64>,
    /// Requests dispatched from here (and by other replicas, where bookings are exchanged) that have not ended.
    pub in_flight: Vec<u32>,
    /// Tokens dispatched that the latest record cannot contain.
    pub unrecorded: Vec<f64>,
    /// The dispatches behind these.
    pub tallies: Vec<Tally>,
    /// Blocks that the index holds of the worker, over ranks and tiers.
    pub blocks: Vec<u64>,
    /// Since when the worker may be chosen.
    pub routable_since: Vec<Duration>,
    /// Whether what the index says of the worker is exact on every rank.
    pub certified: Vec<bool>,
}

/// A time in the unit of [`Columns::fresh_until`]; never 0.
#[inline]
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl Columns {
    /// Slots, free ones too.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The slot of a worker.
    pub fn find(&self, worker: &str) -> Option<Slot> {
        self.names.iter().position(|name| name.as_deref() == Some(worker)).map(|slot| slot as Slot)
    }

    /// Gives a worker a slot, a free one if there is one. Nothing is known of it but that it is there.
    pub fn add(&mut self, now: Duration, worker: Arc<str>) -> Slot {
        let free = self.names.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.grow();
            self.names.len() - 1
        });
        self.names[slot] = Some(worker);
        self.status[slot] = Status::default();
        self.routable_since[slot] = now;
        slot as Slot
    }

    /// Frees a slot. Bookings of its worker that end later are not the slot's any more: their owner has to know.
    pub fn remove(&mut self, slot: Slot) {
        let at = slot as usize;
        self.names[at] = None;
        self.status[at] = Status(Status::ABSENT);
        self.fresh_until[at] = 0;
        self.malformed[at] = false;
        self.overload[at] = WorkerOverload::default();
        self.load[at] = WorkerLoad::default();
        self.received_at[at] = Duration::ZERO;
        self.queued[at] = 0.0;
        self.rate[at] = 0.0;
        self.pressure[at] = 0.0;
        self.in_flight[at] = 0;
        self.unrecorded[at] = 0.0;
        self.tallies[at] = Tally::default();
        self.blocks[at] = 0;
        self.routable_since[at] = Duration::ZERO;
        self.certified[at] = false;
    }

    /// Takes a valid record. `fresh_for` is how long it may be believed.
    pub fn recorded(
        &mut self,
        now: Duration,
        slot: Slot,
        load: WorkerLoad,
        fresh_for: Duration,
        settings: &LoadSettings,
    ) {
        let at = slot as usize;
        self.fresh_until[at] = nanos(now.saturating_add(fresh_for));
        self.malformed[at] = false;
        self.load[at] = load;
        self.received_at[at] = now;
        self.queued[at] = settings.queued_tokens(&load);
        self.rate[at] = settings.live_rate(&load);
        self.pressure[at] = settings.pressure(load.usage);
        self.tallies[at].recorded(now, settings.ack_delay);
        self.unrecorded[at] = self.tallies[at].tokens() as f64;
    }

    /// Forgets the latest record after a malformed one: nothing is known of the load until the next.
    pub fn darken(&mut self, slot: Slot) {
        self.fresh_until[slot as usize] = 0;
        self.malformed[slot as usize] = true;
    }

    /// Books a dispatch.
    pub fn dispatched(&mut self, now: Duration, slot: Slot, tokens: u64, settings: &LoadSettings) {
        let at = slot as usize;
        self.in_flight[at] = self.in_flight[at].saturating_add(1);
        self.tallies[at].dispatched(now, tokens, settings.tally_entries_max);
        self.unrecorded[at] = self.tallies[at].tokens() as f64;
    }

    /// Takes a booking back, however it ended.
    pub fn ended(&mut self, slot: Slot, dispatched_at: Duration, tokens: u64) {
        let at = slot as usize;
        self.in_flight[at] = self.in_flight[at].saturating_sub(1);
        self.tallies[at].ended(dispatched_at, tokens);
        self.unrecorded[at] = self.tallies[at].tokens() as f64;
    }

    fn grow(&mut self) {
        self.names.push(None);
        self.status.push(Status(Status::ABSENT));
        self.fresh_until.push(0);
        self.malformed.push(false);
        self.overload.push(WorkerOverload::default());
        self.load.push(WorkerLoad::default());
        self.received_at.push(Duration::ZERO);
        self.queued.push(0.0);
        self.rate.push(0.0);
        self.pressure.push(0.0);
        self.in_flight.push(0);
        self.unrecorded.push(0.0);
        self.tallies.push(Tally::default());
        self.blocks.push(0);
        self.routable_since.push(Duration::ZERO);
        self.certified.push(false);
    }
}
