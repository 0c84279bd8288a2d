//! `balanced`: the least expected wait, after a capped credit for the prefix. An experiment, not a default.

use super::{Policy, PolicyName};
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use crate::routing::wait::{Waits, least, tie_width};
use rand::Rng;

/// The least of the expected wait minus the prefill that a worker saves over the one that saves least, as far as that may count.
#[derive(Clone, Debug, Default)]
pub struct Balanced {
    waits: Waits,
    scores: Vec<f64>,
}

impl Policy for Balanced {
    fn name(&self) -> PolicyName {
        PolicyName::Balanced
    }

    fn pick(&mut self, view: &View<'_>, request: &Request<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        let (slots, held) = (view.candidates, &view.overlap.blocks);
        let load = &view.settings.load;
        self.waits.price(view, slots);
        self.waits.note(slots, trace);
        // Where nothing is known of anybody, requests in flight are taken to be of the mean size.
        let second = if self.waits.in_seconds() { 1.0 } else { load.mean_prefill() / load.throughput() };
        let fewest = slots.iter().map(|slot| held[*slot as usize]).min()?;
        let whole = view.settings.credit.seconds(request.tokens_or(load.mean_prefill()));
        let a_block = whole / f64::from(request.blocks().max(1));
        let most = view.settings.balanced.credit_max_seconds;
        self.scores.clear();
        self.scores.extend(slots.iter().zip(self.waits.prices()).map(|(slot, price)| {
            let credit = (a_block * f64::from(held[*slot as usize] - fewest)).min(most);
            trace.note(*slot, "credit", credit);
            price * second - credit
        }));
        let place = least(&self.scores, |least| tie_width(view, least), rng)?;
        Some(Pick { wait: self.waits.seconds(place), ..Pick::new(slots[place], Branch::Balanced) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::load::RankLoad;
    use crate::routing::testing::{Fleet, Prompt, rank, seeded};

    /// A request for 8 blocks of 512 tokens.
    fn pick(fleet: &Fleet) -> Pick {
        let prompt = Prompt::new(1, 128);
        let request = Request { tokens: Some(4096), block_size: 512, ..prompt.request(1) };
        fleet.pick(&mut Balanced::default(), &request, &mut seeded(60)).unwrap()
    }

    fn queued(tokens: i64) -> RankLoad {
        RankLoad { waiting_uncached_tokens: tokens, ..rank(1, 1000.0) }
    }

    #[test]
    fn a_full_match_is_worth_half_a_second_and_no_more() {
        let mut fleet = Fleet::of(&[queued(300), queued(0)]);
        fleet.hold(&[8, 0]);
        let a = pick(&fleet);
        assert_eq!((a.slot, a.wait, a.branch), (0, Some(0.3), Branch::Balanced));
        for (tokens, expected) in [(499, 0), (501, 1)] {
            fleet.record(0, &[queued(tokens)]);
            assert_eq!(pick(&fleet).slot, expected, "{tokens}");
        }
        fleet.settings.balanced.credit_max_seconds = 1.0;
        for (tokens, expected) in [(511, 0), (513, 1)] {
            fleet.record(0, &[queued(tokens)]);
            assert_eq!(pick(&fleet).slot, expected, "{tokens}");
        }
    }

    #[test]
    fn what_everybody_holds_is_no_credit() {
        let mut fleet = Fleet::of(&[queued(130), queued(0)]);
        // Two blocks more: 0.128 s.
        fleet.hold(&[6, 4]);
        assert_eq!(pick(&fleet).slot, 1);
        fleet.record(0, &[queued(127)]);
        assert_eq!(pick(&fleet).slot, 0);
    }

    #[test]
    fn in_the_dark_a_request_in_flight_costs_its_mean_prefill() {
        let mut fleet = Fleet::dark(2);
        fleet.in_flight(&[1, 0]);
        fleet.hold(&[8, 0]);
        // 0.512 s for the request, 0.5 s of credit.
        assert_eq!((pick(&fleet).slot, pick(&fleet).wait), (1, None));
        fleet.settings.load.mean_prefill_tokens = 990.0;
        assert_eq!(pick(&fleet).slot, 0);
    }
}
