//! The watcher of one worker: takes the pulses of its ranks to its [`Liveness`] and what comes of them to answers and watchers.
//!
//! It sleeps until a stream fails, a contact that is waited for comes, or a time is due; while all is well it does nothing.

use super::liveness::{Liveness, LivenessInput, LivenessLimits, LivenessOutput, Veto};
use super::registry::FleetEvents;
use super::view::WorkerEntry;
use crate::ingest::socket::Endpoint;
use crate::ingest::{IngestLimits, Pulse, now_ms, probe, sleep_some};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Vetoes since start, by kind.
#[derive(Debug, Default)]
pub struct VetoCounters {
    set: [AtomicU64; Veto::ALL.len()],
    cleared: [AtomicU64; Veto::ALL.len()],
}

impl VetoCounters {
    /// How often the veto began, and how often it ended by contact or progress.
    pub fn of(&self, veto: Veto) -> (u64, u64) {
        let read = |counts: &[AtomicU64]| counts[veto as usize].load(Ordering::Relaxed);
        (read(&self.set), read(&self.cleared))
    }
}

/// What is known about a worker being there, beside its ranks' statuses.
#[derive(Debug)]
pub struct VetoCell {
    origin: Instant,
    wake: Arc<Notify>,
    /// The lowest byte is the veto plus one, the rest the Unix milliseconds of its last change.
    state: AtomicU64,
}

impl Default for VetoCell {
    fn default() -> Self {
        Self { origin: Instant::now(), wake: Arc::default(), state: AtomicU64::new(0) }
    }
}

impl VetoCell {
    /// The veto and since when it is there, in Unix milliseconds; `None` while the worker is offered.
    pub fn get(&self) -> Option<(Veto, u64)> {
        let state = self.state.load(Ordering::Relaxed);
        let veto = Veto::ALL.into_iter().find(|v| *v as u64 + 1 == state & 0xff)?;
        Some((veto, state >> 8))
    }

    /// A pulse of one of the worker's ranks.
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        Arc::new(Pulse::new(self.origin, self.wake.clone()))
    }

    fn set(&self, veto: Option<Veto>, since_ms: u64) {
        self.state.store(since_ms << 8 | veto.map_or(0, |v| v as u64 + 1), Ordering::Relaxed);
    }
}

/// Watches a worker until `stop` is cancelled. A worker that no rank of which is followed by us has no stream that could fail,
/// and needs no watcher.
pub(super) fn watch(
    worker: &Arc<WorkerEntry>,
    limits: LivenessLimits,
    ingest: IngestLimits,
    events: &FleetEvents,
    counters: &Arc<VetoCounters>,
    stop: &CancellationToken,
) {
    if !limits.enabled || worker.registration.worker.ranks.is_empty() {
        return;
    }
    let watcher = Watcher {
        seen: vec![(None, None); worker.ranks.len()],
        worker: worker.clone(),
        machine: Liveness::new(limits),
        limits,
        ingest,
        events: events.clone(),
        counters: counters.clone(),
        probes: JoinSet::new(),
    };
    let stop = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = watcher.run() => {}
        }
    });
}

struct Watcher {
    worker: Arc<WorkerEntry>,
    machine: Liveness,
    limits: LivenessLimits,
    ingest: IngestLimits,
    events: FleetEvents,
    counters: Arc<VetoCounters>,
    /// Contact and failure of each rank that the machine knows of.
    seen: Vec<(Option<Duration>, Option<Duration>)>,
    probes: JoinSet<()>,
}

impl Watcher {
    async fn run(mut self) {
        let (origin, wake) = (self.worker.veto.origin, self.worker.veto.wake.clone());
        loop {
            let due = self.machine.next_tick().map(|at| origin + at);
            tokio::select! {
                () = wake.notified() => {}
                () = sleep_some(due) => {}
            }
            self.look(origin.elapsed());
        }
    }

    /// Judges everything that happened up to `now`, in order. The pulses are read after `now` was, so no contact from before is
    /// missed.
    fn look(&mut self, now: Duration) {
        let mut news = Vec::new();
        for (rank, seen) in self.worker.ranks.iter().zip(&mut self.seen) {
            let is = (rank.pulse.contact_at(), rank.pulse.failed_at());
            let before = std::mem::replace(seen, is);
            news.extend(is.0.filter(|_| is.0 > before.0).map(|at| (at, LivenessInput::Contact(rank.rank))));
            news.extend(is.1.filter(|_| is.1 > before.1).map(|at| (at, LivenessInput::Failed(rank.rank))));
        }
        news.sort_by_key(|(at, _)| *at);
        news.push((now, LivenessInput::Tick));
        let mut out = Vec::new();
        let before = self.machine.veto();
        for (at, input) in news {
            self.machine.step(at, input, &mut out);
        }
        self.worker.ranks.iter().for_each(|r| r.pulse.await_contact(self.machine.awaits_contact()));
        for output in out {
            self.carry_out(output);
        }
        if self.machine.veto() != before {
            self.show(before, self.machine.veto());
        }
    }

    fn carry_out(&mut self, output: LivenessOutput) {
        let count = |counts: &[AtomicU64], veto: Veto| {
            counts[veto as usize].fetch_add(1, Ordering::Relaxed);
        };
        match output {
            LivenessOutput::Set(veto) => count(&self.counters.set, veto),
            LivenessOutput::Cleared(veto) => count(&self.counters.cleared, veto),
            LivenessOutput::Probe => self.probe(),
            LivenessOutput::HangUp => {
                let pulses = self.worker.ranks.iter().map(|r| &r.pulse);
                pulses.filter(|p| p.is_connected()).for_each(|p| p.hang_up());
            }
        }
    }

    /// Asks each publisher whose connection looks alive; the others are being connected to already.
    fn probe(&mut self) {
        // Ended probes are taken out, so that the set stays as small as what runs.
        while self.probes.try_join_next().is_some() {}
        for spec in &self.worker.registration.worker.ranks {
            let Some(rank) = self.worker.ranks.iter().find(|r| r.rank == spec.rank) else { continue };
            if let (true, Ok(endpoint)) = (rank.pulse.is_connected(), spec.events.parse::<Endpoint>()) {
                let pulse = rank.pulse.clone();
                self.probes.spawn(probe(endpoint, self.ingest, self.limits.probe_period(), pulse));
            }
        }
    }

    /// Takes a change to lookups first, then to whoever watches.
    fn show(&self, from: Option<Veto>, to: Option<Veto>) {
        let since_ms = now_ms();
        self.worker.veto.set(to, since_ms);
        self.worker.ranks.iter().for_each(|r| r.status.set_vetoed(to.is_some()));
        let (worker, was) = (&self.worker.registration.worker.id, from.map_or("-", Veto::name));
        match to {
            Some(veto) => tracing::warn!(%worker, veto = veto.name(), was, "a worker is not offered any more"),
            None => tracing::info!(%worker, was, "a worker is offered again"),
        }
        self.events.publish_veto(&self.worker, from, to, since_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cell_says_which_veto_and_since_when() {
        let cell = VetoCell::default();
        assert_eq!(cell.get(), None);
        for veto in Veto::ALL {
            cell.set(Some(veto), 1_796_008_422_123);
            assert_eq!(cell.get(), Some((veto, 1_796_008_422_123)));
        }
        cell.set(None, 1_796_008_422_124);
        assert_eq!(cell.get(), None);
    }
}
