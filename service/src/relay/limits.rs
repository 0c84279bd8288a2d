//! Limits of the relay, and what all ranks together have used of them.

use super::snapshot::SnapshotLimits;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds of the relay. Reaching one is a status for the subscriber that it concerns, and visible in the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayLimits {
    /// Batches of a rank that its history keeps.
    pub history_batches_max: usize,
    /// Bytes of a rank that its history keeps.
    pub history_bytes_max: u64,
    /// Bytes that the histories of all ranks keep together: beyond it the rank that gets a batch gives its oldest away.
    pub bytes_max: u64,
    /// Subscriptions at once, over all ranks.
    pub subscribers_max: usize,
    /// Snapshots on their way to subscribers and peers at once: each is held in memory until it was sent.
    pub snapshots_in_flight_max: usize,
    /// Time that a subscriber or a peer may take for one chunk of a snapshot; then it is cut off, and the room is another's.
    pub snapshot_stall_max: Duration,
    /// Chunks of a snapshot.
    pub snapshot: SnapshotLimits,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            history_batches_max: 10_000,
            history_bytes_max: 256 << 20,
            bytes_max: 1 << 30,
            subscribers_max: 4096,
            snapshots_in_flight_max: 4,
            snapshot_stall_max: Duration::from_secs(10),
            snapshot: SnapshotLimits::default(),
        }
    }
}

/// As many subscriptions as allowed are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{limit} subscriptions are open (limit relay.subscribers_max)")]
pub struct RelayFull {
    /// The limit.
    pub limit: usize,
}

/// What the relays of all ranks share. Any thread may call it; nothing here blocks.
#[derive(Debug)]
pub struct RelayShared {
    limits: RelayLimits,
    bytes: AtomicU64,
    lives: AtomicU64,
    nonce: u64,
    subscribers: Arc<Semaphore>,
    snapshots: Arc<Semaphore>,
    cut_off: AtomicU64,
    snapshots_sent: AtomicU64,
    copies: AtomicU64,
}

impl RelayShared {
    /// Nothing used yet. `nonce` tells this process from the ones before and after it: a random number.
    pub fn new(limits: RelayLimits, nonce: u64) -> Self {
        Self {
            limits,
            bytes: AtomicU64::new(0),
            lives: AtomicU64::new(0),
            nonce,
            subscribers: Arc::new(Semaphore::new(limits.subscribers_max)),
            snapshots: Arc::new(Semaphore::new(limits.snapshots_in_flight_max.max(1))),
            cut_off: AtomicU64::new(0),
            snapshots_sent: AtomicU64::new(0),
            copies: AtomicU64::new(0),
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> &RelayLimits {
        &self.limits
    }

    /// Bytes that all histories hold now.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Subscriptions that are open now.
    pub fn subscribers(&self) -> usize {
        self.limits.subscribers_max.saturating_sub(self.subscribers.available_permits())
    }

    /// Subscriptions that were cut off because the history moved past them.
    pub fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Snapshots that subscribers were given.
    pub fn snapshots(&self) -> u64 {
        self.snapshots_sent.load(Ordering::Relaxed)
    }

    /// States of a rank that peers were given.
    pub fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    pub(super) fn note_cut_off(&self) {
        self.cut_off.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn take_bytes(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.bytes() > self.limits.bytes_max
    }

    /// A name that no other life of any rank has, in this process or another.
    pub(super) fn next_life(&self) -> u64 {
        let number = self.lives.fetch_add(1, Ordering::Relaxed);
        // An odd factor maps numbers one to one; the nonce keeps processes apart.
        self.nonce ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn subscribe(&self) -> Result<OwnedSemaphorePermit, RelayFull> {
        let limit = self.limits.subscribers_max;
        self.subscribers.clone().try_acquire_owned().map_err(|_| RelayFull { limit })
    }

    /// Room for one more snapshot in memory; waits for it. `None` never happens: the semaphore is not closed.
    pub async fn snapshot_room(&self) -> Option<OwnedSemaphorePermit> {
        self.snapshots.clone().acquire_owned().await.ok()
    }

    pub(super) fn note_snapshot(&self) {
        self.snapshots_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// A state of a rank is on its way to a peer.
    pub fn note_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }
}
