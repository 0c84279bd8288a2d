//! The clock, for the tasks around the pure machines.

use super::rank::Now;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep_until};

/// Status snapshots of an unchanged trust are published at most this often.
pub(crate) const STATUS_PERIOD: Duration = Duration::from_millis(50);

impl Now {
    /// The present, for whoever began at `origin`.
    pub(crate) fn since(origin: Instant) -> Self {
        Self { elapsed: origin.elapsed(), unix_ms: now_ms() }
    }
}

/// Unix time in milliseconds. A clock before 1970 reads as 0.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Sleeps until then; for ever, if nothing is due.
pub(crate) async fn sleep_some(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
