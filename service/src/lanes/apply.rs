//! One batch onto one rank of an index lane. Pure apart from the index itself.

use crate::ops::{Applied, Op, OpBatch};
use kvatlas_index::{Holder, IndexError, Lane, RankSlot, Store, Upcoming};

/// Applies the operations in order and sums up what they did. An operation that is refused costs itself; one that meets a
/// memory limit costs the rank its blocks (a clear never needs memory) and the rest of the batch goes on from there.
/// Where there is `later`, it says the n-th operation in the lane's queue behind this batch, and the lane asks for the memory of
/// what comes next.
pub(super) fn apply<'a>(
    lane: &mut Lane,
    rank: RankSlot,
    batch: &'a OpBatch,
    later: Option<impl Fn(usize) -> Option<(RankSlot, &'a Op)>>,
) -> Applied {
    let mut applied = Applied::default();
    for (i, op) in batch.ops.iter().enumerate() {
        if let Some(later) = &later {
            lane.look_ahead(|n| {
                let (rank, op) = match batch.ops.get(i + n) {
                    Some(op) => (rank, op),
                    None => later(i + n - batch.ops.len())?,
                };
                upcoming(rank, op)
            });
        }
        if let Err(error) = op.apply(lane, rank, &mut applied) {
            refused(lane, rank, error, &mut applied);
        }
    }
    applied
}

/// An operation as the lane looks ahead at it, if it does.
fn upcoming(rank: RankSlot, op: &Op) -> Option<Upcoming<'_>> {
    match op {
        Op::Store { tier, parent, names, contents, kind } => {
            let store = Store { parent: *parent, names, contents, kind: *kind };
            Some(Upcoming::Store(Holder { rank, tier: *tier }, store))
        }
        Op::Remove { tier, names } => Some(Upcoming::Remove(Holder { rank, tier: *tier }, names)),
        Op::Adopt { .. } | Op::SetCopies { .. } | Op::Clear { .. } => None,
    }
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
