//! Hashes of the payloads applied last, by sequence: how a publisher's next life is told from a repetition.

use crate::seed::Proof;
use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_64;

/// Remembers the newest payload hashes, in rising order of sequence, up to a bound.
pub(super) struct Payloads {
    known: VecDeque<(u64, u64)>,
    count_max: usize,
}

impl Payloads {
    pub(super) fn new(count_max: usize) -> Self {
        Self { known: VecDeque::new(), count_max: count_max.max(1) }
    }

    /// Notes an applied batch. Sequences rise between two calls of [`Self::clear`].
    pub(super) fn note(&mut self, seq: u64, payload: &[u8]) {
        if self.known.len() == self.count_max {
            self.known.pop_front();
        }
        self.known.push_back((seq, xxh3_64(payload)));
    }

    /// Whether the batch applied under this sequence had this payload; `None` if that is not known (any more).
    pub(super) fn same(&self, seq: u64, payload: &[u8]) -> Option<bool> {
        let at = self.known.binary_search_by_key(&seq, |&(s, _)| s).ok()?;
        Some(self.known[at].1 == xxh3_64(payload))
    }

    /// The newest ones, in rising order.
    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = Proof> + '_ {
        let from = self.known.len().saturating_sub(count);
        self.known.iter().skip(from).map(|&(sequence, payload_hash)| Proof { sequence, payload_hash })
    }

    /// Forgets everything but what another memory told, in rising order.
    pub(super) fn restore(&mut self, proofs: &[Proof]) {
        self.known.clear();
        let newest = proofs.len().saturating_sub(self.count_max);
        self.known.extend(proofs[newest..].iter().map(|proof| (proof.sequence, proof.payload_hash)));
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}
