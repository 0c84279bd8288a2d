//! What is known of one worker's load. It belongs to the registration and goes with it.

use crate::routing::{LoadReport, LoadSettings, LoadSource, Malformed, WorkerLoad};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Pushed loads are believed for so many times the time between the last two.
const HEARTBEATS: u32 = 3;
/// At least so long.
const PUSHED_FRESH_MIN: Duration = Duration::from_secs(3);

/// What is known of a worker's loads.
#[derive(Clone, Debug, Default)]
pub struct WorkerLoads {
    /// The latest valid report, when it came, and its figures over all ranks.
    pub latest: Option<(Instant, LoadReport, WorkerLoad)>,
    /// Whether a malformed one came after it: nothing is known then.
    pub darkened: bool,
    /// When something was pushed last, valid or not.
    pub pushed_at: Option<Instant>,
    /// Reports by source where they were taken and by field where they were refused, and polls that failed, by kind. As many as
    /// there are such names.
    pub counters: BTreeMap<&'static str, u64>,
}

impl WorkerLoads {
    /// Whether the latest report can be believed now.
    pub fn is_fresh(&self, now: Instant) -> bool {
        let fresh = |at: Instant, report: &LoadReport| now.duration_since(at) <= report.fresh_for;
        !self.darkened && self.latest.as_ref().is_some_and(|(at, report, _)| fresh(*at, report))
    }

    /// How long a report that was pushed now may be believed: by the time between the last two, since who pushes slows down while
    /// nothing changes.
    fn pushed_fresh_for(&mut self, now: Instant, settings: &LoadSettings) -> Duration {
        let gap = self.pushed_at.replace(now).map_or(Duration::ZERO, |before| now.duration_since(before));
        let most = settings.pushed_fresh_for;
        gap.saturating_mul(HEARTBEATS).clamp(PUSHED_FRESH_MIN.min(most), most)
    }

    fn count(&mut self, reason: &'static str) {
        let count = self.counters.entry(reason).or_default();
        *count = count.saturating_add(1);
    }
}

/// What became of a report.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadTaken {
    /// Its figures, or the field for which it was refused.
    pub checked: Result<WorkerLoad, Malformed>,
    /// Whether it shows that the engine's scheduler made a pass since the valid one before.
    pub passed: bool,
}

/// The loads of one worker, between threads.
#[derive(Debug, Default)]
pub struct LoadCell {
    /// Held while a report is taken and told, so that whoever is told hears them in the order in which they were taken.
    turn: Mutex<()>,
    loads: Mutex<WorkerLoads>,
}

impl LoadCell {
    /// What is known now. Allocates; waits for no report that is being told.
    pub fn get(&self) -> WorkerLoads {
        self.loads().clone()
    }

    /// Whether a load was pushed within a time: the worker needs no poll then.
    pub fn pushed_within(&self, time: Duration) -> bool {
        self.loads().pushed_at.is_some_and(|at| at.elapsed() < time)
    }

    /// Counts a poll that brought nothing.
    pub fn poll_failed(&self, kind: &'static str) {
        self.loads().count(kind);
    }

    /// Takes a report that came now, and tells it on while no other report of the worker is taken. `every` is the time between two
    /// polls, where it was polled. Sets how long the report may be believed.
    pub fn take(
        &self,
        now: Instant,
        mut report: LoadReport,
        every: Option<Duration>,
        settings: &LoadSettings,
        tell: impl FnOnce(LoadReport, LoadTaken),
    ) -> Result<WorkerLoad, Malformed> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = WorkerLoad::from_report(&report);
        let mut loads = self.loads();
        report.source = if every.is_some() { LoadSource::Polled } else { LoadSource::Pushed };
        report.fresh_for = match every {
            Some(every) => settings.polled_fresh_for(every),
            None => loads.pushed_fresh_for(now, settings),
        };
        loads.count(checked.map_or_else(Malformed::name, |_| report.source.name()));
        loads.darkened = checked.is_err();
        let mut passed = false;
        if let Ok(load) = checked {
            passed = loads.latest.as_ref().is_some_and(|(_, _, before)| shows_pass(before, &load));
            loads.latest = Some((now, report.clone(), load));
        }
        drop(loads);
        tell(report, LoadTaken { checked, passed });
        checked
    }

    fn loads(&self) -> MutexGuard<'_, WorkerLoads> {
        // Every change is a few plain stores: whoever panicked with it in hand left nothing half done that matters.
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether only a pass of the scheduler can have led from one load to the other. That a queue grew is no sign of one: it grows
/// before an engine that hangs.
fn shows_pass(before: &WorkerLoad, after: &WorkerLoad) -> bool {
    after.waiting < before.waiting
        || after.running != before.running
        || after.usage != before.usage
        || after.used_tokens != before.used_tokens
        || after.rate != before.rate
        || after.prefill_remaining_tokens < before.prefill_remaining_tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::RankLoad;

    const SECOND: Duration = Duration::from_secs(1);

    fn report(waiting: i64, running: i64) -> LoadReport {
        let ranks = vec![RankLoad { waiting, running, ..RankLoad::default() }];
        LoadReport { rank_count: 1, ranks, ..LoadReport::default() }
    }

    /// Takes a report and gives what was told.
    fn take(cell: &LoadCell, now: Instant, report: LoadReport, every: Option<Duration>) -> (LoadReport, LoadTaken) {
        let mut told = None;
        let settings = LoadSettings::default();
        let checked = cell.take(now, report, every, &settings, |report, taken| told = Some((report, taken)));
        let told = told.unwrap();
        assert_eq!(told.1.checked, checked);
        told
    }

    #[test]
    fn pushed_loads_are_believed_for_three_heartbeats_and_polled_ones_for_two_polls_and_a_second() {
        let (cell, start) = (LoadCell::default(), Instant::now());
        let mut at = start;
        // Heartbeats that slow down, then batches again; each time the next heartbeat comes in time.
        for (gap_ms, fresh_ms) in
            [(0, 3_000), (1_000, 3_000), (2_000, 6_000), (4_000, 12_000), (5_000, 15_000), (60_000, 15_000), (2, 3_000)]
        {
            at += Duration::from_millis(gap_ms);
            let (told, _) = take(&cell, at, report(0, 1), None);
            assert_eq!(
                (told.fresh_for, told.source),
                (Duration::from_millis(fresh_ms), LoadSource::Pushed),
                "{gap_ms}"
            );
            assert!(cell.get().is_fresh(at + told.fresh_for));
            assert!(!cell.get().is_fresh(at + told.fresh_for + Duration::from_nanos(1)));
        }
        let (told, _) = take(&cell, at, report(0, 1), Some(10 * SECOND));
        assert_eq!((told.fresh_for, told.source), (21 * SECOND, LoadSource::Polled));
        assert_eq!(cell.get().counters, BTreeMap::from([("pushed", 7), ("polled", 1)]));
    }

    #[test]
    fn a_malformed_report_darkens_until_the_next_and_is_told_too() {
        let (cell, now) = (LoadCell::default(), Instant::now());
        assert!(!cell.get().is_fresh(now), "nothing is known");
        take(&cell, now, report(0, 1), None);
        let (told, taken) = take(&cell, now, report(-1, 1), None);
        assert_eq!((told.ranks[0].waiting, taken.checked), (-1, Err(Malformed::Waiting)));
        let is = cell.get();
        assert!(!is.is_fresh(now) && is.latest.is_some_and(|(_, report, _)| report.ranks[0].waiting == 0));
        take(&cell, now, report(2, 1), None);
        assert!(cell.get().is_fresh(now));
        cell.poll_failed("poll_timeout");
        assert_eq!(cell.get().counters, BTreeMap::from([("pushed", 2), ("waiting", 1), ("poll_timeout", 1)]));
    }

    #[test]
    fn only_what_a_pass_alone_changes_shows_one() {
        let (cell, now) = (LoadCell::default(), Instant::now());
        let passed = |waiting, running| take(&cell, now, report(waiting, running), None).1.passed;
        assert!(!passed(3, 2), "the first says nothing of what was before");
        assert!(!passed(3, 2) && !passed(5, 2), "a queue that grows");
        assert!(passed(4, 2) && passed(4, 3) && passed(4, 1));
        assert!(!passed(-1, 7), "a malformed one says nothing");
        assert!(!passed(4, 1));
    }

    #[test]
    fn who_is_told_may_ask_what_is_known() {
        let (cell, settings) = (LoadCell::default(), LoadSettings::default());
        let taken = cell.take(Instant::now(), report(1, 1), None, &settings, |_, _| {
            assert_eq!(cell.get().counters["pushed"], 1);
        });
        assert!(taken.is_ok() && cell.pushed_within(SECOND) && !cell.pushed_within(Duration::ZERO));
    }
}
