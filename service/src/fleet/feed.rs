//! The subscribers of one worker: one task for each rank that follows an engine's publisher.

use super::keeper;
use super::registration::Registration;
use super::registry::FleetEvents;
use super::shared_log::{LOG_ENDPOINT, SharedLog};
use super::view::RankEntry;
use crate::ingest::{IngestLimits, Pulse, RankSink, RankStatus, SinkClosed, Trust, follow_rank};
use crate::lanes::LaneError;
use crate::ops::{Applied, Op, OpBatch};
use crate::seed::{SeedCall, SeedStock};
use crate::smg::{SmgEndpoint, follow_smg};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// What the ranks of all workers share.
pub(super) struct Shared {
    pub(super) limits: IngestLimits,
    pub(super) events: FleetEvents,
    /// Room for states that are fetched from engines at once.
    pub(super) snapshot_room: Arc<Semaphore>,
    pub(super) seed_stock: Arc<SeedStock>,
    /// The log that ranks are read from, where there is one.
    pub(super) log: Option<Arc<dyn SharedLog>>,
}

/// Follows every rank of a worker that has a publisher, until `stop` is cancelled or the rank is closed. A rank that has a seed
/// begins with it.
pub(super) fn follow(registration: &Registration, ranks: &[Arc<RankEntry>], shared: &Shared, stop: &CancellationToken) {
    for endpoint in &registration.worker.ranks {
        let Some(rank) = ranks.iter().find(|r| r.rank == endpoint.rank) else { continue };
        let Shared { limits, events, snapshot_room, seed_stock, log } = shared;
        let sink = LaneSink { rank: rank.clone(), events: events.clone(), snapshot_room: snapshot_room.clone() };
        if endpoint.events == LOG_ENDPOINT {
            // What a log says has no payloads that would prove a seed.
            drop(rank.seeds.take_calls());
            if let Some(log) = log {
                log.follow(sink, stop.clone());
            }
            continue;
        }
        let (spec, endpoint, limits, stop) = (registration.worker.clone(), endpoint.clone(), *limits, stop.clone());
        let (stock, seeded) = (seed_stock.clone(), rank.clone());
        let task = tokio::spawn(async move {
            if let Ok(servicer) = endpoint.events.parse::<SmgEndpoint>() {
                follow_smg(&spec, endpoint.rank, &servicer, &limits, sink, stop).await;
                return Ok(());
            }
            keeper::first_seed(&stock, &seeded).await;
            follow_rank(&spec, &endpoint, &limits, sink, stop).await
        });
        let (rank, events) = (rank.clone(), events.clone());
        tokio::spawn(async move {
            // A subscriber ends only when it is told to. Should it fail, the rank says so instead of looking exact for ever.
            let reason = match task.await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(error) => format!("the subscriber failed: {error}"),
            };
            tracing::error!(worker = %rank.worker, rank = rank.rank, %reason, "a rank is not followed any more");
            let before = RankStatus::clone(&rank.status.full());
            let (trust, detail) = (Trust::Degraded, Some(reason));
            events.publish_status(&rank, RankStatus { trust, detail, connected: false, ..before });
        });
    }
}

/// Exports of one state that are begun before its lane's neighbours are taken to be too busy for it.
const TELL_ATTEMPTS_MAX: u32 = 3;

/// Takes a subscriber's operations to the rank's lane and its statuses to the rank's cell.
pub struct LaneSink {
    rank: Arc<RankEntry>,
    events: FleetEvents,
    snapshot_room: Arc<Semaphore>,
}

impl LaneSink {
    /// The rank.
    pub fn rank(&self) -> &Arc<RankEntry> {
        &self.rank
    }
}

impl RankSink for LaneSink {
    async fn apply(&mut self, batch: OpBatch) -> Result<Applied, SinkClosed> {
        self.rank.relay.admit(&self.rank.lane, batch).await.map_err(|_| SinkClosed)
    }

    async fn load(&mut self, sequence: u64, parts: Vec<Vec<Op>>) -> Result<Applied, SinkClosed> {
        self.rank.relay.load(&self.rank.lane, sequence, parts).await.map_err(|_| SinkClosed)
    }

    async fn tell(&mut self) -> Option<Vec<Vec<Op>>> {
        for _ in 0..TELL_ATTEMPTS_MAX {
            match self.rank.lane.export(self.rank.relay.snapshot_limits()).await {
                Ok(parts) => return Some(parts),
                Err(LaneError::Changed) => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn seed_calls(&mut self) -> Option<mpsc::Receiver<SeedCall>> {
        self.rank.seeds.take_calls()
    }

    fn snapshot_room(&self) -> Arc<Semaphore> {
        self.snapshot_room.clone()
    }

    fn publish(&mut self, status: RankStatus) {
        self.events.publish_status(&self.rank, status);
    }

    fn settled(&mut self, trust: Trust) {
        self.rank.relay.settled(trust);
    }

    fn pulse(&self) -> Arc<Pulse> {
        self.rank.pulse.clone()
    }
}
