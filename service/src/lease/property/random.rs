//! A small generator, so that a seed plays the same schedule for ever.

use std::time::Duration;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 31
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }

    /// Up to so many milliseconds.
    pub(super) fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most + 1))
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
