//! Names that an export makes up. They are drawn from the shard's secret, so that no engine can make them meet its own; where
//! one is the rank's all the same, it is passed over.

use crate::hash::{HashKey, spread};
use crate::lane::export::Source;
use crate::types::EngineHash;

/// The numbered names of one export.
pub(super) struct Synthetic {
    secret: u64,
    next: u64,
}

impl Synthetic {
    pub fn new(key: HashKey) -> Self {
        Self { secret: key.one(0xE4_09_07), next: 0 }
    }

    /// The name of a number: one to one.
    pub fn name(&self, number: u64) -> EngineHash {
        EngineHash(spread(self.secret.wrapping_add(number)))
    }

    /// Takes so many numbers in a row, none of whose names the rank has; the first.
    pub fn take(&mut self, from: Source<'_>, count: u32) -> u64 {
        loop {
            let first = self.next;
            let end = first + u64::from(count);
            match (first..end).rev().find(|&number| from.knows(self.name(number).0)) {
                None => {
                    self.next = end;
                    return first;
                }
                Some(known) => self.next = known + 1,
            }
        }
    }
}
