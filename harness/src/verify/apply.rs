//! Operations onto a lane, strictly: in a recording of a real engine nothing may be refused.

use kvatlas_index::{Cleared, Holder, IndexError, Lane, RankSlot, Removed, Store, Stored};
use kvatlas_service::ops::{Applied, Op, OpBatch};

/// Applies a batch and sums up what it did.
pub fn apply(lane: &mut Lane, rank: RankSlot, batch: &OpBatch) -> Result<Applied, IndexError> {
    let mut sum = Applied::default();
    for op in &batch.ops {
        match op {
            Op::Store { tier, parent, names, contents, kind } => {
                let store = Store { parent: *parent, names, contents, kind: *kind };
                add_stored(&mut sum, lane.store(Holder { rank, tier: *tier }, &store)?);
            }
            Op::Adopt { tier, names } => add_stored(&mut sum, lane.adopt(Holder { rank, tier: *tier }, names)?),
            Op::Remove { tier, names } => add_removed(&mut sum, lane.remove(Holder { rank, tier: *tier }, names)?),
            Op::SetCopies { tier, name, left } => {
                add_removed(&mut sum, lane.set_copies(Holder { rank, tier: *tier }, *name, *left)?);
            }
            Op::Clear { tier } => {
                let Cleared { blocks, parked } = lane.clear(rank, *tier)?;
                sum.cleared += blocks + parked;
            }
        }
    }
    Ok(sum)
}

fn add_stored(sum: &mut Applied, did: Stored) {
    sum.stored += did.stored;
    sum.copies += did.copies;
    sum.moved += did.moved;
    sum.orphans += did.orphans;
    sum.orphans_dropped += did.orphans_dropped;
    sum.attached += did.attached;
    sum.unknown_adoptions += did.unknown;
}

fn add_removed(sum: &mut Applied, did: Removed) {
    sum.removed += did.removed + did.parked;
    sum.copies_removed += did.copies;
    sum.unknown_removals += did.unknown;
}
