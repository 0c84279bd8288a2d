//! What a trial measured, put together from what its threads brought home. Pure.

use super::check::Checked;
use super::disturbance::{self, Disturbance, Evidence};
use super::issuer::Issued;
use super::lane::{Lane, Shift};
use super::measure::{Latencies, Nanoseconds, Quantiles, Times};
use super::pace::Arrivals;
use super::search::Verdict;
use super::tape::{Kind, Operation, Tape};
use super::trial::{Stage, TrialSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The issue span may be this much of the window.
pub const ISSUE_SPAN_MAX: f64 = 1.01;
/// Part of the offered rate that has to be done for a rate to count as sustained.
pub const SUSTAINED_SHARE: f64 = 0.99;

/// Hashes by what was done with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockOps {
    /// Hashes of lookups.
    pub requested: u64,
    /// Blocks of store events.
    pub stored: u64,
    /// Names of removal events.
    pub removed: u64,
}

impl BlockOps {
    /// Counts a stretch of the tape.
    pub fn of(tape: &Tape, range: std::ops::Range<usize>) -> Self {
        let mut sum = Self::default();
        tape.operations[range].iter().for_each(|operation| sum.count(operation));
        sum
    }

    /// Counts one operation.
    pub fn count(&mut self, operation: &Operation) {
        *match operation.kind {
            Kind::Lookup => &mut self.requested,
            Kind::StoreRoot | Kind::StoreAfter => &mut self.stored,
            Kind::Remove | Kind::Clear => &mut self.removed,
        } += operation.block_ops();
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.requested + self.stored + self.removed
    }
}

/// What a trial measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// What was done.
    pub spec: TrialSpec,
    /// Length of the window, in nanoseconds.
    pub window_ns: u64,
    /// From the first deadline to the last issue, in nanoseconds.
    pub issue_span_ns: u64,
    /// Whether the issue span is within `ISSUE_SPAN_MAX` of the window and no queue was full.
    pub valid: bool,
    /// Operations that found their queue full.
    pub overflow: u64,
    /// How late operations went out.
    pub issue_lateness: Quantiles,
    /// What was offered.
    pub block_ops: BlockOps,
    /// Of that, what was done until the trial ended.
    pub done: BlockOps,
    /// Operations offered.
    pub operations: u64,
    /// Whether a lane gave up draining.
    pub gave_up: bool,
    /// From the first deadline to the last completion, drain included, in nanoseconds.
    pub completed_ns: u64,
    /// Block operations done in a second, drain included.
    pub completed_rate: f64,
    /// How it did at this rate.
    pub verdict: Verdict,
    /// Lookups.
    pub lookups: Latencies,
    /// Events; `scheduled_to_done` is their lag.
    pub events: Latencies,
    /// Time spent in lookups, in nanoseconds.
    pub lookup_busy_ns: u64,
    /// Time spent in events, in nanoseconds.
    pub event_busy_ns: u64,
    /// Stored and removed blocks for each second of processor time that events took, less the hop to a thread of the indexer's
    /// own, if it has one.
    pub event_block_ops_per_cpu_s: f64,
    /// What a hop to a thread of the indexer's own takes, in nanoseconds, if it has one: charged to each event.
    pub hop_ns: Option<u64>,
    /// Block operations of the warm part, and how long they took in nanoseconds.
    pub warm: (u64, u64),
    /// What the indexer says about itself after the window, and how much of it came in the window.
    pub figures: BTreeMap<String, (u64, i64)>,
    /// What was seen of each pinned core.
    pub evidence: Vec<Evidence>,
    /// Why the trial does not count, if it does not.
    pub disturbance: Option<Disturbance>,
    /// Comparison with the oracle, if asked for.
    pub checked: Option<Checked>,
}

/// What one thread brings home.
pub(super) enum Outcome {
    Issuer(Issued, Evidence),
    Lane(Box<Lane>, Shift, Evidence),
}

impl Stage<'_> {
    /// Puts together what the threads measured.
    pub(super) fn result(&self, outcomes: &[Outcome], after: BTreeMap<String, u64>) -> TrialResult {
        let sums = self.sum(outcomes);
        let block_ops = BlockOps::of(self.tape, self.pace.range.clone());
        let window_ns = self.pace.window_ns;
        let issued_late = sums.issue_span_ns as f64 > window_ns as f64 * ISSUE_SPAN_MAX;
        let at_once = self.spec.offer.arrivals == Arrivals::AtOnce;
        // Nothing is done before it is offered: a window is never over early.
        let completed_ns = sums.completed_ns.max(if at_once { 1 } else { window_ns });
        let completed_rate = sums.done.total() as f64 * 1e9 / completed_ns as f64;
        // The hop to a thread of the indexer's own is none of its work.
        let hops_ns = self.hop_ns * sums.events.count();
        let own_ns = sums.events.busy_ns.saturating_sub(hops_ns).max(1);
        let per_cpu_s = (sums.done.stored + sums.done.removed) as f64 * 1e9 / own_ns as f64;
        TrialResult {
            spec: self.spec.clone(),
            window_ns,
            issue_span_ns: sums.issue_span_ns,
            valid: sums.overflow == 0 && !issued_late,
            overflow: sums.overflow,
            issue_lateness: sums.lateness.quantiles(),
            block_ops,
            done: sums.done,
            operations: self.pace.range.len() as u64,
            gave_up: sums.gave_up,
            completed_ns: sums.completed_ns,
            completed_rate,
            verdict: verdict(issued_late, sums.overflow > 0 || sums.gave_up, completed_rate, self.spec.offer.rate),
            lookups: sums.lookups.latencies(),
            events: sums.events.latencies(),
            lookup_busy_ns: sums.lookups.busy_ns,
            event_busy_ns: sums.events.busy_ns,
            event_block_ops_per_cpu_s: per_cpu_s,
            hop_ns: Some(self.hop_ns).filter(|&ns| ns > 0),
            warm: self.warm,
            figures: change(&self.before, after),
            disturbance: disturbance::judge(&sums.evidence, Duration::from_nanos(window_ns.max(sums.completed_ns))),
            evidence: sums.evidence,
            checked: None,
        }
    }

    fn sum(&self, outcomes: &[Outcome]) -> Sums {
        let mut sums = Sums::default();
        let operations = &self.tape.operations[self.pace.range.clone()];
        for outcome in outcomes {
            match outcome {
                Outcome::Issuer(issued, seen) => {
                    sums.lateness.add(&issued.lateness());
                    sums.overflow += issued.overflow;
                    sums.issue_span_ns = sums.issue_span_ns.max(issued.last_ns);
                    sums.evidence.push(*seen);
                }
                Outcome::Lane(_, shift, seen) => {
                    for served in &shift.served {
                        let operation = &operations[served.operation as usize];
                        let times = if operation.is_event() { &mut sums.events } else { &mut sums.lookups };
                        times.record(served, self.pace.due_ns[served.operation as usize]);
                        sums.done.count(operation);
                    }
                    sums.completed_ns = sums.completed_ns.max(shift.served.last().map_or(0, |s| s.end_ns));
                    sums.gave_up |= shift.gave_up;
                    sums.evidence.push(*seen);
                }
            }
        }
        sums
    }
}

/// What all threads measured together.
#[derive(Default)]
struct Sums {
    lookups: Times,
    events: Times,
    lateness: Nanoseconds,
    evidence: Vec<Evidence>,
    overflow: u64,
    issue_span_ns: u64,
    completed_ns: u64,
    done: BlockOps,
    gave_up: bool,
}

/// Whether a rate was sustained. A full queue is the lanes' fault, a late issuer the generator's.
fn verdict(issued_late: bool, left_undone: bool, completed_rate: f64, rate: u64) -> Verdict {
    if left_undone {
        Verdict::Behind
    } else if issued_late {
        Verdict::NotOffered
    } else if completed_rate >= rate as f64 * SUSTAINED_SHARE {
        Verdict::Sustained
    } else {
        Verdict::Behind
    }
}

fn change(before: &BTreeMap<String, u64>, after: BTreeMap<String, u64>) -> BTreeMap<String, (u64, i64)> {
    let of = |name: &str, now: u64| now.wrapping_sub(before.get(name).copied().unwrap_or(0)) as i64;
    after
        .into_iter()
        .map(|(name, now)| {
            let change = of(&name, now);
            (name, (now, change))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        assert_eq!(verdict(false, false, 99.0, 100), Verdict::Sustained);
        assert_eq!(verdict(false, false, 98.9, 100), Verdict::Behind);
        assert_eq!(verdict(true, false, 100.0, 100), Verdict::NotOffered);
        assert_eq!(verdict(true, true, 100.0, 100), Verdict::Behind);
    }

    #[test]
    fn figures_come_with_their_change() {
        let before = BTreeMap::from([("held".to_owned(), 10)]);
        let after = BTreeMap::from([("held".to_owned(), 7), ("splits".to_owned(), 2)]);
        let change = change(&before, after);
        assert_eq!((change["held"], change["splits"]), ((7, -3), (2, 2)));
    }
}
