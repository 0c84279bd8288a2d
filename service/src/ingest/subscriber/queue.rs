//! The queue between a socket and its rank, bounded by messages and by bytes.

use crate::ingest::rank::RankInput;
use crate::ingest::spec::IngestLimits;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// What travels in it.
pub(super) enum Entry {
    Input(RankInput),
    /// Something to count.
    Count(&'static str, u64),
}

/// The receiving end.
pub(super) struct Queue {
    entries: mpsc::Receiver<(Entry, Option<OwnedSemaphorePermit>)>,
    sender: Sender,
}

/// A sending end.
#[derive(Clone)]
pub(super) struct Sender {
    entries: mpsc::Sender<(Entry, Option<OwnedSemaphorePermit>)>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
}

/// There was no room.
pub(super) struct Full;

impl Queue {
    pub(super) fn new(limits: &IngestLimits) -> Self {
        let bytes_max = limits.queue_bytes_max.clamp(1, u32::MAX as usize);
        let (sender, entries) = mpsc::channel(limits.queue_batches_max.max(1));
        let bytes = Arc::new(Semaphore::new(bytes_max));
        Self { entries, sender: Sender { entries: sender, bytes, bytes_max } }
    }

    pub(super) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Waits for the next entry. Safe to drop.
    pub(super) async fn next(&mut self) -> Entry {
        match self.entries.recv().await {
            Some((entry, _room)) => entry,
            // The queue holds a sender itself, so it is never closed.
            None => std::future::pending().await,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Sender {
    /// Sends a message if there is room for it now.
    pub(super) fn offer(&self, frames: Vec<Bytes>) -> Result<(), Full> {
        let room = self.bytes.clone().try_acquire_many_owned(self.size(&frames)).map_err(|_| Full)?;
        self.entries.try_send((Entry::Input(RankInput::Live(frames)), Some(room))).map_err(|_| Full)
    }

    /// Sends a reply, waiting for room.
    pub(super) async fn reply(&self, request: u64, frames: Vec<Bytes>) {
        let room = self.bytes.clone().acquire_many_owned(self.size(&frames)).await.ok();
        self.send(RankInput::Replay { request, frames }, room).await;
    }

    /// Sends a part of a state, waiting for room.
    pub(super) async fn part(&self, request: u64, frames: Vec<Bytes>) {
        let room = self.bytes.clone().acquire_many_owned(self.size(&frames)).await.ok();
        self.send(RankInput::SnapshotPart { request, frames }, room).await;
    }

    /// Sends an input without a payload, waiting for room.
    pub(super) async fn tell(&self, input: RankInput) {
        self.send(input, None).await;
    }

    /// Counts something; not if the queue is full.
    pub(super) fn count(&self, reason: &'static str, count: u64) -> Result<(), Full> {
        self.entries.try_send((Entry::Count(reason, count), None)).map_err(|_| Full)
    }

    async fn send(&self, input: RankInput, room: Option<OwnedSemaphorePermit>) {
        // Without a receiver the rank is gone, and this task with it.
        self.entries.send((Entry::Input(input), room)).await.ok();
    }

    fn size(&self, frames: &[Bytes]) -> u32 {
        let bytes = frames.iter().map(Bytes::len).sum::<usize>().min(self.bytes_max);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}
