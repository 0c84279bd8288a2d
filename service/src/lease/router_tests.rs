//! What a router does next, step by step.

use super::*;
use crate::lease::Reason;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const KEY: LeaseKey = LeaseKey { lease_id: 7, fence: 9 };

fn lease() -> Lease {
    Lease { key: KEY, ttl: ms(5_000), max_hold: ms(60_000) }
}

struct Run(Seeder, Vec<Wish>);

impl Run {
    fn begin() -> Self {
        let mut out = Vec::new();
        let seeder = Seeder::begin(ms(0), &LeaseSettings::default(), &mut out);
        assert_eq!(out, [Wish::Acquire]);
        Self(seeder, out)
    }

    fn hear(&mut self, at: u64, heard: Heard) -> &[Wish] {
        self.1.clear();
        self.0.step(ms(at), heard, &mut self.1);
        &self.1
    }

    /// As far as the dispatch.
    fn streaming() -> Self {
        let mut run = Self::begin();
        assert_eq!(run.hear(100, Heard::Acquired(Ok(lease()))), [Wish::Recheck]);
        assert_eq!(run.hear(110, Heard::Rechecked(true)), [Wish::Renew { key: KEY, dispatching: true }]);
        assert_eq!(run.hear(200, Heard::Renewed(Some(ms(5_000)))), [Wish::Dispatch { fence: 9 }]);
        assert_eq!(run.0.end(), ms(5_110), "counted from before the question");
        run
    }
}

fn over(reason: &'static str) -> [Wish; 2] {
    [Wish::Abort { key: KEY, reason }, Wish::Finished(Outcome::Given(reason))]
}

#[test]
fn a_request_is_seeded_renewed_and_committed() {
    let mut run = Run::streaming();
    assert_eq!(run.0.next_tick(), Some(ms(1_200)));
    assert_eq!(run.hear(1_200, Heard::Tick), [Wish::Renew { key: KEY, dispatching: false }]);
    assert_eq!(run.hear(1_300, Heard::Tick), [], "one renewal at a time");
    assert_eq!(run.hear(1_350, Heard::Renewed(Some(ms(5_000)))), []);
    assert_eq!(run.0.end(), ms(6_200));
    let end = EndProof { clean: true, ..EndProof::default() };
    let commit = Wish::Commit { key: KEY, end: Some(end.clone()) };
    assert_eq!(run.hear(2_000, Heard::Ended(End::Usage(end))), [commit]);
    assert_eq!(run.hear(2_100, Heard::Committed(Answer::Done)), [Wish::Finished(Outcome::Seeded)]);
    assert!(run.0.is_over() && run.0.next_tick().is_none());
}

#[test]
fn without_usage_the_index_is_asked_until_it_shows_the_blocks() {
    let mut run = Run::streaming();
    let commit = Wish::Commit { key: KEY, end: None };
    assert_eq!(run.hear(500, Heard::Ended(End::Clean)), std::slice::from_ref(&commit));
    assert_eq!(run.hear(600, Heard::Committed(Answer::Rejected)), []);
    let again = [Wish::Renew { key: KEY, dispatching: false }, commit];
    assert_eq!(run.hear(1_200, Heard::Tick), again);
    assert_eq!(run.hear(1_300, Heard::Committed(Answer::Done)), [Wish::Finished(Outcome::Seeded)]);
}

/// SL6: no answer, no expansion.
#[test]
fn sl6_a_store_that_does_not_answer() {
    assert_eq!(Run::begin().hear(1_000, Heard::Unanswered), [Wish::Finished(Outcome::NotGranted)]);
    let mut run = Run::begin();
    run.hear(100, Heard::Acquired(Ok(lease())));
    run.hear(110, Heard::Rechecked(true));
    assert_eq!(run.hear(1_110, Heard::Unanswered), over("announcement_unanswered"), "nothing is dispatched");
    let mut run = Run::streaming();
    run.hear(1_200, Heard::Tick);
    assert_eq!(run.hear(2_200, Heard::Unanswered), []);
    assert_eq!(run.hear(2_200, Heard::Tick), [Wish::Renew { key: KEY, dispatching: false }], "and again");
    run.hear(3_200, Heard::Unanswered);
    let mut cut = vec![Wish::Cut];
    cut.extend(over("expired"));
    assert_eq!(run.hear(5_110, Heard::Tick), cut, "before the store grants another");
}

#[test]
fn every_doubt_ends_without_a_dispatch() {
    let refused = Refused { reason: Reason::Held, retry_after: ms(0), owner_revision: 0 };
    assert_eq!(Run::begin().hear(1, Heard::Acquired(Err(refused))), [Wish::Finished(Outcome::NotGranted)]);
    let mut run = Run::begin();
    run.hear(1, Heard::Acquired(Ok(lease())));
    assert_eq!(run.hear(2, Heard::Rechecked(false)), over("conditions_changed"));
    assert_eq!(Run::begin().hear(5_000, Heard::Acquired(Ok(lease()))), over("answered_too_late"));
    let mut run = Run::begin();
    run.hear(1, Heard::Acquired(Ok(lease())));
    run.hear(2, Heard::Rechecked(true));
    assert_eq!(run.hear(3, Heard::Renewed(None)), over("lost"));
    assert_eq!(run.hear(4, Heard::Renewed(Some(ms(5_000)))), [], "it is over");
}

#[test]
fn a_lease_that_comes_after_it_was_given_up_is_given_back() {
    let mut run = Run::begin();
    run.hear(800, Heard::Unanswered);
    let back = Wish::Abort { key: KEY, reason: "answered_too_late" };
    assert_eq!(run.hear(900, Heard::Acquired(Ok(lease()))), [back]);
    assert_eq!(run.hear(901, Heard::Acquired(Ok(lease()))), [], "once");
}

/// SL4, the router's half: cut, error frame or cancel.
#[test]
fn sl4_a_failed_stream_is_aborted() {
    assert_eq!(Run::streaming().hear(900, Heard::Ended(End::Failed)), over("request_failed"));
    let mut lost = vec![Wish::Cut];
    lost.extend(over("lost"));
    let mut run = Run::streaming();
    run.hear(1_200, Heard::Tick);
    assert_eq!(run.hear(1_250, Heard::Renewed(None)), lost);
}

#[test]
fn a_router_seeds_one_request_of_a_partition_at_a_time() {
    let mut permits = Permits::default();
    assert!(permits.take("a") && !permits.take("a") && permits.take("b"));
    permits.give(&"a");
    assert!(permits.take("a"));
}
