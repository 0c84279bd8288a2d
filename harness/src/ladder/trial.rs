//! One trial: an indexer in a fresh process, filled from the tape's warm part, then offered a rate for a window.

use super::check;
use super::clock::Clock;
use super::disturbance::Watch;
use super::issuer::Wiring;
use super::lane::{Hours, Lane};
use super::layout::{Layout, Role};
use super::pace::{Arrivals, Offer, Pace, PaceError};
use super::result::Outcome;
use super::tape::Tape;
use crate::indexers::{Choice, Form, Indexer, IndexerError, Needs};
use core_affinity::CoreId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

pub use super::result::{BlockOps, TrialResult};

/// Operations that may wait in one queue.
pub const QUEUE_LEN: usize = 1 << 20;
/// The drain may take this many windows, and at least [`DRAIN_MIN`].
const DRAIN_WINDOWS: u32 = 4;
/// The drain may take at least this long.
const DRAIN_MIN: Duration = Duration::from_secs(1);
/// From the last thread's readiness to the first deadline.
const LEAD: Duration = Duration::from_millis(5);

/// What a trial is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialSpec {
    /// The indexer.
    pub indexer: Choice,
    /// Cores.
    pub layout: Layout,
    /// Whether threads are pinned; only tests leave them free.
    pub pin: bool,
    /// What is offered.
    pub offer: Offer,
    /// How the product's own arm is driven.
    pub form: Form,
    /// Prompts that are compared with the oracle after the drain; 0 for none.
    pub check_prompts: usize,
}

/// Why a trial could not be run.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The offer cannot be issued.
    #[error(transparent)]
    Pace(#[from] PaceError),
    /// The indexer cannot be made.
    #[error(transparent)]
    Indexer(#[from] IndexerError),
    /// A thread panicked.
    #[error("a thread of the trial panicked")]
    Panicked,
}

/// Runs a trial in this process.
pub fn run(spec: &TrialSpec, tape: &Tape) -> Result<TrialResult, TrialError> {
    let pace = Pace::new(tape, &spec.offer)?;
    let roles = spec.layout.roles();
    let needs = Needs {
        workers: tape.workers,
        event_lanes: spec.layout.events.len(),
        query_lanes: spec.layout.queries.len(),
        form: spec.form,
    };
    // Threads that an indexer starts by itself belong to its event lane's core, not to an issuer's.
    if let Some(&core) = spec.layout.events.first().filter(|_| spec.pin) {
        core_affinity::set_for_current(CoreId { id: core });
    }
    let indexer = Indexer::build(spec.indexer, &needs)?;
    let (lanes, figures, exact) = (split(indexer.events, indexer.queries, &roles), indexer.figures, indexer.exact);
    let hop_ns = indexer.hop_ns;
    let queue_len = if spec.offer.arrivals == Arrivals::AtOnce { pace.range.len() } else { QUEUE_LEN };
    let wiring = Wiring::new(tape, &pace, &spec.layout, &roles, queue_len.max(1));
    let mut stage = Stage { spec, tape, pace: &pace, roles: &roles, hop_ns, before: BTreeMap::new(), warm: (0, 0) };
    let (outcomes, mut lanes) = stage.play(lanes, wiring, &*figures)?;
    let mut result = stage.result(&outcomes, figures());
    for (name, count) in lanes.iter().flat_map(Lane::counters) {
        // Nobody looks anything up before the window.
        let (value, change) = result.figures.entry(name.to_owned()).or_default();
        *value += count;
        *change += count as i64;
    }
    if spec.check_prompts > 0 && result.overflow == 0 && !result.gave_up {
        result.checked = check::compare(tape, pace.range.end, spec.check_prompts, exact, &mut lanes);
    }
    Ok(result)
}

fn split(
    events: Vec<Box<dyn crate::indexers::EventLane>>,
    queries: Vec<Box<dyn crate::indexers::QueryLane>>,
    roles: &[Role],
) -> Vec<Lane> {
    let (mut events, mut queries): (Vec<_>, Vec<_>) =
        (events.into_iter().map(Some).collect(), queries.into_iter().map(Some).collect());
    let lane =
        |role: &Role| Lane::new(role.event.and_then(|i| events[i].take()), role.query.and_then(|i| queries[i].take()));
    roles.iter().map(lane).collect()
}

/// What the threads of a trial share.
pub(super) struct Stage<'a> {
    pub(super) spec: &'a TrialSpec,
    pub(super) tape: &'a Tape,
    pub(super) pace: &'a Pace,
    roles: &'a [Role],
    pub(super) hop_ns: u64,
    /// What the indexer said about itself before the window.
    pub(super) before: BTreeMap<String, u64>,
    /// Block operations of the warm part, and how long they took in nanoseconds.
    pub(super) warm: (u64, u64),
}

type Figures<'a> = &'a (dyn Fn() -> BTreeMap<String, u64> + Send + Sync);

impl Stage<'_> {
    /// Fills the indexer, then lets issuers and lanes run through the window.
    fn play(
        &mut self,
        lanes: Vec<Lane>,
        wiring: Wiring,
        figures: Figures<'_>,
    ) -> Result<(Vec<Outcome>, Vec<Lane>), TrialError> {
        let begun = Instant::now();
        let (lanes, warmed) = self.fill(lanes)?;
        self.warm = (warmed, begun.elapsed().as_nanos() as u64);
        self.before = figures();
        let ready = Barrier::new(self.spec.layout.issuers.len() + lanes.len() + 1);
        let clock = std::sync::OnceLock::new();
        let clock_of = || {
            ready.wait();
            *clock.get_or_init(|| Clock::starting_in(LEAD))
        };
        let this: &Stage<'_> = self;
        let outcomes = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (issuer, &core) in wiring.issuers.into_iter().zip(&this.spec.layout.issuers) {
                threads.push(scope.spawn(move || {
                    let watch = Watch::begin(core, this.pin(core));
                    let ticks = issuer.ticks();
                    let issued = issuer.run(ticks, &clock_of());
                    let evidence = watch.end(issued.gaps_ns);
                    Outcome::Issuer(issued, evidence)
                }));
            }
            let serving = lanes.into_iter().zip(wiring.consumers).zip(wiring.expected).zip(this.roles);
            for (((mut lane, queues), expected), role) in serving {
                threads.push(scope.spawn(move || {
                    let watch = Watch::begin(role.core, this.pin(role.core));
                    let hours = Hours { clock: clock_of(), give_up_ns: this.give_up_ns() };
                    let operations = &this.tape.operations[this.pace.range.clone()];
                    let shift = lane.serve(this.tape, operations, queues, expected, hours);
                    let evidence = watch.end(shift.gaps_ns);
                    Outcome::Lane(Box::new(lane), shift, evidence)
                }));
            }
            clock_of();
            threads.into_iter().map(|t| t.join().map_err(|_| TrialError::Panicked)).collect::<Result<Vec<_>, _>>()
        })?;
        Ok(take_lanes(outcomes))
    }

    /// Applies the warm part on the lanes' own cores.
    fn fill(&self, lanes: Vec<Lane>) -> Result<(Vec<Lane>, u64), TrialError> {
        let event_lanes = self.spec.layout.events.len();
        let operations = &self.tape.operations[..self.tape.warm];
        let filled = std::thread::scope(|scope| {
            let fill = |(mut lane, role): (Lane, &Role)| {
                let role = *role;
                scope.spawn(move || {
                    self.pin(role.core);
                    let done = role.event.map_or(0, |number| lane.warm(self.tape, operations, number, event_lanes));
                    lane.prepare(self.tape, &self.pace.range);
                    (lane, done)
                })
            };
            let threads: Vec<_> = lanes.into_iter().zip(self.roles).map(fill).collect();
            threads.into_iter().map(|t| t.join().map_err(|_| TrialError::Panicked)).collect::<Result<Vec<_>, _>>()
        })?;
        let (lanes, done): (Vec<Lane>, Vec<u64>) = filled.into_iter().unzip();
        Ok((lanes, done.into_iter().sum()))
    }

    fn give_up_ns(&self) -> u64 {
        let drain = (Duration::from_nanos(self.pace.window_ns) * DRAIN_WINDOWS).max(DRAIN_MIN);
        self.pace.window_ns + drain.as_nanos() as u64
    }

    fn pin(&self, core: usize) -> bool {
        self.spec.pin && core_affinity::set_for_current(CoreId { id: core })
    }
}

fn take_lanes(outcomes: Vec<Outcome>) -> (Vec<Outcome>, Vec<Lane>) {
    let mut lanes = Vec::new();
    let rest = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Lane(lane, shift, evidence) => {
            lanes.push(*lane);
            Outcome::Lane(Box::new(Lane::new(None, None)), shift, evidence)
        }
        issuer @ Outcome::Issuer(..) => issuer,
    });
    (rest.collect(), lanes)
}
