//! What each worker was given, and what of it a price is made of.

use super::clock::BusyClock;
use crate::routing::columns::Slot;
use crate::routing::policy::News;
use crate::routing::request::Request;
use crate::routing::settings::{ExpectedTtftSettings, Timing};
use crate::routing::view::View;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
struct Booked {
    slot: Slot,
    tokens: f64,
    dispatched_at: Duration,
    /// Whether its first token came.
    begun: bool,
}

/// A worker, as its dispatches and first tokens show it.
#[derive(Clone, Debug, Default)]
struct Worker {
    clock: BusyClock,
    /// Requests that have not ended, and tokens of their prompts.
    requests: u32,
    tokens: f64,
    /// Those of them whose first token came.
    decodes: u32,
    context: f64,
    /// Mean seconds from dispatch to end; `None` before the first.
    residence: Option<f64>,
}

/// What a worker's price is made of: derived when something happens, so that a decision only multiplies and adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// When it will have done what was dispatched to it from here, seconds from the origin; 0: nothing is outstanding.
    pub clock_until: f64,
    /// When it will have done what it reported.
    pub reported_until: f64,
    /// Seconds of dispatches that this record cannot contain.
    pub unrecorded: f64,
    /// How many times as long a prefill takes there.
    pub inflation: f64,
    /// Seconds to wait for memory: `max(0, base + slope · tokens that the request takes)`.
    pub memory_base: f64,
    /// See `memory_base`.
    pub memory_slope: f64,
}

/// The book.
#[derive(Debug, Default)]
pub(super) struct Book {
    booked: HashMap<u64, Booked>,
    /// By slot.
    workers: Vec<Worker>,
    /// By slot, for `settings`.
    figures: Vec<Figures>,
    /// The settings that the figures are for, where they have a calibration that makes sense.
    settings: Option<(ExpectedTtftSettings, Timing)>,
    /// The settings as they came.
    given: ExpectedTtftSettings,
}

impl Book {
    /// Makes the figures those of the view's settings and slots; the calibration, if there is one. What changes now and then is
    /// derived where it changes.
    pub fn ready(&mut self, view: &View<'_>) -> Option<Timing> {
        let (given, slots) = (&view.settings.expected_ttft, view.columns.len());
        if *given != self.given {
            self.given.clone_from(given);
            let timing = given.timing.filter(|timing| timing.check().is_ok());
            self.settings = timing.map(|timing| (given.clone(), timing));
            self.figures.clear();
        }
        if self.workers.len() < slots {
            self.workers.resize_with(slots, Worker::default);
        }
        while self.figures.len() < slots {
            self.figures.push(Figures::default());
            self.derive(view, self.figures.len() as Slot - 1);
        }
        self.settings.as_ref().map(|(_, timing)| *timing)
    }

    /// Figures by slot.
    pub fn figures(&self) -> &[Figures] {
        &self.figures
    }

    /// Takes notice of what happened.
    pub fn news(&mut self, view: &View<'_>, now: Duration, news: News<'_>) {
        self.ready(view);
        let slot = match news {
            News::Dispatched { request, slot, blocks } => {
                self.dispatched(view, now, &request, slot, blocks);
                slot
            }
            News::FirstToken { booking, slot } => {
                self.first_token(now, booking);
                slot
            }
            News::Ended { booking, slot, clean } => {
                self.ended(now, booking, clean);
                slot
            }
            News::Recorded { slot } => {
                let received_at = view.columns.received_at.get(slot as usize).copied().unwrap_or(now);
                if let Some(worker) = self.workers.get_mut(slot as usize) {
                    worker.clock.recorded(received_at, view.settings.load.ack_delay);
                }
                slot
            }
            News::Emptied { slot, gone: true } => {
                self.booked.retain(|_, booked| booked.slot != slot);
                if let Some(worker) = self.workers.get_mut(slot as usize) {
                    *worker = Worker::default();
                }
                slot
            }
            News::Emptied { gone: false, .. } => return,
        };
        self.derive(view, slot);
    }

    fn dispatched(&mut self, view: &View<'_>, now: Duration, request: &Request<'_>, slot: Slot, blocks: u32) {
        let Some(worker) = self.workers.get_mut(slot as usize) else { return };
        let tokens = request.tokens_or(view.settings.load.mean_prefill());
        let Entry::Vacant(entry) = self.booked.entry(request.booking) else { return };
        entry.insert(Booked { slot, tokens, dispatched_at: now, begun: false });
        let (mut work, mut inflation) = (0.0, 1.0);
        if let Some((_, timing)) = &self.settings {
            work = timing.prefill_seconds(tokens, (request.cached_tokens(blocks) as f64).min(tokens));
            inflation = self.figures[slot as usize].inflation;
        }
        worker.clock.dispatched(now, request.booking, work, inflation);
        worker.requests += 1;
        worker.tokens += tokens;
    }

    fn first_token(&mut self, now: Duration, booking: u64) {
        let Some(booked) = self.booked.get_mut(&booking).filter(|booked| !booked.begun) else { return };
        booked.begun = true;
        let worker = &mut self.workers[booked.slot as usize];
        worker.clock.first_token(now, booking);
        worker.decodes += 1;
        worker.context += booked.tokens;
    }

    /// Where the request was at work, the time that it took says how long others will stay.
    fn ended(&mut self, now: Duration, booking: u64, clean: bool) {
        let Some(Booked { slot, tokens, dispatched_at, begun }) = self.booked.remove(&booking) else { return };
        let worker = &mut self.workers[slot as usize];
        worker.clock.ended(now, booking);
        worker.requests -= 1;
        worker.tokens = if worker.requests == 0 { 0.0 } else { worker.tokens - tokens };
        if begun {
            worker.decodes -= 1;
            worker.context = if worker.decodes == 0 { 0.0 } else { worker.context - tokens };
        }
        if begun || clean {
            let took = now.saturating_sub(dispatched_at).as_secs_f64();
            let mean = worker.residence.unwrap_or(took);
            worker.residence = Some(mean + self.given.residence_weight * (took - mean));
        }
    }

    /// Derives the figures of one worker. `residence · (booked + request − share of the pool) / booked` is the price of memory.
    fn derive(&mut self, view: &View<'_>, slot: Slot) {
        let at = slot as usize;
        let Some((settings, timing)) = &self.settings else { return };
        let (Some(worker), Some(figures)) = (self.workers.get(at), self.figures.get_mut(at)) else { return };
        let load = &view.columns.load[at];
        let inflation = timing.inflation(f64::from(worker.decodes), worker.context);
        let queued = view.columns.queued[at] + load.prefill_remaining_tokens as f64;
        let requests = load.waiting as f64 + f64::from(u8::from(load.prefill_remaining_tokens > 0));
        let reported = timing.outstanding_seconds(queued, requests) * inflation;
        let pool = if load.pool_tokens > 0 { load.pool_tokens as f64 } else { timing.pool_tokens };
        let booked = worker.tokens + f64::from(worker.requests) * settings.mean_output_tokens;
        let residence = worker.residence.unwrap_or(0.0);
        let memory_slope = if booked > 0.0 { residence / booked } else { 0.0 };
        *figures = Figures {
            clock_until: worker.clock.until(),
            reported_until: view.columns.received_at[at].as_secs_f64() + reported,
            unrecorded: worker.clock.unrecorded() * inflation,
            inflation,
            memory_base: memory_slope * (booked - settings.pool_share * pool),
            memory_slope,
        };
    }
}

#[cfg(test)]
impl Book {
    /// Open bookings, outstanding prefills, decoding requests, and whether the sums are those of the bookings.
    pub fn totals(&self) -> (usize, usize, u32, bool) {
        let outstanding = self.workers.iter().map(|worker| worker.clock.outstanding()).sum();
        let decodes = self.workers.iter().map(|worker| worker.decodes).sum();
        let of = |slot: usize| self.booked.values().filter(move |booked| booked.slot as usize == slot);
        let exact = self.workers.iter().enumerate().all(|(slot, worker)| {
            let tokens: f64 = of(slot).map(|booked| booked.tokens).sum();
            let context: f64 = of(slot).filter(|booked| booked.begun).map(|booked| booked.tokens).sum();
            (worker.tokens - tokens).abs() < 1e-6
                && (worker.context - context).abs() < 1e-6
                && worker.requests as usize == of(slot).count()
        });
        (self.booked.len(), outstanding, decodes, exact)
    }
}
