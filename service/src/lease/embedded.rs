//! The store in this process: what one replica needs. A mutex for each partition; nothing outlives the process, which a partition's
//! first quiet time and fences that begin at the clock make safe.

use super::record::{Partition, Record};
use super::store::{LeaseStore, StoreStatus, Stored, Swapped, Unavailable};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use tonic::async_trait;

type Slot = Arc<Mutex<(Option<Record>, u64)>>;

/// Records in memory, of a bounded number of partitions.
#[derive(Debug)]
pub struct EmbeddedStore {
    partitions: Mutex<HashMap<Partition, Slot>>,
    partitions_max: usize,
    /// Unix time at `began`: from then on only the monotonic clock counts.
    origin: Duration,
    began: Instant,
}

impl EmbeddedStore {
    /// An empty store for so many partitions.
    pub fn new(partitions_max: usize) -> Self {
        let origin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { partitions: Mutex::default(), partitions_max, origin, began: Instant::now() }
    }

    /// The partition's place. Where all are taken, one of which forgetting loses nothing is given up.
    fn slot(&self, partition: &Partition) -> Result<Slot, Unavailable> {
        let mut partitions = lock(&self.partitions);
        if let Some(slot) = partitions.get(partition) {
            return Ok(slot.clone());
        }
        if partitions.len() >= self.partitions_max {
            partitions.retain(|_, slot| Arc::strong_count(slot) > 1 || !is_idle(&lock(slot)));
        }
        if partitions.len() >= self.partitions_max {
            let limit = self.partitions_max;
            return Err(Unavailable(format!("{limit} partitions have leases or owners (limit lease.partitions_max)")));
        }
        Ok(partitions.entry(partition.clone()).or_default().clone())
    }
}

fn is_idle((record, _): &(Option<Record>, u64)) -> bool {
    record.as_ref().is_none_or(Record::is_idle)
}

/// Nothing is left half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl LeaseStore for EmbeddedStore {
    async fn read(&self, partition: &Partition) -> Result<Stored, Unavailable> {
        let slot = self.slot(partition)?;
        let (record, version) = lock(&slot).clone();
        Ok(Stored { record, version, now: self.origin.saturating_add(self.began.elapsed()) })
    }

    async fn swap(&self, partition: &Partition, version: u64, record: Record) -> Result<Swapped, Unavailable> {
        let slot = self.slot(partition)?;
        let mut stored = lock(&slot);
        if stored.1 != version {
            return Ok(Swapped::No);
        }
        *stored = (Some(record), version + 1);
        Ok(Swapped::Yes)
    }

    fn status(&self) -> StoreStatus {
        StoreStatus { name: "embedded".into(), connected: true, detail: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::LeaseSettings;

    fn partition(model: &str) -> Partition {
        Partition { model: model.into(), namespace: String::new(), pool: String::new() }
    }

    #[tokio::test]
    async fn of_two_swaps_of_one_version_one_is_taken() {
        let (store, a) = (EmbeddedStore::new(1), partition("a"));
        let read = store.read(&a).await.unwrap();
        assert_eq!((read.record, read.version), (None, 0));
        let record = Record::new(read.now, &LeaseSettings::default());
        assert_eq!(store.swap(&a, 0, record.clone()).await, Ok(Swapped::Yes));
        assert_eq!(store.swap(&a, 0, record.clone()).await, Ok(Swapped::No));
        let again = store.read(&a).await.unwrap();
        assert_eq!((again.record, again.version), (Some(record), 1));
        assert!(again.now >= read.now, "time does not go back");
    }

    #[tokio::test]
    async fn partitions_are_bounded_and_idle_ones_make_room() {
        let (store, [a, b]) = (EmbeddedStore::new(1), ["a", "b"].map(partition));
        let now = store.read(&a).await.unwrap().now;
        let mut record = Record::new(now, &LeaseSettings::default());
        store.swap(&a, 0, record.clone()).await.unwrap();
        let full = store.read(&b).await.unwrap_err();
        assert!(full.to_string().contains("lease.partitions_max"), "{full}");
        record.phase = crate::lease::Phase::Free;
        store.swap(&a, 1, record).await.unwrap();
        assert_eq!(store.read(&b).await.unwrap().record, None);
        assert_eq!(store.read(&a).await.unwrap().record, None, "it gave its place up");
    }
}
