//! The count gate: a candidate with far more requests in flight than the mean gets no more of what others can take.
//!
//! It cannot see what a request costs, and with two workers it allows a difference of 64 before it acts; live rates keep bursts apart.

use super::columns::Slot;
use super::view::View;

/// The gate of one decision.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CountGate {
    most: f64,
    is_open: bool,
}

impl CountGate {
    /// The gate of these candidates: closed for a worker above the mean by both margins, the relative and the absolute one.
    pub fn of(view: &View<'_>) -> Self {
        let (mut sum, mut fullest) = (0_u64, 0_u32);
        for slot in view.candidates {
            let requests = view.columns.in_flight[*slot as usize];
            sum += u64::from(requests);
            fullest = fullest.max(requests);
        }
        let mean = sum as f64 / view.candidates.len().max(1) as f64;
        let settings = &view.settings.cache_aware;
        let most = (settings.balance_rel_threshold * mean).max(mean + settings.balance_abs_threshold);
        Self { most, is_open: f64::from(fullest) <= most }
    }

    /// Whether a worker has too many requests.
    #[inline]
    pub fn gates(&self, view: &View<'_>, slot: Slot) -> bool {
        f64::from(view.columns.in_flight[slot as usize]) > self.most
    }

    /// The candidates that are not gated, in order; all of them if that is nobody. Allocates only where `kept` has to grow.
    pub fn ungated<'a>(&self, view: &View<'a>, kept: &'a mut Vec<Slot>) -> &'a [Slot] {
        if self.is_open {
            return view.candidates;
        }
        kept.clear();
        kept.extend(view.candidates.iter().copied().filter(|slot| !self.gates(view, *slot)));
        if kept.is_empty() { view.candidates } else { kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::{Fleet, varied};
    use rand::RngExt;

    fn ungated(fleet: &Fleet) -> Vec<Slot> {
        let candidates = fleet.candidates();
        let view = fleet.view(&candidates);
        let mut kept = vec![77];
        let gate = CountGate::of(&view);
        let ungated = gate.ungated(&view, &mut kept).to_vec();
        assert!(ungated.len() == candidates.len() || ungated.iter().all(|slot| !gate.gates(&view, *slot)));
        ungated
    }

    #[test]
    fn count_gate_table() {
        let rows: [(&[u32], bool); 7] = [
            (&[40, 4, 4, 4], false),
            (&[47, 4, 4, 4], true),
            (&[400, 380, 380, 380], false),
            (&[440, 400, 400, 400], false),
            (&[500, 400, 400, 400], true),
            (&[64, 0], false),
            (&[65, 0], true),
        ];
        for (in_flight, gated) in rows {
            let mut fleet = Fleet::dark(in_flight.len());
            fleet.in_flight(in_flight);
            let first = Slot::from(gated);
            assert_eq!(ungated(&fleet), (first..in_flight.len() as Slot).collect::<Vec<_>>(), "{in_flight:?}");
        }
    }

    /// CA6: the fewest requests cannot exceed the mean, so the gate is never closed for everybody; one worker is never gated.
    #[test]
    fn ca6_the_gate_never_empties_the_set() {
        let mut rng = varied(40);
        for case in 0..2000 {
            let mut fleet = Fleet::dark(rng.random_range(1..10));
            let most = [1, 10, 1000, u32::MAX][rng.random_range(0..4)];
            fleet.columns.in_flight.iter_mut().for_each(|requests| *requests = rng.random_range(0..=most));
            fleet.settings.cache_aware.balance_abs_threshold = rng.random_range(0..40).into();
            fleet.settings.cache_aware.balance_rel_threshold = 1.0 + rng.random_range(0.0..1.0);
            let ungated = ungated(&fleet);
            let fewest = *fleet.columns.in_flight.iter().min().unwrap();
            assert!(ungated.iter().any(|slot| fleet.columns.in_flight[*slot as usize] == fewest), "case {case}");
        }
    }

    #[test]
    fn odd_settings_gate_everybody_and_so_nobody() {
        let mut fleet = Fleet::dark(3);
        fleet.in_flight(&[5, 1, 3]);
        for (absolute, relative) in [(-100.0, 0.0), (f64::NEG_INFINITY, f64::NEG_INFINITY), (f64::NAN, f64::NAN)] {
            fleet.settings.cache_aware.balance_abs_threshold = absolute;
            fleet.settings.cache_aware.balance_rel_threshold = relative;
            assert_eq!(ungated(&fleet), [0, 1, 2]);
        }
    }
}
