//! Live batches that wait behind a replay, in order of sequence and within a bound.

use bytes::Bytes;
use std::collections::BTreeMap;

pub(super) struct Held {
    batches: BTreeMap<u64, Bytes>,
    bytes: usize,
    batches_max: usize,
    bytes_max: usize,
}

impl Held {
    pub(super) fn new(batches_max: usize, bytes_max: usize) -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, batches_max, bytes_max }
    }

    /// Whether one more batch of this size is within the bounds. One batch alone always is.
    pub(super) fn fits(&self, payload: &Bytes) -> bool {
        self.batches.is_empty()
            || (self.batches.len() < self.batches_max && self.bytes + payload.len() <= self.bytes_max)
    }

    pub(super) fn put(&mut self, seq: u64, payload: Bytes) {
        self.bytes += payload.len();
        if let Some(old) = self.batches.insert(seq, payload) {
            self.bytes -= old.len();
        }
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Bytes> {
        self.batches.get(&seq)
    }

    /// Sequence of the first batch held.
    pub(super) fn first(&self) -> Option<u64> {
        self.batches.first_key_value().map(|(&seq, _)| seq)
    }

    pub(super) fn pop_first(&mut self) -> Option<(u64, Bytes)> {
        let (seq, payload) = self.batches.pop_first()?;
        self.bytes -= payload.len();
        Some((seq, payload))
    }

    /// Drops what is not beyond `seq`.
    pub(super) fn drop_to(&mut self, seq: u64) {
        while self.first().is_some_and(|first| first <= seq) {
            self.pop_first();
        }
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }
}
