//! The busy-until clock of one worker: when it will have done the prefills that it was given.

use std::collections::VecDeque;
use std::time::Duration;

/// A prefill whose first token has not come.
#[derive(Clone, Copy, Debug)]
struct Prefill {
    booking: u64,
    dispatched_at: Duration,
    /// Seconds that an idle engine takes for it.
    work: f64,
    /// Seconds that it was given on the clock.
    span: f64,
    /// When it was predicted to be done, before the clock was shifted.
    ends_at: f64,
}

/// The clock. Times are seconds from the origin of every other time here.
///
/// A dispatch moves it forwards. The first token of the oldest prefill tells how far off it was, and shifts it by that. A prefill
/// that ends otherwise takes back what was left of it.
#[derive(Clone, Debug, Default)]
pub(super) struct BusyClock {
    /// In the order of their dispatch.
    prefills: VecDeque<Prefill>,
    /// Busy until, before shifts.
    until: f64,
    /// Shifts.
    offset: f64,
    /// Leading prefills that the latest record contains.
    recorded: usize,
    /// Work of the others.
    unrecorded: f64,
}

impl BusyClock {
    /// Adds a prefill of so many seconds on an idle engine, which takes `inflation` times as long on this one.
    pub fn dispatched(&mut self, now: Duration, booking: u64, work: f64, inflation: f64) {
        let span = work * inflation;
        self.until = (self.until + self.offset).max(now.as_secs_f64()) - self.offset + span;
        self.prefills.push_back(Prefill { booking, dispatched_at: now, work, span, ends_at: self.until });
        self.unrecorded += work;
    }

    /// A first token came.
    pub fn first_token(&mut self, now: Duration, booking: u64) {
        let Some(place) = self.place(booking) else { return };
        let prefill = self.take(place);
        if place == 0 {
            self.offset = now.as_secs_f64() - prefill.ends_at;
        }
        self.rest();
    }

    /// A request ended, by whatever path. If its first token never came, what is left of its prefill is not going to happen.
    pub fn ended(&mut self, now: Duration, booking: u64) {
        let Some(place) = self.place(booking) else { return };
        let prefill = self.take(place);
        let left = (prefill.ends_at + self.offset - now.as_secs_f64()).clamp(0.0, prefill.span.max(0.0));
        self.prefills.range_mut(place..).for_each(|later| later.ends_at -= left);
        self.until -= left;
        self.rest();
    }

    /// A load record came; it contains what was dispatched at least `ack_delay` before.
    pub fn recorded(&mut self, received_at: Duration, ack_delay: Duration) {
        let unseen = |prefill: &Prefill| prefill.dispatched_at.saturating_add(ack_delay) > received_at;
        self.recorded = self.prefills.iter().position(unseen).unwrap_or(self.prefills.len());
        self.unrecorded = self.prefills.range(self.recorded..).map(|prefill| prefill.work).sum();
    }

    /// Busy until then; 0 without an outstanding prefill.
    pub fn until(&self) -> f64 {
        if self.prefills.is_empty() { 0.0 } else { self.until + self.offset }
    }

    /// Seconds of outstanding prefills, on an idle engine, that the latest record cannot contain.
    pub fn unrecorded(&self) -> f64 {
        self.unrecorded.max(0.0)
    }

    /// Prefills whose first token has not come.
    #[cfg(test)]
    pub fn outstanding(&self) -> usize {
        self.prefills.len()
    }

    /// First tokens come about in the order of the dispatches, so the search is short.
    fn place(&self, booking: u64) -> Option<usize> {
        self.prefills.iter().position(|prefill| prefill.booking == booking)
    }

    fn take(&mut self, place: usize) -> Prefill {
        let prefill = self.prefills[place];
        self.prefills.remove(place);
        if place < self.recorded {
            self.recorded -= 1;
        } else {
            self.unrecorded -= prefill.work;
        }
        prefill
    }

    /// Without anything outstanding nothing is left of roundings and shifts.
    fn rest(&mut self) {
        if self.recorded == self.prefills.len() {
            self.unrecorded = 0.0;
        }
        if self.prefills.is_empty() {
            (self.until, self.offset) = (0.0, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[track_caller]
    fn near(is: f64, expected: f64) {
        assert!((is - expected).abs() < 1e-9, "{is} {expected}");
    }

    #[test]
    fn work_queues_up_behind_what_is_there_and_begins_now_where_nothing_is() {
        let mut clock = BusyClock::default();
        near(clock.until(), 0.0);
        clock.dispatched(ms(10_000), 1, 0.2, 1.5);
        near(clock.until(), 10.3);
        clock.dispatched(ms(10_100), 2, 0.1, 1.0);
        near(clock.until(), 10.4);
        clock.dispatched(ms(12_000), 3, 0.1, 1.0);
        near(clock.until(), 12.1);
    }

    #[test]
    fn the_oldest_first_token_shifts_the_clock_and_others_do_not() {
        let mut clock = BusyClock::default();
        (1..=4).for_each(|booking| clock.dispatched(ms(0), booking, 1.0, 1.0));
        clock.first_token(ms(900), 1);
        near(clock.until(), 3.9);
        clock.first_token(ms(1000), 3);
        near(clock.until(), 3.9);
        clock.first_token(ms(2400), 2);
        near(clock.until(), 4.4);
        clock.dispatched(ms(2400), 5, 1.0, 1.0);
        near(clock.until(), 5.4);
        clock.first_token(ms(4400), 4);
        near(clock.until(), 5.4);
        clock.first_token(ms(5000), 5);
        near(clock.until(), 0.0);
        assert_eq!(clock.outstanding(), 0);
    }

    #[test]
    fn an_end_without_first_token_takes_back_what_was_left() {
        let mut clock = BusyClock::default();
        (1..=3).for_each(|booking| clock.dispatched(ms(0), booking, 1.0, 1.0));
        clock.ended(ms(200), 2);
        near(clock.until(), 2.0);
        clock.ended(ms(600), 1);
        near(clock.until(), 1.6);
        clock.first_token(ms(1700), 3);
        near(clock.until(), 0.0);
        clock.ended(ms(1800), 3);
        assert_eq!(clock.outstanding(), 0);
        clock.dispatched(ms(2000), 4, 1.0, 1.0);
        clock.dispatched(ms(2000), 5, 1.0, 1.0);
        clock.ended(ms(3500), 4);
        near(clock.until(), 4.0);
    }

    #[test]
    fn a_record_contains_what_was_dispatched_long_enough_before() {
        let mut clock = BusyClock::default();
        clock.dispatched(ms(0), 1, 0.1, 2.0);
        clock.dispatched(ms(60), 2, 0.2, 2.0);
        clock.dispatched(ms(70), 3, 0.4, 2.0);
        near(clock.unrecorded(), 0.7);
        clock.recorded(ms(110), ms(50));
        near(clock.unrecorded(), 0.4);
        clock.first_token(ms(120), 1);
        near(clock.unrecorded(), 0.4);
        clock.dispatched(ms(120), 4, 0.8, 2.0);
        clock.ended(ms(120), 3);
        near(clock.unrecorded(), 0.8);
        clock.ended(ms(120), 2);
        clock.ended(ms(120), 4);
        near(clock.unrecorded(), 0.0);
    }
}
