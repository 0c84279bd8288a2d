//! Eight publishers of 20,000 blocks each, under load, and a service in a process of its own that follows them.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::common::*;
use crate::engine;
use crate::publisher::{Publisher, Ring};
use crate::served::{Served, serve};
use bytes::Bytes;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::index_service_client::IndexServiceClient;
use kvatlas_service::grpc::proto::worker_service_client::WorkerServiceClient;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

pub const PUBLISHERS: u32 = 8;
/// Blocks of a batch; a chain is five batches.
pub const BATCH_BLOCKS: u32 = 4;
pub const CHAIN_BATCHES: u32 = 5;
/// 20,000 blocks; what comes under load is less than as many again, so that a ring of 10,000 batches keeps all of it.
pub const BATCHES: u32 = 5_000;

/// A service in a process of its own that follows these workers, with more of its flags, and a channel to it.
pub async fn following(workers: &[String], more: &[&str]) -> (Served, Channel) {
    let args = workers.iter().flat_map(|worker| ["--worker", worker]).chain(more.iter().copied());
    let served = serve(&args.collect::<Vec<_>>());
    let channel = Channel::from_shared(format!("http://{}", served.grpc)).unwrap().connect().await.unwrap();
    (served, channel)
}

/// Tokens of a chain's first blocks.
pub fn chain(publisher: u32, number: u32, blocks: u32) -> Vec<u32> {
    let first = (publisher * 10_000 + number) * CHAIN_BATCHES * BATCH_BLOCKS * BLOCK_SIZE;
    (first..first + blocks * BLOCK_SIZE).collect()
}

pub fn payload(publisher: u32, batch: u32) -> Bytes {
    let (number, part) = (batch / CHAIN_BATCHES, batch % CHAIN_BATCHES);
    let name = |block: u32| (u64::from(number) << 32) | u64::from(block + 1);
    let first = part * BATCH_BLOCKS;
    let names: Vec<u64> = (first..first + BATCH_BLOCKS).map(name).collect();
    let ids = chain(publisher, number, first + BATCH_BLOCKS).split_off((first * BLOCK_SIZE) as usize);
    let parent = (first > 0).then(|| name(first - 1));
    engine::batch(f64::from(batch), vec![engine::stored(parent, &names, &ids, u64::from(BLOCK_SIZE), &[])])
}

/// Publishes some hundred batches a second until told to stop; then says how many there are.
pub fn load(number: u32, mut publisher: Publisher, stop: watch::Receiver<bool>) -> JoinHandle<(Publisher, u32)> {
    tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        let mut next = BATCHES;
        while !*stop.borrow() && next < 2 * BATCHES {
            pace.tick().await;
            publisher.publish(payload(number, next)).await;
            next += 1;
        }
        (publisher, next)
    })
}

/// Waits until every rank is exact at or beyond its wanted sequence.
pub async fn exact(channel: &Channel, wanted: &[u64]) {
    let mut workers = WorkerServiceClient::new(channel.clone());
    tokio::time::timeout(DEADLINE * 3, async {
        let mut period = tokio::time::interval(Duration::from_millis(5));
        loop {
            let listed = workers.list(proto::ListRequest::default()).await.unwrap().into_inner().workers;
            let there = |(i, wanted): (usize, &u64)| {
                let worker = listed.iter().find(|w| w.spec.as_ref().is_some_and(|s| s.id == format!("w{i}")));
                let rank = &worker.expect("registered").ranks[0];
                rank.trust() == proto::Trust::Exact && rank.cursor >= Some(*wanted)
            };
            if wanted.iter().enumerate().all(there) {
                return;
            }
            period.tick().await;
        }
    })
    .await
    .expect("every rank is exact in time");
}

/// Publishers under load, the workers that they are, and what stops them.
pub struct Fleet {
    pub workers: Vec<String>,
    pub rings: Vec<Arc<Mutex<Ring>>>,
    pub loads: Vec<JoinHandle<(Publisher, u32)>>,
    pub stop: watch::Sender<bool>,
}

impl Fleet {
    pub async fn start() -> Self {
        let (mut workers, mut rings, mut loads) = (Vec::new(), Vec::new(), Vec::new());
        let (stop, stopped) = watch::channel(false);
        for number in 0..PUBLISHERS {
            let publisher = Publisher::start().await;
            for batch in 0..BATCHES {
                publisher.lose(payload(number, batch));
            }
            workers.push(worker(number, &publisher));
            rings.push(publisher.ring.clone());
            loads.push(load(number, publisher, stopped.clone()));
        }
        Self { workers, rings, loads, stop }
    }

    /// Ends the load, and compares what the service then holds with what was published.
    pub async fn compare(self, channel: Channel) {
        self.stop.send_replace(true);
        let mut publishers = Vec::new();
        for load in self.loads {
            publishers.push(load.await.unwrap());
        }
        let newest: Vec<u64> = publishers.iter().map(|(_, next)| u64::from(*next) - 1).collect();
        exact(&channel, &newest).await;
        let mut index = IndexServiceClient::new(channel);
        for (number, (_, batches)) in (0..).zip(&publishers) {
            let chains = batches / CHAIN_BATCHES;
            for chain_number in (0..chains).step_by(97).chain([chains - 1]) {
                let blocks = CHAIN_BATCHES * BATCH_BLOCKS;
                let answer = index.lookup(ask(chain(number, chain_number, blocks))).await.unwrap().into_inner();
                assert_eq!(rows(&answer), [(format!("w{number}").as_str(), 0, blocks)], "chain {chain_number}");
            }
        }
    }
}

pub const BEFORE: [u64; PUBLISHERS as usize] = [BATCHES as u64 - 1; PUBLISHERS as usize];

/// Starts the service that ended anew, until it is exact.
pub async fn come_back(workers: &[String], more: &[&str], by: &str) -> (Served, Channel) {
    let began = Instant::now();
    let (again, channel) = following(workers, more).await;
    let serving = began.elapsed();
    exact(&channel, &BEFORE).await;
    println!(
        "started again: serving after {:.0} ms, {PUBLISHERS} ranks of {} blocks and more exact by {by} after {:.0} ms",
        serving.as_secs_f64() * 1e3,
        BATCHES * BATCH_BLOCKS,
        began.elapsed().as_secs_f64() * 1e3,
    );
    (again, channel)
}

/// The setting that names a worker of this publisher.
pub fn worker(number: u32, publisher: &Publisher) -> String {
    let (events, replay) = (&publisher.events, &publisher.replay);
    format!("id=w{number},model={MODEL},block_size={BLOCK_SIZE},events={events},replay={replay}")
}
