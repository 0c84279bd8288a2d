//! The queue against plain prices: a backlog, and a second for each thousand tokens that are not cached.

use super::columns::Slot;
use super::hold::{HeldRequest, Hold, HoldCounters, Leaving, Left, Prices};
use super::settings::RoutingSettings;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

struct Plain {
    backlogs: Vec<f64>,
}

impl Prices for Plain {
    fn backlog(&self, slot: Slot) -> f64 {
        self.backlogs[slot as usize]
    }

    fn score(&self, tokens: Option<u64>, blocks: u32, slot: Slot) -> f64 {
        self.backlog(slot) + tokens.unwrap_or(1000).saturating_sub(u64::from(blocks) * 16) as f64 / 1000.0
    }

    fn width(&self, _: f64) -> f64 {
        1e-6
    }
}

fn settings() -> RoutingSettings {
    let mut settings = RoutingSettings::default();
    settings.hold.enabled = true;
    settings
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn request(tokens: u64) -> HeldRequest<u64> {
    HeldRequest { tokens: Some(tokens), holders: Vec::new(), only: None, deadline: None, payload: tokens }
}

/// A queue at work: its settings, prices and generator.
struct Rig {
    hold: Hold<u64>,
    settings: RoutingSettings,
    prices: Plain,
    candidates: Vec<Slot>,
    rng: StdRng,
}

impl Rig {
    fn new(backlogs: &[f64]) -> Self {
        let candidates = (0..backlogs.len() as Slot).collect();
        let prices = Plain { backlogs: backlogs.to_vec() };
        Self { hold: Hold::default(), settings: settings(), prices, candidates, rng: StdRng::seed_from_u64(1) }
    }

    fn hold(&mut self, now: u64, request: HeldRequest<u64>) -> u64 {
        self.hold.hold(ms(now), &self.settings, request).expect("room")
    }

    fn next(&mut self, now: u64) -> Option<Leaving<u64>> {
        self.hold.next(ms(now), &self.settings, &self.candidates, &self.prices, &mut self.rng)
    }

    fn tick(&self) -> Option<Duration> {
        self.hold.next_tick(&self.settings)
    }
}

fn bound(slot: Slot) -> Left {
    Left::Bound { slot, forced: false }
}

fn forced(slot: Slot) -> Left {
    Left::Bound { slot, forced: true }
}

#[test]
fn a_request_is_bound_only_to_a_worker_that_is_about_to_begin() {
    let mut rig = Rig::new(&[0.05, 0.3]);
    let ticket = rig.hold(0, request(1000));
    assert_eq!(rig.next(0), None, "50 ms is the bound, not below it");
    assert_eq!(rig.tick(), Some(ms(1)), "soon");
    rig.prices.backlogs = vec![0.25, 0.049];
    let Leaving { ticket: left, how, held, payload } = rig.next(7).unwrap();
    assert_eq!((left, how, held, payload), (ticket, bound(1), ms(7), 1000));
    assert_eq!((rig.next(7), rig.tick(), rig.hold.is_empty()), (None, None, true));
}

#[test]
fn a_request_waits_for_its_best_worker() {
    let mut rig = Rig::new(&[0.3, 0.0]);
    let holds = HeldRequest { holders: vec![(0, 50)], ..request(1000) };
    rig.hold(0, holds.clone());
    assert_eq!(rig.next(0), None, "0.3 + 0.2 at the holder, 1.0 elsewhere");
    assert_eq!(rig.tick(), Some(ms(250)), "when the holder's backlog is at the bound");
    rig.prices.backlogs[0] = 0.800_000_5;
    assert_eq!(rig.next(1).unwrap().how, bound(1), "within a microsecond it is the same");
    rig.hold(2, holds);
    rig.prices.backlogs = vec![0.04, 0.0];
    assert_eq!(rig.next(2).unwrap().how, bound(0));
}

#[test]
fn the_cheapest_goes_first_and_age_makes_cheaper() {
    let mut rig = Rig::new(&[0.0]);
    let old = rig.hold(0, request(1100));
    rig.hold(900, request(1000));
    let first = rig.hold(900, request(500));
    let second = rig.next(900).map(|left| left.ticket);
    assert_eq!(second, Some(first), "0.5, before 1.0 and 1.1 - 0.09");
    assert_eq!(rig.next(900).map(|left| left.payload), Some(1000));
    assert_eq!(rig.next(900).map(|left| left.ticket), Some(old));
    let old = rig.hold(0, request(1100));
    rig.hold(1900, request(1000));
    rig.settings.hold.age_max = ms(10_000);
    assert_eq!(rig.next(1901).map(|left| left.ticket), Some(old + 1), "arrived at 900: 1.1 - 0.1001");
    rig.hold(1901, request(1001));
    assert_eq!(rig.next(1901).map(|left| left.ticket), Some(old));
}

#[test]
fn of_equals_the_oldest_goes_first() {
    let mut rig = Rig::new(&[0.0]);
    rig.settings.hold.aging = 0.0;
    let tickets: Vec<_> = (0..20).map(|at| rig.hold(at, request(7))).collect();
    let left: Vec<_> = std::iter::from_fn(|| rig.next(20)).map(|left| left.ticket).collect();
    assert_eq!(left, tickets);
}

#[test]
fn age_binds_whatever_the_backlogs() {
    let mut rig = Rig::new(&[9.0, 8.0]);
    rig.hold(100, request(10));
    rig.hold(101, request(5));
    assert_eq!((rig.next(2099), rig.tick()), (None, Some(ms(2100))));
    let left = rig.next(2100).unwrap();
    assert_eq!((left.how, left.payload, left.held), (forced(1), 10, ms(2000)));
    assert_eq!((rig.next(2100), rig.tick()), (None, Some(ms(2101))));
}

#[test]
fn without_workers_age_refuses() {
    let mut rig = Rig::new(&[0.0, 0.0]);
    rig.candidates.clear();
    rig.hold(0, request(1));
    assert_eq!(rig.next(1999), None);
    rig.candidates = vec![1];
    rig.hold(1999, HeldRequest { only: Some(vec![0]), ..request(2) });
    assert_eq!(rig.next(1999).map(|left| (left.payload, left.how)), Some((1, bound(1))));
    assert_eq!(rig.next(1999), None, "the only one that was asked for may not be chosen");
    assert_eq!(rig.next(3999).map(|left| (left.payload, left.how)), Some((2, Left::Nobody)));
}

#[test]
fn a_deadline_comes_before_everything() {
    let mut rig = Rig::new(&[0.0]);
    rig.hold(0, request(1));
    let late = rig.hold(0, HeldRequest { deadline: Some(ms(30)), ..request(2) });
    rig.prices.backlogs = vec![1.0];
    assert_eq!((rig.next(29), rig.tick()), (None, Some(ms(30))));
    rig.prices.backlogs = vec![0.0];
    assert_eq!(rig.next(30).map(|left| (left.ticket, left.how)), Some((late, Left::TimedOut)));
    assert_eq!(rig.next(30).map(|left| left.how), Some(bound(0)));
}

#[test]
fn cancelled_is_gone() {
    let mut rig = Rig::new(&[1.0]);
    let ticket = rig.hold(0, HeldRequest { deadline: Some(ms(5)), ..request(3) });
    assert_eq!((rig.hold.cancel(ticket), rig.hold.cancel(ticket), rig.tick()), (Some(3), None, None));
    assert_eq!((rig.next(10), rig.hold.counters().cancelled), (None, 1));
}

#[test]
fn the_queue_is_bounded_and_can_be_switched_off() {
    let mut rig = Rig::new(&[1.0]);
    assert_eq!(RoutingSettings::default().hold.requests_max, 4096);
    rig.settings.hold.requests_max = 2;
    rig.hold(0, request(1));
    rig.hold(0, request(2));
    assert_eq!(rig.hold.hold(ms(0), &rig.settings, request(3)).unwrap_err().payload, 3);
    rig.settings.hold.enabled = false;
    assert_eq!(rig.tick(), Some(ms(0)), "whoever is left is bound now");
    assert_eq!(rig.next(0).map(|left| left.how), Some(forced(0)));
    assert_eq!(rig.hold.hold(ms(0), &rig.settings, request(4)).unwrap_err().payload, 4);
    assert_eq!((rig.hold.len(), rig.hold.counters().full), (1, 1));
}

#[test]
fn a_worker_that_is_gone_is_not_mistaken_for_the_next_in_its_slot() {
    let mut rig = Rig::new(&[0.3, 0.0]);
    rig.hold(0, HeldRequest { holders: vec![(0, 60)], ..request(1000) });
    rig.hold(0, HeldRequest { only: Some(vec![0]), ..request(1) });
    assert_eq!(rig.next(0), None);
    rig.hold.worker_gone(0);
    assert_eq!(rig.next(0).map(|left| left.how), Some(bound(1)));
    rig.prices.backlogs = vec![0.0, 0.0];
    assert_eq!(rig.next(1), None);
    assert_eq!(rig.next(2000).map(|left| left.how), Some(Left::Nobody));
}

#[test]
fn workers_that_are_as_good_are_drawn() {
    let mut counts = [0; 3];
    let mut rig = Rig::new(&[0.0, 0.000_000_5, 0.01]);
    for _ in 0..1000 {
        rig.hold(0, request(1));
        let Some(Left::Bound { slot, .. }) = rig.next(0).map(|left| left.how) else { panic!("nobody left") };
        counts[slot as usize] += 1;
    }
    assert!((420..=580).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
}

#[test]
fn prices_that_are_no_numbers_hold_nobody_for_ever() {
    let mut rig = Rig::new(&[f64::NAN, f64::INFINITY]);
    rig.hold(0, request(1));
    assert_eq!((rig.next(0), rig.tick()), (None, Some(ms(2000))));
    assert_eq!(rig.next(2000).map(|left| left.how), Some(forced(1)));
    rig.candidates = vec![0];
    rig.hold(2000, request(1));
    assert_eq!(rig.next(4000).map(|left| left.how), Some(forced(0)));
}

/// Each request leaves once, in time, to somebody it may go to.
#[test]
fn no_request_is_lost() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let workers = rng.random_range(1..6);
        let mut rig = Rig::new(&vec![0.0; workers]);
        rig.settings.hold.requests_max = rng.random_range(1..40);
        let mut open = std::collections::BTreeMap::new();
        let (mut now, mut taken, mut left) = (0, 0, 0);
        for step in 0..2000 {
            now += rng.random_range(0..40);
            rig.prices.backlogs.iter_mut().for_each(|backlog| *backlog = rng.random_range(0.0..0.4));
            rig.candidates = (0..workers as Slot).filter(|_| rng.random_bool(0.8)).collect();
            match rng.random_range(0..10) {
                0..6 => {
                    let any = rng.random_range(0..workers as Slot);
                    let request = HeldRequest {
                        holders: vec![(any, rng.random_range(1..50))],
                        only: rng.random_bool(0.2).then(|| vec![any]),
                        deadline: rng.random_bool(0.3).then(|| ms(now + rng.random_range(0..3000))),
                        ..request(rng.random_range(1..2000))
                    };
                    if let Ok(ticket) = rig.hold.hold(ms(now), &rig.settings, request.clone()) {
                        assert!(open.insert(ticket, (now, request)).is_none(), "a ticket was given twice");
                        taken += 1;
                    }
                }
                6 => {
                    let ticket = rng.random_range(0..taken + 2);
                    let was = open.remove(&ticket);
                    left += u64::from(was.is_some());
                    assert_eq!(rig.hold.cancel(ticket), was.map(|(_, request)| request.payload));
                }
                _ => {}
            }
            if step % 3 != 0 {
                continue;
            }
            while let Some(leaving) = rig.next(now) {
                let (since, request) = open.remove(&leaving.ticket).expect("it left once");
                left += 1;
                assert_eq!((leaving.held, leaving.payload), (ms(now - since), request.payload));
                match leaving.how {
                    Left::Bound { slot, forced } => {
                        assert!(rig.candidates.contains(&slot) && request.may(slot));
                        assert_eq!(forced, leaving.held >= ms(2000));
                        assert!(forced || rig.prices.backlogs[slot as usize] < 0.05);
                    }
                    Left::Nobody => assert!(!rig.candidates.iter().any(|slot| request.may(*slot))),
                    Left::TimedOut => assert!(request.deadline.is_some_and(|deadline| deadline <= ms(now))),
                }
            }
            assert!(open.values().all(|(since, _)| now - since < 2000), "nobody waits longer");
            assert!(rig.tick().is_none_or(|tick| tick > ms(now)) && rig.tick().is_some() != open.is_empty());
            assert_eq!(rig.hold.len(), open.len());
        }
        let HoldCounters { held, bound, forced, nobody, timed_out, cancelled, .. } = rig.hold.counters();
        assert_eq!((held, bound + forced + nobody + timed_out + cancelled), (taken, left));
        assert_eq!(taken - left, open.len() as u64);
        assert!(bound > 0 && timed_out + nobody > 0 && cancelled > 0);
    }
}
