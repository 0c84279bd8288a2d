//! What the rest of the service holds of a lane: a sender into its queue.

use super::export::Step;
use crate::ops::{Applied, OpBatch};
use crate::topology::Pinned;
use kvatlas_index::{Cleared, IndexError, RankKey, RankSlot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Why a lane did not do what it was asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LaneError {
    /// The rank was closed, or opened anew, since: nothing was done.
    #[error("the rank was removed since (generation {generation} is over)")]
    Fenced {
        /// The generation of the late message.
        generation: u64,
    },
    /// The lane's thread has ended: the service is stopping.
    #[error("the lane has stopped")]
    Stopped,
    /// The rank changed during its export, or other lanes kept moving its blocks: what was exported is of no use.
    #[error("the rank changed while it was exported")]
    Changed,
    /// The index refused to open the rank.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// What a lane has done since its start. Read by scrapes.
#[derive(Debug, Default)]
pub struct LaneCounters {
    /// Batches applied.
    pub batches: AtomicU64,
    /// Operations applied.
    pub ops: AtomicU64,
    /// Messages of a generation that was over.
    pub fenced: AtomicU64,
    /// Operations that met a memory limit.
    pub limit_reached: AtomicU64,
    /// Batches that put blocks elsewhere than on the device: while there are none, the device is all that anybody holds. Counted
    /// before they are applied, so that whoever sees such a block sees this.
    pub beyond_device: AtomicU64,
}

impl LaneCounters {
    /// One counter's value now.
    pub fn read(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// What a lane thread is asked to do.
pub(super) enum Command {
    Open {
        key: RankKey,
        generation: u64,
        /// Where the lane says how many blocks the rank holds.
        blocks: Arc<AtomicU64>,
        reply: oneshot::Sender<Result<RankSlot, IndexError>>,
    },
    Close {
        slot: RankSlot,
        generation: u64,
        reply: oneshot::Sender<Result<Cleared, LaneError>>,
    },
    Apply {
        slot: RankSlot,
        generation: u64,
        batch: OpBatch,
        reply: oneshot::Sender<Result<(Applied, OpBatch), LaneError>>,
    },
    Export {
        slot: RankSlot,
        generation: u64,
        step: Box<Step>,
        reply: oneshot::Sender<Result<Box<Step>, LaneError>>,
    },
}

/// A sender into one lane's queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LaneHandle {
    number: u32,
    shard: u32,
    pinned: Pinned,
    queue: mpsc::Sender<Command>,
    counters: Arc<LaneCounters>,
}

impl LaneHandle {
    pub(super) fn new(
        number: u32,
        shard: u32,
        pinned: Pinned,
        queue: mpsc::Sender<Command>,
        counters: Arc<LaneCounters>,
    ) -> Self {
        Self { number, shard, pinned, queue, counters }
    }

    /// The lane's number over all shards, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The index shard that it writes.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Where it runs.
    pub fn pinned(&self) -> Pinned {
        self.pinned
    }

    /// What the lane has done.
    pub fn counters(&self) -> &LaneCounters {
        &self.counters
    }

    /// Messages waiting in the queue.
    pub fn queue_len(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Opens a rank under a generation. Waits while the queue is full.
    pub async fn open(&self, key: RankKey, generation: u64) -> Result<RankLane, LaneError> {
        let (reply, answer) = oneshot::channel();
        let blocks = Arc::<AtomicU64>::default();
        self.send(Command::Open { key, generation, blocks: blocks.clone(), reply }).await?;
        let slot = answer.await.map_err(|_| LaneError::Stopped)??;
        Ok(RankLane { lane: self.clone(), slot, generation, blocks })
    }

    async fn send(&self, command: Command) -> Result<(), LaneError> {
        self.queue.send(command).await.map_err(|_| LaneError::Stopped)
    }
}

/// One open rank's way into its lane. Clones speak for the same generation.
#[derive(Clone, Debug)]
pub struct RankLane {
    lane: LaneHandle,
    slot: RankSlot,
    generation: u64,
    blocks: Arc<AtomicU64>,
}

impl RankLane {
    /// The lane.
    pub fn lane(&self) -> &LaneHandle {
        &self.lane
    }

    /// The generation that this handle speaks for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Blocks that the rank held after the last batch, over its tiers.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Applies a batch after everything sent before; says what it did and gives the batch back. Waits while the queue is
    /// full. A caller that stops waiting for the answer does not stop the batch.
    pub async fn apply(&self, batch: OpBatch) -> Result<(Applied, OpBatch), LaneError> {
        let (reply, answer) = oneshot::channel();
        self.lane.send(Command::Apply { slot: self.slot, generation: self.generation, batch, reply }).await?;
        answer.await.map_err(|_| LaneError::Stopped)?
    }

    pub(super) async fn send_export(&self, command: impl FnOnce(RankSlot, u64) -> Command) -> Result<(), LaneError> {
        self.lane.send(command(self.slot, self.generation)).await
    }

    /// Closes the rank: its blocks are gone from answers when this returns, and later messages of any clone do nothing.
    pub async fn close(&self) -> Result<Cleared, LaneError> {
        let (reply, answer) = oneshot::channel();
        self.lane.send(Command::Close { slot: self.slot, generation: self.generation, reply }).await?;
        answer.await.map_err(|_| LaneError::Stopped)?
    }
}
