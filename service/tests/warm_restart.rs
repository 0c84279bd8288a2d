//! A service that is drained writes every rank's state to a file and starts the next time from there: where the publisher proves to
//! be in the same life, and nowhere else.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod eight;
mod engine;
mod publisher;
mod served;

use bytes::Bytes;
use common::*;
use eight::*;
use kvatlas_service::config::{Raw, RawWorker};
use kvatlas_service::grpc::proto;
use kvatlas_service::serve::Running;
use publisher::Publisher;
use served::signal;
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_drained_under_load_is_exact_again_from_its_file() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("state").display().to_string();
    let state = ["--state-file", file.as_str()];
    let fleet = Fleet::start().await;
    let (mut first, channel) = following(&fleet.workers, &state).await;
    exact(&channel, &BEFORE).await;
    let draining = Instant::now();
    signal(&first.child, "TERM");
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    let drained = draining.elapsed();
    // Without the file nobody could be exact now: the rings begin after their first batches.
    fleet.rings.iter().for_each(|ring| ring.lock().unwrap().oldest = BATCHES as usize - 1);
    println!("drained in {:.0} ms, {} bytes", drained.as_secs_f64() * 1e3, std::fs::metadata(&file).unwrap().len(),);
    let (again, channel) = come_back(&fleet.workers, &state, "the state file").await;
    fleet.compare(channel).await;
    let (_, metrics) = get(again.admin.parse().unwrap(), "/metrics").await;
    for number in 0..PUBLISHERS {
        let loaded = format!("kvatlas_rank_events_total{{worker=\"w{number}\",rank=\"0\",reason=\"seeds_loaded\"}} 1");
        assert!(metrics.contains(&loaded), "w{number}");
    }
}

/// A batch of the publisher's life `life`, which stores one block of a chain of its own.
fn block(life: u32, number: u32) -> Bytes {
    let name = u64::from(life * 1_000 + number);
    let stored = engine::stored(None, &[name], &ids(life, number), u64::from(BLOCK_SIZE), &[]);
    engine::batch(f64::from(life * 1_000 + number), vec![stored])
}

fn ids(life: u32, number: u32) -> Vec<u32> {
    let first = (life * 1_000 + number) * BLOCK_SIZE;
    (first..first + BLOCK_SIZE).collect()
}

/// A service in this process that follows the publisher and keeps its state in `file`.
async fn keeping(publisher: &Publisher, file: &Path) -> Running {
    let mut raw: Raw = small();
    raw.state.file = file.display().to_string();
    raw.workers.push(RawWorker::from_flag(&worker(0, publisher)).unwrap());
    run(raw).await
}

/// Waits until the rank has settled at this sequence; its trust, and the counters of its stream.
async fn settled(running: &Running, cursor: u64) -> (proto::Trust, std::collections::BTreeMap<String, u64>) {
    let mut clients = clients(running).await;
    in_time(async {
        let mut period = tokio::time::interval(std::time::Duration::from_millis(5));
        loop {
            period.tick().await;
            let listed = clients.workers.list(proto::ListRequest::default()).await.unwrap().into_inner().workers;
            let rank = &listed[0].ranks[0];
            let under_way = matches!(rank.trust(), proto::Trust::NeverSeen | proto::Trust::Bootstrapping);
            if rank.cursor == Some(cursor) && !under_way {
                return (rank.trust(), rank.counters.iter().map(|c| (c.reason.clone(), c.count)).collect());
            }
        }
    })
    .await
}

async fn holds(running: &Running, life: u32, number: u32) -> bool {
    let answer = clients(running).await.lookup(ask(ids(life, number))).await.unwrap();
    !rows(&answer).is_empty()
}

/// Ten batches of life 0, followed and written down.
async fn written_down() -> (TempDir, std::path::PathBuf, Publisher) {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("state");
    let publisher = Publisher::start().await;
    for number in 0..10 {
        publisher.lose(block(0, number));
    }
    let running = keeping(&publisher, &file).await;
    assert_eq!(settled(&running, 9).await.0, proto::Trust::Exact);
    running.shutdown().await;
    assert!(file.exists());
    (directory, file, publisher)
}

/// What came of the one seed that was offered.
fn outcome(counters: &std::collections::BTreeMap<String, u64>) -> Vec<&str> {
    counters.keys().map(String::as_str).filter(|reason| reason.starts_with("seed")).collect()
}

#[tokio::test]
async fn the_same_life_goes_on_where_the_file_ends() {
    let (_directory, file, publisher) = written_down().await;
    publisher.lose(block(0, 10));
    // The ring has the batch at the cursor still, and no more.
    publisher.ring.lock().unwrap().oldest = 9;
    let running = keeping(&publisher, &file).await;
    let (trust, counters) = settled(&running, 10).await;
    assert_eq!((trust, outcome(&counters)), (proto::Trust::Exact, vec!["seeds_loaded", "seeds_offered"]));
    for number in 0..=10 {
        assert!(holds(&running, 0, number).await, "block {number}");
    }
    // On demand, and once more from there.
    let admin = running.admin_addr().unwrap();
    let (status, body) = post(admin, "/state").await;
    assert_eq!(status, 200, "{body}");
    assert!(body.starts_with("1 ranks"), "{body}");
    let (_, metrics) = get(admin, "/metrics").await;
    for line in ["reason=\"files_read\"} 1", "reason=\"files_written\"} 1", "reason=\"ranks_written\"} 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    running.shutdown().await;
    publisher.ring.lock().unwrap().oldest = 10;
    let running = keeping(&publisher, &file).await;
    assert_eq!(settled(&running, 10).await.0, proto::Trust::Exact);
    assert!(holds(&running, 0, 0).await);
    running.shutdown().await;
}

#[tokio::test]
async fn a_publisher_that_restarted_meanwhile_is_filled_from_its_own_history() {
    // To the same sequence, below it, and beyond.
    for batches in [10, 3, 14] {
        let (_directory, file, publisher) = written_down().await;
        *publisher.ring.lock().unwrap() = publisher::Ring::default();
        for number in 0..batches {
            publisher.lose(block(1, number));
        }
        let running = keeping(&publisher, &file).await;
        let (trust, counters) = settled(&running, u64::from(batches) - 1).await;
        let reason = if batches < 10 { "seed_dropped_unknown_batch" } else { "seed_dropped_other_life" };
        assert_eq!((trust, outcome(&counters)), (proto::Trust::Exact, vec![reason, "seeds_offered"]));
        assert!(holds(&running, 1, 0).await && holds(&running, 1, batches - 1).await);
        assert!(!holds(&running, 0, 0).await, "nothing of the life before is left");
        running.shutdown().await;
    }
}

#[tokio::test]
async fn a_ring_that_rolled_over_meanwhile_makes_the_file_useless() {
    let (_directory, file, publisher) = written_down().await;
    for number in 10..15 {
        publisher.lose(block(0, number));
    }
    publisher.ring.lock().unwrap().oldest = 11;
    let running = keeping(&publisher, &file).await;
    let (trust, counters) = settled(&running, 14).await;
    assert_eq!((trust, outcome(&counters)), (proto::Trust::Partial, vec!["seed_dropped_rolled_over", "seeds_offered"]));
    assert!(holds(&running, 0, 14).await && !holds(&running, 0, 9).await);
    running.shutdown().await;
}

#[tokio::test]
async fn a_damaged_file_and_one_of_another_registration_are_refused() {
    let (_directory, file, publisher) = written_down().await;
    let good = std::fs::read(&file).unwrap();
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    for damaged in [&bad[..], &good[..good.len() - 1], b"something else, and long enough to be one"] {
        std::fs::write(&file, damaged).unwrap();
        let running = keeping(&publisher, &file).await;
        let (trust, counters) = settled(&running, 9).await;
        assert_eq!((trust, outcome(&counters)), (proto::Trust::Exact, Vec::<&str>::new()));
        let (_, metrics) = in_time(async {
            loop {
                // The file is read beside everything else.
                let answer = get(running.admin_addr().unwrap(), "/metrics").await;
                if answer.1.contains("reason=\"files_refused\"} 1") {
                    return answer;
                }
            }
        })
        .await;
        assert!(!metrics.contains("files_read"));
        // What is written now is whole again, but a file of somebody else's is left alone.
        running.shutdown().await;
        assert_eq!(std::fs::read(&file).unwrap() == damaged, !damaged.starts_with(b"KVATLAST"));
    }

    // The same worker with another model.
    std::fs::write(&file, &good).unwrap();
    let mut raw = small();
    raw.state.file = file.display().to_string();
    let other = worker(0, &publisher).replace(&format!("model={MODEL}"), "model=other");
    raw.workers.push(RawWorker::from_flag(&other).unwrap());
    let running = run(raw).await;
    in_time(async { while !outcome(&settled(&running, 9).await.1).contains(&"seed_refused_registration") {} }).await;
    assert_eq!(settled(&running, 9).await.0, proto::Trust::Exact);
    running.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_is_registered_later_takes_its_state_then() {
    let (_directory, file, publisher) = written_down().await;
    publisher.ring.lock().unwrap().oldest = 9;
    let mut raw = small();
    raw.state.file = file.display().to_string();
    let running = run(raw.clone()).await;
    in_time(async {
        while running.fleet().seed_stock().is_empty() {
            tokio::task::yield_now().await
        }
    })
    .await;
    let registration = RawWorker::from_flag(&worker(0, &publisher)).unwrap().resolve().unwrap();
    running.fleet().register(registration, false, false).await.unwrap();
    assert_eq!(settled(&running, 9).await.0, proto::Trust::Exact);
    assert!(holds(&running, 0, 0).await && running.fleet().seed_stock().is_empty());
    running.shutdown().await;

    // Its publisher is away: the seed waits, and is passed on to the next run.
    let gone = Publisher::start().await;
    let (events, replay) = (gone.events.clone(), gone.replay.clone());
    drop(gone);
    let away = format!("id=w0,model={MODEL},block_size={BLOCK_SIZE},events={events},replay={replay}");
    raw.workers.push(RawWorker::from_flag(&away).unwrap());
    let running = run(raw).await;
    in_time(async {
        loop {
            let counters = running.fleet().view().ranks().next().unwrap().status.full().counters.clone();
            if counters.contains_key("seeds_offered") {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    running.shutdown().await;
    let running = keeping(&publisher, &file).await;
    assert_eq!(settled(&running, 9).await.0, proto::Trust::Exact);
    assert!(holds(&running, 0, 0).await);
    running.shutdown().await;
}
