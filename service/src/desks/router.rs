//! The way in: selections, and what becomes of them.

use super::cell::{DeskCell, DeskState};
use super::exchange::Exchange;
use super::order::{Order, RouteError, Selected};
use super::registry::Registry;
use super::selection::{Buffers, Selection};
use crate::fleet::Fleet;
use crate::lookup::{LookupEngine, LookupError, LookupTimes};
use crate::routing::{DeskCounters, Ending, Input, LoadReport, Output, ReleasedBy, RoutingSettings, WorkerState};
use arc_swap::ArcSwap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Chooses workers and keeps book. Shared by `Arc`; any thread may call it, and nothing in it waits.
pub struct Router {
    pub(super) fleet: Arc<Fleet>,
    pub(super) desks: Registry,
    /// Woken when a desk's next time comes sooner than the feed knows.
    pub(super) wake: Notify,
    /// When the feed wakes by itself, nanoseconds from the origin.
    pub(super) wakes_at: AtomicU64,
    /// Open bookings of all desks.
    pub(super) open: AtomicUsize,
    /// With other replicas; `None`: there are none.
    pub(super) exchange: Option<Exchange>,
    engine: Arc<LookupEngine>,
    settings: ArcSwap<RoutingSettings>,
    origin: Instant,
    times: LookupTimes,
    /// Buffers that are not in use: never more than selections at once.
    pool: Mutex<Vec<Buffers>>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("open", &self.open).finish_non_exhaustive()
    }
}

/// Limits of what callers say beside prompts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BookingLimits {
    /// Bytes of a caller's request id.
    pub request_id_bytes_max: usize,
    /// Candidates that a selection may name.
    pub candidates_max: usize,
}

/// The sums over all desks, those that are gone too.
#[derive(Clone, Debug, Default)]
pub struct DeskTotals {
    /// What they counted.
    pub counters: DeskCounters,
    /// Open bookings.
    pub open: usize,
    /// Desks.
    pub desks: usize,
}

impl Router {
    /// A router for this fleet and index, without a desk until somebody asks or [`Router::run`] meets a worker.
    pub fn new(fleet: Arc<Fleet>, engine: Arc<LookupEngine>, settings: RoutingSettings) -> Self {
        Self {
            fleet,
            desks: Registry::default(),
            wake: Notify::new(),
            wakes_at: AtomicU64::new(u64::MAX),
            exchange: None,
            engine,
            settings: ArcSwap::from_pointee(settings),
            origin: Instant::now(),
            open: AtomicUsize::new(0),
            times: LookupTimes::default(),
            pool: Mutex::default(),
        }
    }

    /// Takes other settings from now on, at every desk.
    pub fn configure(&self, settings: RoutingSettings) {
        self.settings.store(Arc::new(settings));
        // Whoever comes to a desk first brings them; this is for desks to which nobody comes.
        self.desks.all().iter().for_each(|cell| self.at(cell, |_, _| ()));
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<RoutingSettings> {
        self.settings.load_full()
    }

    /// Limits of what callers say beside prompts.
    pub fn limits(&self) -> BookingLimits {
        let bookings = &self.settings.load().bookings;
        BookingLimits { request_id_bytes_max: bookings.request_id_bytes_max, candidates_max: bookings.candidates_max }
    }

    /// The time, from the origin of every time at the desks.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    pub(super) fn origin(&self) -> Instant {
        self.origin
    }

    /// How long selections took.
    pub fn times(&self) -> &LookupTimes {
        &self.times
    }

    /// Chooses a worker and books it, on the calling thread to the end. Takes time in proportion to the prompt and the workers.
    pub fn select(&self, order: &Order) -> Result<Selected, RouteError> {
        let start = std::time::Instant::now();
        let limit = self.limits().candidates_max;
        let len = order.candidates.len();
        if len > limit {
            return Err(RouteError::Candidates { len, limit });
        }
        let view = self.fleet.view();
        let group = view.group(&order.model, &order.routing_group).map_err(LookupError::from)?.clone();
        let tokens = order.tokens(group.block_size)?;
        let selected = self.engine.prompt_levels(&group, order.prompt.as_ref(), |found| {
            self.with_buffers(|buffers| {
                Selection { order, tokens, view: &view, group: &group, found, buffers }.make(self)
            })
        })??;
        self.times.record(start.elapsed());
        Ok(selected)
    }

    /// A sign of life of a request.
    pub fn progress(&self, reservation: u64) -> Result<(), RouteError> {
        let told = self.tell(reservation, |booking| Input::FirstToken { booking })?;
        if let Some(exchange) = &self.exchange {
            exchange.first_token(reservation);
        }
        if told { Ok(()) } else { Err(RouteError::UnknownReservation { reservation }) }
    }

    /// The end of a request. False: something released its reservation before.
    pub fn complete(&self, reservation: u64, ending: Ending) -> Result<bool, RouteError> {
        self.tell(reservation, |booking| Input::Completed { booking, ending })
    }

    /// Whoever held a reservation went away. One that is not open (any more) is no error.
    pub fn abandon(&self, reservation: u64) {
        // Its desk may be gone, with all its bookings.
        let _ = self.tell(reservation, |booking| Input::Abandoned { booking });
    }

    /// The load of a worker, as it came. A worker that is not registered (any more) has none.
    pub fn load(&self, worker: &str, report: LoadReport) {
        let view = self.fleet.view();
        let Ok(entry) = view.worker(worker) else { return };
        let of = &entry.registration.worker;
        let input = Input::Load { worker: worker.into(), report };
        let told = self.at_desk_of(&of.model, &of.routing_group, of.block_size, |state, now, _| {
            state.desk.step(now, input.clone(), &mut state.outputs);
        });
        if let Err(error) = told {
            tracing::debug!(%worker, %error, "a load has no desk");
        }
    }

    /// What the desk of a model and group knows of each of its workers; nothing where nobody asked for the group yet. Allocates.
    pub fn states(&self, model: &str, group: &str) -> Vec<WorkerState> {
        let Some(cell) = self.desks.find(model, group) else { return Vec::new() };
        self.at(&cell, |state, now| state.desk.states(now))
    }

    /// The fleet whose workers are chosen from.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The sums over all desks. Allocates; locks one desk after the other.
    pub fn totals(&self) -> DeskTotals {
        let (counters, desks) = self.desks.counters();
        DeskTotals { counters, open: self.open.load(Ordering::Relaxed), desks }
    }

    /// Tells the desk of a reservation something about it; whether it was open.
    fn tell(&self, reservation: u64, input: impl FnOnce(u64) -> Input) -> Result<bool, RouteError> {
        let unknown = RouteError::UnknownReservation { reservation };
        let (cell, booking) = self.desks.of_reservation(reservation).ok_or(unknown.clone())?;
        self.at(&cell, |state, now| {
            if !state.desk.was_made(booking) {
                return Err(unknown);
            }
            let open = state.desk.booking(booking).is_some();
            state.desk.step(now, input(booking), &mut state.outputs);
            Ok(open)
        })
    }

    /// Does something at the desk of a model and group, with its number; a new one where there is none.
    pub(super) fn at_desk_of<T>(
        &self,
        model: &str,
        group: &str,
        block_size: u32,
        mut act: impl FnMut(&mut DeskState, Duration, u32) -> T,
    ) -> Result<T, RouteError> {
        loop {
            let cell = self.desks.find_or_open(model, group, &self.settings.load(), block_size)?;
            let done = self.at(&cell, |state, now| (!state.closed).then(|| act(state, now, cell.number)));
            match done {
                Some(done) => return Ok(done),
                // Its group went, and somebody closed it just now; the next turn opens another.
                None => self.desks.close(&cell),
            }
        }
    }

    /// Locks a desk, brings its group up to date, and does something there; then what the desk has for others is done.
    pub(super) fn at<T>(&self, cell: &DeskCell, act: impl FnOnce(&mut DeskState, Duration) -> T) -> T {
        let mut state = cell.lock();
        let now = self.now();
        let settings = self.settings.load();
        if !Arc::ptr_eq(state.desk.settings(), &settings) {
            state.desk.configure(settings.clone());
        }
        let view = self.fleet.view();
        state.take_group(now, view.group(&cell.model, &cell.routing_group).ok());
        let result = act(&mut state, now);
        self.carry_out(cell.number, &mut state);
        self.wake_for(state.desk.next_tick());
        result
    }

    /// Does what the desk has for others.
    fn carry_out(&self, desk: u32, state: &mut DeskState) {
        let mut outputs = std::mem::take(&mut state.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Released { worker, booking, by, prefill_left } => {
                    self.open.fetch_sub(1, Ordering::Relaxed);
                    if let Some(exchange) = &self.exchange {
                        exchange.ended(desk, booking);
                    }
                    // What a worker that left was given is not the business of one that came under its name.
                    let veto = state.veto(&worker).filter(|_| by != ReleasedBy::WorkerGone);
                    if let (Some(veto), Some(left)) = (veto, prefill_left) {
                        veto.finished(left);
                    }
                }
                Output::Progress { worker, prefill_done } => {
                    if let Some(veto) = state.veto(&worker) {
                        veto.progress(prefill_done);
                    }
                }
                Output::LoadRefused { worker, field } => {
                    tracing::debug!(%worker, field = field.name(), "a malformed load: nothing is known of the worker's");
                }
            }
        }
        // Its room is used again.
        state.outputs = outputs;
    }

    /// Wakes the feed if it would come too late.
    fn wake_for(&self, due: Option<Duration>) {
        let Some(due) = due.map(|due| due.as_nanos() as u64) else { return };
        if due < self.wakes_at.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    fn with_buffers<T>(&self, use_them: impl FnOnce(&mut Buffers) -> T) -> T {
        let mut buffers = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let result = use_them(&mut buffers);
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        result
    }
}
