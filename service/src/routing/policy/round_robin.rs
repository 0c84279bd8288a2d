//! `round_robin`: one candidate after the other.

use super::{Policy, PolicyName};
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use rand::Rng;

/// One candidate after the other, counted over all decisions of this policy, whoever the candidates were.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    decisions: u64,
}

impl Policy for RoundRobin {
    fn name(&self) -> PolicyName {
        PolicyName::RoundRobin
    }

    fn pick(&mut self, view: &View<'_>, _: &Request<'_>, _: &mut dyn Rng, _: &mut Trace) -> Option<Pick> {
        let place = self.decisions.checked_rem(view.candidates.len() as u64)?;
        self.decisions = self.decisions.wrapping_add(1);
        Some(Pick::new(view.candidates[place as usize], Branch::Blind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::Status;
    use crate::routing::testing::{Fleet, Prompt, seeded};

    fn picks(policy: &mut RoundRobin, fleet: &Fleet, calls: usize) -> String {
        let (prompt, mut rng) = (Prompt::unknown(), seeded(1));
        let pick = |_| fleet.pick(policy, &prompt.request(1), &mut rng).map(|pick| b"ABC"[pick.slot as usize] as char);
        (0..calls).map(pick).collect::<Option<_>>().unwrap_or_default()
    }

    #[test]
    fn k_0() {
        assert_eq!(picks(&mut RoundRobin { decisions: 0 }, &Fleet::dark(3), 4), "ABCA");
    }

    #[test]
    fn k_2() {
        assert_eq!(picks(&mut RoundRobin { decisions: 2 }, &Fleet::dark(3), 4), "CABC");
    }

    #[test]
    fn k_3_with_b_vetoed_for_two_calls() {
        let (mut policy, mut fleet) = (RoundRobin { decisions: 3 }, Fleet::dark(3));
        fleet.put(1, Status::VETOED, true);
        assert_eq!(picks(&mut policy, &fleet, 2), "CA");
        fleet.put(1, Status::VETOED, false);
        assert_eq!(picks(&mut policy, &fleet, 2), "CA");
    }

    #[test]
    fn the_count_has_no_end_and_nobody_is_no_choice() {
        assert_eq!(picks(&mut RoundRobin { decisions: u64::MAX }, &Fleet::dark(2), 2), "BA");
        assert_eq!(picks(&mut RoundRobin::default(), &Fleet::dark(0), 1), "");
    }
}
