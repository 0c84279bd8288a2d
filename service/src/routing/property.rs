//! What holds for every policy, over random fleets.

use super::candidates::candidates;
use super::columns::{Slot, Status};
use super::load::RankLoad;
use super::policy::PolicyName;
use super::tally::Tally;
use super::testing::{BLOCK, Fleet, Prompt, varied};
use super::trace::Trace;
use rand::{Rng, RngExt};

/// Blocks of the prompt in question.
const BLOCKS: u32 = 8;

fn prompt() -> Prompt {
    Prompt::new(1, u64::from(BLOCKS * BLOCK))
}

/// A shuffled list of slots.
fn order(slots: usize, rng: &mut dyn Rng) -> Vec<Slot> {
    let mut order: Vec<_> = (0..slots as Slot).collect();
    (1..slots).for_each(|last| order.swap(last, rng.random_range(0..=last)));
    order
}

/// Never an empty selection while a ready worker exists, whatever vetoes and overload flags say.
#[test]
fn somebody_is_chosen_while_a_ready_worker_exists() {
    for name in PolicyName::ALL {
        let mut rng = varied(103);
        let mut policy = name.policy();
        let mut slots = Vec::new();
        for case in 0..500 {
            let mut fleet = Fleet::random(rng.random_range(1..12), BLOCKS, &mut rng);
            for slot in 0..fleet.columns.len() as Slot {
                let bits = [Status::ABSENT, Status::NOT_READY, Status::VETOED, Status::OVERLOADED];
                bits.iter().zip([0.2, 0.4, 0.4, 0.5]).for_each(|(bit, p)| fleet.put(slot, *bit, rng.random_bool(p)));
            }
            let ready = |status: &Status| !status.has(Status::ABSENT | Status::NOT_READY);
            let any_ready = fleet.columns.status.iter().any(ready);
            let found = candidates(&fleet.columns, fleet.now, None, false, &mut rng, &mut slots);
            assert_eq!(found.is_ok(), any_ready, "case {case}");
            if any_ready {
                let pick = policy.pick(&fleet.view(&slots), &prompt().request(case), &mut rng, &mut Trace::off());
                let slot = pick.expect("a pick").slot;
                assert!(ready(&fleet.columns.status[slot as usize]), "{name:?}, case {case}");
            }
        }
    }
}

#[test]
fn the_pick_is_a_candidate_whatever_the_loads() {
    for name in PolicyName::ALL {
        let mut rng = varied(100);
        let mut policy = name.policy();
        for case in 0..300 {
            let fleet = Fleet::random(rng.random_range(1..12), BLOCKS, &mut rng);
            let mut candidates = fleet.candidates();
            candidates.retain(|_| rng.random_bool(0.7));
            let prompt = if rng.random_bool(0.8) { prompt() } else { Prompt::unknown() };
            let view = fleet.view(&candidates);
            let pick = policy.pick(&view, &prompt.request(case), &mut rng, &mut Trace::off());
            match pick {
                Some(pick) => assert!(candidates.contains(&pick.slot), "{name:?}, case {case}"),
                None => assert!(candidates.is_empty(), "{name:?}, case {case}"),
            }
        }
    }
}

/// A dark worker is worth what one is worth whose record says that the router's own requests wait there, and nothing else: each
/// decision comes out the same with either of them. Not so for new owners under pressure: a dark worker has no headroom to offer.
#[test]
fn dark_workers_neither_win_nor_lose_by_being_dark() {
    for name in PolicyName::ALL.into_iter().filter(|name| *name != PolicyName::OwnerPressure) {
        let mut rng = varied(101);
        let mut compared = 0;
        for case in 0..300 {
            let fleet = Fleet::random(rng.random_range(2..12), BLOCKS, &mut rng);
            let candidates = fleet.candidates();
            let view = fleet.view(&candidates);
            let (dark, lit): (Vec<Slot>, Vec<Slot>) = candidates.iter().partition(|slot| view.is_dark(**slot));
            let Some(one) = dark.first().copied().filter(|_| !lit.is_empty()) else { continue };
            compared += 1;
            let mut twin = fleet.clone();
            twin.columns.tallies[one as usize] = Tally::default();
            let waiting = fleet.columns.in_flight[one as usize].into();
            twin.record(one, &[RankLoad { waiting, ..RankLoad::default() }]);
            let prompt = prompt();
            for draw in 0..20 {
                let [of_dark, of_twin] = [&fleet, &twin].map(|fleet| {
                    let mut policy = name.policy();
                    let pick = fleet.pick(policy.as_mut(), &prompt.request(1), &mut varied(draw));
                    pick.map(|pick| pick.slot)
                });
                assert_eq!(of_dark, of_twin, "{name:?}, case {case}, draw {draw}");
            }
        }
        assert!(compared > 100, "{compared}");
    }
}

#[test]
fn permutation_of_candidates_does_not_change_the_distribution() {
    const DECISIONS: u32 = 1200;
    for name in PolicyName::ALL {
        let mut rng = varied(102);
        for case in 0..25 {
            let workers = rng.random_range(2..8);
            let mut fleet = Fleet::random(workers, BLOCKS, &mut rng);
            if case % 2 == 0 {
                // Pairs of equals, so that draws decide.
                let twice: Vec<_> = (0..workers as Slot).map(|slot| slot / 2 * 2).collect();
                fleet = fleet.permuted(&twice);
            }
            let order = order(workers, &mut rng);
            let prompt = prompt();
            let straight = fleet.shares(name, DECISIONS, &prompt, &mut rng);
            let permuted = fleet.permuted(&order).shares(name, DECISIONS, &prompt, &mut rng);
            for (slot, is) in order.iter().zip(permuted) {
                let was = straight[*slot as usize];
                // Five standard deviations of the difference of two counts.
                let most = 5.0 * f64::from(was + is).sqrt();
                assert!(f64::from(was.abs_diff(is)) <= most, "{name:?}, case {case}: {was} then {is}");
            }
        }
    }
}
