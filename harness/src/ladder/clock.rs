//! The trial's clock: monotonic nanoseconds from an agreed start, and waiting until an absolute moment of it.

use super::disturbance::GAP;
use std::time::{Duration, Instant};

/// The last part of a wait is spun: a sleeping thread wakes up late by about the kernel's timer slack (50 us) and more.
const SPIN: Duration = Duration::from_micros(300);

/// A clock with its zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
}

impl Clock {
    /// A clock that reads 0 after this long.
    pub fn starting_in(delay: Duration) -> Self {
        Self { zero: Instant::now() + delay }
    }

    /// Nanoseconds since zero; 0 before it.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        Instant::now().saturating_duration_since(self.zero).as_nanos() as u64
    }

    /// Waits until the clock reads `due_ns`: sleeps while it is far away, then spins. Adds pauses of the spin to `gaps`.
    /// Returns what the clock reads.
    #[inline]
    pub fn wait_until(&self, due_ns: u64, gaps: &mut Gaps) -> u64 {
        let due = self.zero + Duration::from_nanos(due_ns);
        let mut now = Instant::now();
        if let Some(far) = due.saturating_duration_since(now).checked_sub(SPIN).filter(|d| !d.is_zero()) {
            std::thread::sleep(far);
            now = Instant::now();
        }
        gaps.interrupt();
        while now < due {
            std::hint::spin_loop();
            now = Instant::now();
            gaps.tick(now);
        }
        now.saturating_duration_since(self.zero).as_nanos() as u64
    }
}

/// Pauses of a loop that should not have any: time that was taken from the thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    last: Option<Instant>,
    /// All pauses longer than [`GAP`], in nanoseconds.
    pub total_ns: u64,
}

impl Gaps {
    /// Other work is done: the time until the next round is no pause.
    #[inline]
    pub fn interrupt(&mut self) {
        self.last = None;
    }

    /// The loop came round.
    #[inline]
    pub fn tick(&mut self, now: Instant) {
        let pause = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if pause > GAP {
            self.total_ns += pause.as_nanos() as u64;
        }
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_never_ends_early_and_one_for_the_past_does_not_wait() {
        let clock = Clock::starting_in(Duration::ZERO);
        let mut gaps = Gaps::default();
        for due in [0, 1_000, 2_000_000] {
            assert!(clock.wait_until(due, &mut gaps) >= due);
        }
        let before = clock.now_ns();
        assert!(clock.wait_until(0, &mut gaps) >= before);
    }

    #[test]
    fn only_pauses_above_the_limit_are_gaps() {
        let mut gaps = Gaps::default();
        let start = Instant::now();
        gaps.tick(start);
        gaps.tick(start + GAP);
        assert_eq!(gaps.total_ns, 0);
        gaps.tick(start + GAP * 3);
        assert_eq!(gaps.total_ns, 2 * GAP.as_nanos() as u64);
        gaps.interrupt();
        gaps.tick(start + GAP * 20);
        assert_eq!(gaps.total_ns, 2 * GAP.as_nanos() as u64);
    }
}
