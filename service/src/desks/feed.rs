//! What comes to the desks by itself: registrations, trust and vetoes, what the index holds, and the time.

use super::cell::DeskCell;
use super::router::Router;
use crate::fleet::{FleetEvent, WorkerEntry};
use crate::loads::LoadSink;
use crate::routing::{Input, LoadReport};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// How often it is looked what the index holds of each worker, and whether anything else was missed. Warm-up and the change from
/// guesses to events wait for it.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

impl LoadSink for Router {
    fn load(&self, worker: &WorkerEntry, report: LoadReport) {
        // Of a registration that is over nothing is told to the next one of the name.
        if !worker.is_closed() {
            Router::load(self, &worker.registration.worker.id, report);
        }
    }
}

impl Router {
    /// Feeds the desks until `closing` is cancelled. Where changes of the fleet were missed, everything is compared with its view.
    pub async fn run(self: Arc<Self>, closing: CancellationToken) {
        // Before the view is taken for the first time, so that no change falls between the two.
        let mut changes = self.fleet.watch();
        let mut sample = tokio::time::interval(LOOK_PERIOD);
        sample.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.look_at_all();
        loop {
            let due = self.next_due();
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) => self.take(&change),
                    Err(RecvError::Lagged(_)) => self.look_at_all(),
                    Err(RecvError::Closed) => return,
                },
                _ = sample.tick() => self.desks.all().iter().for_each(|cell| self.look_at(cell)),
                () = tokio::time::sleep_until(due) => self.tick(),
                () = self.wake.notified() => {}
                () = closing.cancelled() => return,
            }
        }
    }

    /// When the first desk waits for the time to come; far away where none does. Remembered for whoever comes sooner.
    fn next_due(&self) -> Instant {
        const FAR: Duration = Duration::from_secs(3600);
        let far = self.now() + FAR;
        // Written first: who books after it and before the desks were looked at, wakes us once too often.
        self.wakes_at.store(far.as_nanos() as u64, Ordering::Relaxed);
        let dues = self.desks.all().into_iter().filter_map(|cell| cell.lock().desk.next_tick());
        let due = dues.min().map_or(far, |due| due.min(far));
        self.wakes_at.store(due.as_nanos() as u64, Ordering::Relaxed);
        self.origin() + due
    }

    fn tick(&self) {
        for cell in self.desks.all() {
            self.at(&cell, |state, now| state.desk.step(now, Input::Tick, &mut state.outputs));
        }
    }

    fn take(&self, change: &FleetEvent) {
        match change {
            FleetEvent::Registered(entry) => {
                let of = &entry.registration.worker;
                self.look_at_group(&of.model, &of.routing_group, of.block_size);
            }
            FleetEvent::Deregistered(entry) => {
                let of = &entry.registration.worker;
                if let Some(cell) = self.desks.find(&of.model, &of.routing_group) {
                    self.look_at(&cell);
                }
            }
            FleetEvent::TrustChanged { worker, .. } | FleetEvent::VetoChanged { worker, .. } => {
                let view = self.fleet.view();
                let Ok(entry) = view.worker(worker) else { return };
                let of = &entry.registration.worker;
                if let Some(cell) = self.desks.find(&of.model, &of.routing_group) {
                    self.at(&cell, |state, now| state.take_trust_of(now, worker));
                }
            }
        }
    }

    /// Compares every desk with the fleet, and opens those that are missing.
    fn look_at_all(&self) {
        self.desks.all().iter().for_each(|cell| self.look_at(cell));
        for entry in self.fleet.view().workers() {
            let of = &entry.registration.worker;
            self.look_at_group(&of.model, &of.routing_group, of.block_size);
        }
    }

    fn look_at_group(&self, model: &str, group: &str, block_size: u32) {
        let looked = self.at_desk_of(model, group, block_size, |state, now, _| state.look(now));
        if let Err(error) = looked {
            tracing::warn!(%model, %group, %error, "no requests are routed to this group");
        }
        if let Some(cell) = self.desks.find(model, group) {
            self.join(&cell);
        }
    }

    /// Brings a desk up to date. One whose group is gone goes, too, and with it what it remembers.
    fn look_at(&self, cell: &Arc<DeskCell>) {
        let is_gone = self.at(cell, |state, now| {
            state.look(now);
            state.closed |= state.is_empty();
            state.closed
        });
        if is_gone {
            self.desks.close(cell);
        } else {
            self.join(cell);
        }
    }
}
