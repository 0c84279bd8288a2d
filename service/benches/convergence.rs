//! How long a rank takes to be exact again: 20 gaps and 20 restarts of a publisher at 2,000 events a second, through the whole
//! service with its default settings, over loopback.
//!
//! Measured from the publication of the first batch that is out of order (the one behind the gap; the first of the next life) until
//! the rank's status says EXACT at that batch or a later one. In the end every prompt of the last life is looked up and compared
//! with what the publisher holds; a difference is an error.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/engine/mod.rs"]
mod engine;
#[path = "../tests/publisher/mod.rs"]
mod publisher;

use bytes::Bytes;
use common::{BLOCK_SIZE, Clients, ask, clients, spec};
use kvatlas_service::config::{Raw, Resolved};
use kvatlas_service::grpc::proto;
use kvatlas_service::ingest::Trust;
use kvatlas_service::serve::{Running, start};
use publisher::Publisher;
use std::error::Error;
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior, interval};

const TRIALS: usize = 20;
const EVENTS_PER_SECOND: u64 = 2_000;
/// Blocks that the publisher holds; the oldest is removed in the batch of the next one.
const HELD: u32 = 1_000;
/// Batches that the publisher keeps for its replay, as the engines do.
const RING: usize = 10_000;
/// Batches before each disturbance: 200 ms.
const STEADY: u32 = 400;
const LOST: u32 = 5;
const GIVE_UP: Duration = Duration::from_secs(20);

/// One publisher and where it is.
struct Traffic {
    publisher: Publisher,
    life: u32,
    next: u32,
    pace: Interval,
}

impl Traffic {
    fn payload(&mut self) -> Bytes {
        let number = self.next;
        self.next += 1;
        let (life, tokens) = (self.life, tokens(self.life, number));
        let mut events = vec![engine::stored(None, &[name(life, number)], &tokens, u64::from(BLOCK_SIZE), &[])];
        if let Some(old) = number.checked_sub(HELD) {
            events.push(engine::removed(&[name(life, old)], &[]));
        }
        engine::batch(f64::from(life) * 1e6 + f64::from(number), events)
    }

    fn trim(&self) {
        let mut ring = self.publisher.ring.lock().expect("nobody panics with it");
        ring.oldest = ring.batches.len().saturating_sub(RING);
    }

    async fn publish(&mut self) {
        self.pace.tick().await;
        let payload = self.payload();
        self.publisher.publish(payload).await;
        self.trim();
    }

    fn lose(&mut self) {
        let payload = self.payload();
        self.publisher.lose(payload);
    }

    /// The publisher's next life, at the same ports.
    async fn restart(self) -> Self {
        let Self { publisher, life, mut pace, .. } = self;
        let (events, replay) = (publisher.events.clone(), publisher.replay.clone());
        drop(publisher);
        let publisher = Publisher::start_at(&events, &replay).await;
        pace.reset();
        Self { publisher, life: life + 1, next: 0, pace }
    }

    /// Publishes until the rank is exact at this batch of this life, or a later one; how long that took.
    async fn converge(&mut self, running: &Running, incarnation: u64) -> Result<Duration, String> {
        let wanted = u64::from(self.next);
        self.publish().await;
        let began = Instant::now();
        loop {
            let view = running.fleet().view();
            let status = view.rank("engine", 0).map_err(|error| error.to_string())?.status.full();
            let there = status.cursor >= Some(wanted) && status.incarnation == incarnation;
            if there && status.trust == Trust::Exact {
                return Ok(began.elapsed());
            }
            if began.elapsed() > GIVE_UP {
                return Err(format!("not exact after {GIVE_UP:?}: {status:?}"));
            }
            self.publish().await;
        }
    }
}

fn name(life: u32, number: u32) -> u64 {
    (u64::from(life) << 32) | u64::from(number)
}

fn tokens(life: u32, number: u32) -> Vec<u32> {
    (0..BLOCK_SIZE).map(|i| life * 1_000_000 + number * BLOCK_SIZE + i).collect()
}

fn settings() -> Raw {
    let mut raw = Raw::default();
    raw.grpc.listen = "127.0.0.1:0".into();
    raw.admin.listen = String::new();
    raw
}

async fn register(clients: &mut Clients, publisher: &Publisher) -> Result<(), tonic::Status> {
    let (events_endpoint, replay_endpoint) = (publisher.events.clone(), publisher.replay.clone());
    let ranks = vec![proto::RankSpec { rank: 0, events_endpoint, replay_endpoint }];
    clients.register(proto::WorkerSpec { ranks, ..spec("engine") }).await.map(drop)
}

/// Every block of the life is held exactly if it is one of the newest.
async fn compare(clients: &mut Clients, traffic: &Traffic) -> Result<u32, Box<dyn Error>> {
    for number in 0..traffic.next {
        let answer = clients.lookup(ask(tokens(traffic.life, number))).await?;
        let held = answer.matched_blocks.first().is_some_and(|blocks| *blocks == 1);
        if held != (number + HELD >= traffic.next) {
            return Err(format!("block {number} of {}: {answer:?}", traffic.next).into());
        }
    }
    Ok(traffic.next)
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1].as_secs_f64() * 1e3;
    println!("{what}: {} trials, p50 {:.1} ms, p95 {:.1} ms, most {:.1} ms", times.len(), at(50), at(95), at(100));
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let running = start(Resolved::new(&settings())?).await?;
    let mut clients = clients(&running).await;
    let mut pace = interval(Duration::from_micros(1_000_000 / EVENTS_PER_SECOND));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut traffic = Traffic { publisher: Publisher::start().await, life: 0, next: 0, pace };
    register(&mut clients, &traffic.publisher).await?;
    traffic.converge(&running, 1).await?;
    let (mut gaps, mut restarts) = (Vec::new(), Vec::new());
    for _ in 0..TRIALS {
        for _ in 0..STEADY {
            traffic.publish().await;
        }
        (0..LOST).for_each(|_| traffic.lose());
        gaps.push(traffic.converge(&running, 1).await?);
    }
    for trial in 0..TRIALS {
        for _ in 0..STEADY {
            traffic.publish().await;
        }
        traffic = traffic.restart().await;
        restarts.push(traffic.converge(&running, trial as u64 + 2).await?);
    }
    traffic.converge(&running, TRIALS as u64 + 1).await?;
    println!("{EVENTS_PER_SECOND} events/s, from the first batch out of order until EXACT");
    report("gaps", gaps);
    report("restarts", restarts);
    // The last batch has been applied when the cursor is there.
    let newest = u64::from(traffic.next) - 1;
    while running.fleet().view().rank("engine", 0)?.status.full().cursor != Some(newest) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{} blocks of the last life looked up, none differs", compare(&mut clients, &traffic).await?);
    running.shutdown().await;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure())
}
