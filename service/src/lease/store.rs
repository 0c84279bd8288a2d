//! Where records are kept: one compare-and-swap for each step of a partition.

use super::record::{Partition, Record};
use std::time::Duration;
use tonic::async_trait;

/// The store did not answer, or cannot take more: nobody gets a lease, and what was asked may have been done or not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// A record as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The record; `None`: the store has none.
    pub record: Option<Record>,
    /// Which of its versions; 0 for none.
    pub version: u64,
    /// The time at which it was read, since the Unix epoch. Clocks of replicas differ by no more than `lease.skew_max`.
    pub now: Duration,
}

/// What a swap came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swapped {
    /// The record is this one.
    Yes,
    /// It was changed since it was read: read again.
    No,
}

/// What is known of a store without asking it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreStatus {
    /// Which one: `embedded`, or the cluster's addresses.
    pub name: String,
    /// Whether it answered last.
    pub connected: bool,
    /// Why it did not.
    pub detail: Option<String>,
}

/// Keeps one record for each partition. Linearizable: a read sees every swap that ended before it began, and of two swaps of one
/// version one is taken.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Reads a record.
    async fn read(&self, partition: &Partition) -> Result<Stored, Unavailable>;

    /// Writes a record, if the store still has this version of it.
    async fn swap(&self, partition: &Partition, version: u64, record: Record) -> Result<Swapped, Unavailable>;

    /// Whether it can be reached. Blocks on nothing.
    fn status(&self) -> StoreStatus;
}
