//! The desk's own rules, one by one.

use super::*;
use crate::routing::{Branch, LoadSource, Malformed, PolicyName, RankLoad, Request, Trace};
use kvatlas_index::ContentHash;

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn added(worker: &str, ranks: &[u32]) -> Input {
    Input::WorkerAdded { worker: worker.into(), ranks: ranks.into(), generation: 7 }
}

/// Workers in the order of their slots.
fn in_turn() -> RoutingSettings {
    RoutingSettings { policy: PolicyName::RoundRobin, ..RoutingSettings::default() }
}

fn desk(settings: RoutingSettings, workers: &[&str]) -> Desk {
    let mut desk = Desk::new(Arc::new(settings), 16, 1);
    for worker in workers {
        desk.step(ms(0), added(worker, &[0]), &mut Vec::new());
    }
    desk
}

pub(super) fn ask<'a>(contents: &'a [ContentHash]) -> Ask<'a> {
    let tokens = Some(contents.len() as u64 * 16);
    Ask::of(Request { tokens, block_size: 16, contents, token_ids: &[], booking: 0 })
}

fn select(desk: &mut Desk, now: Duration, ask: &Ask<'_>) -> Result<Decision, Refusal> {
    desk.select(now, ask, &mut Overlap::default(), &mut Trace::off())
}

fn step(desk: &mut Desk, now: Duration, input: Input) -> Vec<Output> {
    let mut out = Vec::new();
    desk.step(now, input, &mut out);
    out
}

pub(super) fn report(waiting: i64, usage: f64) -> LoadReport {
    let rank = RankLoad { waiting, token_usage: usage, ..RankLoad::default() };
    LoadReport { rank_count: 1, ranks: vec![rank], source: LoadSource::Pushed, fresh_for: ms(10_000) }
}

fn completed(booking: u64, cached_tokens: Option<u64>) -> Input {
    Input::Completed { booking, ending: Ending { cached_tokens, ..Ending::bare(Outcome::Ok) } }
}

#[test]
fn a_selection_books_at_once_and_its_end_releases_once() {
    let mut desk = desk(in_turn(), &["a", "b"]);
    let first = select(&mut desk, ms(1), &ask(&[])).unwrap();
    let second = select(&mut desk, ms(1), &ask(&[])).unwrap();
    assert_ne!(first.worker, second.worker, "the second sees the first");
    assert_eq!((first.booking, second.booking, desk.open()), (1, 2, 2));
    assert_eq!((&*first.worker, first.generation, first.rank), ("a", 7, 0));
    let out = step(&mut desk, ms(2), completed(1, None));
    assert!(matches!(&out[..], [Output::Released { booking: 1, by: ReleasedBy::Completion, .. }]), "{out:?}");
    assert_eq!(step(&mut desk, ms(3), Input::Abandoned { booking: 1 }), []);
    assert_eq!(step(&mut desk, ms(3), completed(1, None)), []);
    assert_eq!((desk.columns().in_flight.as_slice(), desk.open()), ([0, 1].as_slice(), 1));
    assert_eq!((desk.counters().released, desk.counters().unknown_bookings), ([1, 0, 0, 0], 1));
    assert_eq!([0, 1, 2, 3].map(|number| desk.was_made(number)), [false, true, true, false]);
}

#[test]
fn silence_releases_and_a_sign_of_life_puts_it_off() {
    let mut settings = RoutingSettings::default();
    settings.bookings.ttl = ms(100);
    let mut desk = desk(settings, &["a"]);
    let (quiet, alive) = (select(&mut desk, ms(0), &ask(&[])).unwrap(), select(&mut desk, ms(10), &ask(&[])).unwrap());
    assert_eq!(desk.next_tick(), Some(ms(100)));
    step(&mut desk, ms(90), Input::FirstToken { booking: alive.booking });
    assert_eq!(step(&mut desk, ms(99), Input::Tick), []);
    let out = step(&mut desk, ms(100), Input::Tick);
    assert!(matches!(&out[..], [Output::Released { booking, by: ReleasedBy::Ttl, .. }] if *booking == quiet.booking));
    assert_eq!((desk.next_tick(), desk.columns().in_flight[0]), (Some(ms(190)), 1));
    assert_eq!(step(&mut desk, ms(190), Input::Tick).len(), 1);
    assert_eq!((desk.next_tick(), desk.counters().released), (None, [0, 0, 2, 0]));
}

#[test]
fn a_worker_that_goes_takes_its_bookings_along_and_its_slot_is_clean() {
    let mut desk = desk(in_turn(), &["a", "b"]);
    for _ in 0..4 {
        select(&mut desk, ms(0), &ask(&[])).unwrap();
    }
    let out = step(&mut desk, ms(1), Input::WorkerGone { worker: "a".into() });
    let gone = |output: &&Output| matches!(output, Output::Released { worker, by: ReleasedBy::WorkerGone, .. } if **worker == *"a");
    assert_eq!((out.iter().filter(gone).count(), out.len(), desk.open()), (2, 2, 2));
    step(&mut desk, ms(2), added("c", &[0]));
    assert_eq!((desk.slot("c"), desk.slot("a"), desk.columns().in_flight[0]), (Some(0), None, 0));
    step(&mut desk, ms(3), completed(1, None));
    assert_eq!(desk.columns().in_flight.as_slice(), [0, 2], "an end that comes late is not the new worker's");
    // The same id again is another worker.
    let out = step(&mut desk, ms(4), added("b", &[0]));
    assert_eq!((out.len(), desk.open(), desk.columns().in_flight.as_slice()), (2, 0, [0, 0].as_slice()));
}

#[test]
fn a_full_book_chooses_without_booking_and_says_so() {
    let mut settings = RoutingSettings::default();
    settings.bookings.bookings_max = 1;
    let mut desk = desk(settings, &["a"]);
    assert!(!select(&mut desk, ms(0), &ask(&[])).unwrap().book_full);
    let decision = select(&mut desk, ms(0), &ask(&[])).unwrap();
    assert_eq!((decision.booking, decision.book_full, desk.counters().book_full), (0, true, 1));
    let dry = select(&mut desk, ms(0), &Ask { book: false, ..ask(&[]) }).unwrap();
    assert_eq!((dry.booking, dry.book_full, desk.open()), (0, false, 1), "nothing was asked to be booked");
    step(&mut desk, ms(1), completed(1, None));
    let crowded = Ask { others_open: 1, ..ask(&[]) };
    assert!(select(&mut desk, ms(1), &crowded).unwrap().book_full, "other desks fill the same book");
}

#[test]
fn who_is_not_ready_is_never_chosen_and_lesser_reasons_give_way() {
    let mut settings = RoutingSettings::default();
    let mut desk = desk(settings.clone(), &["a", "b", "c"]);
    step(&mut desk, ms(0), Input::Ready { worker: "a".into(), ready: false });
    step(&mut desk, ms(0), Input::Vetoed { worker: "b".into(), vetoed: true });
    step(&mut desk, ms(0), Input::Load { worker: "c".into(), report: report(8, 0.0) });
    let decision = select(&mut desk, ms(1), &ask(&[])).unwrap();
    assert_eq!((&*decision.worker, decision.gates.all_overloaded), ("c", true));
    step(&mut desk, ms(0), Input::Ready { worker: "c".into(), ready: false });
    let decision = select(&mut desk, ms(1), &ask(&[])).unwrap();
    assert_eq!((&*decision.worker, decision.gates.all_vetoed), ("b", true));
    step(&mut desk, ms(0), Input::Ready { worker: "b".into(), ready: false });
    assert_eq!(select(&mut desk, ms(1), &ask(&[])), Err(Refusal::NoneReady));
    step(&mut desk, ms(0), Input::Ready { worker: "c".into(), ready: true });
    settings.overload.shed = true;
    desk.configure(Arc::new(settings));
    assert_eq!(select(&mut desk, ms(1), &ask(&[])), Err(Refusal::AllOverloaded));
    assert_eq!((desk.counters().refused, desk.counters().all_vetoed), ([1, 1, 0], 1));
    step(&mut desk, ms(2), Input::Load { worker: "c".into(), report: report(7, 0.79) });
    assert_eq!(&*select(&mut desk, ms(2), &ask(&[])).unwrap().worker, "c", "over until the next record");
}

#[test]
fn only_those_that_were_named_are_chosen() {
    let mut desk = desk(RoutingSettings::default(), &["a", "b", "c"]);
    for _ in 0..3 {
        let only = Ask { only: Some(&[1]), ..ask(&[]) };
        assert_eq!(&*select(&mut desk, ms(0), &only).unwrap().worker, "b");
    }
    let nobody = Ask { only: Some(&[]), ..ask(&[]) };
    assert_eq!(select(&mut desk, ms(0), &nobody), Err(Refusal::NoneReady));
    let beyond = Ask { only: Some(&[9]), ..ask(&[]) };
    assert_eq!(select(&mut desk, ms(0), &beyond), Err(Refusal::NoneReady), "a slot that nobody has");
}

#[test]
fn the_rank_is_the_deepest_then_the_least_loaded_and_never_another_than_asked() {
    let mut desk = desk(RoutingSettings::default(), &[]);
    step(&mut desk, ms(0), added("a", &[2, 0, 1]));
    let mut ranks = Vec::new();
    for _ in 0..4 {
        ranks.push(select(&mut desk, ms(0), &ask(&[])).unwrap().rank);
    }
    assert_eq!(ranks, [0, 1, 2, 0]);
    let deepest = Ask { deepest_ranks: &[0], ..ask(&[]) };
    assert_eq!(select(&mut desk, ms(0), &deepest).unwrap().rank, 0);
    let unknown = Ask { deepest_ranks: &[9], ..ask(&[]) };
    assert_eq!(select(&mut desk, ms(0), &unknown).unwrap().rank, 1);
    let asked = Ask { only_ranks: &[(0, 2)], deepest_ranks: &[0], ..ask(&[]) };
    assert_eq!([2; 3].map(|_| select(&mut desk, ms(0), &asked).unwrap().rank), [2; 3]);
    assert!(desk.workers.in_flight(0).eq([(0, 3), (1, 2), (2, 4)]));
}

#[test]
fn a_malformed_load_darkens_its_worker_and_is_named() {
    let mut desk = desk(RoutingSettings::default(), &["a"]);
    step(&mut desk, ms(0), Input::Load { worker: "a".into(), report: report(9, 0.0) });
    assert!(desk.columns().status[0].has(Status::OVERLOADED) && desk.columns().fresh_until[0] > 0);
    let out = step(&mut desk, ms(0), Input::Load { worker: "a".into(), report: report(-1, 0.0) });
    assert_eq!(out, [Output::LoadRefused { worker: "a".into(), field: Malformed::Waiting }]);
    assert_eq!((desk.columns().status[0], desk.columns().fresh_until[0]), (Status::default(), 0));
    assert_eq!(step(&mut desk, ms(0), Input::Load { worker: "x".into(), report: report(-1, 0.0) }), []);
}

#[test]
fn what_was_predicted_is_compared_with_what_the_engine_found() {
    let mut desk = desk(RoutingSettings::default(), &["a"]);
    let contents: Vec<_> = (1..=8).map(ContentHash).collect();
    let mut overlap = Overlap { blocks: vec![6], ..Overlap::default() };
    let decision = desk.select(ms(0), &ask(&contents), &mut overlap, &mut Trace::off()).unwrap();
    assert_eq!((decision.matched_blocks, decision.predicted_tokens), (6, Some(96)));
    step(&mut desk, ms(3), completed(decision.booking, Some(64)));
    let cached = desk.counters().cached;
    assert_eq!((cached.predicted, cached.actual, cached.missing, cached.differences[2]), (96, 64, 32, 1));
    // Nothing is known of a prompt: nothing was predicted.
    let nothing = Ask { request: Request { tokens: None, ..ask(&[]).request }, ..ask(&[]) };
    let decision = select(&mut desk, ms(4), &nothing).unwrap();
    assert_eq!(decision.predicted_tokens, None);
    step(&mut desk, ms(5), completed(decision.booking, Some(64)));
    assert_eq!(desk.counters().cached.requests(), 1);
}

#[test]
fn an_end_proves_something_only_with_reason_token_and_matching_usage() {
    let mut desk = desk(RoutingSettings::default(), &["a"]);
    let contents = [ContentHash(1); 4];
    let number = select(&mut desk, ms(0), &ask(&contents)).unwrap().booking;
    let booking = *desk.booking(number).unwrap();
    let whole = Ending { finished: true, prompt_tokens: Some(80), output_tokens: Some(1), ..Ending::bare(Outcome::Ok) };
    assert!(whole.is_proof(&booking, 16), "64 tokens, give or take a block");
    for broken in [
        Ending { outcome: Outcome::Cancelled, ..whole },
        Ending { finished: false, ..whole },
        Ending { output_tokens: Some(0), ..whole },
        Ending { output_tokens: None, ..whole },
        Ending { prompt_tokens: None, ..whole },
        Ending { prompt_tokens: Some(81), ..whole },
    ] {
        assert!(!broken.is_proof(&booking, 16), "{broken:?}");
    }
    assert!(!whole.is_proof(&Booking { prompt_tokens: None, ..booking }, 16));
}

#[test]
fn policies_by_request_see_the_same_bookings() {
    let mut desk = desk(RoutingSettings::default(), &["a", "b"]);
    let mut picked = Vec::new();
    for policy in PolicyName::ALL {
        let ask = Ask { policy: Some(policy), ..ask(&[]) };
        let decision = select(&mut desk, ms(0), &ask).unwrap();
        assert_eq!(decision.policy, policy);
        picked.push(decision.booking);
    }
    assert_eq!(desk.open(), picked.len());
    assert_eq!(desk.columns().in_flight.iter().sum::<u32>() as usize, picked.len());
}

#[test]
fn misses_warm_a_new_worker_where_the_policy_prefers_holders() {
    let mut settings = RoutingSettings::default();
    settings.warmup.share = 1.0;
    let mut desk = desk(settings, &["full", "new"]);
    step(&mut desk, ms(0), Input::Blocks { worker: "full".into(), blocks: 4096 });
    for (policy, branch) in [(PolicyName::Balanced, Branch::Warmup), (PolicyName::LeastLoad, Branch::MinWait)] {
        let decision = select(&mut desk, ms(0), &Ask { policy: Some(policy), ..ask(&[]) }).unwrap();
        assert_eq!(decision.pick.branch, branch);
        assert!(branch != Branch::Warmup || &*decision.worker == "new");
    }
}

#[test]
fn a_worker_is_watched_only_for_callers_who_tell_of_first_tokens() {
    let mut desk = desk(RoutingSettings::default(), &["a"]);
    let contents: Vec<_> = (1..=8).map(ContentHash).collect();
    let held = || Overlap { blocks: vec![6], ..Overlap::default() };
    let first = desk.select(ms(0), &ask(&contents), &mut held(), &mut Trace::off()).unwrap();
    assert_eq!(first.watched_prefill, None, "nobody told of a first token yet");
    let out = step(&mut desk, ms(1), Input::FirstToken { booking: first.booking });
    assert_eq!(out, [Output::Progress { worker: "a".into(), prefill_done: ms(0) }]);
    let out = step(&mut desk, ms(2), completed(first.booking, None));
    assert!(matches!(&out[..], [Output::Released { prefill_left: None, .. }]), "{out:?}");
    // 32 tokens are left to compute, at 8000 a second; what was just sent is no part of what events say of the second.
    let other: Vec<_> = (11..=18).map(ContentHash).collect();
    let mut ask_watched = || desk.select(ms(3), &ask(&other), &mut held(), &mut Trace::off()).unwrap();
    let (second, third) = (ask_watched(), ask_watched());
    assert_eq!(second.watched_prefill, Some(ms(4)));
    let told = |prefill_done| Output::Progress { worker: "a".into(), prefill_done };
    assert_eq!(step(&mut desk, ms(4), Input::FirstToken { booking: second.booking }), [told(ms(4))]);
    assert_eq!(step(&mut desk, ms(5), Input::FirstToken { booking: second.booking }), [told(ms(0))], "shown before");
    // The third was credited with the whole of what was sent just before.
    assert_eq!((third.matched_blocks, third.predicted, third.watched_prefill), (8, true, Some(ms(0))));
    let out = step(&mut desk, ms(6), completed(second.booking, None));
    assert!(
        matches!(&out[..], [Output::Progress { .. }, Output::Released { prefill_left: Some(left), .. }] if left.is_zero())
    );
    let out = step(&mut desk, ms(6), Input::Abandoned { booking: third.booking });
    assert!(
        matches!(&out[..], [Output::Released { prefill_left: Some(_), .. }]),
        "a stream's end shows nothing: {out:?}"
    );
}
