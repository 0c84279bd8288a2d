//! What a rank's connections tell about its publisher being there, for whoever judges it (the fleet's liveness).
//!
//! | happens | counts as |
//! |---|---|
//! | the event connection is made; a message comes; a reply comes from the replay endpoint; a probe shakes hands | contact |
//! | the event connection cannot be made, or ends; a replay request ends without any reply; a probe fails | failure |
//! | silence | nothing |

use super::socket_limits;
use crate::ingest::socket::{Connection, Endpoint, Role};
use crate::ingest::spec::IngestLimits;
use futures_util::FutureExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The pulse of one rank: the times of its last contact and its last failure. Written by the tasks of the rank, read by
/// whoever judges the worker, who is woken by every failure, but by a contact only while one is waited for: a batch costs a
/// look at the clock and a store.
#[derive(Debug)]
pub struct Pulse {
    origin: Instant,
    /// Nanoseconds since `origin`, plus one; 0 for never.
    contact_at: AtomicU64,
    failed_at: AtomicU64,
    /// The event connection is there, as far as its socket knows.
    connected: AtomicBool,
    /// How often it was made or ended.
    turns: AtomicU64,
    awaited: AtomicBool,
    wake: Arc<Notify>,
    hang_up: Notify,
}

impl Default for Pulse {
    /// A pulse that nobody looks at.
    fn default() -> Self {
        Self::new(Instant::now(), Arc::default())
    }
}

impl Pulse {
    /// A pulse whose times count from `origin`, and whose changes wake the one who waits at `wake`.
    pub fn new(origin: Instant, wake: Arc<Notify>) -> Self {
        Self {
            origin,
            contact_at: AtomicU64::new(0),
            failed_at: AtomicU64::new(0),
            connected: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            awaited: AtomicBool::new(false),
            wake,
            hang_up: Notify::new(),
        }
    }

    /// The publisher gave a sign of life. Never blocks.
    pub fn contact(&self) {
        self.contact_at.store(self.now(), Ordering::Release);
        // Should this miss that contact is awaited from now on, the time is read all the same before anything is decided.
        if self.awaited.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// The publisher could not be reached, or hung up. Never blocks.
    pub fn failed(&self) {
        self.failed_at.store(self.now(), Ordering::Release);
        self.wake.notify_one();
    }

    /// Time of the last contact, since the origin.
    pub fn contact_at(&self) -> Option<Duration> {
        time(self.contact_at.load(Ordering::Acquire))
    }

    /// Time of the last failure, since the origin.
    pub fn failed_at(&self) -> Option<Duration> {
        time(self.failed_at.load(Ordering::Acquire))
    }

    /// Whether the event connection is there, as far as its socket knows.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether a contact wakes the one who waits.
    pub fn await_contact(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Ends the event connection; it is then made anew like any that was lost.
    pub fn hang_up(&self) {
        self.hang_up.notify_one();
    }

    pub(crate) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }

    /// How often the event connection was made or ended, as far as its socket knows.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        if connected {
            // What was meant for the connection before is not meant for this one.
            let _ = self.hang_up.notified().now_or_never();
        }
        self.connected.store(connected, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
        if connected { self.contact() } else { self.failed() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }
}

fn time(stored: u64) -> Option<Duration> {
    stored.checked_sub(1).map(Duration::from_nanos)
}

/// Asks a publisher for a sign of life beside its connection, which may hang: connects and shakes hands within `deadline`.
/// What comes of it goes to the pulse.
pub async fn probe(endpoint: Endpoint, limits: IngestLimits, deadline: Duration, pulse: Arc<Pulse>) {
    match timeout(deadline, Connection::open(&endpoint, Role::Sub, socket_limits(&limits))).await {
        Ok(Ok(_)) => pulse.contact(),
        Ok(Err(_)) | Err(_) => pulse.failed(),
    }
}

/// A request that counts as a failure if it ends, in whatever way, before a reply came.
pub(super) struct Asked<'a> {
    pub(super) pulse: &'a Pulse,
    pub(super) replied: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.replied {
            self.pulse.failed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failures_wake_and_contacts_do_when_they_are_awaited() {
        let wake = Arc::new(Notify::new());
        let pulse = Pulse::new(Instant::now(), wake.clone());
        assert_eq!((pulse.contact_at(), pulse.failed_at()), (None, None));
        pulse.set_connected(true);
        assert!(pulse.is_connected() && pulse.contact_at().is_some() && pulse.failed_at().is_none());
        let woken = || timeout(Duration::ZERO, wake.notified());
        assert!(woken().await.is_err(), "nobody waits for a contact");
        pulse.set_connected(false);
        assert!(!pulse.is_connected() && pulse.failed_at() >= pulse.contact_at());
        assert!(woken().await.is_ok());
        pulse.await_contact(true);
        pulse.contact();
        assert!(woken().await.is_ok());
    }

    #[test]
    fn a_request_without_a_reply_is_a_failure() {
        let pulse = Pulse::default();
        drop(Asked { pulse: &pulse, replied: true });
        assert_eq!(pulse.failed_at(), None);
        drop(Asked { pulse: &pulse, replied: false });
        assert!(pulse.failed_at().is_some());
    }
}
