//! What the service knows about itself: how long it runs, whether it is ready, whether it drains.

use crate::fleet::FleetView;
use crate::grpc::ServiceFacts;
use crate::ingest::Trust;
use crate::topology::{LookupPins, Machine, Pinned};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
}

impl Facts {
    pub(super) fn new(ready_deadline: Duration, machine: Machine, pins: Arc<LookupPins>) -> Self {
        let (ready, draining) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { start: Instant::now(), ready_deadline, ready, draining, machine, pins }
    }

    /// Takes note of the static ranks: ready when each was seen and has its first state, or the deadline passed.
    pub(super) fn observe(&self, view: &FleetView) {
        let mut ranks = view.workers().filter(|w| w.is_static).flat_map(|w| &w.ranks);
        // A rank whose events are pushed says nothing before its publisher comes to us, so nothing waits for it.
        let waiting =
            ranks.any(|r| !r.is_pushed() && matches!(r.status.brief().trust, Trust::NeverSeen | Trust::Bootstrapping));
        if !waiting || self.start.elapsed() >= self.ready_deadline {
            self.ready.store(true, Ordering::Relaxed);
        }
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
}
