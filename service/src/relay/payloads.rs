//! The batches of one rank as the engines' wire carries them, oldest out first. Pure.

use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes that a batch takes beside its payload.
const ENTRY_BYTES: u64 = size_of::<(u64, Bytes)>() as u64;

/// A bounded stretch of one life's payloads. Every payload has a number, one more than the one before over all lives, so that a
/// place among them means the same for ever; its sequence is the publisher's.
#[derive(Debug)]
pub struct Payloads {
    batches: VecDeque<(u64, Bytes)>,
    /// Number of the oldest that is here, or of the next one if none is.
    first: u64,
    bytes: u64,
    batches_max: usize,
    bytes_max: u64,
    /// Lives so far.
    life: u64,
}

impl Payloads {
    /// None yet.
    pub fn new(batches_max: usize, bytes_max: u64) -> Self {
        Self { batches: VecDeque::new(), first: 0, bytes: 0, batches_max, bytes_max, life: 0 }
    }

    /// Adds a batch; older ones go out until the limits hold, perhaps the new one itself. A sequence that is not beyond all
    /// before begins another life. The payload is copied: what is kept is as long as it says.
    pub fn push(&mut self, sequence: u64, payload: &[u8]) {
        if self.batches.back().is_some_and(|(newest, _)| *newest >= sequence) {
            self.restart();
        }
        self.bytes += payload.len() as u64 + ENTRY_BYTES;
        self.batches.push_back((sequence, Bytes::copy_from_slice(payload)));
        while self.batches.len() > self.batches_max || self.bytes > self.bytes_max {
            self.shed();
        }
    }

    /// Another life begins: nothing of the one before is kept.
    pub fn restart(&mut self) {
        self.first += self.batches.len() as u64;
        self.batches.clear();
        self.bytes = 0;
        self.life += 1;
    }

    /// Lets the oldest batch go; `false` if there is none.
    pub fn shed(&mut self) -> bool {
        let Some((_, payload)) = self.batches.pop_front() else { return false };
        self.first += 1;
        self.bytes -= payload.len() as u64 + ENTRY_BYTES;
        true
    }

    /// Number of the next batch.
    pub fn end(&self) -> u64 {
        self.first + self.batches.len() as u64
    }

    /// Numbers of the batches from a sequence of this life on, as many as are here.
    pub fn from_sequence(&self, sequence: u64) -> Range<u64> {
        let at = self.batches.partition_point(|(s, _)| *s < sequence);
        self.first + at as u64..self.end()
    }

    /// What is kept.
    pub fn span(&self) -> Span {
        let ends = self.batches.front().zip(self.batches.back());
        Span { first: self.first, sequences: ends.map(|(oldest, newest)| (oldest.0, newest.0)), life: self.life }
    }

    /// The batch of a number and those after it, up to `to` and as many as fit into `bytes_max` together, at least one. What went
    /// out is left out: the first pair says how many that were.
    pub fn read(&self, from: u64, to: u64, bytes_max: usize, out: &mut Vec<(u64, Bytes)>) -> Read {
        let start = from.max(self.first);
        let mut next = start;
        let mut bytes = 0;
        for (sequence, payload) in self.batches.iter().skip((start - self.first) as usize) {
            let fits = bytes == 0 || bytes + payload.len() <= bytes_max;
            if next >= to || !fits {
                break;
            }
            bytes += payload.len().max(1);
            out.push((*sequence, payload.clone()));
            next += 1;
        }
        Read { next, missed: start - from, life: self.life }
    }

    /// Batches that are here.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Whether none is here.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What a reading came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// Where to go on.
    pub next: u64,
    /// Batches that went out before they were read.
    pub missed: u64,
    /// The life that what is kept belongs to: a number that rises.
    pub life: u64,
}

/// What is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Number of the oldest batch, or of the next one if there is none.
    pub first: u64,
    /// The oldest sequence and the newest.
    pub sequences: Option<(u64, u64)>,
    /// The life that they belong to.
    pub life: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads(batches_max: usize, sequences: impl IntoIterator<Item = u64>) -> Payloads {
        let mut payloads = Payloads::new(batches_max, u64::MAX);
        sequences.into_iter().for_each(|sequence| payloads.push(sequence, &[sequence as u8; 10]));
        payloads
    }

    fn read(payloads: &Payloads, from: u64, to: u64, bytes_max: usize) -> (Vec<u64>, Read) {
        let mut out = Vec::new();
        let read = payloads.read(from, to, bytes_max, &mut out);
        assert!(out.iter().all(|(sequence, payload)| payload[..] == [*sequence as u8; 10]));
        (out.into_iter().map(|(sequence, _)| sequence).collect(), read)
    }

    #[test]
    fn a_place_stays_what_it_was_while_batches_come_and_go() {
        let mut payloads = payloads(3, [0, 1, 2, 3, 5]);
        assert_eq!((payloads.len(), payloads.end()), (3, 5));
        assert_eq!(payloads.from_sequence(0), 2..5);
        assert_eq!(payloads.from_sequence(4), 4..5, "what was lost is no hole: the next one stands in its place");
        assert_eq!(payloads.from_sequence(6), 5..5);
        assert_eq!(read(&payloads, 1, 5, 1000), (vec![2, 3, 5], Read { next: 5, missed: 1, life: 0 }));
        assert_eq!(read(&payloads, 3, 4, 1000), (vec![3], Read { next: 4, missed: 0, life: 0 }));
        payloads.push(6, &[6; 10]);
        assert_eq!(read(&payloads, 5, u64::MAX, 1000), (vec![6], Read { next: 6, missed: 0, life: 0 }));
        assert_eq!(read(&payloads, 6, u64::MAX, 1000), (vec![], Read { next: 6, missed: 0, life: 0 }));
    }

    #[test]
    fn a_reading_ends_at_its_bytes_and_has_at_least_one() {
        let payloads = payloads(9, 0..5);
        assert_eq!(read(&payloads, 0, 9, 25), (vec![0, 1], Read { next: 2, missed: 0, life: 0 }));
        assert_eq!(read(&payloads, 2, 9, 1), (vec![2], Read { next: 3, missed: 0, life: 0 }));
    }

    #[test]
    fn another_life_has_nothing_of_the_one_before() {
        let mut payloads = payloads(9, [4, 5, 6]);
        payloads.push(5, &[5; 10]);
        assert_eq!((payloads.len(), payloads.end(), payloads.from_sequence(0)), (1, 4, 3..4));
        assert_eq!(read(&payloads, 1, 9, 100), (vec![5], Read { next: 4, missed: 2, life: 1 }));
        assert_eq!(payloads.span(), Span { first: 3, sequences: Some((5, 5)), life: 1 });
        payloads.restart();
        assert_eq!((payloads.len(), payloads.bytes(), payloads.from_sequence(0)), (0, 0, 4..4));
        assert_eq!(payloads.span(), Span { first: 4, sequences: None, life: 2 });
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let size = 10 + ENTRY_BYTES;
        let mut payloads = Payloads::new(100, 2 * size);
        (0..5_u64).for_each(|sequence| payloads.push(sequence, &[sequence as u8; 10]));
        assert_eq!((payloads.len(), payloads.bytes()), (2, 2 * size));
        payloads.push(9, &[0; 1000]);
        assert_eq!((payloads.len(), payloads.bytes(), payloads.end()), (0, 0, 6));
        assert!(!payloads.shed());
    }
}
