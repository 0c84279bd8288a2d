//! Where a rank's follower is asked for its seed, and offered one. Whoever follows a rank is the only one who knows its cursor
//! between two batches, so it answers itself.

use super::Seed;
use crate::ingest::Trust;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Calls that may wait for one rank's follower.
const CALLS_MAX: usize = 4;

/// Why there is no seed of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSeed {
    /// Nobody follows it: its events are pushed, or it was removed.
    #[error("no publisher is followed")]
    NotFollowed,
    /// Nothing of it was applied that a publisher could prove.
    #[error("the rank is {}, and no batch at its cursor is remembered", .trust.name())]
    Unproven {
        /// What it is.
        trust: Trust,
    },
    /// Answers about it may be too high.
    #[error("answers about the rank are upper bounds")]
    UpperBound,
    /// Its blocks kept moving while they were told.
    #[error("the rank's blocks kept changing")]
    Busy,
}

impl NoSeed {
    /// The reason in the counters.
    pub const fn label(self) -> &'static str {
        match self {
            NoSeed::NotFollowed => "not_followed",
            NoSeed::Unproven { .. } => "unproven",
            NoSeed::UpperBound => "upper_bound",
            NoSeed::Busy => "busy",
        }
    }
}

/// What a follower is asked for.
#[derive(Debug)]
pub enum SeedCall {
    /// Take this seed, if it is proven.
    Offer(Box<Seed>),
    /// Tell the rank's state as it is between two batches.
    Tell(oneshot::Sender<Result<Seed, NoSeed>>),
}

/// The desk of one rank. Any thread may call it.
#[derive(Debug)]
pub struct SeedDesk {
    calls: mpsc::Sender<SeedCall>,
    follower: Mutex<Option<mpsc::Receiver<SeedCall>>>,
    begun: AtomicBool,
}

impl Default for SeedDesk {
    fn default() -> Self {
        let (calls, follower) = mpsc::channel(CALLS_MAX);
        Self { calls, follower: Mutex::new(Some(follower)), begun: AtomicBool::new(false) }
    }
}

impl SeedDesk {
    /// The desk of a rank that nobody follows, or will.
    pub fn closed() -> Self {
        let desk = Self::default();
        drop(desk.take_calls());
        desk
    }

    /// The follower's side; taken once.
    pub fn take_calls(&self) -> Option<mpsc::Receiver<SeedCall>> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The follower does not look for seeds of a file by itself any more.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Whether seeds of a file have to be brought to the follower. What was taken from a stock or put into it before [`Self::begin`]
    /// is ordered by the stock's own lock.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Offers a seed. What becomes of it is in the rank's counters.
    pub async fn offer(&self, seed: Seed) -> Result<(), NoSeed> {
        self.calls.send(SeedCall::Offer(Box::new(seed))).await.map_err(|_| NoSeed::NotFollowed)
    }

    /// The rank's state, cut between two batches; its feed waits meanwhile. As long as the rank is busy with a step of its own, so
    /// is this: callers with little time put a deadline on it.
    pub async fn tell(&self) -> Result<Seed, NoSeed> {
        let (reply, told) = oneshot::channel();
        self.calls.send(SeedCall::Tell(reply)).await.map_err(|_| NoSeed::NotFollowed)?;
        told.await.unwrap_or(Err(NoSeed::NotFollowed))
    }
}
