//! `power_of_two`: the better of two.

use super::{Policy, PolicyName};
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use crate::routing::wait::Waits;
use rand::{Rng, RngExt};

/// Draws two candidates, and takes the one with the least expected wait; each is compared with the other only.
#[derive(Clone, Debug, Default)]
pub struct PowerOfTwo {
    waits: Waits,
}

impl Policy for PowerOfTwo {
    fn name(&self) -> PolicyName {
        PolicyName::PowerOfTwo
    }

    fn pick(&mut self, view: &View<'_>, _: &Request<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        let candidates = view.candidates;
        if candidates.len() < 2 {
            return self.waits.choose(view, candidates, Branch::MinWait, rng, trace);
        }
        let first = rng.random_range(0..candidates.len());
        let beyond = rng.random_range(1..candidates.len());
        let pair = [candidates[first], candidates[(first + beyond) % candidates.len()]];
        self.waits.choose(view, &pair, Branch::MinWait, rng, trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::{Fleet, Prompt, busy, rank, seeded};

    #[test]
    fn every_pair_is_drawn_and_the_worst_of_three_never_wins() {
        let fleet = Fleet::of(&[busy(1000), busy(0), busy(8000)]);
        let shares = fleet.shares(PolicyName::PowerOfTwo, 3000, &Prompt::unknown(), &mut seeded(3));
        // Pairs without the best: one of three.
        assert!((900..=1100).contains(&shares[0]), "{shares:?}");
        assert_eq!((shares[0] + shares[1], shares[2]), (3000, 0));
    }

    #[test]
    fn nominal_is_the_pairs_and_not_the_fleets() {
        // Alone with the slow worker, the idle one with 1,000 tokens on the way takes 10 s; at the fleet's mean it would take 0.2 s.
        let mut fleet = Fleet::of(&[rank(0, 0.0), rank(1, 100.0)]);
        fleet.columns.unrecorded[0] = 1000.0;
        fleet.columns.queued[1] = 500.0;
        let mut policy = PowerOfTwo::default();
        let prompt = Prompt::unknown();
        let pick = fleet.pick(&mut policy, &prompt.request(1), &mut seeded(4)).unwrap();
        assert_eq!((pick.slot, pick.wait), (1, Some(5.0)));
        let mut wide = Fleet::of(&[rank(0, 0.0), rank(1, 100.0), rank(1, 9900.0)]);
        wide.columns.unrecorded[0] = 1000.0;
        wide.columns.queued[1] = 500.0;
        wide.columns.queued[2] = 1e9;
        let shares = wide.shares(PolicyName::PowerOfTwo, 300, &prompt, &mut seeded(5));
        assert!(shares[0] > 0 && shares[1] > 150 && shares[2] == 0, "{shares:?}");
    }

    #[test]
    fn one_candidate_is_the_choice_and_none_is_none() {
        let prompt = Prompt::unknown();
        for (workers, slot) in [(1, Some(0)), (0, None)] {
            let pick = Fleet::dark(workers).pick(&mut PowerOfTwo::default(), &prompt.request(1), &mut seeded(6));
            assert_eq!(pick.map(|pick| pick.slot), slot);
        }
    }
}
