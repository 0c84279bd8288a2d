//! The desk: everything that routing knows of one model and routing group, and the one place where a booking is made and released.
//!
//! Pure: time comes in from outside, as a [`Duration`] from any fixed origin, and every draw from a seed. Whoever shares a desk
//! between threads locks it for a whole call, so that two requests at once never see the same counts.
//!
//! A booking is released once: by the request's end, the end of its caller's stream, silence, or the end of its worker. Whatever
//! comes later finds no booking, and changes nothing.

mod bookings;
mod counters;
mod foreign;
mod policies;
mod select;
mod states;
mod words;
mod workers;

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;

pub use bookings::Booking;
pub use counters::{CachedTokens, DIFFERENCE_BOUNDS, DeskCounters};
pub use states::WorkerState;
pub use words::{Ask, Decision, Ending, Input, NO_RANK, Outcome, Output, Refusal, ReleasedBy};

use super::approximate::{Approximate, ApproximateFigures};
use super::columns::{Columns, Slot, Status};
use super::load::{LoadReport, WorkerLoad};
use super::overlap::Overlap;
use super::overload::latch;
use super::policy::News;
use super::settings::RoutingSettings;
use super::view::View;
use super::warmup::Warmup;
use bookings::Bookings;
use foreign::ForeignBook;
use policies::Policies;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use workers::Workers;

/// The desk of one model and routing group.
pub struct Desk {
    settings: Arc<RoutingSettings>,
    block_size: u32,
    columns: Columns,
    workers: Workers,
    policies: Policies,
    warmup: Warmup,
    /// `None`: the system had no address space for it, and nothing is guessed.
    approximate: Option<Approximate>,
    bookings: Bookings,
    foreign: ForeignBook,
    /// Whether callers ever told of a first token. If not, their silence says nothing of the workers.
    callers_speak: bool,
    /// Routers that send to these workers without telling, this one counted.
    routers: u32,
    counters: DeskCounters,
    rng: StdRng,
    /// The candidates of the decision at hand.
    candidates: Vec<Slot>,
    /// What is shown to policies where no prompt is in question.
    no_overlap: Overlap,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (workers, open) = (self.columns.len(), self.bookings.len());
        f.debug_struct("Desk").field("slots", &workers).field("open", &open).finish_non_exhaustive()
    }
}

impl Desk {
    /// A desk without workers. `seed`: of every draw. Its first booking is number 1.
    pub fn new(settings: Arc<RoutingSettings>, block_size: u32, seed: u64) -> Self {
        Self::numbered_from(1, settings, block_size, seed)
    }

    /// The same with another first booking, so that numbers of an earlier desk mean nothing here.
    pub fn numbered_from(first_booking: u64, settings: Arc<RoutingSettings>, block_size: u32, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let approximate = Approximate::new(&settings.approximate, rng.random()).ok();
        Self {
            settings,
            block_size: block_size.max(1),
            columns: Columns::default(),
            workers: Workers::default(),
            policies: Policies::new(),
            warmup: Warmup::default(),
            approximate,
            bookings: Bookings::new(first_booking),
            foreign: ForeignBook::default(),
            callers_speak: false,
            routers: 1,
            counters: DeskCounters::default(),
            rng,
            candidates: Vec::new(),
            no_overlap: Overlap::default(),
        }
    }

    /// Takes other settings from now on. What is derived from loads is derived again; bookings stay.
    pub fn configure(&mut self, settings: Arc<RoutingSettings>) {
        self.settings = settings;
        if let Some(approximate) = &mut self.approximate
            && approximate.configure(&self.settings.approximate).is_err()
        {
            // No room for the new bound: nothing is guessed from now on.
            self.approximate = None;
        }
        for at in 0..self.columns.len() {
            let load = self.columns.load[at];
            self.columns.queued[at] = self.settings.load.queued_tokens(&load);
            self.columns.rate[at] = self.settings.load.live_rate(&load);
            self.columns.pressure[at] = self.settings.load.pressure(load.usage);
            latch(&mut self.columns, at as Slot, &self.settings.overload);
        }
    }

    /// Takes notice of what happened at `now`, and appends what others have to be told. A worker or booking that is not there
    /// (any more) is no error: the message and its end crossed each other.
    pub fn step(&mut self, now: Duration, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::WorkerAdded { worker, ranks, generation } => self.add(now, worker, ranks, generation, out),
            Input::WorkerGone { worker } => self.remove(now, &worker, out),
            Input::Ready { worker, ready } => self.put(&worker, Status::NOT_READY, !ready),
            Input::Vetoed { worker, vetoed } => self.put(&worker, Status::VETOED, vetoed),
            Input::Certified { worker, certified } => {
                if let Some(slot) = self.workers.slot(&worker) {
                    self.columns.certified[slot as usize] = certified;
                }
            }
            Input::Blocks { worker, blocks } => self.take_blocks(now, &worker, blocks),
            Input::Load { worker, report } => self.take_load(now, &worker, &report, out),
            Input::FirstToken { booking } => self.progress(now, booking, out),
            Input::Completed { booking, ending } => {
                self.release(now, booking, ReleasedBy::Completion, Some(ending), out);
            }
            // A stream's end speaks of everything that was made on it, also of what has ended.
            Input::Abandoned { booking } if self.bookings.get(booking).is_none() => {}
            Input::Abandoned { booking } => self.release(now, booking, ReleasedBy::StreamEnd, None, out),
            Input::Foreign { number, change } => self.take_foreign(now, number, change),
            Input::Routers { routers } => self.routers = routers.max(1),
            Input::Tick => self.expire(now, out),
        }
    }

    /// The workers, by slot.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The slot of a worker.
    pub fn slot(&self, worker: &str) -> Option<Slot> {
        self.workers.slot(worker)
    }

    /// An open booking.
    pub fn booking(&self, number: u64) -> Option<&Booking> {
        self.bookings.get(number)
    }

    /// Whether a booking of this number was ever made here, whatever became of it.
    pub fn was_made(&self, number: u64) -> bool {
        self.bookings.was_made(number)
    }

    /// The open bookings, by their last sign of life.
    pub fn bookings(&self) -> impl Iterator<Item = &Booking> {
        self.bookings.iter()
    }

    /// How many they are.
    pub fn open(&self) -> usize {
        self.bookings.len()
    }

    /// What was counted.
    pub fn counters(&self) -> &DeskCounters {
        &self.counters
    }

    /// The settings in force.
    pub fn settings(&self) -> &Arc<RoutingSettings> {
        &self.settings
    }

    /// What is remembered of routed prompts; `None`: there was no address space for it.
    pub fn remembered(&self) -> Option<ApproximateFigures> {
        self.approximate.as_ref().map(Approximate::figures)
    }

    /// When [`Input::Tick`] is due; `None` while nothing waits for time to pass.
    pub fn next_tick(&self) -> Option<Duration> {
        let oldest = self.bookings.oldest().map(|b| b.touched_at.saturating_add(self.settings.bookings.ttl));
        let remembered = self.approximate.as_ref().and_then(Approximate::next_expiry);
        [oldest, remembered].into_iter().flatten().min()
    }

    fn add(&mut self, now: Duration, worker: Arc<str>, ranks: Arc<[u32]>, generation: u64, out: &mut Vec<Output>) {
        self.remove(now, &worker, out);
        let slot = self.columns.add(now, worker.clone());
        self.workers.add(slot, worker.clone(), ranks, generation);
        self.foreign_worker_added(now, slot, &worker);
    }

    fn remove(&mut self, now: Duration, worker: &str, out: &mut Vec<Output>) {
        let Some(slot) = self.workers.slot(worker) else { return };
        let held = self.bookings.iter().filter(|booking| booking.slot == slot).map(|booking| booking.number);
        for booking in held.collect::<Vec<_>>() {
            self.release(now, booking, ReleasedBy::WorkerGone, None, out);
        }
        self.foreign_worker_gone(slot);
        self.tell(now, News::Emptied { slot, gone: true });
        self.workers.remove(worker);
        self.columns.remove(slot);
    }

    fn put(&mut self, worker: &str, bit: u8, on: bool) {
        if let Some(slot) = self.workers.slot(worker) {
            self.columns.status[slot as usize].put(bit, on);
        }
    }

    fn take_blocks(&mut self, now: Duration, worker: &str, blocks: u64) {
        let Some(slot) = self.workers.slot(worker) else { return };
        let before = std::mem::replace(&mut self.columns.blocks[slot as usize], blocks);
        if blocks == 0 && before > 0 {
            self.tell(now, News::Emptied { slot, gone: false });
        }
    }

    fn take_load(&mut self, now: Duration, worker: &str, report: &LoadReport, out: &mut Vec<Output>) {
        let Some(slot) = self.workers.slot(worker) else { return };
        match WorkerLoad::from_report(report) {
            Ok(load) => {
                self.columns.recorded(now, slot, load, report.fresh_for, &self.settings.load);
                latch(&mut self.columns, slot, &self.settings.overload);
                self.workers.recorded(slot, &report.ranks);
                self.tell(now, News::Recorded { slot });
            }
            Err(field) => {
                // Nothing is known of it: neither that it is idle, nor that it is full.
                self.columns.darken(slot);
                latch(&mut self.columns, slot, &self.settings.overload);
                out.push(Output::LoadRefused { worker: self.workers.name(slot), field });
            }
        }
    }

    fn progress(&mut self, now: Duration, number: u64, out: &mut Vec<Output>) {
        let Some(booking) = self.bookings.touch(now, number) else {
            self.counters.unknown_bookings += 1;
            return;
        };
        let first = !std::mem::replace(&mut booking.begun, true);
        let slot = booking.slot;
        let prefill_done = if first && booking.watched { booking.prefill } else { Duration::ZERO };
        self.callers_speak = true;
        out.push(Output::Progress { worker: self.workers.name(slot), prefill_done });
        if first {
            self.tell(now, News::FirstToken { booking: number, slot });
        }
    }

    fn release(&mut self, now: Duration, number: u64, by: ReleasedBy, ending: Option<Ending>, out: &mut Vec<Output>) {
        let Some(booking) = self.bookings.close(number) else {
            self.counters.unknown_bookings += 1;
            return;
        };
        let Booking { slot, rank, .. } = booking;
        self.columns.ended(slot, booking.dispatched_at, booking.tokens);
        self.workers.ended(slot, rank);
        self.counters.released_by(by);
        if let (Some(predicted), Some(actual)) = (booking.predicted_tokens, ending.and_then(|e| e.cached_tokens)) {
            self.counters.compare(predicted, actual, self.block_size);
        }
        let clean = ending.is_some_and(|ending| ending.is_proof(&booking, self.block_size));
        let worker = self.workers.name(slot);
        let mut prefill_left = if booking.begun { Duration::ZERO } else { booking.prefill };
        if booking.watched && ending.is_some_and(|ending| ending.outcome == Outcome::Ok) {
            // A whole answer shows that the worker was at work on it.
            let prefill_done = std::mem::take(&mut prefill_left);
            out.push(Output::Progress { worker: worker.clone(), prefill_done });
        }
        let prefill_left = booking.watched.then_some(prefill_left);
        out.push(Output::Released { worker, booking: number, by, prefill_left });
        self.tell(now, News::Ended { booking: number, slot, clean });
    }

    fn expire(&mut self, now: Duration, out: &mut Vec<Output>) {
        let ttl = self.settings.bookings.ttl;
        while let Some(oldest) = self.bookings.oldest().filter(|b| b.touched_at.saturating_add(ttl) <= now) {
            self.release(now, oldest.number, ReleasedBy::Ttl, None, out);
        }
        if let Some(approximate) = &mut self.approximate {
            // What is left over goes with the next tick, which is due at once.
            approximate.tidy(now);
        }
    }

    /// Tells every policy, the warm-up slice, and whoever remembers prompts.
    fn tell(&mut self, now: Duration, news: News<'_>) {
        match (&mut self.approximate, news) {
            (Some(approximate), News::Dispatched { request, slot, .. }) => {
                approximate.record(now, slot, request.contents);
            }
            (Some(approximate), News::Emptied { slot, .. }) => approximate.forget(slot),
            _ => {}
        }
        // Nobody credits it: it only has to be as long as the columns.
        if self.no_overlap.blocks.len() != self.columns.len() {
            self.no_overlap.reset(self.columns.len());
        }
        let view = View {
            now,
            columns: &self.columns,
            candidates: &[],
            overlap: &self.no_overlap,
            settings: &self.settings,
            routers: self.routers,
        };
        self.policies.news(&view, news);
        self.warmup.news(news);
    }
}
