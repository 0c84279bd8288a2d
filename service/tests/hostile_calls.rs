//! Broken and hostile callers of the gRPC face: each costs itself only, and nothing that was lost looks exact.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::grpc::proto::{self, Trust, apply_ack::Status as Ack};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

async fn status(clients: &mut Clients, worker: &str) -> proto::RankStatus {
    let request = proto::ListRequest { worker: worker.into(), ..Default::default() };
    clients.workers.list(request).await.unwrap().into_inner().workers.remove(0).ranks.remove(0)
}

fn count(status: &proto::RankStatus, reason: &str) -> u64 {
    status.counters.iter().find(|c| c.reason == reason).map_or(0, |c| c.count)
}

/// Items that all cover the whole prompt: items times blocks of work.
fn overlapping(items: usize) -> proto::Namespace {
    let item = proto::MultimodalItem {
        identifier: "i".into(),
        offset_tokens: 0,
        length_tokens: u32::MAX,
        ..Default::default()
    };
    proto::Namespace { multimodal: vec![item; items], ..Default::default() }
}

#[tokio::test]
async fn items_that_all_cover_a_long_prompt_are_refused_before_the_work_is_done() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let started = Instant::now();
    let namespace = Some(overlapping(4000));
    let refused = clients.lookup(proto::LookupRequest { namespace, ..ask(tokens(50_000)) }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert!(refused.message().contains("limits.lookup_item_blocks_max"), "{refused:?}");
    let mut event = stored(None, 1, tokens(50_000));
    if let Some(proto::event::Event::Stored(stored)) = &mut event.event {
        stored.namespace = Some(overlapping(4000));
    }
    let refused = clients.apply(vec![batch("w", 0, vec![event])]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
    // As many items as blocks, one a block, are an ordinary prompt.
    let mut namespace = overlapping(1000);
    for (i, item) in namespace.multimodal.iter_mut().enumerate() {
        (item.offset_tokens, item.length_tokens) = (i as u32 * BLOCK_SIZE, BLOCK_SIZE);
    }
    let answer =
        clients.lookup(proto::LookupRequest { namespace: Some(namespace), ..ask(tokens(1000)) }).await.unwrap();
    assert_eq!(answer.query_blocks, 1000);
    running.shutdown().await;
}

#[tokio::test]
async fn names_of_megabytes_are_answered_in_a_few_words() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    // Multi-byte characters: a cut must not fall inside one.
    let huge = "é\"\\%".repeat(300_000);
    let holders = vec![proto::RankRef { worker: huge.clone(), rank: None }];
    let mut refusals = vec![
        clients.lookup(proto::LookupRequest { model: huge.clone(), ..ask(tokens(1)) }).await.unwrap_err(),
        clients.lookup(proto::LookupRequest { routing_group: huge.clone(), ..ask(tokens(1)) }).await.unwrap_err(),
        clients.lookup(proto::LookupRequest { holders, ..ask(tokens(1)) }).await.unwrap_err(),
    ];
    let gone = proto::DeregisterRequest { worker: huge.clone(), generation: None };
    refusals.push(clients.workers.deregister(gone).await.unwrap_err());
    let listed = proto::ListRequest { worker: huge.clone(), ..Default::default() };
    refusals.push(clients.workers.list(listed).await.unwrap_err());
    for refusal in &refusals {
        assert_eq!(refusal.code(), Code::NotFound, "{}", &refusal.message()[..refusal.message().len().min(200)]);
        assert!(refusal.message().len() < 2048);
    }
    assert_eq!(clients.register(spec(&huge)).await.unwrap_err().code(), Code::InvalidArgument);
    let lookups = vec![proto::LookupRequest { model: huge, ..ask(tokens(1)) }];
    let batch = tokio_stream::iter([proto::LookupBatch { id: 1, lookups }]);
    let mut answers = clients.index.lookup_stream(batch).await.unwrap().into_inner();
    match answers.message().await.unwrap().unwrap().results.remove(0).result.unwrap() {
        proto::lookup_result::Result::Error(error) => assert!(error.message.len() < 2048),
        other => panic!("{other:?}"),
    }
    assert_eq!(clients.lookup(ask(tokens(1))).await.unwrap().query_blocks, 1);
    running.shutdown().await;
}

#[tokio::test]
async fn a_gap_in_pushed_batches_is_seen_until_it_is_filled() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let store = |seq: u64| batch("w", seq, vec![stored(seq.checked_sub(1).map(|s| s + 1), seq + 1, tokens(1))]);
    let acks = clients.apply(vec![store(0), store(2), store(3), store(0)]).await.unwrap();
    let told: Vec<_> = acks.iter().map(|a| (a.status(), a.trust(), a.expected_sequence)).collect();
    assert_eq!(
        told,
        [
            (Ack::Applied, Trust::Exact, 1),
            (Ack::Gap, Trust::Degraded, 1),
            (Ack::Gap, Trust::Degraded, 1),
            (Ack::Duplicate, Trust::Degraded, 1),
        ]
    );
    let seen = status(&mut clients, "w").await;
    assert_eq!((seen.trust(), count(&seen, "gap_batches"), count(&seen, "duplicate_batches")), (Trust::Degraded, 2, 1));
    assert!(!seen.detail.is_empty());
    assert_eq!(clients.lookup(ask(tokens(1))).await.unwrap().trust, [i32::from(Trust::Degraded)]);
    let acks = clients.apply((1..4).map(store).collect()).await.unwrap();
    let trusts: Vec<_> = acks.iter().map(proto::ApplyAck::trust).collect();
    assert_eq!(trusts, [Trust::Degraded, Trust::Degraded, Trust::Exact]);
    assert_eq!(status(&mut clients, "w").await.trust(), Trust::Exact);
    running.shutdown().await;
}

#[tokio::test]
async fn pushed_orphans_without_room_are_a_loss() {
    let mut raw = small();
    raw.index.orphans_max_per_rank = 2;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let orphan = |name: u64| stored(Some(name + 1000), name, tokens(1));
    let acks = clients
        .apply(vec![
            batch("w", 0, vec![orphan(1), orphan(2)]),
            batch("w", 1, (3..9).map(orphan).collect()),
            batch("w", 2, vec![cleared()]),
        ])
        .await
        .unwrap();
    let trusts: Vec<_> = acks.iter().map(proto::ApplyAck::trust).collect();
    assert_eq!(trusts, [Trust::Exact, Trust::Degraded, Trust::Exact]);
    running.shutdown().await;
}

#[tokio::test]
async fn registrations_of_ten_thousand_ranks_and_hostile_names_are_told_apart_in_metrics() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    let ranks = (0..10_000)
        .map(|rank| proto::RankSpec { rank, events_endpoint: "tcp://127.0.0.1:1".into(), ..Default::default() })
        .collect();
    let refused = clients.register(proto::WorkerSpec { ranks, ..spec("many") }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("ranks_per_worker_max"), "{refused:?}");
    let name = "w\",rank=\"9\"} 1 \\ {x=\"";
    clients.register(spec(name)).await.unwrap();
    clients.apply(vec![batch(name, 0, vec![stored(None, 1, tokens(1))])]).await.unwrap();
    let admin = running.admin_addr().unwrap();
    let (_, metrics) = get(admin, "/metrics").await;
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
    assert!(metrics.contains(&format!("kvatlas_rank_exact{{worker=\"{escaped}\",rank=\"0\"}} 1")), "{metrics}");
    clients.workers.deregister(proto::DeregisterRequest { worker: name.into(), generation: None }).await.unwrap();
    assert!(!get(admin, "/metrics").await.1.contains("rank_exact{"));
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_lookups_at_once_are_shed_and_no_batch_is() {
    let mut raw = small();
    raw.limits.lookups_in_flight_max = 1;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let mut lookups = JoinSet::new();
    for _ in 0..8 {
        let channel = channel(&running).await;
        for _ in 0..125 {
            let mut index = proto::index_service_client::IndexServiceClient::new(channel.clone());
            lookups.spawn(async move { index.lookup(ask(tokens(2_000))).await.map(|a| a.into_inner().query_blocks) });
        }
    }
    let batches: Vec<_> = (0..200).map(|seq| batch("w", seq, vec![stored(None, seq + 1, tokens(1))])).collect();
    let acks = in_time(clients.apply(batches)).await.unwrap();
    assert!(acks.len() == 200 && acks.iter().all(|a| a.status() == Ack::Applied));
    let (mut answered, mut shed) = (0, 0);
    while let Some(result) = in_time(lookups.join_next()).await {
        match result.unwrap() {
            Ok(blocks) => {
                assert_eq!(blocks, 2_000);
                answered += 1;
            }
            Err(refused) => {
                assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
                assert!(refused.metadata().contains_key("grpc-retry-pushback-ms"));
                shed += 1;
            }
        }
    }
    assert_eq!(answered + shed, 1000);
    assert!(answered > 0);
    let metrics = get(running.admin_addr().unwrap(), "/metrics").await.1;
    assert!(metrics.contains(&format!("kvatlas_lookups_refused_total {shed}\n")), "{shed} shed");
    running.shutdown().await;
}

/// Registrations come and go while events and lookups run: what is answered belongs to a registration that was there, and when
/// all is over nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_removed_worker_comes_back_however_its_calls_race() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("stays")).await.unwrap();
    clients.apply(vec![batch("stays", 0, vec![stored(None, 1, tokens(2))])]).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let applied = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..2 {
        let mut clients = common::clients(&running).await;
        let (over, applied) = (over.clone(), applied.clone());
        callers.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let reset = proto::EventBatch { reset: true, ..batch("comes", 0, vec![stored(None, 1, tokens(3))]) };
                let ack = clients.apply(vec![reset]).await.unwrap().remove(0);
                assert!(matches!(ack.status(), Ack::Applied | Ack::UnknownRank | Ack::Fenced), "{ack:?}");
                applied.fetch_add(u64::from(ack.status() == Ack::Applied), Ordering::Relaxed);
                let answer = clients.lookup(ask(tokens(3))).await.unwrap();
                assert!(rows(&answer).contains(&("stays", 0, 2)), "{answer:?}");
                assert!(rows(&answer).len() <= 2, "{answer:?}");
            }
        });
    }
    for round in 0..60 {
        clients.register(spec("comes")).await.unwrap();
        let before = applied.load(Ordering::Relaxed);
        while round % 3 == 0 && applied.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
        clients
            .workers
            .deregister(proto::DeregisterRequest { worker: "comes".into(), generation: None })
            .await
            .unwrap();
        let answer = clients.lookup(ask(tokens(3))).await.unwrap();
        assert_eq!(rows(&answer), [("stays", 0, 2)]);
    }
    over.store(true, Ordering::Relaxed);
    while let Some(caller) = in_time(callers.join_next()).await {
        caller.unwrap();
    }
    assert!(applied.load(Ordering::Relaxed) > 0);
    assert_eq!(running.index().stats().held, 2);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closed_abandoned_and_unread_streams_end_with_the_service() {
    let mut raw = small();
    raw.limits.stream_answers_max = 1;
    raw.lifecycle.drain_max_ms = 300;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    clients.apply(vec![batch("w", 0, vec![stored(None, 1, tokens(2))])]).await.unwrap();
    let ask_many = |id: u64| proto::LookupBatch { id, lookups: vec![ask(tokens(2)); 200] };
    // Half-closed: everything asked is answered.
    let asked = tokio_stream::iter((0..10).map(ask_many).collect::<Vec<_>>());
    let mut answers = clients.index.lookup_stream(asked).await.unwrap().into_inner();
    for id in 0..10 {
        assert_eq!(in_time(answers.message()).await.unwrap().unwrap().id, id);
    }
    assert!(in_time(answers.message()).await.unwrap().is_none());
    // Abandoned in the middle of an answer.
    for _ in 0..5 {
        let asked = tokio_stream::iter((0..5).map(ask_many).collect::<Vec<_>>());
        drop(clients.index.lookup_stream(asked).await.unwrap());
        let call = clients.index.lookup(ask(tokens(50_000)));
        let _ = tokio::time::timeout(Duration::from_millis(1), call).await;
    }
    // Unread: a stream that is never read holds up itself only, and not the end of the service.
    let endpoint = tonic::transport::Channel::from_shared(format!("http://{}", running.grpc_addr())).unwrap();
    let channel = endpoint.initial_stream_window_size(1 << 16).connect().await.unwrap();
    let mut slow = proto::index_service_client::IndexServiceClient::new(channel);
    let (sender, asked) = mpsc::channel(1);
    let unread = slow.lookup_stream(ReceiverStream::new(asked)).await.unwrap();
    let mut sent = 0;
    while sent < 500 && tokio::time::timeout(Duration::from_millis(200), sender.send(ask_many(sent))).await.is_ok() {
        sent += 1;
    }
    assert!(sent < 500, "the sender is held up");
    assert_eq!(rows(&in_time(clients.lookup(ask(tokens(3)))).await.unwrap()), [("w", 0, 2)]);
    let started = Instant::now();
    in_time(running.shutdown()).await;
    assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
    drop((unread, sender));
}
