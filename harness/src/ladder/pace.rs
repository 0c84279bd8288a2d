//! The pace of a trial: which stretch of the tape is issued, and when each operation is due. Pure.

use super::tape::{Operation, Tape};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Shortest window that is worth measuring.
pub const WINDOW_MS_MIN: u64 = 50;

/// How operations are spread over the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At the schedule's own times, the whole of it compressed into the window: its bursts stay.
    Trace,
    /// At an even rate of block operations.
    Even,
    /// All at once: measures what is done in a second when there is always work (the rate only says how much to take).
    AtOnce,
}

/// What a trial offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Block operations a second.
    pub rate: u64,
    /// The window that is aimed at, in milliseconds.
    pub window_ms: u64,
    /// How operations are spread.
    pub arrivals: Arrivals,
}

/// Why there is no pace for an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaceError {
    /// Nothing to issue, or nothing a second.
    #[error("nothing to issue: the tape has no operations after its warm part, or the rate is 0")]
    Empty,
    /// At this rate the whole tape is over too soon.
    #[error(
        "{block_ops} block operations are over in less than {WINDOW_MS_MIN} ms at {rate}/s: take more copies of the schedule (--duplicate)"
    )]
    TapeShort {
        /// What the tape has.
        block_ops: u64,
        /// What was asked for.
        rate: u64,
    },
}

/// A stretch of the tape with its deadlines, in nanoseconds from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The operations.
    pub range: Range<usize>,
    /// When each is due; never goes back.
    pub due_ns: Vec<u64>,
    /// Length of the window.
    pub window_ns: u64,
    /// Block operations in it.
    pub block_ops: u64,
}

impl Pace {
    /// Takes as many operations after the warm part as fill the window at this rate. A tape that has fewer gives a shorter
    /// window at the same rate.
    pub fn new(tape: &Tape, offer: &Offer) -> Result<Pace, PaceError> {
        let wanted = (u128::from(offer.rate) * u128::from(offer.window_ms) / 1000) as u64;
        let mut block_ops = 0;
        let mut end = tape.warm;
        while end < tape.operations.len() && block_ops < wanted.max(1) {
            block_ops += tape.operations[end].block_ops();
            end += 1;
        }
        if block_ops == 0 || offer.rate == 0 {
            return Err(PaceError::Empty);
        }
        let window_ns = (u128::from(block_ops) * 1_000_000_000 / u128::from(offer.rate)) as u64;
        let short = window_ns < WINDOW_MS_MIN.min(offer.window_ms) * 1_000_000;
        if short && offer.arrivals != Arrivals::AtOnce {
            return Err(PaceError::TapeShort { block_ops, rate: offer.rate });
        }
        let range = tape.warm..end;
        let due_ns = match offer.arrivals {
            Arrivals::Trace => compressed(&tape.operations[range.clone()], window_ns),
            Arrivals::Even => even(&tape.operations[range.clone()], block_ops, window_ns),
            Arrivals::AtOnce => vec![0; range.len()],
        };
        Ok(Pace { range, due_ns, window_ns, block_ops })
    }
}

/// The schedule's own times, first at 0 and last at the end of the window.
fn compressed(operations: &[Operation], window_ns: u64) -> Vec<u64> {
    let first = operations.first().map_or(0, |o| o.at_us);
    let span = operations.last().map_or(0, |o| o.at_us - first).max(1);
    let due = |o: &Operation| (u128::from(o.at_us - first) * u128::from(window_ns) / u128::from(span)) as u64;
    operations.iter().map(due).collect()
}

/// Each operation when its share of the block operations before it has passed.
fn even(operations: &[Operation], block_ops: u64, window_ns: u64) -> Vec<u64> {
    let mut before = 0u64;
    let mut due = |o: &Operation| {
        let at = (u128::from(before) * u128::from(window_ns) / u128::from(block_ops)) as u64;
        before += o.block_ops();
        at
    };
    operations.iter().map(&mut due).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_index::ContentHash;

    /// A lookup of ten blocks every second, the first one warm.
    fn tape(lookups: u64) -> Tape {
        let mut tape = Tape::new(1);
        let at = tape.put_contents(&[ContentHash(7); 10]).unwrap();
        for second in 0..lookups {
            tape.lookup(second * 1_000_000, at, 10).unwrap();
        }
        tape.warm = 1;
        tape
    }

    fn offer(rate: u64, window_ms: u64, arrivals: Arrivals) -> Offer {
        Offer { rate, window_ms, arrivals }
    }

    #[test]
    fn as_many_operations_as_fill_the_window() {
        let pace = Pace::new(&tape(100), &offer(400, 1000, Arrivals::Even)).unwrap();
        assert_eq!((pace.range.clone(), pace.block_ops, pace.window_ns), (1..41, 400, 1_000_000_000));
        assert_eq!(pace.due_ns[..3], [0, 25_000_000, 50_000_000]);
        assert_eq!(*pace.due_ns.last().unwrap(), 975_000_000);
    }

    #[test]
    fn the_schedule_keeps_its_shape_and_ends_with_the_window() {
        let mut tape = tape(100);
        tape.operations[3].at_us = tape.operations[2].at_us;
        let pace = Pace::new(&tape, &offer(50, 1000, Arrivals::Trace)).unwrap();
        assert_eq!(pace.range, 1..6);
        assert_eq!(pace.due_ns, [0, 250_000_000, 250_000_000, 750_000_000, 1_000_000_000]);
    }

    #[test]
    fn a_short_tape_gives_a_short_window_at_the_same_rate_down_to_a_limit() {
        let pace = Pace::new(&tape(11), &offer(1000, 1000, Arrivals::Even)).unwrap();
        assert_eq!((pace.block_ops, pace.window_ns), (100, 100_000_000));
        let too_fast = Pace::new(&tape(11), &offer(10_000, 1000, Arrivals::Even));
        assert_eq!(too_fast, Err(PaceError::TapeShort { block_ops: 100, rate: 10_000 }));
        assert_eq!(Pace::new(&tape(1), &offer(10, 1000, Arrivals::Even)), Err(PaceError::Empty));
        assert_eq!(Pace::new(&tape(9), &offer(0, 1000, Arrivals::Even)), Err(PaceError::Empty));
    }
}
