//! The watcher of one worker: takes the pulses of its ranks to its [`Liveness`] and what comes of them to answers and watchers.
//!
//! It sleeps until a stream fails, a contact that is waited for comes, or a time is due; while all is well it does nothing. What
//! requests tell goes to the machine at once, on the thread of whoever tells it: the watcher is woken only if it would come too
//! late, or a veto ends. Contacts and failures touch nothing that requests touch, so each of the two kinds is taken in order.
//!
//! A batch of events is a pass of the engine's scheduler. So a worker whose router tells only ends, or nothing for the length of an
//! answer, is not taken to be wedged while it publishes.

use super::liveness::{Liveness, LivenessInput, LivenessLimits, LivenessOutput, Veto};
use super::registry::FleetEvents;
use super::view::WorkerEntry;
use crate::ingest::socket::Endpoint;
use crate::ingest::{IngestLimits, Pulse, now_ms, probe, sleep_some};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// What is known about a worker being there, beside its ranks' statuses; and where requests tell what they see of it.
#[derive(Debug)]
pub struct VetoCell {
    origin: Instant,
    wake: Arc<Notify>,
    /// The lowest byte is the veto plus one, the rest the Unix milliseconds of its last change.
    state: AtomicU64,
    judge: Mutex<Judge>,
}

/// The machine, and what waits for the watcher.
#[derive(Debug)]
struct Judge {
    machine: Liveness,
    out: Vec<LivenessOutput>,
    /// When the watcher looks by itself; `None`: not before it is woken.
    looks_at: Option<Duration>,
}

impl VetoCell {
    /// A worker of which nothing is known.
    pub fn new(limits: LivenessLimits) -> Self {
        let judge = Judge { machine: Liveness::new(limits), out: Vec::new(), looks_at: None };
        Self { origin: Instant::now(), wake: Arc::default(), state: AtomicU64::new(0), judge: Mutex::new(judge) }
    }

    /// The veto and since when it is there, in Unix milliseconds; `None` while the worker is offered.
    pub fn get(&self) -> Option<(Veto, u64)> {
        let state = self.state.load(Ordering::Relaxed);
        let veto = Veto::ALL.into_iter().find(|v| *v as u64 + 1 == state & 0xff)?;
        Some((veto, state >> 8))
    }

    /// A request was sent to the worker, whose prefill is predicted to take so long. Locks for a moment; never waits, and does not
    /// allocate.
    pub fn dispatched(&self, prefill: Duration) {
        self.take(self.origin.elapsed(), LivenessInput::Dispatched { prefill });
    }

    /// A token of a request came, or its end with a whole answer, or another sign that the worker is at work on it; so much predicted
    /// prefill is thereby done. As cheap as [`Self::dispatched`].
    pub fn progress(&self, prefill_done: Duration) {
        self.take(self.origin.elapsed(), LivenessInput::Progress { prefill_done });
    }

    /// A request ended, however it did, with so much predicted prefill that was never seen done. No progress by itself: whoever had a
    /// whole answer says that first. As cheap as [`Self::dispatched`].
    pub fn finished(&self, prefill_left: Duration) {
        self.take(self.origin.elapsed(), LivenessInput::Finished { prefill_left });
    }

    fn take(&self, now: Duration, input: LivenessInput) {
        let mut judge = self.judge();
        let Judge { machine, out, looks_at } = &mut *judge;
        machine.step(now, input, out);
        let due = machine.next_tick();
        let too_late = due.is_some_and(|due| looks_at.is_none_or(|at| due < at));
        if too_late {
            *looks_at = due;
        }
        if too_late || !out.is_empty() {
            drop(judge);
            self.wake.notify_one();
        }
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pulse of one of the worker's ranks.
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        Arc::new(Pulse::new(self.origin, self.wake.clone()))
    }

    fn set(&self, veto: Option<Veto>, since_ms: u64) {
        self.state.store(since_ms << 8 | veto.map_or(0, |v| v as u64 + 1), Ordering::Relaxed);
    }
}

/// Watches a worker until `stop` is cancelled.
pub(super) fn watch(
    worker: &Arc<WorkerEntry>,
    limits: LivenessLimits,
    ingest: IngestLimits,
    events: &FleetEvents,
    counters: &Arc<VetoCounters>,
    stop: &CancellationToken,
) {
    if !limits.enabled {
        return;
    }
    let watcher = Watcher {
        seen: vec![(None, None); worker.ranks.len()],
        event_seen_ms: None,
        shown: None,
        worker: worker.clone(),
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
    limits: LivenessLimits,
    ingest: IngestLimits,
    events: FleetEvents,
    counters: Arc<VetoCounters>,
    /// Contact and failure of each rank that the machine knows of.
    seen: Vec<(Option<Duration>, Option<Duration>)>,
    /// When the newest batch was applied that counts as progress already, in Unix milliseconds.
    event_seen_ms: Option<u64>,
    /// The veto as answers have it.
    shown: Option<Veto>,
    probes: JoinSet<()>,
}

impl Watcher {
    async fn run(mut self) {
        let (origin, wake) = (self.worker.veto.origin, self.worker.veto.wake.clone());
        loop {
            let due = self.look(origin.elapsed()).map(|at| origin + at);
            tokio::select! {
                () = wake.notified() => {}
                () = sleep_some(due) => {}
            }
        }
    }

    /// Judges everything that happened up to `now`, in order, and returns when to look again. The pulses are read after `now` was, so
    /// no contact from before is missed.
    fn look(&mut self, now: Duration) -> Option<Duration> {
        let mut news = self.pulses();
        let veto = self.worker.veto.clone();
        let (out, is, looks_at) = {
            let mut judge = veto.judge();
            let judge = &mut *judge;
            if judge.machine.awaits_progress() {
                news.extend(self.passed(now).map(|at| (at, LivenessInput::Progress { prefill_done: Duration::ZERO })));
            }
            news.sort_by_key(|(at, _)| *at);
            news.push((now, LivenessInput::Tick));
            news.into_iter().for_each(|(at, input)| judge.machine.step(at, input, &mut judge.out));
            let awaited = judge.machine.awaits_contact();
            self.worker.ranks.iter().for_each(|r| r.pulse.await_contact(awaited));
            judge.looks_at = self.next_look(&judge.machine, now);
            (std::mem::take(&mut judge.out), judge.machine.veto(), judge.looks_at)
        };
        for output in out {
            self.carry_out(output);
        }
        if is != self.shown {
            self.show(self.shown, is);
            self.shown = is;
        }
        looks_at
    }

    fn pulses(&mut self) -> Vec<(Duration, LivenessInput)> {
        let mut news = Vec::new();
        for (rank, seen) in self.worker.ranks.iter().zip(&mut self.seen) {
            let is = (rank.pulse.contact_at(), rank.pulse.failed_at());
            let before = std::mem::replace(seen, is);
            news.extend(is.0.filter(|_| is.0 > before.0).map(|at| (at, LivenessInput::Contact(rank.rank))));
            news.extend(is.1.filter(|_| is.1 > before.1).map(|at| (at, LivenessInput::Failed(rank.rank))));
        }
        news
    }

    /// When a batch was applied last, if that is news.
    fn passed(&mut self, now: Duration) -> Option<Duration> {
        let last = self.worker.ranks.iter().filter_map(|r| r.status.full().last_event_ms).max();
        let before = std::mem::replace(&mut self.event_seen_ms, last);
        let age_ms = now_ms().saturating_sub(last.filter(|_| last > before)?);
        Some(now.saturating_sub(Duration::from_millis(age_ms)))
    }

    /// Batches wake nobody, so while one would end a veto it is looked for them: often enough that none is older than the bound.
    fn next_look(&self, machine: &Liveness, now: Duration) -> Option<Duration> {
        let period = self.limits.probe_period().min(self.limits.wedge / 2).max(Duration::from_millis(1));
        let for_batches = machine.is_wedged().then(|| now.saturating_add(period));
        [machine.next_tick(), for_batches].into_iter().flatten().min()
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
    use futures_util::FutureExt;

    #[test]
    fn the_cell_says_which_veto_and_since_when() {
        let cell = VetoCell::new(LivenessLimits::default());
        assert_eq!(cell.get(), None);
        for veto in Veto::ALL {
            cell.set(Some(veto), 1_796_008_422_123);
            assert_eq!(cell.get(), Some((veto, 1_796_008_422_123)));
        }
        cell.set(None, 1_796_008_422_124);
        assert_eq!(cell.get(), None);
    }

    /// Whether the watcher would be woken now.
    fn woken(cell: &VetoCell) -> bool {
        cell.wake.notified().now_or_never().is_some()
    }

    #[test]
    fn requests_wake_the_watcher_only_if_it_would_come_too_late() {
        let ms = Duration::from_millis;
        let progress = LivenessInput::Progress { prefill_done: Duration::ZERO };
        let cell = VetoCell::new(LivenessLimits::default());
        cell.take(ms(0), LivenessInput::Dispatched { prefill: ms(10_000) });
        assert!(woken(&cell), "the watcher slept without end");
        assert_eq!(cell.judge().looks_at, Some(ms(20_000)));
        cell.take(ms(0), LivenessInput::Dispatched { prefill: ms(0) });
        assert!(!woken(&cell), "a second request moves nothing forward");
        cell.take(ms(0), LivenessInput::Finished { prefill_left: ms(10_000) });
        assert!(woken(&cell), "the prefill that stretched the bound is gone");
        assert_eq!(cell.judge().looks_at, Some(ms(3_000)));
        cell.take(ms(1_000), progress);
        assert!(!woken(&cell), "later is no matter");
        cell.judge().machine.step(ms(4_000), LivenessInput::Tick, &mut Vec::new());
        cell.take(ms(4_500), progress);
        assert!(woken(&cell), "a veto ended");
        assert_eq!(cell.judge().out, [LivenessOutput::Cleared(Veto::Wedged)]);
    }
}
