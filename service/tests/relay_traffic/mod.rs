//! Much more traffic than a relay may keep, through the whole service, with subscribers that never read: what its histories count, and
//! what the process takes.
#![allow(dead_code, reason = "each user has its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use super::common::{Clients, batch, clients, in_time, run, small, spec};
use kvatlas_service::grpc::proto;
use kvatlas_service::serve::Running;
use std::fmt;
use std::time::{Duration, Instant};
use tonic::{Code, Streaming};

const RANKS: u64 = 4;
/// Blocks of a store.
const STORE_BLOCKS: u64 = 512;
/// Batches between two looks at the memory.
const ROUND_BATCHES: u64 = 64;
/// Growth of the process that is not the histories': buffers, fragments, the allocator's own.
pub const SLACK_BYTES: u64 = 16 << 20;

/// What was seen.
pub struct Report {
    pub blocks: u64,
    pub bound: u64,
    /// Most bytes that the histories ever counted.
    pub counted: u64,
    /// Of the process, before any traffic.
    pub resident_before: u64,
    /// When the histories were full for the first time.
    pub resident_full: u64,
    /// The most after that.
    pub resident_max: u64,
    pub cut_off: u64,
    pub took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "{} blocks in {:.1} s: histories at most {:.1} of {:.1} MiB; resident {:.1} MiB before, {:.1} when they were full, at most {:.1} \
             after that; {} subscribers cut off",
            self.blocks,
            self.took.as_secs_f64(),
            mb(self.counted),
            mb(self.bound),
            mb(self.resident_before),
            mb(self.resident_full),
            mb(self.resident_max),
            self.cut_off,
        )
    }
}

impl Report {
    /// The bound was kept, and the process did not grow behind its back.
    pub fn check(&self) {
        assert!(self.counted <= self.bound, "{self}");
        assert!(self.counted > self.bound / 2, "the histories were full: {self}");
        assert!(self.resident_max <= self.resident_full + SLACK_BYTES, "{self}");
        assert_eq!(self.cut_off, RANKS, "every subscriber that does not read is cut off: {self}");
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Stores blocks and removes them again, on each rank in turn, until `blocks` went through; all histories together may take `bound`.
pub async fn drive(blocks: u64, bound: u64) -> Report {
    let mut raw = small();
    raw.relay.history_bytes_max = bound / 2;
    raw.relay.bytes_max = bound;
    raw.relay.history_batches_max = usize::MAX;
    let running = run(raw).await;
    let mut pushing = clients(&running).await;
    let workers: Vec<String> = (0..RANKS).map(|rank| format!("w{rank}")).collect();
    for worker in &workers {
        pushing.register(spec(worker)).await.unwrap();
    }
    let stuck = subscribe_all(&running, &workers).await;
    let (began, resident_before) = (Instant::now(), resident());
    let (mut counted, mut resident_full, mut resident_max) = (0, None, 0);
    let (mut sent, mut sequence) = (0, 0);
    while sent < blocks {
        for worker in &workers {
            let batches = (sequence..sequence + ROUND_BATCHES).map(|sequence| turn(worker, sequence)).collect();
            pushing.apply(batches).await.unwrap();
            sent += ROUND_BATCHES * STORE_BLOCKS;
            let relay = running.fleet().relay();
            counted = counted.max(relay.bytes());
            if relay.bytes() > bound - bound / 8 {
                resident_full.get_or_insert_with(resident);
            }
        }
        sequence += ROUND_BATCHES;
        if resident_full.is_some() {
            resident_max = resident_max.max(resident());
        }
    }
    let took = began.elapsed();
    for (_, mut stream) in stuck {
        // What was on its way to it comes, and then the word.
        let ended = loop {
            if let Err(status) = in_time(stream.message()).await {
                break status;
            }
        };
        assert_eq!(ended.code(), Code::DataLoss, "{ended:?}");
    }
    let cut_off = running.fleet().relay().cut_off();
    let resident_full = resident_full.expect("more traffic than the histories keep");
    Report { blocks: sent, bound, counted, resident_before, resident_full, resident_max, cut_off, took }
}

/// A subscription of each worker, on a connection of its own, that nobody reads.
async fn subscribe_all(running: &Running, workers: &[String]) -> Vec<(Clients, Streaming<proto::RelayedBatch>)> {
    let mut stuck = Vec::new();
    for worker in workers {
        let mut clients = clients(running).await;
        let request = proto::SubscribeRequest { worker: worker.clone(), ..Default::default() };
        let stream = clients.events.subscribe(request).await.unwrap().into_inner();
        stuck.push((clients, stream));
    }
    stuck
}

/// Stores blocks, and removes those of the batch before.
fn turn(worker: &str, sequence: u64) -> proto::EventBatch {
    let names = |sequence: u64| ((sequence % 2) * STORE_BLOCKS..(sequence % 2 + 1) * STORE_BLOCKS).collect::<Vec<_>>();
    let stored = proto::BlocksStored {
        engine_hashes: names(sequence),
        content: Some(proto::blocks_stored::Content::ContentHashes(proto::ContentHashes { hashes: names(sequence) })),
        ..Default::default()
    };
    let removed = proto::BlocksRemoved { engine_hashes: names(sequence + 1), ..Default::default() };
    let events = [proto::event::Event::Stored(stored), proto::event::Event::Removed(removed)];
    batch(worker, sequence, events.map(|event| proto::Event { event: Some(event) }).to_vec())
}
