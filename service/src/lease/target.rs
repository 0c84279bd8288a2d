//! Who is seeded, and how far its events were applied: what tells one life of a worker from the next, and an older proof from a
//! newer removal.

use serde::{Deserialize, Serialize};

/// A worker in one of its lives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// The worker's id.
    pub worker: String,
    /// Number of its registration.
    pub generation: u64,
    /// Lives of its publishers, summed over its ranks.
    pub incarnation: u64,
    /// The replica of the service that counts so: another one counts otherwise. Never 0 in a record.
    pub replica: u64,
}

/// Batches applied of each rank of a worker, by number. The index's own clock of one life of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sequences(pub Vec<u64>);

impl Sequences {
    /// Whether any rank is further than it is there. Replicas may each be ahead of the other; then this is true both ways, so that
    /// a removal always wins.
    pub fn any_after(&self, other: &Self) -> bool {
        self.0.iter().enumerate().any(|(rank, at)| *at > other.0.get(rank).copied().unwrap_or(0))
    }

    /// Of two the further, rank by rank.
    pub fn advance(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(at, other)| *at = (*at).max(*other));
    }
}

/// What the service knows of a worker now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Present {
    /// The worker and its life.
    pub target: Target,
    /// How far its events were applied.
    pub sequences: Sequences,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_further_on_is_after_whatever_the_others_say() {
        let at = |ranks: &[u64]| Sequences(ranks.to_vec());
        assert!(at(&[3, 1]).any_after(&at(&[2, 9])) && at(&[2, 9]).any_after(&at(&[3, 1])));
        assert!(!at(&[2, 1]).any_after(&at(&[2, 1])));
        assert!(at(&[0, 1]).any_after(&at(&[])) && !at(&[]).any_after(&at(&[1])));
        let mut sum = at(&[1, 5]);
        sum.advance(&at(&[2, 3, 4]));
        assert_eq!(sum, at(&[2, 5, 4]));
    }
}
