//! Register, apply, look up, explain, deregister: over real sockets, in this process.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::grpc::proto;
use proto::apply_ack::Status as Ack;
use tonic::Code;

#[tokio::test]
async fn what_is_applied_is_what_is_found() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    for id in ["w1", "w2"] {
        clients.register(spec(id)).await.unwrap();
    }
    let acks = clients
        .apply(vec![
            batch("w1", 0, vec![stored(None, 10, tokens(3))]),
            batch("w2", 0, vec![stored(None, 20, tokens(5))]),
            batch("w1", 1, vec![removed(&[12, 404])]),
        ])
        .await
        .unwrap();
    let did: Vec<_> = acks.iter().map(|a| (a.status(), a.cursor, a.stored, a.removed, a.unknown)).collect();
    let expected =
        [(Ack::Applied, Some(0), 3, 0, 0), (Ack::Applied, Some(0), 5, 0, 0), (Ack::Applied, Some(1), 0, 1, 1)];
    assert_eq!(did, expected);

    let mut prompt = tokens(6);
    prompt.extend([7, 7]);
    let answer = clients.lookup(proto::LookupRequest { with_positions: true, ..ask(prompt.clone()) }).await.unwrap();
    assert_eq!(rows(&answer), [("w2", 0, 5), ("w1", 0, 2)]);
    assert_eq!(answer.matched_tokens, [20, 8]);
    assert_eq!((answer.block_size, answer.query_blocks, answer.partial_tail_tokens), (4, 6, 2));
    assert_eq!(answer.trust, [i32::from(proto::Trust::Exact); 2]);
    assert_eq!((answer.ranks_total, answer.ranks_not_exact, answer.truncated, answer.busy), (2, 0, false, false));
    let cursors: Vec<_> = answer.positions.iter().map(|p| (p.worker.as_str(), p.cursor)).collect();
    assert_eq!(cursors, [("w1", Some(1)), ("w2", Some(0))]);
    assert!(answer.positions.iter().all(|p| p.last_event_age_ms.is_some()));

    let first = clients.lookup(proto::LookupRequest { max_holders: 1, ..ask(prompt.clone()) }).await.unwrap();
    assert_eq!((rows(&first), first.truncated, first.holders_total), (vec![("w2", 0, 5)], true, 2));
    let only = vec![proto::RankRef { worker: "w1".into(), rank: Some(0) }];
    let filtered = clients.lookup(proto::LookupRequest { holders: only, ..ask(prompt.clone()) }).await.unwrap();
    assert_eq!((rows(&filtered), filtered.ranks_total), (vec![("w1", 0, 2)], 1));
    let host = vec![proto::Tier::Host.into()];
    let on_host = clients.lookup(proto::LookupRequest { tiers: host, ..ask(prompt) }).await.unwrap();
    assert!(on_host.worker.is_empty());
    running.shutdown().await;
}

#[tokio::test]
async fn content_hashes_and_tokens_are_the_same_question() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    clients.apply(vec![batch("w", 0, vec![stored(None, 1, tokens(2))])]).await.unwrap();
    let bytes = |range: std::ops::Range<u32>| range.flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let hashes = [0..4, 4..8, 8..12].map(|r| xxhash_rust::xxh3::xxh3_64_with_seed(&bytes(r), 1337)).to_vec();
    let prompt = Some(proto::lookup_request::Prompt::ContentHashes(proto::ContentHashes { hashes }));
    let answer = clients.lookup(proto::LookupRequest { prompt, ..ask(Vec::new()) }).await.unwrap();
    assert_eq!((rows(&answer), answer.query_blocks), (vec![("w", 0, 2)], 3));
    running.shutdown().await;
}

#[tokio::test]
async fn namespaces_are_apart_and_explain_says_so() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let lora = |name: &str| Some(proto::Namespace { lora_name: name.into(), ..Default::default() });
    let mut event = stored(None, 1, tokens(2));
    if let Some(proto::event::Event::Stored(stored)) = &mut event.event {
        stored.namespace = lora("sql");
    }
    clients.apply(vec![batch("w", 0, vec![event, stored(None, 50, vec![9; 4])])]).await.unwrap();
    let mut found = Vec::new();
    for namespace in [lora("sql"), None, lora("other")] {
        let answer = clients.lookup(proto::LookupRequest { namespace, ..ask(tokens(2)) }).await.unwrap();
        found.push(rows(&answer).first().map_or(0, |r| r.2));
    }
    assert_eq!(found, [2, 0, 0]);

    let asked = proto::LookupRequest { namespace: lora("other"), ..ask(vec![9; 4]) };
    let request = proto::ExplainRequest { lookup: Some(asked), max_ranks: 0 };
    let explained = clients.index.explain(request).await.unwrap().into_inner();
    let kinds: Vec<_> = explained.findings.iter().map(proto::Finding::kind).collect();
    assert_eq!(kinds, [proto::finding::Kind::NamespaceMiss, proto::finding::Kind::FirstBlockUnknown]);
    running.shutdown().await;
}

#[tokio::test]
async fn explain_names_the_reason() {
    use proto::finding::Kind;
    use proto::rank_explanation::Stop;
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    for id in ["full", "short", "hole", "silent", "late"] {
        clients.register(spec(id)).await.unwrap();
    }
    let mut late = batch("late", 7, vec![stored(None, 1, tokens(1))]);
    late.lost_before = false;
    clients
        .apply(vec![
            batch("full", 0, vec![stored(None, 1, tokens(4))]),
            batch("short", 0, vec![stored(None, 1, tokens(2))]),
            batch("hole", 0, vec![stored(None, 1, tokens(4)), removed(&[2])]),
            late,
        ])
        .await
        .unwrap();
    let explain = |lookup| proto::ExplainRequest { lookup: Some(lookup), max_ranks: 0 };
    let explained = clients.index.explain(explain(ask(tokens(5)))).await.unwrap().into_inner();
    let why: Vec<_> = explained.ranks.iter().map(|r| (r.worker.as_str(), r.matched_blocks, r.stop())).collect();
    let expected = [
        ("full", 4, Stop::ContentUnknown),
        ("short", 2, Stop::NotHeld),
        ("hole", 1, Stop::Hole),
        ("late", 1, Stop::Partial),
        ("silent", 0, Stop::NeverSeen),
    ];
    assert_eq!(why, expected);
    let all = clients.index.explain(explain(ask(tokens(4)))).await.unwrap().into_inner();
    assert_eq!(all.ranks[0].stop(), Stop::WholePrompt);

    let unknown = proto::LookupRequest { model: "other".into(), ..ask(tokens(1)) };
    for (lookup, kind) in [(unknown, Kind::UnknownModel), (ask(vec![1]), Kind::PromptTooShort)] {
        let explained = clients.index.explain(explain(lookup)).await.unwrap().into_inner();
        assert_eq!(explained.findings.first().map(proto::Finding::kind), Some(kind));
    }
    running.shutdown().await;
}

#[tokio::test]
async fn many_lookups_share_a_message_and_one_failure_costs_only_itself() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    clients.apply(vec![batch("w", 0, vec![stored(None, 1, tokens(3))])]).await.unwrap();
    let unknown = proto::LookupRequest { model: "other".into(), ..ask(tokens(1)) };
    let lookups = vec![ask(tokens(1)), unknown, ask(tokens(9))];
    let batches = (0..3).map(|id| proto::LookupBatch { id, lookups: lookups.clone() }).collect::<Vec<_>>();
    let mut answers = clients.index.lookup_stream(tokio_stream::iter(batches)).await.unwrap().into_inner();
    for id in 0..3 {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.id, id);
        let got: Vec<_> = answer
            .results
            .iter()
            .map(|r| match r.result.as_ref().unwrap() {
                proto::lookup_result::Result::Response(response) => Ok(rows(response)[0].2),
                proto::lookup_result::Result::Error(error) => Err(Code::from(error.code)),
            })
            .collect();
        assert_eq!(got, [Ok(1), Err(Code::NotFound), Ok(3)]);
    }
    assert!(answers.message().await.unwrap().is_none());
    running.shutdown().await;
}

#[tokio::test]
async fn pushed_batches_are_applied_once_and_in_order() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    let registered = clients.register(spec("w")).await.unwrap();
    let store = |sequence, first| batch("w", sequence, vec![stored(None, first, tokens(1))]);
    let old = proto::EventBatch { generation: Some(registered.generation + 1), ..store(9, 1) };
    let lost = proto::EventBatch { lost_before: true, ..store(5, 2) };
    let reset = proto::EventBatch { reset: true, ..store(0, 3) };
    let acks = clients
        .apply(vec![
            store(0, 1),
            store(0, 1),
            store(2, 2),
            old,
            batch("nobody", 0, Vec::new()),
            lost,
            batch("w", 6, vec![cleared()]),
            reset,
        ])
        .await
        .unwrap();
    let got: Vec<_> = acks.iter().map(|a| (a.status(), a.expected_sequence, a.trust())).collect();
    use proto::Trust;
    let expected = [
        (Ack::Applied, 1, Trust::Exact),
        (Ack::Duplicate, 1, Trust::Exact),
        (Ack::Gap, 1, Trust::Degraded),
        (Ack::Fenced, 0, Trust::Unspecified),
        (Ack::UnknownRank, 0, Trust::Unspecified),
        (Ack::Applied, 6, Trust::Degraded),
        (Ack::Applied, 7, Trust::Exact),
        (Ack::Applied, 1, Trust::Exact),
    ];
    assert_eq!(got, expected);
    // One copy only: the duplicate was not applied, the reset dropped what was there.
    let acks = clients.apply(vec![batch("w", 1, vec![removed(&[3])])]).await.unwrap();
    assert_eq!(acks[0].removed, 1);
    assert!(clients.lookup(ask(tokens(1))).await.unwrap().worker.is_empty());
    running.shutdown().await;
}

#[tokio::test]
async fn a_deregistered_worker_is_gone_and_its_open_stream_does_nothing_any_more() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    let first = clients.register(spec("w")).await.unwrap();
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut acks = clients.events.apply(stream).await.unwrap().into_inner();
    let store = |sequence| proto::EventBatch {
        generation: Some(first.generation),
        ..batch("w", sequence, vec![stored(None, 1, tokens(2))])
    };
    sender.send(store(0)).await.unwrap();
    assert_eq!(in_time(acks.message()).await.unwrap().unwrap().status(), Ack::Applied);
    let request = proto::DeregisterRequest { worker: "w".into(), generation: None };
    assert_eq!(clients.workers.deregister(request.clone()).await.unwrap().into_inner().blocks_dropped, 2);
    assert_eq!(clients.lookup(ask(tokens(2))).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(clients.workers.deregister(request).await.unwrap_err().code(), Code::NotFound);

    sender.send(store(1)).await.unwrap();
    assert_eq!(in_time(acks.message()).await.unwrap().unwrap().status(), Ack::UnknownRank);
    let second = clients.register(spec("w")).await.unwrap();
    assert!(second.generation > first.generation);
    sender.send(store(1)).await.unwrap();
    assert_eq!(in_time(acks.message()).await.unwrap().unwrap().status(), Ack::Fenced);
    assert!(clients.lookup(ask(tokens(2))).await.unwrap().worker.is_empty());
    running.shutdown().await;
}

#[tokio::test]
async fn watchers_see_what_is_there_and_then_what_changes() {
    use proto::watch_event::Event;
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("a")).await.unwrap();
    let mut watch = clients.workers.watch(proto::WatchRequest::default()).await.unwrap().into_inner();
    let mut next = async || in_time(watch.message()).await.unwrap().unwrap().event.unwrap();
    assert!(matches!(next().await, Event::Registered(w) if w.spec.as_ref().unwrap().id == "a"));
    assert!(matches!(next().await, Event::SnapshotEnd(_)));
    clients.register(spec("b")).await.unwrap();
    assert!(matches!(next().await, Event::Registered(w) if w.spec.as_ref().unwrap().id == "b"));
    clients.apply(vec![batch("b", 3, Vec::new())]).await.unwrap();
    match next().await {
        Event::TrustChanged(change) => {
            assert_eq!(
                (change.worker.as_str(), change.from(), change.to()),
                ("b", proto::Trust::NeverSeen, proto::Trust::Partial)
            );
        }
        other => panic!("{other:?}"),
    }
    let request = proto::DeregisterRequest { worker: "a".into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    assert!(matches!(next().await, Event::Deregistered(gone) if gone.worker == "a"));

    let list = clients.workers.list(proto::ListRequest::default()).await.unwrap().into_inner();
    let ids: Vec<_> = list.workers.iter().map(|w| w.spec.as_ref().unwrap().id.as_str()).collect();
    assert_eq!((ids, list.workers[0].ranks[0].cursor), (vec!["b"], Some(3)));
    running.shutdown().await;
}

#[tokio::test]
async fn report_mode_full_counts_no_copies_and_marks_its_answers() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(proto::WorkerSpec { report_mode_full: true, ..spec("full") }).await.unwrap();
    clients.register(spec("plain")).await.unwrap();
    let twice = || vec![stored(None, 1, tokens(2)), stored(None, 1, tokens(2))];
    clients.apply(vec![batch("full", 0, twice()), batch("plain", 0, twice())]).await.unwrap();
    let answer = clients.lookup(ask(tokens(2))).await.unwrap();
    assert_eq!(rows(&answer), [("full", 0, 2), ("plain", 0, 2)]);
    assert_eq!(answer.upper_bound, [true, false]);
    let gone = [batch("full", 1, vec![removed(&[2, 1])]), batch("plain", 1, vec![removed(&[2, 1])])];
    clients.apply(gone.to_vec()).await.unwrap();
    let answer = clients.lookup(ask(tokens(2))).await.unwrap();
    assert_eq!(rows(&answer), [("plain", 0, 2)]);
    running.shutdown().await;
}

#[tokio::test]
async fn a_million_tokens_are_answered_in_full() {
    let mut raw = small();
    raw.index.blocks_max = 1 << 19;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let ids = tokens(250_000);
    let acks = clients.apply(vec![batch("w", 0, vec![stored(None, 1, ids.clone())])]).await.unwrap();
    assert_eq!((acks[0].status(), acks[0].stored), (Ack::Applied, 250_000));
    let answer = clients.lookup(ask(ids)).await.unwrap();
    assert_eq!((rows(&answer), answer.query_blocks), (vec![("w", 0, 250_000)], 250_000));
    assert_eq!(answer.matched_tokens, [1_000_000]);
    running.shutdown().await;
}

#[tokio::test]
async fn readers_see_whole_prefixes_while_a_publisher_writes() {
    const ROUNDS: u64 = 200;
    let running = run(small()).await;
    let mut writer = clients(&running).await;
    for id in ["steady", "busy"] {
        writer.register(spec(id)).await.unwrap();
    }
    writer.apply(vec![batch("steady", 0, vec![stored(None, 1, tokens(6))])]).await.unwrap();
    let mut reader = clients(&running).await;
    let reading = tokio::spawn(async move {
        let mut seen = std::collections::BTreeSet::new();
        // The writer deregisters its worker when it is through.
        loop {
            let answer = reader.lookup(ask(tokens(8))).await.unwrap();
            let steady = rows(&answer).into_iter().find(|r| r.0 == "steady").map(|r| r.2);
            assert!(steady == Some(6) || answer.busy, "a rank without events in flight is exact: {answer:?}");
            seen.extend(rows(&answer).into_iter().filter(|r| r.0 == "busy").map(|r| r.2));
            if answer.ranks_total == 1 {
                return seen;
            }
        }
    });
    let batches = (0..ROUNDS).map(|round| {
        let events = match round % 2 {
            0 => vec![stored(None, 1, tokens(8))],
            _ => vec![removed(&[8, 7, 6, 5]), removed(&[4, 3, 2, 1])],
        };
        batch("busy", round, events)
    });
    let acks = writer.apply(batches.collect()).await.unwrap();
    assert!(acks.iter().all(|a| a.status() == Ack::Applied && a.unknown == 0));
    let request = proto::DeregisterRequest { worker: "busy".into(), generation: None };
    writer.workers.deregister(request).await.unwrap();
    let seen = in_time(reading).await.unwrap();
    assert!(seen.iter().all(|blocks| (1..=8).contains(blocks)), "{seen:?}");
    running.shutdown().await;
}
