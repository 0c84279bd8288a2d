//! Ranks that lost their beginning become exact again by themselves, over real sockets and through the whole service.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod engine;
mod publisher;

use bytes::Bytes;
use common::*;
use kvatlas_service::config::Raw;
use kvatlas_service::grpc::proto;
use publisher::Publisher;
use tonic::Code;

fn quick() -> Raw {
    let mut raw = small();
    raw.ingest.reconnect_min_ms = 5;
    raw.ingest.idle_probe_ms = 50;
    raw.ingest.replay_silence_max_ms = 200;
    raw.ingest.recovery_backoff_min_ms = 5;
    raw.ingest.recovery_backoff_max_ms = 20;
    raw.ingest.recovery_attempts_max = 10_000;
    raw
}

/// The batch of this number: a block each, in one chain.
fn block(number: u32) -> Bytes {
    let parent = (number > 0).then(|| u64::from(number));
    let ids: Vec<u32> = (number * BLOCK_SIZE..(number + 1) * BLOCK_SIZE).collect();
    let name = [u64::from(number) + 1];
    engine::batch(f64::from(number), vec![engine::stored(parent, &name, &ids, u64::from(BLOCK_SIZE), &[])])
}

/// A state of so many blocks, in two parts.
fn state(blocks: u32) -> Vec<Bytes> {
    let ids = |range: std::ops::Range<u32>| (range.start * BLOCK_SIZE..range.end * BLOCK_SIZE).collect::<Vec<_>>();
    let stored = |parent, range: std::ops::Range<u32>| {
        let names: Vec<u64> = range.clone().map(|number| u64::from(number) + 1).collect();
        engine::stored(parent, &names, &ids(range), u64::from(BLOCK_SIZE), &[])
    };
    let half = blocks / 2;
    vec![
        engine::batch(0.5, vec![engine::cleared(), stored(None, 0..half)]),
        engine::batch(0.5, vec![stored(Some(u64::from(half)), half..blocks)]),
    ]
}

async fn register(clients: &mut Clients, publisher: &Publisher, snapshots: Option<&str>) {
    let rank = proto::RankSpec {
        rank: 0,
        events_endpoint: publisher.events.clone(),
        replay_endpoint: publisher.replay.clone(),
    };
    let spec = proto::WorkerSpec { ranks: vec![rank], snapshots: snapshots.map(str::to_owned), ..spec("engine") };
    clients.register(spec).await.unwrap();
}

/// A publisher of so many batches that nobody has heard.
async fn heard_by_nobody(batches: u32) -> Publisher {
    let publisher = Publisher::start().await;
    (0..batches).for_each(|number| {
        publisher.lose(block(number));
    });
    publisher
}

fn at(cursor: u64, trust: proto::Trust) -> impl Fn(&proto::RankStatus) -> bool {
    move |rank| rank.cursor == Some(cursor) && rank.trust() == trust
}

fn count(rank: &proto::RankStatus, reason: &str) -> u64 {
    counted(&rank.counters, reason)
}

async fn depth(clients: &mut Clients, blocks: u32) -> u32 {
    let answer = clients.lookup(ask(tokens(blocks))).await.unwrap();
    rows(&answer).first().map_or(0, |(_, _, blocks)| *blocks)
}

#[tokio::test]
async fn an_engine_that_tells_its_state_makes_a_late_join_exact() {
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    let mut publisher = heard_by_nobody(20).await;
    publisher.ring.lock().unwrap().oldest = 12;
    // First one that does not: the request is taken for a sequence beyond the newest.
    register(&mut clients, &publisher, Some("vllm:replay")).await;
    let failed = |rank: &proto::RankStatus| count(rank, "snapshot_not_offered") > 1;
    let late = clients.until(failed).await;
    assert_eq!((late.trust(), late.cursor), (proto::Trust::Partial, Some(19)));
    assert_eq!(depth(&mut clients, 20).await, 0, "the blocks' ancestors are not known");

    publisher.ring.lock().unwrap().state = Some(state(20));
    let exact = clients.until(at(19, proto::Trust::Exact)).await;
    assert_eq!(count(&exact, "recovered_by_snapshot"), 1);
    assert_eq!(depth(&mut clients, 20).await, 20);
    publisher.publish(block(20)).await;
    clients.until(at(20, proto::Trust::Exact)).await;
    assert_eq!(depth(&mut clients, 30).await, 21);

    // Whoever subscribes gets the state that was told, and goes on after it; whoever had the life before is told so.
    let mut asked = proto::SubscribeRequest { worker: "engine".into(), ..Default::default() };
    let mut stream = clients.events.subscribe(asked.clone()).await.unwrap().into_inner();
    let first = in_time(stream.message()).await.unwrap().unwrap();
    assert_eq!(first.snapshot.map(|part| part.chunk), Some(0));
    (asked.from_sequence, asked.life) = (Some(20), Some(first.life ^ 1));
    assert_eq!(clients.events.subscribe(asked).await.unwrap_err().code(), Code::DataLoss);
}

#[tokio::test]
async fn a_state_that_cannot_be_read_changes_nothing() {
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    let publisher = heard_by_nobody(4).await;
    {
        let mut ring = publisher.ring.lock().unwrap();
        ring.oldest = 2;
        ring.state = Some(vec![state(4)[0].clone(), Bytes::from_static(b"\xc1garbage")]);
    }
    register(&mut clients, &publisher, Some("vllm:replay")).await;
    let refused = |rank: &proto::RankStatus| count(rank, "snapshot_unreadable") > 1;
    let rank = clients.until(refused).await;
    assert_eq!((rank.trust(), rank.cursor), (proto::Trust::Partial, Some(3)));
    let unknown = proto::WorkerSpec { snapshots: Some("zip".into()), ..spec("other") };
    let refused = clients.register(unknown).await.unwrap_err();
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("worker.snapshots"), "{refused}");
}

#[tokio::test]
async fn a_restart_while_a_state_is_awaited_gives_it_up() {
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    let publisher = heard_by_nobody(4).await;
    {
        let mut ring = publisher.ring.lock().unwrap();
        (ring.oldest, ring.state_stalls) = (2, true);
    }
    register(&mut clients, &publisher, Some("vllm:replay")).await;
    // The second attempt asks for the state.
    let rank = clients.until(|rank| count(rank, "recoveries") == 2).await;
    assert_eq!((rank.trust(), rank.cursor), (proto::Trust::Partial, Some(3)));
    let (events, replay) = (publisher.events.clone(), publisher.replay.clone());
    drop(publisher);
    let next = Publisher::start_at(&events, &replay).await;
    let ids = tokens(3);
    next.lose(engine::batch(100.0, vec![engine::stored(None, &[51, 52, 53], &ids, u64::from(BLOCK_SIZE), &[])]));
    let rank = clients.until(at(0, proto::Trust::Exact)).await;
    // With the rank's connection, or because its own broke first.
    let given_up = count(&rank, "recovery_snapshot_abandoned") + count(&rank, "recovery_snapshot_failed");
    assert!(rank.incarnation == 2 && given_up >= 1, "{rank:?}");
    assert_eq!(depth(&mut clients, 20).await, 3);
}

#[tokio::test]
async fn a_short_ring_without_states_stays_partial_until_a_clear() {
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    let mut publisher = heard_by_nobody(4).await;
    publisher.ring.lock().unwrap().oldest = 2;
    register(&mut clients, &publisher, None).await;
    let asked = |rank: &proto::RankStatus| count(rank, "recovery_out_of_window") == 1;
    let rank = clients.until(asked).await;
    assert_eq!((rank.trust(), rank.cursor), (proto::Trust::Partial, Some(3)));
    publisher.publish(engine::batch(9.0, vec![engine::cleared()])).await;
    let rank = clients.until(at(4, proto::Trust::Exact)).await;
    assert_eq!(count(&rank, "recoveries"), 1, "a window only moves on");
}
