//! What an engine's servicer keeps: the highest fence of each partition. A dispatch under a lower one, or under the same one again,
//! is refused, however late it comes.

use super::record::Partition;
use std::collections::HashMap;

/// The highest fences, of a bounded number of partitions.
#[derive(Clone, Debug)]
pub struct Fences {
    highest: HashMap<Partition, u64>,
    partitions_max: usize,
}

/// Why a dispatch is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fenced {
    /// A later lease was seen, or this one has dispatched.
    #[error("fence {fence} is not above {highest}")]
    NotAbove {
        /// The dispatch's fence.
        fence: u64,
        /// The highest one seen.
        highest: u64,
    },
    /// As many partitions as allowed are remembered; what cannot be fenced is not let in.
    #[error("{limit} partitions are fenced here already")]
    Full {
        /// The limit.
        limit: usize,
    },
}

impl Fences {
    /// Remembers so many partitions.
    pub fn new(partitions_max: usize) -> Self {
        Self { highest: HashMap::new(), partitions_max }
    }

    /// Lets a dispatch in, or not.
    pub fn admit(&mut self, partition: &Partition, fence: u64) -> Result<(), Fenced> {
        if let Some(highest) = self.highest.get_mut(partition) {
            if fence <= *highest {
                return Err(Fenced::NotAbove { fence, highest: *highest });
            }
            *highest = fence;
            return Ok(());
        }
        if self.highest.len() >= self.partitions_max {
            return Err(Fenced::Full { limit: self.partitions_max });
        }
        self.highest.insert(partition.clone(), fence);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_only_rise() {
        let [a, b] =
            ["a", "b"].map(|model| Partition { model: model.into(), namespace: String::new(), pool: String::new() });
        let mut fences = Fences::new(1);
        assert_eq!(fences.admit(&a, 5), Ok(()));
        assert_eq!(fences.admit(&a, 5), Err(Fenced::NotAbove { fence: 5, highest: 5 }));
        assert_eq!(fences.admit(&a, 4), Err(Fenced::NotAbove { fence: 4, highest: 5 }));
        assert_eq!(fences.admit(&a, 6), Ok(()));
        assert_eq!(fences.admit(&b, 9), Err(Fenced::Full { limit: 1 }));
    }
}
