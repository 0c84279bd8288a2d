//! The rows of the table, then what else the price is made of, and what the book never does.

use super::ExpectedTtft;
use crate::routing::columns::Slot;
use crate::routing::hold::Prices;
use crate::routing::load::RankLoad;
use crate::routing::policy::{News, Policy};
use crate::routing::request::Request;
use crate::routing::settings::Timing;
use crate::routing::testing::{BLOCK, FRESH_FOR, Fleet, Prompt, rank, seeded, varied};
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick};
use rand::RngExt;
use std::time::Duration;

/// The timing of the table's rows: nothing but 26 µs a prompt token.
const FLAT: Timing = Timing { base: 0.0, kp: 26e-6, ka: 0.0, kd: 0.0, kc: 0.0, token_budget: 2048.0, pool_tokens: 1e6 };

/// Dark workers, a policy that hears everything, and a prompt of so many tokens in question.
struct Rig {
    fleet: Fleet,
    policy: ExpectedTtft,
    tokens: u64,
}

impl Rig {
    fn new(workers: usize, timing: Timing, tokens: u64) -> Self {
        let mut fleet = Fleet::dark(workers);
        fleet.settings.expected_ttft.timing = Some(timing);
        Self { fleet, policy: ExpectedTtft::default(), tokens }
    }

    fn request(tokens: u64, booking: u64) -> Request<'static> {
        Request { tokens: Some(tokens), block_size: BLOCK, contents: &[], token_ids: &[], booking }
    }

    fn news(&mut self, news: News<'_>) {
        self.policy.news(&self.fleet.view(&[]), self.fleet.now, news);
    }

    /// Gives a worker a prefill of which nothing is cached.
    fn dispatch(&mut self, slot: Slot, booking: u64, tokens: u64) {
        self.news(News::Dispatched { request: Self::request(tokens, booking), slot, blocks: 0 });
    }

    fn first_token(&mut self, slot: Slot, booking: u64) {
        self.news(News::FirstToken { booking, slot });
    }

    fn end(&mut self, slot: Slot, booking: u64) {
        self.news(News::Ended { booking, slot, clean: false });
    }

    fn record(&mut self, slot: Slot, load: RankLoad) {
        self.fleet.record(slot, &[load]);
        self.news(News::Recorded { slot });
    }

    fn pass(&mut self, ms: u64) {
        self.fleet.now += Duration::from_millis(ms);
    }

    fn backlog(&mut self, slot: Slot) -> f64 {
        self.policy.prices(&self.fleet.view(&[]), BLOCK).unwrap().backlog(slot)
    }

    /// The prices of the prompt, and the choice.
    fn decide(&mut self, seed: u64) -> (Vec<f64>, Pick) {
        let mut trace = Trace::on();
        let candidates = self.fleet.candidates();
        let view = self.fleet.view(&candidates);
        let request = Self::request(self.tokens, 0);
        let pick = self.policy.pick(&view, &request, &mut seeded(seed), &mut trace).unwrap();
        let scores: Vec<_> = trace.rows().iter().filter(|row| row.what == "score").map(|row| row.value).collect();
        // A held request is priced the same way.
        let prices = self.policy.prices(&view, BLOCK).unwrap();
        let held =
            candidates.iter().map(|slot| prices.score(request.tokens, view.overlap.blocks[*slot as usize], *slot));
        assert_eq!(held.collect::<Vec<_>>(), scores);
        (scores, pick)
    }

    #[track_caller]
    fn assert_scores(&mut self, expected: &[f64], within: f64) -> Slot {
        let (scores, pick) = self.decide(1);
        let near = scores.iter().zip(expected).all(|(is, expected)| (is - expected).abs() < within);
        assert!(near && scores.len() == expected.len(), "{scores:?} {expected:?}");
        assert_eq!(pick.branch, Branch::ExpectedTtft);
        pick.slot
    }
}

/// The rows' two workers: the first holds 4,096 of 8,192 tokens, and has 0.30 s of work where the row says so.
fn row(has_work: bool, beta: f64) -> Rig {
    let mut rig = Rig::new(2, FLAT, 8192);
    rig.fleet.settings.expected_ttft.beta = beta;
    rig.fleet.hold(&[4096 / BLOCK, 0]);
    if has_work {
        // 11,538 tokens at 26 µs, and 12 µs less than 0.30 s.
        rig.dispatch(0, 1, 11_538);
    }
    rig
}

#[test]
fn et1_half_a_prompt_is_half_the_work() {
    assert_eq!(row(false, 1.0).assert_scores(&[0.213, 0.426], 5e-4), 0);
}

#[test]
fn et2_a_backlog_outweighs_it() {
    assert_eq!(row(true, 1.0).assert_scores(&[0.513, 0.426], 5e-4), 1);
}

/// The row says .833, which is .30 + 5 · .1065 with a work that was rounded before; .30 + 5 · .106496 is .832.
#[test]
fn et3_unless_work_has_a_higher_price() {
    assert_eq!(row(true, 4.0).assert_scores(&[0.832, 1.065], 5e-4), 0);
}

#[test]
fn et4_an_early_first_token_shortens_the_backlog() {
    let mut rig = Rig::new(1, FLAT, 1);
    rig.dispatch(0, 1, 10_000);
    rig.dispatch(0, 2, 10_000);
    rig.pass(160);
    let before = rig.backlog(0);
    rig.first_token(0, 1);
    let after = rig.backlog(0);
    assert!((before - 0.36).abs() < 1e-9 && (before - after - 0.1).abs() < 1e-9, "{before} {after}");
}

#[test]
fn et5_a_full_pool_costs_the_time_that_others_stay() {
    // Two workers, equal but for their memory: 97,000 of 100,000 tokens are booked on the first by 10 requests, with their answers.
    let mut rig = Rig::new(2, Timing { pool_tokens: 100_000.0, ..FLAT }, 9_500);
    rig.dispatch(0, 1, 100);
    rig.pass(8000);
    rig.first_token(0, 1);
    rig.end(0, 1);
    for booking in 2..12 {
        rig.dispatch(0, booking, 9_500);
        rig.first_token(0, booking);
    }
    let own = 9_500.0 * 26e-6;
    assert_eq!(rig.assert_scores(&[2.0 * own + 0.8, 2.0 * own], 1e-9), 1);
    let (_, pick) = rig.decide(1);
    assert_eq!(pick.wait, Some(0.0));
}

#[test]
fn decoding_requests_make_a_prefill_longer_and_its_clock_too() {
    let timing = Timing { base: 0.002, kd: 1e-3, kc: 1e-6, ..FLAT };
    let mut rig = Rig::new(1, timing, 1000);
    for booking in 1..=3 {
        rig.dispatch(0, booking, 2000);
        rig.first_token(0, booking);
    }
    let inflation = 1.0 + (0.002 + 3.0 * 1e-3 + 6000.0 * 1e-6) / (26e-6 * 2048.0);
    let own = 0.028;
    rig.assert_scores(&[own * (inflation + 1.0)], 1e-9);
    rig.dispatch(0, 4, 1000);
    rig.pass(10);
    rig.assert_scores(&[own * inflation - 0.01 + own * (inflation + 1.0)], 1e-9);
    (1..=4).for_each(|booking| rig.end(0, booking));
    rig.pass(1);
    rig.assert_scores(&[own * (2.0 + 0.002 / (26e-6 * 2048.0))], 1e-9);
}

#[test]
fn reported_work_is_believed_with_what_came_after_it() {
    let mut rig = Rig::new(2, FLAT, 1000);
    rig.fleet.settings.expected_ttft.use_reported_work = true;
    rig.dispatch(0, 1, 10_000);
    rig.pass(50);
    let load = RankLoad { waiting: 2, waiting_uncached_tokens: 8000, prefill_remaining_tokens: 2000, ..rank(1, 0.0) };
    rig.record(0, load);
    let own = 0.026;
    rig.assert_scores(&[0.26 + 2.0 * own, 2.0 * own], 1e-9);
    rig.dispatch(0, 2, 1000);
    rig.pass(100);
    rig.assert_scores(&[0.16 + own + 2.0 * own, 2.0 * own], 1e-9);
    rig.fleet.routers = 3;
    rig.assert_scores(&[0.16 + 3.0 * own + 2.0 * own, 2.0 * own], 1e-9);
    rig.pass(1000);
    rig.assert_scores(&[3.0 * own + 2.0 * own, 2.0 * own], 1e-9);
    rig.first_token(0, 2);
    rig.assert_scores(&[2.0 * own, 2.0 * own], 1e-9);
}

#[test]
fn waiting_requests_without_tokens_count_as_the_mean() {
    let mut rig = Rig::new(1, FLAT, 1000);
    rig.fleet.settings.expected_ttft.use_reported_work = true;
    rig.record(0, RankLoad { waiting: 3, ..rank(1, 0.0) });
    rig.assert_scores(&[3.0 * 1024.0 * 26e-6 + 2.0 * 0.026], 1e-9);
}

#[test]
fn a_dark_worker_has_its_own_bookings_only() {
    let mut rig = Rig::new(1, FLAT, 1000);
    rig.fleet.settings.expected_ttft.use_reported_work = true;
    rig.record(0, RankLoad { waiting: 1, waiting_uncached_tokens: 1_000_000, ..rank(1, 0.0) });
    rig.fleet.now += FRESH_FOR;
    rig.assert_scores(&[11.0 + 0.052], 1e-9);
    rig.pass(1);
    rig.assert_scores(&[0.052], 1e-9);
    rig.dispatch(0, 1, 2000);
    rig.assert_scores(&[0.052 + 0.052], 1e-9);
}

#[test]
fn without_calibration_the_expected_wait_decides() {
    for timing in [None, Some(Timing { kp: 0.0, ..FLAT }), Some(Timing { base: f64::NAN, ..FLAT })] {
        let mut fleet = Fleet::of(&[rank(1, 100.0), rank(1, 100.0)]);
        fleet.settings.expected_ttft.timing = timing;
        fleet.columns.dispatched(fleet.now, 0, 1000, &fleet.settings.load);
        let pick = fleet.pick(&mut ExpectedTtft::default(), &Rig::request(1000, 1), &mut seeded(3)).unwrap();
        assert_eq!((pick.slot, pick.branch, pick.wait), (1, Branch::MinWait, Some(0.0)), "{timing:?}");
    }
}

#[test]
fn a_calibration_that_comes_later_prices_what_it_sees() {
    let mut rig = Rig::new(2, FLAT, 1000);
    rig.fleet.settings.expected_ttft.timing = None;
    rig.dispatch(0, 1, 5000);
    rig.first_token(0, 1);
    rig.dispatch(0, 2, 5000);
    rig.fleet.settings.expected_ttft.timing = Some(Timing { kd: 0.0532480, ..FLAT });
    rig.assert_scores(&[0.026 * 3.0, 0.052], 1e-9);
    rig.fleet.settings.expected_ttft.timing = Some(FLAT);
    rig.assert_scores(&[0.052, 0.052], 1e-9);
}

#[test]
fn routers_that_do_not_tell_draw_among_the_near() {
    let mut rig = Rig::new(3, FLAT, 10_000);
    rig.dispatch(1, 1, 1_900);
    rig.dispatch(2, 2, 2_100);
    let picks = |rig: &mut Rig| {
        let mut picks = [0; 3];
        (0..300).for_each(|seed| picks[rig.decide(seed).1.slot as usize] += 1);
        picks
    };
    assert_eq!(picks(&mut rig), [300, 0, 0]);
    rig.fleet.routers = 2;
    // 0.52 s is the least: 0.5694 is within a tenth of it, 0.5746 is not.
    let [first, second, third] = picks(&mut rig);
    assert!((100..=200).contains(&first) && second == 300 - first && third == 0, "{first} {second} {third}");
}

#[test]
fn a_worker_that_is_gone_leaves_nothing_in_its_slot() {
    let mut rig = Rig::new(1, FLAT, 1000);
    (1..5).for_each(|booking| rig.dispatch(0, booking, 1000));
    rig.first_token(0, 1);
    rig.news(News::Emptied { slot: 0, gone: false });
    assert!(rig.backlog(0) > 0.05, "an empty cache is still a busy worker");
    rig.news(News::Emptied { slot: 0, gone: true });
    assert_eq!((rig.backlog(0), rig.policy.book.totals()), (0.0, (0, 0, 0, true)));
    (1..5).for_each(|booking| rig.end(0, booking));
    rig.assert_scores(&[0.052], 1e-9);
}

#[test]
fn a_prompt_of_which_nothing_is_known_has_the_mean() {
    let mut rig = Rig::new(1, FLAT, 1000);
    let prompt = Prompt::unknown();
    rig.news(News::Dispatched { request: prompt.request(1), slot: 0, blocks: 3 });
    let expected = (1024.0 - 48.0) * 26e-6;
    assert!((rig.backlog(0) - expected).abs() < 1e-9);
}

#[test]
fn a_warm_decision_makes_no_room() {
    let mut rig = Rig::new(64, Timing::CLASS_8B, 5000);
    rig.decide(1);
    let room = rig.policy.scores.capacity();
    (0..100).for_each(|seed| drop(rig.decide(seed)));
    assert_eq!(rig.policy.scores.capacity(), room);
}

/// Any news in any order: prices are numbers, backlogs never negative, sums those of the open bookings, and nothing stays.
#[test]
fn bookings_are_conserved_and_clocks_never_negative() {
    let mut rng = varied(0x5EC0);
    for round in 0..40 {
        let workers = rng.random_range(1..6);
        let mut rig = Rig::new(workers, Timing::CLASS_8B, 4000);
        rig.fleet.settings.expected_ttft.use_reported_work = round % 2 == 0;
        let (mut open, mut next) = (Vec::new(), 1);
        for _ in 0..400 {
            rig.pass(rng.random_range(0..200));
            let any = rng.random_range(0..workers as Slot);
            match rng.random_range(0..8) {
                0..3 => {
                    rig.dispatch(any, next, rng.random_range(0..20_000));
                    open.push((any, next));
                    next += 1;
                }
                3 | 4 if !open.is_empty() => {
                    let (slot, booking) = open[rng.random_range(0..open.len())];
                    rig.first_token(slot, booking);
                }
                5 if !open.is_empty() => {
                    let (slot, booking) = open.swap_remove(rng.random_range(0..open.len()));
                    rig.end(slot, booking);
                }
                6 => rig.record(any, RankLoad { waiting: 1, max_total_tokens: 20_000, ..rank(1, 1.0) }),
                // News of bookings that are not there, or are there already.
                _ => {
                    rig.first_token(any, next + 7);
                    rig.end(any, next + 7);
                    if let Some((slot, booking)) = open.last().copied() {
                        rig.dispatch(slot, booking, 1);
                    }
                }
            }
            let (booked, outstanding, decodes, exact) = rig.policy.book.totals();
            assert_eq!((booked, outstanding + decodes as usize, exact), (open.len(), open.len(), true));
            assert!((0..workers as Slot).all(|slot| rig.backlog(slot) >= 0.0));
            let (scores, pick) = rig.decide(1);
            assert!(scores.iter().all(|score| score.is_finite() && *score > 0.0), "{scores:?}");
            assert!(pick.wait.is_some_and(|wait| wait >= 0.0));
        }
        for (slot, booking) in open {
            rig.end(slot, booking);
        }
        assert_eq!(rig.policy.book.totals(), (0, 0, 0, true));
        rig.fleet.settings.expected_ttft.use_reported_work = false;
        assert!((0..workers as Slot).all(|slot| rig.backlog(slot) == 0.0));
    }
}
