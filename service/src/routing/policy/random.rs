//! `random`: any candidate.

use super::{Policy, PolicyName};
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use rand::{Rng, RngExt};

/// Any candidate, each with the same chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Policy for Random {
    fn name(&self) -> PolicyName {
        PolicyName::Random
    }

    fn pick(&mut self, view: &View<'_>, _: &Request<'_>, rng: &mut dyn Rng, _: &mut Trace) -> Option<Pick> {
        let candidates = view.candidates;
        let place = (!candidates.is_empty()).then(|| rng.random_range(0..candidates.len()))?;
        Some(Pick::new(candidates[place], Branch::Blind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::{Fleet, Prompt, seeded};

    #[test]
    fn shares_of_30_000_draws_are_within_four_sigma() {
        let shares = Fleet::dark(3).shares(PolicyName::Random, 30_000, &Prompt::unknown(), &mut seeded(2));
        for count in shares {
            let share = f64::from(count) / 30_000.0;
            assert!((0.323..=0.344).contains(&share), "{share}");
        }
    }
}
