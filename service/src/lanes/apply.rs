//! One batch onto one rank of an index lane. Pure apart from the index itself.

use crate::ops::{Applied, Op, OpBatch};
use kvatlas_index::{Cleared, Holder, IndexError, Lane, RankSlot, Removed, Store, Stored};

/// Applies the operations in order and sums up what they did. An operation that is refused costs itself; one that meets a
/// memory limit costs the rank its blocks (a clear never needs memory) and the rest of the batch goes on from there.
pub(super) fn apply(lane: &mut Lane, rank: RankSlot, batch: &OpBatch) -> Applied {
    let mut applied = Applied::default();
    for op in &batch.ops {
        if let Err(error) = one(lane, rank, op, &mut applied) {
            refused(lane, rank, error, &mut applied);
        }
    }
    applied
}

fn one(lane: &mut Lane, rank: RankSlot, op: &Op, applied: &mut Applied) -> Result<(), IndexError> {
    match op {
        Op::Store { tier, parent, names, contents, kind } => {
            let store = Store { parent: *parent, names, contents, kind: *kind };
            add_stored(applied, lane.store(Holder { rank, tier: *tier }, &store)?);
        }
        Op::Adopt { tier, names } => add_stored(applied, lane.adopt(Holder { rank, tier: *tier }, names)?),
        Op::Remove { tier, names } => add_removed(applied, lane.remove(Holder { rank, tier: *tier }, names)?),
        Op::SetCopies { tier, name, left } => {
            add_removed(applied, lane.set_copies(Holder { rank, tier: *tier }, *name, *left)?);
        }
        Op::Clear { tier } => add_cleared(applied, lane.clear(rank, *tier)?),
    }
    Ok(())
}

fn refused(lane: &mut Lane, rank: RankSlot, error: IndexError, applied: &mut Applied) {
    match error {
        IndexError::SelfParent { .. } => applied.self_parent += 1,
        IndexError::BlocksFull { .. }
        | IndexError::RunsFull { .. }
        | IndexError::ExtsFull { .. }
        | IndexError::NamesFull { .. }
        | IndexError::RanksFull { .. } => {
            // Once a batch: a publisher can fill one with operations that all meet the limit.
            if applied.limit_reached == 0 {
                tracing::warn!(%error, "a memory limit of the index was reached: the rank is cleared");
            }
            applied.limit_reached += 1;
            if let Ok(cleared) = lane.clear(rank, None) {
                add_cleared(applied, cleared);
            }
        }
        // Both are excluded before: batches are built with one content for each name, and the slot was checked.
        IndexError::LengthMismatch { .. } | IndexError::UnknownRank { .. } => {
            tracing::error!(%error, "an operation was refused that should not have been sent");
        }
    }
}

fn add_stored(applied: &mut Applied, did: Stored) {
    applied.stored += did.stored;
    applied.copies += did.copies;
    applied.moved += did.moved;
    applied.orphans += did.orphans;
    applied.orphans_dropped += did.orphans_dropped;
    applied.attached += did.attached;
    applied.unknown_adoptions += did.unknown;
}

fn add_removed(applied: &mut Applied, did: Removed) {
    // A parked block is gone as well, though it was never credited.
    applied.removed += did.removed + did.parked;
    applied.copies_removed += did.copies;
    applied.unknown_removals += did.unknown;
}

fn add_cleared(applied: &mut Applied, did: Cleared) {
    applied.cleared += did.blocks + did.parked;
}
