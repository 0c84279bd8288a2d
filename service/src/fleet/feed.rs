//! The subscribers of one worker: one task for each rank that follows an engine's publisher.

use super::registration::Registration;
use super::registry::FleetEvents;
use super::view::RankEntry;
use crate::ingest::IngestLimits;
use std::sync::Arc;
use tokio::task::AbortHandle;

/// Follows one rank until the handle aborts it.
pub(super) fn follow(
    _registration: &Registration,
    _rank: &Arc<RankEntry>,
    _limits: &IngestLimits,
    _events: &FleetEvents,
) -> Option<AbortHandle> {
    None
}
