//! Replicas that tell each other, without a wire between them.

use super::{Behind, BookingChange, Dispatch, ForeignBookings, ForeignCounters, ForeignNews, Listener, OwnBookings};
use crate::routing::testing::{Prompt, rank, varied};
use crate::routing::{
    Ask, Desk, Ending, Input, LoadReport, Outcome, Output, Overlap, PolicyName, RankLoad, RoutingSettings, Timing,
    Trace,
};
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn dispatch(worker: &str) -> Dispatch {
    let (model, routing_group, worker) = ("m".into(), "".into(), worker.into());
    Dispatch { model, routing_group, worker, tokens: Some(100), cached_tokens: 32, dispatched_at: ms(0) }
}

/// What a listener is told until nothing is new.
fn all(own: &OwnBookings, listener: &mut Listener, most: usize) -> (Vec<(u64, BookingChange)>, usize) {
    let (mut changes, mut completes) = (Vec::new(), 0);
    while let Some(piece) = own.tell(listener, most).unwrap() {
        assert!(piece.changes.len() <= most * 2);
        changes.extend(piece.changes);
        completes += usize::from(piece.is_open_complete);
    }
    (changes, completes)
}

#[test]
fn a_listener_hears_what_is_open_and_then_every_change() {
    let mut own = OwnBookings::new(7, 100);
    let mut early = own.listen();
    assert_eq!(all(&own, &mut early, 4), (vec![], 1));
    (1..=5).for_each(|number| own.dispatched(number, dispatch("w")));
    own.first_token(2);
    own.first_token(2);
    own.ended(3);
    own.ended(3);
    own.first_token(99);
    let (changes, completes) = all(&own, &mut early, 2);
    assert_eq!((changes.len(), completes), (7, 0), "five dispatches, one first token, one end");
    assert_eq!(changes[5..], [(2, BookingChange::FirstToken), (3, BookingChange::Ended)]);
    let (changes, completes) = all(&own, &mut own.listen(), 2);
    let numbers: Vec<_> = changes.iter().map(|(number, _)| *number).collect();
    assert_eq!((numbers, completes, own.open()), (vec![1, 2, 2, 4, 5], 1, 4));
}

#[test]
fn whoever_is_too_slow_is_told_so() {
    let mut own = OwnBookings::new(7, 3);
    let (mut slow, mut opening) = (own.listen(), own.listen());
    all(&own, &mut slow, 1);
    (1..=3).for_each(|number| own.dispatched(number, dispatch("w")));
    let mut just = slow;
    assert_eq!(all(&own, &mut just, 9).0.len(), 3);
    own.ended(1);
    assert_eq!((own.tell(&mut slow, 9), own.tell(&mut opening, 9)), (Err(Behind), Err(Behind)));
    assert_eq!(all(&own, &mut just, 9).0, [(1, BookingChange::Ended)]);
}

/// A receiver of one peer with a run of its own.
fn receiver() -> (ForeignBookings, Vec<ForeignNews>) {
    let mut foreign = ForeignBookings::new(1, 1);
    foreign.connected(0);
    (foreign, Vec::new())
}

fn opened(numbers: &[u64]) -> Vec<(u64, BookingChange)> {
    numbers.iter().map(|number| (*number, BookingChange::Dispatched(dispatch("w")))).collect()
}

#[test]
fn a_peer_that_is_not_heard_is_a_router_that_does_not_tell() {
    let mut foreign = ForeignBookings::new(2, 1);
    assert_eq!(foreign.routers(), 3);
    foreign.connected(0);
    assert_eq!(foreign.routers(), 3, "what it tells is not complete");
    foreign.take(0, 5, opened(&[1]), false, 9, &mut Vec::new());
    assert_eq!(foreign.routers(), 3);
    foreign.take(0, 5, [], true, 9, &mut Vec::new());
    assert_eq!(foreign.routers(), 2);
    foreign.lost(ms(0), 0, ms(10));
    assert_eq!(foreign.routers(), 3);
    foreign.take(7, 5, opened(&[1]), true, 9, &mut Vec::new());
    assert_eq!(foreign.open(), 1, "there is no such peer");
}

#[test]
fn one_that_is_lost_loses_its_bookings_after_a_while() {
    let (mut foreign, mut out) = receiver();
    foreign.take(0, 5, opened(&[1, 2]), true, 9, &mut out);
    foreign.lost(ms(100), 0, ms(50));
    out.clear();
    foreign.tick(ms(149), &mut out);
    assert_eq!((out.len(), foreign.next_tick()), (0, Some(ms(150))));
    foreign.tick(ms(150), &mut out);
    assert!(out.iter().all(|news| news.change == BookingChange::Ended));
    assert_eq!((out.len(), foreign.open(), foreign.next_tick(), foreign.counters().lost), (2, 0, None, 2));
}

#[test]
fn one_that_is_back_in_time_goes_on_with_what_it_still_names() {
    let (mut foreign, mut out) = receiver();
    foreign.take(0, 5, opened(&[1, 2, 3]), true, 9, &mut out);
    let number = out[0].number;
    foreign.lost(ms(0), 0, ms(50));
    foreign.connected(0);
    assert_eq!(foreign.next_tick(), None);
    out.clear();
    foreign.take(0, 5, opened(&[1, 4]), false, 9, &mut out);
    foreign.take(0, 5, [(3, BookingChange::Dispatched(dispatch("w"))), (1, BookingChange::Ended)], true, 9, &mut out);
    let ended: Vec<_> = out.iter().filter(|news| news.change == BookingChange::Ended).collect();
    assert_eq!((ended.len(), ended[0].number, foreign.open()), (2, number, 2));
    let ForeignCounters { taken, ended, forgotten, .. } = foreign.counters();
    assert_eq!((taken, ended, forgotten), (4, 1, 1));
}

#[test]
fn another_run_of_a_peer_ends_the_bookings_of_the_last() {
    let (mut foreign, mut out) = receiver();
    foreign.take(0, 5, opened(&[1, 2]), true, 9, &mut out);
    foreign.connected(0);
    out.clear();
    foreign.take(0, 6, opened(&[1]), true, 9, &mut out);
    let ended = out.iter().filter(|news| news.change == BookingChange::Ended).count();
    assert_eq!((ended, out.len(), foreign.open()), (2, 3, 1));
}

#[test]
fn a_replica_knows_itself_and_nobody_twice() {
    let mut foreign = ForeignBookings::new(3, 1);
    (0..3).for_each(|peer| foreign.connected(peer));
    let mut out = Vec::new();
    foreign.take(0, 1, opened(&[1]), true, 9, &mut out);
    assert_eq!((out.len(), foreign.routers()), (0, 3), "itself");
    foreign.take(1, 5, opened(&[1]), true, 9, &mut out);
    foreign.take(2, 5, opened(&[1]), true, 9, &mut out);
    assert_eq!((out.len(), foreign.open(), foreign.routers()), (1, 1, 1), "under another address");
    foreign.lost(ms(0), 1, ms(0));
    foreign.tick(ms(0), &mut out);
    foreign.take(2, 5, opened(&[2]), true, 9, &mut out);
    assert_eq!((foreign.open(), foreign.routers()), (0, 2), "not from the middle on");
    foreign.connected(2);
    foreign.take(2, 5, opened(&[1, 2]), true, 9, &mut out);
    assert_eq!((foreign.open(), foreign.routers()), (2, 2));
}

#[test]
fn foreign_bookings_are_bounded_and_what_was_not_taken_is_not_ended() {
    let (mut foreign, mut out) = receiver();
    foreign.take(0, 5, opened(&[1, 2, 3]), true, 2, &mut out);
    assert_eq!((out.len(), foreign.open(), foreign.counters().full), (2, 2, 1));
    out.clear();
    foreign.take(0, 5, [(3, BookingChange::FirstToken), (3, BookingChange::Ended)], false, 2, &mut out);
    assert_eq!(out, []);
    assert!(foreign.replay("m", "").all(|news| news.number > 1 << 63));
    assert_eq!((foreign.replay("m", "").count(), foreign.replay("m", "other").count()), (2, 0));
}

/// A replica: its desk, what it tells, what it heard, and how far it has read the others.
struct Replica {
    desk: Desk,
    own: OwnBookings,
    foreign: ForeignBookings,
    listeners: Vec<Option<Listener>>,
    open: Vec<u64>,
}

/// Replicas with the same workers, and all of their open bookings by worker.
struct Replicas {
    all: Vec<Replica>,
    now: Duration,
}

const WORKERS: [&str; 4] = ["a", "b", "c", "d"];

impl Replicas {
    fn new(replicas: usize, settings: &RoutingSettings) -> Self {
        let settings = Arc::new(settings.clone());
        let mut all = Self { all: Vec::new(), now: ms(0) };
        for replica in 0..replicas {
            let epoch = 1000 + replica as u64;
            all.all.push(Replica {
                desk: Desk::new(settings.clone(), 16, 1),
                own: OwnBookings::new(epoch, 64),
                foreign: ForeignBookings::new(replicas, epoch),
                listeners: vec![None; replicas],
                open: Vec::new(),
            });
            WORKERS.iter().for_each(|worker| all.worker(replica, worker, true));
        }
        all
    }

    /// What a worker reports once, and how much of any prompt it holds: no two are equal, so that no draw decides.
    fn unequal(place: usize) -> (LoadReport, u32) {
        let load = RankLoad { waiting_uncached_tokens: [11, 230, 470, 720][place], ..rank(1, 100.0) };
        let report = LoadReport { rank_count: 1, ranks: vec![load], fresh_for: ms(60_000), ..LoadReport::default() };
        (report, place as u32)
    }

    fn worker(&mut self, replica: usize, worker: &str, there: bool) {
        let place = WORKERS.iter().position(|is| *is == worker).expect("a worker");
        let (worker, ranks): (Arc<str>, Arc<[u32]>) = (worker.into(), [0].into());
        let load = Input::Load { worker: worker.clone(), report: Self::unequal(place).0 };
        let input =
            if there { Input::WorkerAdded { worker, ranks, generation: 1 } } else { Input::WorkerGone { worker } };
        self.step(replica, input);
        self.step(replica, load);
    }

    fn step(&mut self, replica: usize, input: Input) {
        let mut out = Vec::new();
        let Replica { desk, own, open, .. } = &mut self.all[replica];
        desk.step(self.now, input, &mut out);
        for output in out {
            if let Output::Released { booking, .. } = output {
                own.ended(booking);
                open.retain(|is| *is != booking);
            }
        }
    }

    fn select(&mut self, replica: usize, tokens: u64) -> String {
        let prompt = Prompt::new(1, tokens);
        let ask = Ask::of(prompt.request(0));
        let Replica { desk, own, open, .. } = &mut self.all[replica];
        let mut overlap = Overlap::default();
        overlap.reset(desk.columns().len());
        for (place, slot) in WORKERS.iter().map(|worker| desk.slot(worker)).enumerate() {
            slot.iter().for_each(|slot| overlap.credit(*slot, Self::unequal(place).1));
        }
        let decision = desk.select(self.now, &ask, &mut overlap, &mut Trace::off()).expect("workers");
        let dispatch = Dispatch {
            tokens: Some(tokens),
            cached_tokens: decision.predicted_tokens.expect("a known prompt"),
            dispatched_at: self.now,
            ..dispatch(&decision.worker)
        };
        own.dispatched(decision.booking, dispatch);
        open.push(decision.booking);
        decision.worker.to_string()
    }

    fn complete(&mut self, replica: usize, booking: u64) {
        self.step(replica, Input::Completed { booking, ending: Ending::bare(Outcome::Ok) });
    }

    fn first_token(&mut self, replica: usize, booking: u64) {
        self.all[replica].own.first_token(booking);
        self.step(replica, Input::FirstToken { booking });
    }

    /// Lets one replica hear one piece of another; whether there was any.
    fn hear(&mut self, here: usize, there: usize) -> bool {
        let most = 5;
        if self.all[here].listeners[there].is_none() {
            self.all[here].listeners[there] = Some(self.all[there].own.listen());
            self.all[here].foreign.connected(there);
        }
        let mut listener = self.all[here].listeners[there].expect("just met");
        let told = self.all[there].own.tell(&mut listener, most);
        self.all[here].listeners[there] = Some(listener);
        let piece = match told {
            Ok(Some(piece)) => piece,
            Ok(None) => return false,
            Err(Behind) => {
                self.cut(here, there);
                return true;
            }
        };
        let epoch = self.all[there].own.epoch();
        let mut news = Vec::new();
        let foreign = &mut self.all[here].foreign;
        foreign.take(there, epoch, piece.changes, piece.is_open_complete, 1 << 20, &mut news);
        self.pass_on(here, news);
        true
    }

    fn pass_on(&mut self, here: usize, news: Vec<ForeignNews>) {
        for ForeignNews { number, change, .. } in news {
            self.step(here, Input::Foreign { number, change });
        }
        let routers = self.all[here].foreign.routers();
        self.step(here, Input::Routers { routers });
    }

    fn cut(&mut self, here: usize, there: usize) {
        self.all[here].listeners[there] = None;
        self.all[here].foreign.lost(self.now, there, ms(1_000_000));
    }

    /// Lets everybody hear everything.
    fn settle(&mut self) {
        for here in 0..self.all.len() {
            for there in 0..self.all.len() {
                while self.hear(here, there) {}
            }
        }
    }

    /// Requests in flight by worker, as one replica sees them.
    fn in_flight(&self, replica: usize) -> Vec<u32> {
        let desk = &self.all[replica].desk;
        let of = |worker: &&str| desk.slot(worker).map(|slot| desk.columns().in_flight[slot as usize]);
        WORKERS.iter().map(|worker| of(worker).unwrap_or(0)).collect()
    }

    /// The same by all replicas' own books.
    fn booked(&self) -> Vec<u32> {
        let mut booked = vec![0; WORKERS.len()];
        for Replica { desk, .. } in &self.all {
            for booking in desk.bookings() {
                let worker = desk.columns().names[booking.slot as usize].as_deref();
                booked[WORKERS.iter().position(|is| Some(*is) == worker).expect("a worker")] += 1;
            }
        }
        booked
    }
}

/// The decisions of a fleet's routers, which take turns and hear each other in between, and what each saw in flight then.
fn decisions(replicas: usize, settings: &RoutingSettings) -> Vec<(String, Vec<u32>)> {
    let mut all = Replicas::new(replicas, settings);
    all.settle();
    let mut decisions = Vec::new();
    for number in 0..200 {
        all.now += ms(7);
        let at = number % replicas;
        let worker = all.select(at, 100 + 37 * (number as u64 % 13));
        all.settle();
        decisions.push((worker, all.in_flight(at)));
        if number % 3 == 2 {
            let own = |at: usize| all.all[at].desk.bookings().map(move |booking| (booking.dispatched_at, at, booking));
            let (_, at, oldest) =
                (0..replicas).flat_map(own).min_by_key(|(since, ..)| *since).expect("two of three stay");
            let oldest = oldest.number;
            all.first_token(at, oldest);
            all.complete(at, oldest);
            all.settle();
        }
    }
    decisions
}

#[test]
fn several_routers_decide_as_one() {
    for policy in [PolicyName::LeastLoad, PolicyName::ExpectedTtft] {
        let mut settings = RoutingSettings { policy, ..RoutingSettings::default() };
        settings.expected_ttft.timing = Some(Timing::CLASS_8B);
        // What was just sent is credited by the router that sent it alone: prompts are not exchanged, bookings are.
        settings.approximate.enabled = false;
        let one = decisions(1, &settings);
        let used: std::collections::BTreeSet<_> = one.iter().map(|(worker, _)| worker).collect();
        assert_eq!(used.len(), WORKERS.len(), "{policy:?}");
        assert_eq!(one, decisions(2, &settings), "{policy:?}");
        assert_eq!(one, decisions(3, &settings), "{policy:?}");
    }
}

/// Any history with cuts, slow listeners, restarts and workers that come and go: once everybody has heard everything, every replica
/// counts what all of them have booked, and none has ended a booking of its own that was not ended there.
#[test]
fn replicas_agree_once_they_have_heard_everything() {
    let mut rng = varied(0xB00C);
    for _ in 0..60 {
        let replicas = rng.random_range(2..4);
        let mut all = Replicas::new(replicas, &RoutingSettings::default());
        for _ in 0..300 {
            all.now += ms(rng.random_range(0..20));
            let (here, there) = (rng.random_range(0..replicas), rng.random_range(0..replicas));
            let worker = WORKERS[rng.random_range(0..WORKERS.len())];
            match rng.random_range(0..12) {
                0..4 if all.all[here].desk.slot("a").is_some() => drop(all.select(here, rng.random_range(1..5000))),
                4 | 5 if !all.all[here].open.is_empty() => {
                    let place = rng.random_range(0..all.all[here].open.len());
                    let booking = all.all[here].open[place];
                    all.complete(here, booking);
                }
                6 if !all.all[here].open.is_empty() => {
                    let booking = all.all[here].open[0];
                    all.first_token(here, booking);
                }
                7 if worker != "a" => all.worker(here, worker, rng.random_bool(0.5)),
                8 => all.cut(here, there),
                9 => {
                    // A late listener may lose the history.
                    let mut news = Vec::new();
                    all.all[here].foreign.tick(all.now, &mut news);
                    all.pass_on(here, news);
                }
                _ => drop(all.hear(here, there)),
            }
            for Replica { desk, open, .. } in &all.all {
                assert_eq!(desk.open(), open.len(), "nobody else ends our bookings");
            }
        }
        for here in 0..replicas {
            WORKERS
                .iter()
                .filter(|worker| all.all[here].desk.slot(worker).is_none())
                .copied()
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|worker| all.worker(here, worker, true));
        }
        all.settle();
        let booked = all.booked();
        for replica in 0..replicas {
            assert_eq!(all.in_flight(replica), booked);
            assert_eq!(all.all[replica].foreign.routers(), 1);
            let others: usize = (0..replicas).filter(|at| *at != replica).map(|at| all.all[at].open.len()).sum();
            assert_eq!((all.all[replica].desk.foreign_open(), all.all[replica].foreign.open()), (others, others));
        }
    }
}
