//! Random histories of a desk: whatever happens in whatever order, the counts are those of the open bookings, and each booking is
//! released once. `KVATLAS_SEED` and `KVATLAS_CASES` choose other histories.

use super::tests::{added, ask, ms, report};
use super::*;
use crate::routing::{PolicyName, Trace};
use kvatlas_index::ContentHash;
use rand::RngExt;
use std::collections::BTreeMap;

const WORKERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const STEPS: usize = 300;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// What the history knows of its bookings: how each was released, if it was.
struct History {
    desk: Desk,
    rng: StdRng,
    now: Duration,
    released: BTreeMap<u64, Option<ReleasedBy>>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut settings = RoutingSettings::default();
        settings.bookings.ttl = ms(50);
        settings.bookings.bookings_max = 40;
        let desk = Desk::new(Arc::new(settings), 16, seed);
        Self { desk, rng: StdRng::seed_from_u64(seed), now: ms(0), released: BTreeMap::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.random_range(0..bound)
    }

    fn one_of(&mut self, number: u64) -> u64 {
        1 + self.below(number.max(1))
    }

    fn step(&mut self) {
        let passed = ms(self.below(4));
        self.now += passed;
        let worker: Arc<str> = WORKERS[self.below(5) as usize].into();
        let booking = self.one_of(self.released.len() as u64 + 2);
        let flag = self.below(2) == 0;
        let input = match self.below(16) {
            0 => added(&worker, &[0, 1][..1 + self.below(2) as usize]),
            1 if flag => Input::WorkerGone { worker },
            1 | 2 => Input::Ready { worker, ready: self.below(4) > 0 },
            3 => Input::Vetoed { worker, vetoed: flag },
            4 => Input::Load { worker, report: report(self.below(12) as i64 - 1, self.below(11) as f64 / 10.0) },
            5 => Input::Blocks { worker, blocks: self.below(3) },
            6 => Input::FirstToken { booking },
            7 | 8 => Input::Completed { booking, ending: Ending::bare(Outcome::Ok) },
            9 => Input::Abandoned { booking },
            10 => Input::Tick,
            _ => return self.select(),
        };
        let mut out = Vec::new();
        self.desk.step(self.now, input, &mut out);
        for output in out {
            if let Output::Released { booking, by, .. } = output {
                let before = self.released.insert(booking, Some(by));
                assert_eq!(before, Some(None), "booking {booking} is released once, and was made before");
            }
        }
    }

    fn select(&mut self) {
        let contents = [ContentHash(1); 3];
        let policy = Some(PolicyName::ALL[self.below(8) as usize]);
        let ask = Ask { policy, book: self.below(8) > 0, ..ask(&contents) };
        let depth = self.below(4) as u32;
        let mut overlap = Overlap { blocks: vec![depth; self.desk.columns().len()], ..Overlap::default() };
        let before = self.desk.columns().clone();
        let answer = self.desk.select(self.now, &ask, &mut overlap, &mut Trace::off());
        let ready = before.status.iter().any(|status| !status.has(Status::ABSENT | Status::NOT_READY));
        let Ok(decision) = answer else {
            assert!(!ready, "somebody is ready, and nobody was chosen");
            return;
        };
        let slot = decision.pick.slot as usize;
        assert!(!before.status[slot].has(Status::ABSENT | Status::NOT_READY));
        assert_eq!(before.names[slot], Some(decision.worker));
        if decision.booking != 0 {
            assert!(self.released.insert(decision.booking, None).is_none(), "numbers are given once");
        }
    }

    fn check(&self) {
        let open: Vec<u64> = self.released.iter().filter(|(_, by)| by.is_none()).map(|(number, _)| *number).collect();
        assert_eq!(self.desk.bookings().map(|b| b.number).collect::<std::collections::BTreeSet<_>>().len(), open.len());
        let columns = self.desk.columns();
        let mut in_flight = vec![0_u32; columns.len()];
        let mut ranks: BTreeMap<(Slot, u32), u32> = BTreeMap::new();
        for booking in self.desk.bookings() {
            assert!(open.contains(&booking.number));
            in_flight[booking.slot as usize] += 1;
            *ranks.entry((booking.slot, booking.rank)).or_default() += 1;
        }
        assert_eq!(columns.in_flight, in_flight);
        for slot in 0..columns.len() as Slot {
            for (rank, count) in self.desk.workers.in_flight(slot) {
                assert_eq!(count, ranks.get(&(slot, rank)).copied().unwrap_or(0), "slot {slot} rank {rank}");
            }
            let unrecorded = columns.unrecorded[slot as usize];
            assert!(unrecorded >= 0.0 && unrecorded <= f64::from(in_flight[slot as usize]) * 48.0, "{unrecorded}");
        }
        let counters = self.desk.counters();
        assert_eq!(counters.booked, self.released.len() as u64);
        assert_eq!(counters.released.iter().sum::<u64>(), counters.booked - open.len() as u64);
    }
}

#[test]
fn counts_are_those_of_the_open_bookings_and_each_is_released_once() {
    let (first, cases) = (from_env("KVATLAS_SEED", 1), from_env("KVATLAS_CASES", 400));
    let mut by = [0_u64; ReleasedBy::ALL.len()];
    for seed in first..first + cases {
        println!("seed {seed}");
        let mut history = History::new(seed);
        for _ in 0..STEPS {
            history.step();
            history.check();
        }
        let released = history.desk.counters().released;
        by.iter_mut().zip(released).for_each(|(sum, more)| *sum += more);
    }
    assert!(by.iter().all(|count| *count > 0), "every way to be released is met: {by:?}");
}
