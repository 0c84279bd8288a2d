//! One batch onto one rank of an index lane. Pure apart from the index itself.

use crate::ops::{Applied, OpBatch};
use kvatlas_index::{IndexError, Lane, RankSlot};

/// Applies the operations in order and sums up what they did. An operation that is refused costs itself; one that meets a
/// memory limit costs the rank its blocks (a clear never needs memory) and the rest of the batch goes on from there.
pub(super) fn apply(lane: &mut Lane, rank: RankSlot, batch: &OpBatch) -> Applied {
    let mut applied = Applied::default();
    for op in &batch.ops {
        if let Err(error) = op.apply(lane, rank, &mut applied) {
            refused(lane, rank, error, &mut applied);
        }
    }
    applied
}

fn refused(lane: &mut Lane, rank: RankSlot, error: IndexError, applied: &mut Applied) {
    match error {
        IndexError::SelfParent { .. } => applied.self_parent += 1,
        IndexError::BlocksFull { .. }
        | IndexError::RunsFull { .. }
        | IndexError::ExtsFull { .. }
        | IndexError::NamesFull { .. }
        | IndexError::PrivateNamesFull { .. }
        | IndexError::RanksFull { .. } => {
            // Once a batch: a publisher can fill one with operations that all meet the limit.
            if applied.limit_reached == 0 {
                tracing::warn!(%error, "a memory limit of the index was reached: the rank is cleared");
            }
            applied.limit_reached += 1;
            if let Ok(cleared) = lane.clear(rank, None) {
                applied.add_cleared(cleared);
            }
        }
        // Both are excluded before: batches are built with one content for each name, and the slot was checked.
        IndexError::LengthMismatch { .. } | IndexError::UnknownRank { .. } => {
            tracing::error!(%error, "an operation was refused that should not have been sent");
        }
    }
}
