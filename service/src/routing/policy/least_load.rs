//! `least_load`: the least expected wait, optionally with bounded cache credit.

use super::credit::{Base, Credit, CreditReason};
use super::{Policy, PolicyName};
use crate::routing::columns::Slot;
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use crate::routing::wait::Waits;
use rand::Rng;

/// The least expected wait among all candidates. With a cap on waiting requests, a worker that reached it is not chosen, and nobody
/// is where everybody did: the request has to wait in front of the fleet.
#[derive(Clone, Debug, Default)]
pub struct LeastLoad {
    waits: Waits,
    below_cap: Vec<Slot>,
    credit: Credit,
}

impl Policy for LeastLoad {
    fn name(&self) -> PolicyName {
        PolicyName::LeastLoad
    }

    fn pick(&mut self, view: &View<'_>, request: &Request<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        let slots = below_cap(view, &mut self.below_cap, trace);
        self.waits.price(view, slots);
        self.waits.note(slots, trace);
        let base = Base { slots, waits: &self.waits, place: self.waits.least(view, rng)? };
        let (place, reason) = self.credit.judge(view, request, base, rng, trace);
        let branch = match reason {
            CreditReason::ModeOff => Branch::MinWait,
            CreditReason::Moved => Branch::CreditMoved,
            _ => Branch::CreditBase,
        };
        Some(Pick { slot: slots[place], branch, detail: Some(reason.name()), wait: self.waits.seconds(place) })
    }
}

/// The candidates below the cap. One of which nothing is known stays: dark is not full.
fn below_cap<'a>(view: &View<'a>, kept: &'a mut Vec<Slot>, trace: &mut Trace) -> &'a [Slot] {
    let cap = view.settings.load.max_waiting_requests;
    if cap <= 0 {
        return view.candidates;
    }
    let columns = view.columns;
    kept.clear();
    for slot in view.candidates.iter().copied() {
        let at = slot as usize;
        let waiting = columns.load[at].waiting.saturating_add(columns.tallies[at].requests().into());
        if view.is_dark(slot) || waiting < cap {
            kept.push(slot);
        } else {
            trace.note(slot, "capped", waiting as f64);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::load::RankLoad;
    use crate::routing::testing::{FRESH_FOR, Fleet, Prompt, busy, rank, seeded};
    use std::time::Duration;

    fn waiting(requests: i64) -> RankLoad {
        RankLoad { waiting: requests, ..busy(0) }
    }

    fn pick(fleet: &Fleet) -> Option<Slot> {
        let prompt = Prompt::unknown();
        fleet.pick(&mut LeastLoad::default(), &prompt.request(1), &mut seeded(7)).map(|pick| pick.slot)
    }

    fn burst(ranks: &[RankLoad], requests: u32) -> Vec<u32> {
        Fleet::of(ranks).burst(&mut LeastLoad::default(), requests, 1024, &mut seeded(8))
    }

    #[test]
    fn ll1_the_shorter_queue() {
        assert_eq!(pick(&Fleet::of(&[busy(8000), busy(1000)])), Some(1));
    }

    #[test]
    fn ll2_heterogeneous() {
        let fast = RankLoad { running: 4, gen_throughput: 2000.0, ..busy(4000) };
        let slow = RankLoad { gen_throughput: 200.0, ..busy(1000) };
        assert_eq!(pick(&Fleet::of(&[fast, slow])), Some(0));
    }

    #[test]
    fn ll3_stale_idle_gauges() {
        let ranks = [rank(0, 0.36), rank(0, 0.0)];
        assert_eq!(burst(&ranks, 8), [4, 4]);
        assert_eq!(burst(&ranks, 32), [16, 16]);
    }

    #[test]
    fn ll4_idle_beside_busy() {
        assert_eq!(burst(&[rank(4, 8000.0), rank(0, 0.0)], 8), [4, 4]);
    }

    #[test]
    fn ll5_kv_barrier() {
        let full = RankLoad { token_usage: 0.9, ..rank(1, 100.0) };
        for (queued, expected) in [(0, 0), (100, 0), (200, 1)] {
            assert_eq!(pick(&Fleet::of(&[busy(queued), full])), Some(expected), "{queued}");
        }
    }

    #[test]
    fn ll6_queue_without_token_count() {
        assert_eq!(burst(&[waiting(64), waiting(6)], 20), [0, 20]);
    }

    #[test]
    fn ll7_one_dark() {
        let mut fleet = Fleet::dark(2);
        fleet.record(1, &[busy(1000)]);
        fleet.in_flight(&[2, 0]);
        assert_eq!(pick(&fleet), Some(1));
    }

    #[test]
    fn ll8_all_dark() {
        let mut fleet = Fleet::dark(2);
        fleet.in_flight(&[5, 0]);
        let prompt = Prompt::unknown();
        let pick = fleet.pick(&mut LeastLoad::default(), &prompt.request(1), &mut seeded(9)).unwrap();
        assert_eq!((pick.slot, pick.wait), (1, None), "requests are no seconds");
    }

    #[test]
    fn ll9_idle_rank() {
        for (credit, expected) in [(false, 1), (true, 0)] {
            let mut fleet = Fleet::dark(2);
            fleet.settings.load.idle_rank_credit = credit;
            let queued = RankLoad { waiting_uncached_tokens: 3000, ..rank(2, 1000.0) };
            fleet.record(0, &[queued, rank(0, 900.0)]);
            let queued = RankLoad { waiting_uncached_tokens: 3000, ..rank(1, 800.0) };
            fleet.record(1, &[queued, rank(1, 800.0)]);
            assert_eq!(pick(&fleet), Some(expected));
        }
    }

    #[test]
    fn ll10_known_tokens() {
        let mut fleet = Fleet::of(&[busy(0), busy(2048)]);
        let (mut policy, mut rng) = (LeastLoad::default(), seeded(10));
        let prompt = Prompt::new(1, 2100);
        let picks = [1, 2].map(|booking| fleet.dispatch(&mut policy, &prompt.request(booking), &mut rng));
        assert_eq!(picks, [Some(0), Some(1)]);
    }

    #[test]
    fn ll11_cap_48() {
        let mut fleet = Fleet::of(&[waiting(64), busy(1_000_000)]);
        fleet.settings.load.max_waiting_requests = 48;
        assert_eq!(pick(&fleet), Some(1));
        fleet.record(0, &[waiting(48)]);
        fleet.record(1, &[waiting(48)]);
        assert_eq!(pick(&fleet), None);
    }

    #[test]
    fn ll12_cap_2() {
        let mut fleet = Fleet::of(&[waiting(1), busy(400_000)]);
        fleet.settings.load.max_waiting_requests = 2;
        let (mut policy, mut rng) = (LeastLoad::default(), seeded(11));
        let prompt = Prompt::new(1, 1024);
        let picks = [1, 2].map(|booking| fleet.dispatch(&mut policy, &prompt.request(booking), &mut rng));
        assert_eq!(picks, [Some(0), Some(1)]);
    }

    #[test]
    fn the_cap_holds_for_a_single_candidate_and_spares_a_dark_one() {
        let mut fleet = Fleet::of(&[waiting(2)]);
        fleet.settings.load.max_waiting_requests = 2;
        assert_eq!(pick(&fleet), None);
        fleet.now += FRESH_FOR + Duration::from_nanos(1);
        assert_eq!(pick(&fleet), Some(0), "the record is too old to say that it is full");
    }

    #[test]
    fn ll13_ties() {
        let fleet = Fleet::of(&[busy(500); 3]);
        let shares = fleet.shares(PolicyName::LeastLoad, 3000, &Prompt::unknown(), &mut seeded(12));
        assert!(shares.iter().all(|count| (900..=1100).contains(count)), "{shares:?}");
    }

    #[test]
    fn ll14_soak_of_ties() {
        let mut fleet = Fleet::of(&[rank(0, 0.0); 128]);
        let shares = fleet.shares(PolicyName::LeastLoad, 1000, &Prompt::unknown(), &mut seeded(13));
        assert!(shares.iter().all(|count| (1..=23).contains(count)), "{shares:?}");
        let others: Vec<_> = (0..128).filter(|slot| *slot != 77).collect();
        others.into_iter().for_each(|slot: usize| fleet.columns.queued[slot] = 1.0);
        let shares = fleet.shares(PolicyName::LeastLoad, 1000, &Prompt::unknown(), &mut seeded(14));
        assert_eq!(shares[77], 1000);
    }
}
