//! Every limit answers with its status, its field and its name, and costs nobody else anything.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::grpc::proto;
use tonic::Code;

fn says(status: &tonic::Status, code: Code, words: &[&str]) {
    assert_eq!(status.code(), code, "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "{word:?} in {:?}", status.message());
    }
}

#[tokio::test]
async fn oversize_lookups_name_field_and_limit() {
    let mut raw = small();
    raw.limits.lookup_tokens_max = 8;
    raw.limits.lookup_blocks_max = 2;
    raw.limits.lookup_holders_max = 1;
    raw.limits.lookups_per_batch_max = 1;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    assert_eq!(clients.lookup(ask(tokens(2))).await.unwrap().query_blocks, 2);
    let status = clients.lookup(ask(tokens(3))).await.unwrap_err();
    says(&status, Code::InvalidArgument, &["token_ids", "12", "limits.lookup_tokens_max"]);

    let prompt = Some(proto::lookup_request::Prompt::ContentHashes(proto::ContentHashes { hashes: vec![0; 3] }));
    let status = clients.lookup(proto::LookupRequest { prompt, ..ask(Vec::new()) }).await.unwrap_err();
    says(&status, Code::InvalidArgument, &["content_hashes", "limits.lookup_blocks_max"]);

    let holders = vec![proto::RankRef { worker: "w".into(), rank: None }; 2];
    let status = clients.lookup(proto::LookupRequest { holders, ..ask(tokens(1)) }).await.unwrap_err();
    says(&status, Code::InvalidArgument, &["holders", "limits.lookup_holders_max"]);

    let batch = proto::LookupBatch { id: 1, lookups: vec![ask(tokens(1)); 2] };
    let mut answers = clients.index.lookup_stream(tokio_stream::iter([batch])).await.unwrap().into_inner();
    says(&answers.message().await.unwrap_err(), Code::InvalidArgument, &["lookups", "limits.lookups_per_batch_max"]);
    running.shutdown().await;
}

#[tokio::test]
async fn malformed_lookups_are_refused_by_field() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let base = ask(tokens(1));
    let hashes = Some(proto::lookup_request::Prompt::ContentHashes(proto::ContentHashes { hashes: vec![1] }));
    let salted = Some(proto::Namespace { cache_salt: "t".into(), ..Default::default() });
    let nobody = vec![proto::RankRef { worker: "x".into(), rank: None }];
    let no_rank = vec![proto::RankRef { worker: "w".into(), rank: Some(9) }];
    let cases = [
        (proto::LookupRequest { model: String::new(), ..base.clone() }, Code::InvalidArgument, "model"),
        (proto::LookupRequest { prompt: None, ..base.clone() }, Code::InvalidArgument, "prompt"),
        (proto::LookupRequest { tiers: vec![77], ..base.clone() }, Code::InvalidArgument, "tiers"),
        (proto::LookupRequest { residency: 9, ..base.clone() }, Code::InvalidArgument, "residency"),
        (
            proto::LookupRequest { prompt: hashes, namespace: salted, ..base.clone() },
            Code::InvalidArgument,
            "namespace",
        ),
        (proto::LookupRequest { model: "y".into(), ..base.clone() }, Code::NotFound, "unknown model"),
        (proto::LookupRequest { routing_group: "g".into(), ..base.clone() }, Code::NotFound, "routing group"),
        (proto::LookupRequest { holders: nobody, ..base.clone() }, Code::NotFound, "unknown worker"),
        (proto::LookupRequest { holders: no_rank, ..base.clone() }, Code::NotFound, "no rank 9"),
    ];
    for (request, code, word) in cases {
        says(&clients.lookup(request).await.unwrap_err(), code, &[word]);
    }
    running.shutdown().await;
}

#[tokio::test]
async fn registrations_that_do_not_fit_are_refused() {
    let mut raw = small();
    raw.fleet.workers_max = 2;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("a")).await.unwrap();
    assert!(clients.register(spec("a")).await.unwrap().unchanged);
    let other_size = |id: &str| proto::WorkerSpec { block_size: 8, ..spec(id) };
    says(&clients.register(other_size("b")).await.unwrap_err(), Code::FailedPrecondition, &["block_size 8", "size 4"]);
    says(&clients.register(other_size("a")).await.unwrap_err(), Code::AlreadyExists, &["a"]);
    let endpoint = proto::RankSpec { events_endpoint: "tcp://*:5557".into(), ..Default::default() };
    let wildcard = proto::WorkerSpec { ranks: vec![endpoint], ..spec("b") };
    says(&clients.register(wildcard).await.unwrap_err(), Code::InvalidArgument, &["events_endpoint"]);
    let schemed = |text: &str| proto::WorkerSpec { hash_scheme: Some(text.into()), ..spec("b") };
    for (text, words) in [
        ("vllm:sha1", ["worker.hash_scheme", "\"sha1\"", "off, sglang, sglang:dynamo", "vllm:ALGORITHM"]),
        ("", ["worker.hash_scheme", "\"\"", "off, sglang, sglang:dynamo", "vllm:ALGORITHM"]),
    ] {
        says(&clients.register(schemed(text)).await.unwrap_err(), Code::InvalidArgument, &words);
    }
    let other_engine = proto::WorkerSpec { engine: proto::Engine::Vllm.into(), ..schemed("sglang:dynamo") };
    says(&clients.register(other_engine).await.unwrap_err(), Code::InvalidArgument, &["worker.hash_scheme", "vllm"]);
    says(&clients.register(spec("")).await.unwrap_err(), Code::InvalidArgument, &["worker.id"]);
    clients.register(spec("b")).await.unwrap();
    says(&clients.register(spec("c")).await.unwrap_err(), Code::ResourceExhausted, &["workers_max", "2"]);
    running.shutdown().await;
}

/// A store whose names were forgotten.
fn without_names(mut event: proto::Event) -> proto::Event {
    if let Some(proto::event::Event::Stored(stored)) = &mut event.event {
        stored.engine_hashes.clear();
    }
    event
}

#[tokio::test]
async fn malformed_batches_end_their_stream_and_nothing_of_them_is_applied() {
    let mut raw = small();
    raw.limits.events_per_batch_max = 1;
    raw.limits.event_blocks_max = 4;
    raw.limits.message_bytes_max = 4096;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let cases = [
        (batch("w", 0, vec![cleared(); 2]), Code::InvalidArgument, "limits.events_per_batch_max"),
        (batch("w", 0, vec![stored(None, 1, tokens(5))]), Code::InvalidArgument, "limits.event_blocks_max"),
        (batch("w", 0, vec![stored(None, 1, vec![1, 2, 3, 4, 5])]), Code::InvalidArgument, "token_ids"),
        (batch("w", 0, vec![without_names(stored(None, 1, tokens(1)))]), Code::InvalidArgument, "0 blocks"),
        (batch("w", 0, vec![proto::Event { event: None }]), Code::InvalidArgument, "events.event"),
        (batch("w", 0, vec![stored(None, 1, vec![1 << 30; 2000])]), Code::OutOfRange, "too large"),
    ];
    for (bad, code, word) in cases {
        says(&clients.apply(vec![bad]).await.unwrap_err(), code, &[word]);
    }
    let acks = clients.apply(vec![batch("w", 0, vec![stored(None, 1, tokens(1))])]).await.unwrap();
    assert_eq!((acks[0].status(), acks[0].stored), (proto::apply_ack::Status::Applied, 1));
    running.shutdown().await;
}

#[tokio::test]
async fn a_full_index_clears_the_rank_that_met_the_limit_and_says_so() {
    let mut raw = small();
    raw.index.names_max_per_holder = 4;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    for id in ["big", "small"] {
        clients.register(spec(id)).await.unwrap();
    }
    let acks = clients
        .apply(vec![
            batch("small", 0, vec![stored(None, 1, tokens(2))]),
            batch("big", 0, vec![stored(None, 1, tokens(6))]),
        ])
        .await
        .unwrap();
    assert_eq!(acks[1].status(), proto::apply_ack::Status::LimitReached);
    assert_eq!(acks[1].trust(), proto::Trust::Degraded);
    let answer = clients.lookup(ask(tokens(6))).await.unwrap();
    assert_eq!((rows(&answer), answer.ranks_not_exact), (vec![("small", 0, 2)], 1));
    running.shutdown().await;
}

#[tokio::test]
async fn garbage_and_silent_connections_cost_nobody_else_anything() {
    use tokio::io::AsyncWriteExt;
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    clients.apply(vec![batch("w", 0, vec![stored(None, 1, tokens(2))])]).await.unwrap();
    let mut silent = Vec::new();
    for addr in [running.grpc_addr(), running.admin_addr().unwrap()] {
        for round in 0..50_u8 {
            let mut peer = tokio::net::TcpStream::connect(addr).await.unwrap();
            // Every other one begins as HTTP/2 does and goes on with frames that are none.
            let mut bytes = if round % 2 == 0 { b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec() } else { Vec::new() };
            bytes.extend((0..512_u16).map(|i| (i as u8).wrapping_mul(31).wrapping_add(round)));
            // The service may have hung up already.
            let _ = peer.write_all(&bytes).await;
            silent.push(tokio::net::TcpStream::connect(addr).await.unwrap());
        }
    }
    let answer = in_time(clients.lookup(ask(tokens(2)))).await.unwrap();
    assert_eq!(rows(&answer), [("w", 0, 2)]);
    assert_eq!(get(running.admin_addr().unwrap(), "/readyz").await.0, 200);
    drop(silent);
    running.shutdown().await;
}
