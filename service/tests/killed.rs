//! A service that is killed under load, with eight publishers of 20,000 blocks each, comes back by their replays alone, or by another
//! replica where their replays do not reach back: exact, and with every block. How long that took is printed, not judged.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod eight;
mod engine;
mod publisher;
mod served;

use eight::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_killed_under_load_comes_back_by_replay() {
    let fleet = Fleet::start().await;
    let (first, channel) = following(&fleet.workers, &[]).await;
    exact(&channel, &BEFORE).await;
    drop(first);
    let (_again, channel) = come_back(&fleet.workers, &[], "replay").await;
    fleet.compare(channel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_killed_under_load_comes_back_by_another_replica() {
    let fleet = Fleet::start().await;
    let (other, channel) = following(&fleet.workers, &[]).await;
    exact(&channel, &BEFORE).await;
    let (first, channel) = following(&fleet.workers, &[]).await;
    exact(&channel, &BEFORE).await;
    // What the engines forget now, only the other replica knows.
    fleet.rings.iter().for_each(|ring| ring.lock().unwrap().oldest = BATCHES as usize / 2);
    drop(first);
    let (_again, channel) = come_back(&fleet.workers, &["--peer", &other.grpc], "another replica").await;
    fleet.compare(channel).await;
}
