//! The log's client: connections to the server, and a task for each rank on either side.

mod append;
mod entries;
mod follow;
mod read;
mod server;

use super::LogLimits;
use crate::config::LogSettings;
use crate::fleet::{LaneSink, LogStatus, RankEntry, SharedLog};
use crate::grpc::GrpcLimits;
use crate::ingest::Counters;
use read::Follow;
use server::{Keys, Server};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A shared log on a Valkey or Redis server.
pub struct RedisLog {
    shared: Arc<Shared>,
    append: bool,
    follow: mpsc::UnboundedSender<Follow>,
}

/// What all tasks share.
struct Shared {
    server: Server,
    prefix: String,
    limits: LogLimits,
    calls: GrpcLimits,
    /// Tells this process from others.
    nonce: u64,
    writing: Gauge,
    standby: Gauge,
    reading: Gauge,
    /// Why the streams cannot be read at the moment.
    unread: Mutex<Option<String>>,
    counters: Mutex<Counters>,
}

#[derive(Default)]
struct Gauge(AtomicU64);

impl Gauge {
    fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn add(&self, counts: Counters) {
        let mut sum = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().for_each(|(reason, count)| sum.add(reason, count));
    }

    /// Says whether the streams can be read, and why not.
    fn set_unread(&self, why: Option<String>) {
        *self.unread.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn count(&self, reason: &'static str) {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).bump(reason);
    }
}

impl fmt::Debug for RedisLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLog").field("append", &self.append).finish_non_exhaustive()
    }
}

impl RedisLog {
    /// A log on this server, which is connected to by and by. Call it on a runtime: the task that reads lives as long as the log.
    pub fn start(settings: LogSettings, calls: GrpcLimits) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            server: Server::new(&settings)?,
            prefix: settings.prefix,
            limits: settings.limits,
            calls,
            nonce: RandomState::new().hash_one(0_u8),
            writing: Gauge::default(),
            standby: Gauge::default(),
            reading: Gauge::default(),
            unread: Mutex::default(),
            counters: Mutex::default(),
        });
        // Bounded by the ranks of the fleet.
        let (follow, follows) = mpsc::unbounded_channel();
        tokio::spawn(read::read(shared.clone(), follows));
        Ok(Self { shared, append: settings.append, follow })
    }
}

impl SharedLog for RedisLog {
    fn append(&self, rank: Arc<RankEntry>, stop: CancellationToken) {
        if self.append {
            tokio::spawn(append::append(self.shared.clone(), rank, stop));
        }
    }

    fn follow(&self, sink: LaneSink, stop: CancellationToken) {
        let rank = sink.rank();
        let keys = Keys::new(&self.shared.prefix, &rank.worker, rank.rank);
        let (to, entries) = read::channel(&self.shared.limits);
        // The task that reads ends with the log only.
        let _ = self.follow.send(Follow { keys, to });
        tokio::spawn(follow::follow(self.shared.clone(), sink, entries, stop));
    }

    fn status(&self) -> LogStatus {
        let shared = &self.shared;
        let (connected, detail) = shared.server.state();
        // Streams are read on a connection of their own.
        let unread = shared.unread.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unread = unread.filter(|_| shared.reading.get() > 0);
        let (connected, detail) = (connected && unread.is_none(), detail.or(unread));
        let counters = shared.counters.lock().unwrap_or_else(PoisonError::into_inner);
        LogStatus {
            server: shared.server.address(),
            connected,
            detail,
            writing: shared.writing.get(),
            standby: shared.standby.get(),
            reading: shared.reading.get(),
            counters: counters.iter().collect(),
        }
    }
}
