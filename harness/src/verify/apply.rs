//! Operations onto a lane, strictly: in a recording of a real engine nothing may be refused.

use kvatlas_index::{IndexError, Lane, RankSlot};
use kvatlas_service::ops::{Applied, OpBatch};

/// Applies a batch and sums up what it did.
pub fn apply(lane: &mut Lane, rank: RankSlot, batch: &OpBatch) -> Result<Applied, IndexError> {
    let mut sum = Applied::default();
    batch.ops.iter().try_for_each(|op| op.apply(lane, rank, &mut sum))?;
    Ok(sum)
}
