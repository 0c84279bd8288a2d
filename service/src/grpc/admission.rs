//! Who may start work now: the lookup limit, and the end of the service.

use super::error::ServiceError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Admission to all services. Cheap to clone; clones share the limit.
#[derive(Clone, Debug)]
pub struct Admission {
    lookups: Arc<Semaphore>,
    lookups_max: usize,
    refused: Arc<AtomicU64>,
    closing: CancellationToken,
}

impl Admission {
    /// Admits so many lookups at once, and nothing once `closing` is cancelled.
    pub fn new(lookups_max: usize, closing: CancellationToken) -> Self {
        Self { lookups: Arc::new(Semaphore::new(lookups_max)), lookups_max, refused: Arc::default(), closing }
    }

    /// Cancelled when streams have to end.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Refuses what comes after the service began to close.
    pub fn open(&self) -> Result<(), ServiceError> {
        if self.closing.is_cancelled() { Err(ServiceError::Draining) } else { Ok(()) }
    }

    /// Admits one lookup, or a batch of them, until the permit is dropped. Never waits.
    pub fn lookup(&self) -> Result<OwnedSemaphorePermit, ServiceError> {
        self.open()?;
        self.lookups.clone().try_acquire_owned().map_err(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            ServiceError::Busy { limit: self.lookups_max }
        })
    }

    /// Admits a batch of a stream: waits for its turn, since its sender waits as well.
    pub async fn batch(&self) -> Result<OwnedSemaphorePermit, ServiceError> {
        tokio::select! {
            permit = self.lookups.clone().acquire_owned() => permit.map_err(|_| ServiceError::Draining),
            () = self.closing.cancelled() => Err(ServiceError::Draining),
        }
    }

    /// Lookups that were refused since start.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lookups_beyond_the_limit_are_refused_and_batches_wait() {
        let admission = Admission::new(1, CancellationToken::new());
        let permit = admission.lookup().unwrap();
        assert_eq!(admission.clone().lookup().map(drop), Err(ServiceError::Busy { limit: 1 }));
        assert_eq!(admission.refused(), 1);
        let mut waiting = Box::pin(admission.batch());
        assert!(futures_util::FutureExt::now_or_never(&mut waiting).is_none());
        drop(permit);
        drop(waiting.await.unwrap());
        assert!(admission.lookup().is_ok());
    }

    #[tokio::test]
    async fn nothing_is_admitted_once_the_service_closes() {
        let admission = Admission::new(1, CancellationToken::new());
        let _permit = admission.lookup().unwrap();
        let waiting = admission.batch();
        admission.closing().cancel();
        assert_eq!(waiting.await.map(drop), Err(ServiceError::Draining));
        assert_eq!(admission.open(), Err(ServiceError::Draining));
        assert_eq!(admission.lookup().map(drop), Err(ServiceError::Draining));
    }
}
