//! Bookings of other replicas at this desk: they count as dispatches of our own, and their replica alone ends them.

use super::Desk;
use crate::routing::Slot;
use crate::routing::exchange::{BookingChange, Dispatch};
use crate::routing::policy::News;
use crate::routing::request::Request;
use std::collections::HashMap;
use std::time::Duration;

/// Another replica's booking.
#[derive(Clone, Debug)]
struct Foreign {
    dispatch: Dispatch,
    begun: bool,
    /// The worker's slot and the tokens that are counted there; `None`: no such worker is registered here (yet).
    counted: Option<(Slot, u64)>,
}

/// All of them, by their numbers here.
#[derive(Clone, Debug, Default)]
pub(super) struct ForeignBook {
    open: HashMap<u64, Foreign>,
}

impl Desk {
    /// Bookings of other replicas that are open.
    pub fn foreign_open(&self) -> usize {
        self.foreign.open.len()
    }

    /// Takes notice of another replica's booking. One that is known already, or not any more, changes nothing.
    pub(super) fn take_foreign(&mut self, now: Duration, number: u64, change: BookingChange) {
        match change {
            BookingChange::Dispatched(dispatch) => {
                let slot = self.workers.slot(&dispatch.worker);
                let foreign = Foreign { dispatch, begun: false, counted: None };
                self.foreign.open.entry(number).or_insert(foreign);
                if let Some(slot) = slot {
                    self.count_foreign(now, number, slot);
                }
            }
            BookingChange::FirstToken => {
                let Some(foreign) = self.foreign.open.get_mut(&number) else { return };
                let first = !std::mem::replace(&mut foreign.begun, true);
                if let Some((slot, _)) = foreign.counted.filter(|_| first) {
                    self.tell(now, News::FirstToken { booking: number, slot });
                }
            }
            BookingChange::Ended => {
                let Some(foreign) = self.foreign.open.remove(&number) else { return };
                let Some((slot, tokens)) = foreign.counted else { return };
                self.columns.ended(slot, foreign.dispatch.dispatched_at, tokens);
                self.tell(now, News::Ended { booking: number, slot, clean: false });
            }
        }
    }

    /// Counts what was booked elsewhere on a worker that is new here.
    pub(super) fn foreign_worker_added(&mut self, now: Duration, slot: Slot, worker: &str) {
        let of = |foreign: &Foreign| &*foreign.dispatch.worker == worker;
        let booked = self.foreign.open.iter().filter(|(_, foreign)| of(foreign)).map(|(number, _)| *number);
        for number in booked.collect::<Vec<_>>() {
            self.count_foreign(now, number, slot);
        }
    }

    /// A worker is gone: what is booked on it elsewhere waits for it, or for its end there.
    pub(super) fn foreign_worker_gone(&mut self, slot: Slot) {
        let of = |foreign: &&mut Foreign| foreign.counted.is_some_and(|(counted, _)| counted == slot);
        self.foreign.open.values_mut().filter(of).for_each(|foreign| foreign.counted = None);
    }

    fn count_foreign(&mut self, now: Duration, number: u64, slot: Slot) {
        let load = &self.settings.load;
        let Some(foreign) = self.foreign.open.get_mut(&number).filter(|foreign| foreign.counted.is_none()) else {
            return;
        };
        let Dispatch { tokens, cached_tokens, dispatched_at, .. } = foreign.dispatch;
        let counted = tokens.unwrap_or(load.mean_prefill() as u64);
        foreign.counted = Some((slot, counted));
        let begun = foreign.begun;
        let at = slot as usize;
        if dispatched_at.saturating_add(load.ack_delay) > self.columns.received_at[at] {
            self.columns.dispatched(dispatched_at, slot, counted, load);
        } else {
            // The latest record shows it already.
            self.columns.in_flight[at] = self.columns.in_flight[at].saturating_add(1);
        }
        let block_size = self.block_size;
        let request = Request { tokens, block_size, contents: &[], token_ids: &[], booking: number };
        let blocks = u32::try_from(cached_tokens / u64::from(block_size)).unwrap_or(u32::MAX);
        self.tell(now, News::Dispatched { request, slot, blocks });
        if begun {
            self.tell(now, News::FirstToken { booking: number, slot });
        }
    }
}
