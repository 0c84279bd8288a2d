//! Overload protection: a worker whose record says that it has too much is not chosen while another has not.
//!
//! Each record is judged once, when it comes, and its verdict stands in the worker's status until the next; decisions read that word
//! and nothing else.

use super::columns::{Columns, Slot, Status};
use super::load::WorkerLoad;
use super::settings::OverloadSettings;

/// A worker's own word on one signal.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Threshold<T> {
    /// The fleet's threshold.
    #[default]
    Fleet,
    /// The signal is off.
    Off,
    /// Over from this value on.
    From(T),
}

impl<T: PartialOrd> Threshold<T> {
    /// Whether a value reaches the threshold that counts.
    fn judge(self, value: T, fleet: Option<T>) -> bool {
        match self {
            Threshold::Fleet => fleet.is_some_and(|from| value >= from),
            Threshold::Off => false,
            Threshold::From(from) => value >= from,
        }
    }
}

/// A worker's own thresholds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WorkerOverload {
    /// Waiting requests.
    pub waiting_requests: Threshold<i64>,
    /// Share of the KV pool.
    pub token_usage: Threshold<f64>,
}

impl WorkerOverload {
    /// Whether a record says that this worker is over, by either signal; at the threshold it is. Never while protection is off.
    pub fn is_over(self, load: &WorkerLoad, fleet: &OverloadSettings) -> bool {
        fleet.enabled
            && (self.waiting_requests.judge(load.waiting, fleet.waiting_requests)
                || self.token_usage.judge(load.usage, fleet.token_usage))
    }
}

/// Judges a worker's latest record, after it came, was refused, or other settings came into force. Where there is none, nothing is
/// said.
pub fn latch(columns: &mut Columns, slot: Slot, settings: &OverloadSettings) {
    let at = slot as usize;
    let over = columns.fresh_until[at] > 0 && columns.overload[at].is_over(&columns.load[at], settings);
    columns.status[at].put(Status::OVERLOADED, over);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::candidates::{Nobody, candidates};
    use crate::routing::load::RankLoad;
    use crate::routing::testing::{Fleet, rank, seeded};

    fn load(waiting: i64, usage: f64) -> RankLoad {
        RankLoad { waiting, token_usage: usage, ..rank(1, 100.0) }
    }

    fn latch_all(fleet: &mut Fleet) {
        (0..fleet.columns.len() as Slot).for_each(|slot| latch(&mut fleet.columns, slot, &fleet.settings.overload));
    }

    fn chosen(fleet: &mut Fleet) -> Result<Vec<Slot>, Nobody> {
        latch_all(fleet);
        let (mut out, shed) = (Vec::new(), fleet.settings.overload.shed);
        candidates(&fleet.columns, fleet.now, None, shed, &mut seeded(50), &mut out).map(|_| out)
    }

    #[test]
    fn ov1_waiting() {
        assert_eq!(chosen(&mut Fleet::of(&[load(7, 0.79), load(8, 0.0)])), Ok(vec![0]));
    }

    #[test]
    fn ov2_usage() {
        assert_eq!(chosen(&mut Fleet::of(&[load(0, 0.80), load(0, 0.79)])), Ok(vec![1]));
    }

    #[test]
    fn ov3_one_full_rank_is_not_over() {
        let mut fleet = Fleet::dark(1);
        fleet.record(0, &[load(0, 1.0), load(0, 0.5)]);
        latch_all(&mut fleet);
        assert_eq!(fleet.columns.status[0], Status::default());
    }

    #[test]
    fn ov4_all_over() {
        let mut fleet = Fleet::of(&[load(8, 0.0); 3]);
        fleet.in_flight(&[9, 4, 6]);
        assert_eq!(chosen(&mut fleet), Ok(vec![1]));
    }

    #[test]
    fn ov5_all_over_and_shed() {
        let mut fleet = Fleet::of(&[load(8, 0.0); 3]);
        fleet.settings.overload.shed = true;
        assert_eq!(chosen(&mut fleet), Err(Nobody::AllOverloaded));
    }

    #[test]
    fn ov6_clears_with_the_next_record() {
        let mut fleet = Fleet::of(&[load(8, 0.0), load(0, 0.0)]);
        assert_eq!(chosen(&mut fleet), Ok(vec![1]));
        fleet.record(0, &[load(7, 0.0)]);
        assert_eq!(chosen(&mut fleet), Ok(vec![0, 1]));
    }

    #[test]
    fn a_refused_record_says_nothing() {
        let mut fleet = Fleet::of(&[load(8, 0.0), load(0, 0.0)]);
        latch_all(&mut fleet);
        fleet.columns.darken(0);
        assert_eq!(chosen(&mut fleet), Ok(vec![0, 1]));
    }

    #[test]
    fn each_signal_is_the_fleets_the_workers_or_off() {
        use Threshold::{Fleet, From, Off};
        let fleet = OverloadSettings::default();
        let load = WorkerLoad { waiting: 20, usage: 0.5, ..WorkerLoad::default() };
        let rows = [
            (Fleet, Fleet, true),
            (Off, Fleet, false),
            (Off, From(0.5), true),
            (From(20), Fleet, true),
            (From(21), Fleet, false),
            (From(21), From(0.6), false),
        ];
        for (waiting_requests, token_usage, over) in rows {
            let own = WorkerOverload { waiting_requests, token_usage };
            assert_eq!(own.is_over(&load, &fleet), over, "{own:?}");
            assert!(!own.is_over(&load, &OverloadSettings { enabled: false, ..fleet.clone() }));
        }
        let off = OverloadSettings { waiting_requests: None, ..fleet };
        assert!(!WorkerOverload::default().is_over(&load, &off));
        assert!(WorkerOverload { waiting_requests: From(9), ..Default::default() }.is_over(&load, &off));
    }
}
