//! Times of events in a row, and how much of the slow ones the system took away.
//!
//! A store takes microseconds; a thread that is put aside in the middle of one loses milliseconds. Reading the thread's own clock
//! around each event would cost more than the event, so it is read after slow ones only: what the thread has not run since the
//! reading before goes to the slow event. Short absences in between go to it too, which is why it is never given more than it took.

use crate::clock::thread_cpu_ns;
use std::time::Instant;

/// An event this slow, in nanoseconds, is looked into.
const SLOW_NS: f64 = 50_000.0;

/// A slow event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// Which of the times it is.
    pub place: usize,
    /// How much of it the thread did not run, in nanoseconds.
    pub away_ns: f64,
}

/// Times of events, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Laps {
    /// Of each event, one clock reading included.
    pub ns: Vec<f64>,
    /// The slow ones among them, in order.
    pub slow: Vec<Slow>,
}

impl Laps {
    /// Runs `events` steps and times each.
    pub fn time(&mut self, events: usize, mut step: impl FnMut(usize)) {
        self.ns.reserve(events);
        let (mut checked, mut before) = (Reading::now(), Instant::now());
        for event in 0..events {
            step(event);
            let now = Instant::now();
            let ns = (now - before).as_nanos() as f64;
            before = now;
            if ns >= SLOW_NS {
                let reading = Reading::now();
                self.slow.push(Slow { place: self.ns.len(), away_ns: reading.away_since(&checked).min(ns) });
                checked = reading;
                before = Instant::now();
            }
            self.ns.push(ns);
        }
    }

    /// The times without what the system took of the slow ones.
    pub fn worked_ns(&self) -> Vec<f64> {
        let mut worked = self.ns.clone();
        for slow in &self.slow {
            worked[slow.place] -= slow.away_ns;
        }
        worked
    }
}

/// Both clocks at a moment.
struct Reading {
    wall: Instant,
    cpu_ns: u64,
}

impl Reading {
    fn now() -> Self {
        Self { wall: Instant::now(), cpu_ns: thread_cpu_ns() }
    }

    /// Nanoseconds that this thread has not run since then.
    fn away_since(&self, before: &Reading) -> f64 {
        let wall_ns = (self.wall - before.wall).as_nanos() as f64;
        (wall_ns - (self.cpu_ns - before.cpu_ns) as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn waiting_is_taken_off_and_work_is_not() {
        let (_keep, never) = mpsc::channel::<()>();
        let mut laps = Laps::default();
        laps.time(3, |event| match event {
            1 => drop(never.recv_timeout(Duration::from_millis(20))),
            _ => drop(std::hint::black_box((0..1000).sum::<u64>())),
        });
        let slow = laps.slow.iter().find(|slow| slow.place == 1).expect("a wait is slow");
        assert!(laps.ns[1] >= 20e6 && slow.away_ns >= 10e6, "{laps:?}");
        let worked = laps.worked_ns();
        assert_eq!((worked.len(), worked[1]), (3, laps.ns[1] - slow.away_ns));
        assert!(worked.iter().all(|&ns| ns >= 0.0), "{worked:?}");
    }
}
