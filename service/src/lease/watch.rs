//! A watch of one partition: its owner sets and its lease, as changes since what was told last. Nothing queues up: who reads slowly is
//! told the newest of each.

use super::leases::{Leases, WatchesFull};
use super::owners::OwnerSet;
use super::record::{Partition, Phase, Prefix, Record};
use super::store::Unavailable;
use std::sync::Arc;
use tokio::sync::watch;

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The owners of a prefix, all of them.
    Owners(Prefix, OwnerSet),
    /// Where the lease is, and the latest fence.
    Lease(Phase, u64),
}

/// Changes told together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// The revision up to which everything was told before them.
    pub before: u64,
    /// The same after them.
    pub revision: u64,
    /// At least one.
    pub changes: Vec<Change>,
}

/// Why a watch does not begin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WatchEnd {
    /// The store did not answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// As many watches as allowed are open.
    #[error(transparent)]
    Full(#[from] WatchesFull),
    /// What changed since is not known any more.
    #[error("revision {asked} is not one to go on from: watch from 0")]
    Gone {
        /// The revision asked for.
        asked: u64,
    },
}

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    records: watch::Receiver<Arc<Record>>,
    told: u64,
    lease: Option<(Phase, u64)>,
}

impl Leases {
    /// Watches a partition from a revision on; 0 for the whole state first.
    pub async fn open_watch(&self, partition: &Partition, from: u64) -> Result<Watch, WatchEnd> {
        let record = self.look_at(partition).await?;
        if from > record.revision || (from > 0 && from < record.prefixes.forgotten) {
            return Err(WatchEnd::Gone { asked: from });
        }
        let mut records = self.watch(partition, record)?;
        records.mark_changed();
        Ok(Watch { records, told: from, lease: None })
    }
}

impl Watch {
    /// The next changes. Owners come before the lease, so that whoever sees a lease
    /// end has seen what it left. Waits for a change; may be dropped meanwhile.
    pub async fn next(&mut self) -> Result<Told, WatchEnd> {
        loop {
            let gone = WatchEnd::Gone { asked: self.told };
            if self.records.changed().await.is_err() {
                return Err(gone);
            }
            let record = self.records.borrow_and_update().clone();
            if self.told > 0 && self.told < record.prefixes.forgotten {
                return Err(gone);
            }
            let mut changes: Vec<Change> = record
                .prefixes
                .iter()
                .filter(|(_, set)| set.revision > self.told)
                .map(|(prefix, set)| Change::Owners(prefix.clone(), set.clone()))
                .collect();
            let lease = (record.phase.clone(), record.fence);
            if self.lease.as_ref() != Some(&lease) {
                changes.push(Change::Lease(lease.0.clone(), lease.1));
                self.lease = Some(lease);
            }
            let before = self.told;
            self.told = before.max(record.revision);
            if !changes.is_empty() {
                return Ok(Told { before, revision: self.told, changes });
            }
        }
    }
}
