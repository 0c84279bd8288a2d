//! The expected wait: seconds until a request's turn at each candidate, from the tokens that queue there, the rate at which the
//! worker goes through them, and the pressure on its KV pool. And the draw among those who are as good as the least.
//!
//! A worker of which nothing is known is priced by this router's own requests there, at the speed of the others: as if its record
//! said that just these wait, of the mean size, and nothing else. So it neither wins nor loses by being dark. Where nothing is known of
//! anybody, the fewest requests decide.

use super::columns::Slot;
use super::trace::Trace;
use super::view::{Branch, Pick, View};
use rand::{Rng, RngExt};

/// The expected waits of one comparison, in the order of its slots. Kept by a policy, so that a decision allocates nothing once it
/// was as long as the fleet.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    prices: Vec<f64>,
    in_seconds: bool,
}

impl Waits {
    /// Prices these workers, compared with each other and nobody else: the rate of one that reports none is the mean of theirs.
    pub fn price(&mut self, view: &View<'_>, slots: &[Slot]) {
        let loads = Loads::of(view);
        let nominal = loads.nominal(slots, view.settings.load.throughput());
        self.in_seconds = nominal.is_some();
        self.prices.clear();
        match nominal {
            Some(nominal) => self.prices.extend(slots.iter().map(|slot| loads.wait(*slot as usize, nominal))),
            None => self.prices.extend(slots.iter().map(|slot| f64::from(loads.in_flight[*slot as usize]))),
        }
    }

    /// The prices: seconds, or requests in flight where nothing is known of anybody. Lower is better.
    pub fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// Seconds to wait at one of the workers, by its place in the comparison; `None` where nothing is known of anybody.
    pub fn seconds(&self, place: usize) -> Option<f64> {
        self.prices.get(place).copied().filter(|_| self.in_seconds)
    }

    /// Whether the prices are seconds.
    pub fn in_seconds(&self) -> bool {
        self.in_seconds
    }

    /// The place of the least price, drawn among all that are as good; `None` where nobody was compared.
    pub fn least(&self, view: &View<'_>, rng: &mut dyn Rng) -> Option<usize> {
        least(&self.prices, |least| tie_width(view, least), rng)
    }

    /// Prices these workers and chooses the least. `None` where there are none.
    pub fn choose(
        &mut self,
        view: &View<'_>,
        slots: &[Slot],
        branch: Branch,
        rng: &mut dyn Rng,
        trace: &mut Trace,
    ) -> Option<Pick> {
        self.price(view, slots);
        self.note(slots, trace);
        let place = self.least(view, rng)?;
        Some(Pick { wait: self.seconds(place), ..Pick::new(slots[place], branch) })
    }

    /// Notes the prices as evidence.
    pub fn note(&self, slots: &[Slot], trace: &mut Trace) {
        if trace.is_on() {
            let what = if self.in_seconds { "wait" } else { "in_flight" };
            slots.iter().zip(&self.prices).for_each(|(slot, price)| trace.note(*slot, what, *price));
        }
    }
}

/// How far from the least price, in its unit, candidates are as good as the least: one microsecond by default. Routers that do not
/// tell each other of their dispatches would all choose the same worker; they draw among all within a share of the least.
pub fn tie_width(view: &View<'_>, least: f64) -> f64 {
    let tie = view.settings.tie_seconds;
    if view.routers > 1 { tie.max(view.settings.near_tie * least.abs()) } else { tie }
}

/// The place of the least value, drawn among all within a width of it, which depends on the least. A generator is only asked where
/// there are several. `None` for no values; what is no number is never chosen while there is one.
pub fn least(values: &[f64], width: impl FnOnce(f64) -> f64, rng: &mut dyn Rng) -> Option<usize> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = least + width(least);
    let tied = values.iter().filter(|value| **value <= most).count();
    match tied {
        0 if values.is_empty() => None,
        0 => Some(rng.random_range(0..values.len())),
        1 => values.iter().position(|value| *value <= most),
        _ => {
            let drawn = rng.random_range(0..tied);
            let mut places = values.iter().enumerate().filter(|(_, value)| **value <= most);
            places.nth(drawn).map(|(place, _)| place)
        }
    }
}

/// The columns that a wait is made of, all of one length.
struct Loads<'a> {
    now: u64,
    routers: f64,
    mean_prefill: f64,
    fresh_until: &'a [u64],
    queued: &'a [f64],
    unrecorded: &'a [f64],
    rate: &'a [f64],
    pressure: &'a [f64],
    in_flight: &'a [u32],
}

impl<'a> Loads<'a> {
    fn of(view: &View<'a>) -> Self {
        let columns = view.columns;
        let slots = columns.len();
        Self {
            now: view.nanos(),
            routers: f64::from(view.routers.max(1)),
            mean_prefill: view.settings.load.mean_prefill(),
            fresh_until: &columns.fresh_until[..slots],
            queued: &columns.queued[..slots],
            unrecorded: &columns.unrecorded[..slots],
            rate: &columns.rate[..slots],
            pressure: &columns.pressure[..slots],
            in_flight: &columns.in_flight[..slots],
        }
    }

    /// The mean rate of those that report one, or `throughput`; `None` where nothing is known of anybody.
    fn nominal(&self, slots: &[Slot], throughput: f64) -> Option<f64> {
        let (mut sum, mut reporting, mut known) = (0.0, 0_u32, false);
        for slot in slots {
            let at = *slot as usize;
            if self.fresh_until[at] >= self.now {
                known = true;
                sum += self.rate[at];
                reporting += u32::from(self.rate[at] > 0.0);
            }
        }
        known.then(|| if reporting > 0 { sum / f64::from(reporting) } else { throughput })
    }

    /// Seconds to wait. What other routers do without telling is taken to be what this one does.
    fn wait(&self, at: usize, nominal: f64) -> f64 {
        if self.fresh_until[at] < self.now {
            return f64::from(self.in_flight[at]) * self.routers * self.mean_prefill / nominal;
        }
        let rate = if self.rate[at] > 0.0 { self.rate[at] } else { nominal };
        (self.queued[at] + self.unrecorded[at] * self.routers) / rate + self.pressure[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::load::RankLoad;
    use crate::routing::testing::{FRESH_FOR, Fleet, busy, rank, seeded};
    use std::time::Duration;

    fn waits(fleet: &Fleet) -> Vec<f64> {
        let mut waits = Waits::default();
        let candidates = fleet.candidates();
        waits.price(&fleet.view(&candidates), &candidates);
        waits.prices().to_vec()
    }

    #[track_caller]
    fn assert_waits(fleet: &Fleet, expected: &[f64]) {
        let is = waits(fleet);
        assert_eq!(is.len(), expected.len());
        assert!(is.iter().zip(expected).all(|(is, expected)| (is - expected).abs() < 1e-9), "{is:?} {expected:?}");
    }

    fn queued(tokens: i64, of: RankLoad) -> RankLoad {
        RankLoad { waiting_uncached_tokens: tokens, ..of }
    }

    /// S of the rows LL1 to LL10; their picks stand at `least_load`.
    #[test]
    fn ll_seconds() {
        assert_waits(&Fleet::of(&[busy(8000), busy(1000)]), &[80.0375, 10.0375]);
        let ranks = [
            RankLoad { running: 4, gen_throughput: 2000.0, ..busy(4000) },
            RankLoad { gen_throughput: 200.0, ..busy(1000) },
        ];
        assert_waits(&Fleet::of(&ranks), &[2.0375, 5.0375]);
        assert_waits(&Fleet::of(&[rank(0, 0.36), rank(0, 0.0)]), &[0.0, 0.0]);
        for (tokens, wait) in [(0, 0.0375), (100, 1.0375), (200, 2.0375)] {
            let full = RankLoad { token_usage: 0.9, ..rank(1, 100.0) };
            assert_waits(&Fleet::of(&[busy(tokens), full]), &[wait, 1.35]);
        }
        let waiting = |waiting| RankLoad { waiting, ..busy(0) };
        assert_waits(&Fleet::of(&[waiting(64), waiting(6)]), &[655.3975, 61.4775]);
    }

    #[test]
    fn ll3_and_ll4_idle_workers_take_the_rate_of_the_others_or_the_default() {
        for (ranks, rate) in [([rank(0, 0.36), rank(0, 0.0)], 2000.0), ([rank(4, 8000.0), rank(0, 0.0)], 8000.0)] {
            let mut fleet = Fleet::of(&ranks);
            fleet.columns.dispatched(fleet.now, 1, 1000, &fleet.settings.load);
            assert_waits(&fleet, &[0.0, 1000.0 / rate]);
        }
    }

    #[test]
    fn ll7_one_dark_and_ll8_all_dark() {
        let mut fleet = Fleet::dark(2);
        fleet.in_flight(&[5, 0]);
        assert_waits(&fleet, &[5.0, 0.0]);
        fleet.in_flight(&[2, 0]);
        fleet.record(1, &[busy(1000)]);
        assert_waits(&fleet, &[20.48, 10.0375]);
        fleet.now += FRESH_FOR;
        assert_waits(&fleet, &[20.48, 10.0375]);
        fleet.now += Duration::from_nanos(1);
        assert_waits(&fleet, &[2.0, 0.0]);
    }

    #[test]
    fn ll9_idle_rank() {
        for (credit, first) in [(false, 3.0), (true, 1.5)] {
            let mut fleet = Fleet::dark(2);
            fleet.settings.load.idle_rank_credit = credit;
            fleet.record(0, &[queued(3000, rank(2, 1000.0)), rank(0, 900.0)]);
            fleet.record(1, &[queued(3000, rank(1, 800.0)), rank(1, 800.0)]);
            assert_waits(&fleet, &[first, 1.875]);
        }
    }

    #[test]
    fn ll10_known_tokens() {
        let mut fleet = Fleet::of(&[busy(0), busy(2048)]);
        assert_waits(&fleet, &[0.0375, 20.5175]);
        fleet.columns.dispatched(fleet.now, 0, 2100, &fleet.settings.load);
        assert_waits(&fleet, &[21.0375, 20.5175]);
    }

    #[test]
    fn kv_barrier_values() {
        let rows = [(0.2, 0.0375), (0.5, 0.15), (0.8, 0.6), (0.9, 1.35), (0.95, 2.85), (0.99, 14.85), (0.999, 149.85)];
        for (usage, seconds) in rows.into_iter().chain([(1.0, 149.85), (0.0, 0.0)]) {
            let fleet = Fleet::of(&[RankLoad { token_usage: usage, ..rank(1, 100.0) }]);
            assert!((waits(&fleet)[0] - seconds).abs() < 1e-6, "{usage}");
        }
    }

    #[test]
    fn parameters_that_make_no_sense_are_the_defaults() {
        let mut fleet = Fleet::dark(3);
        for (weight, mean, rate) in [(f64::NAN, 0.99, 0.0), (-1.0, f64::NAN, -5.0), (f64::INFINITY, -7.0, f64::NAN)] {
            fleet.settings.load.kv_pressure_weight = weight;
            fleet.settings.load.mean_prefill_tokens = mean;
            fleet.settings.load.default_throughput = rate;
            fleet.record(0, &[RankLoad { waiting: 2, ..rank(0, 0.0) }]);
            fleet.record(1, &[RankLoad { token_usage: 0.5, ..rank(0, 0.0) }]);
            fleet.in_flight(&[0, 0, 1]);
            assert_waits(&fleet, &[1.024, 0.15, 0.512]);
        }
    }

    #[test]
    fn a_dark_and_an_idle_worker_are_as_good() {
        let mut fleet = Fleet::dark(2);
        fleet.record(0, &[rank(0, 0.0)]);
        let (mut waits, mut rng) = (Waits::default(), seeded(20));
        let candidates = fleet.candidates();
        let view = fleet.view(&candidates);
        waits.price(&view, &candidates);
        let dark = (0..1000).filter(|_| waits.least(&view, &mut rng) == Some(1)).count();
        assert!((420..=580).contains(&dark), "{dark}");
    }

    #[test]
    fn routers_that_do_not_tell_count_their_dispatches_as_often_and_draw_among_the_near() {
        let mut fleet = Fleet::of(&[busy(1000), busy(1090), busy(1200)]);
        fleet.columns.dispatched(fleet.now, 0, 10, &fleet.settings.load);
        fleet.routers = 4;
        assert_waits(&fleet, &[10.4375, 10.9375, 12.0375]);
        let (mut waits, mut rng, mut picks) = (Waits::default(), seeded(21), [0; 3]);
        let candidates = fleet.candidates();
        let view = fleet.view(&candidates);
        waits.price(&view, &candidates);
        (0..1000).for_each(|_| picks[waits.least(&view, &mut rng).unwrap()] += 1);
        assert!((420..=580).contains(&picks[0]) && picks[2] == 0, "{picks:?}");
    }

    #[test]
    fn ties_are_as_wide_as_said_and_what_is_no_number_loses() {
        let mut rng = seeded(22);
        let mut at = |values: &[f64]| least(values, |_| 1e-6, &mut rng);
        assert_eq!(at(&[]), None);
        assert_eq!(at(&[3.0, 1.0, 1.000_002]), Some(1));
        assert_eq!(at(&[f64::NAN, f64::INFINITY, 7.0]), Some(2));
        assert_eq!(at(&[f64::NAN, f64::INFINITY]), Some(1));
        assert_eq!(at(&[f64::NAN]), Some(0));
        let second = (0..1000).filter(|_| at(&[1.0, 1.000_000_9]) == Some(1)).count();
        assert!((420..=580).contains(&second), "{second}");
    }
}
