//! What the service knows about itself: how long it runs, whether it is ready, whether it drains.

use super::readiness::Readiness;
use crate::fleet::FleetView;
use crate::grpc::{ServiceFacts, Waiting};
use crate::lease::{Leases, LeasesStatus};
use crate::replica::{Progress, ProgressReport};
use crate::topology::{LookupPins, Machine, Pinned};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often readiness is looked at until it is reached.
pub(super) const READY_PERIOD: Duration = Duration::from_millis(50);

/// The facts. Readiness is reached once and stays: a rank that restarts later must not take the whole service away.
#[derive(Debug)]
pub(super) struct Facts {
    start: Instant,
    ready_deadline: Duration,
    ready: AtomicBool,
    draining: AtomicBool,
    machine: Machine,
    pins: Arc<LookupPins>,
    /// The start from peers, where there are any.
    copies: Option<Arc<Progress>>,
    leases: Arc<Leases>,
    /// Held for moments.
    waiting: Mutex<(Readiness, Waiting)>,
}

impl Facts {
    pub(super) fn new(
        ready_deadline: Duration,
        machine: Machine,
        pins: Arc<LookupPins>,
        copies: Option<Arc<Progress>>,
        leases: Arc<Leases>,
    ) -> Self {
        let (ready, draining) = (AtomicBool::new(false), AtomicBool::new(false));
        let waiting = Mutex::default();
        Self { start: Instant::now(), ready_deadline, ready, draining, machine, pins, copies, leases, waiting }
    }

    /// Takes note of the ranks: ready when nothing is waited for any more.
    pub(super) fn observe(&self, view: &FleetView) {
        let copy = self.copies.as_ref().is_some_and(|copies| !copies.ranks_are_known());
        let mut state = self.waiting();
        let waiting = state.0.observe(self.start.elapsed(), self.ready_deadline, view, copy);
        if waiting.is_over() {
            self.ready.store(true, Ordering::Relaxed);
            // Nobody looks again.
            state.0 = Readiness::default();
        }
        state.1 = waiting;
    }

    fn waiting(&self) -> MutexGuard<'_, (Readiness, Waiting)> {
        // Whoever panicked with it in hand left it whole: it is written in one go.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

impl ServiceFacts for Facts {
    fn ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn uptime_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn lookup_threads(&self) -> Vec<Pinned> {
        self.pins.outcomes()
    }

    fn waiting_for(&self) -> Waiting {
        self.waiting().1.clone()
    }

    fn copies(&self) -> Option<ProgressReport> {
        self.copies.as_ref().map(|copies| copies.report())
    }

    fn leases(&self) -> LeasesStatus {
        self.leases.status()
    }
}
