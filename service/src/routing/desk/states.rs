//! What a desk knows of each worker, for whoever wants to see it.

use super::Desk;
use crate::routing::columns::{Status, nanos};
use crate::routing::{Overlap, Slot, View, warmup};
use std::sync::Arc;
use std::time::Duration;

/// What a desk knows of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerState {
    /// Its id.
    pub worker: Arc<str>,
    /// Whether there is a load that can be believed.
    pub fresh: bool,
    /// Whether the latest load says that it is overloaded.
    pub overloaded: bool,
    /// Whether it is warming up, measured against all workers of the desk.
    pub warming: bool,
    /// Requests in flight.
    pub in_flight: u32,
    /// Tokens dispatched that the latest load cannot contain.
    pub unrecorded_tokens: u64,
}

impl Desk {
    /// The workers by slot, as decisions of this moment would see them. Allocates.
    pub fn states(&self, now: Duration) -> Vec<WorkerState> {
        let columns = &self.columns;
        let there: Vec<Slot> =
            (0..columns.len() as Slot).filter(|slot| columns.names[*slot as usize].is_some()).collect();
        let (overlap, mut warming) = (Overlap::default(), Vec::new());
        let view = View {
            now,
            columns,
            candidates: &there,
            overlap: &overlap,
            settings: &self.settings,
            routers: self.routers,
        };
        warmup::find_warming(&view, &mut warming);
        let state = |slot: &Slot| {
            let at = *slot as usize;
            Some(WorkerState {
                worker: columns.names[at].clone()?,
                fresh: nanos(now) <= columns.fresh_until[at],
                overloaded: columns.status[at].has(Status::OVERLOADED),
                warming: warming.contains(slot),
                in_flight: columns.in_flight[at],
                unrecorded_tokens: columns.tallies[at].tokens(),
            })
        };
        there.iter().filter_map(state).collect()
    }
}
