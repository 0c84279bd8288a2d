//! A worker that publishes on the engines' own wire, followed by the whole service.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::grpc::proto;
use std::time::Duration;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

/// A vLLM batch (tagged arrays) with one store of these blocks at position 0.
fn payload(first: u64, ids: &[u32]) -> Vec<u8> {
    let blocks = (ids.len() / BLOCK_SIZE as usize) as u64;
    let mut out = vec![0x93, 0xcb];
    out.extend(1_796_008_422.5_f64.to_be_bytes());
    out.extend([0x91, 0x97, 0xab]);
    out.extend(b"BlockStored");
    out.extend([0xdc, 0, blocks as u8]);
    for name in first..first + blocks {
        out.push(0xcf);
        out.extend(name.to_be_bytes());
    }
    out.extend([0xc0, 0xdc, 0, ids.len() as u8]);
    for id in ids {
        out.push(0xce);
        out.extend(id.to_be_bytes());
    }
    out.extend([BLOCK_SIZE as u8, 0xc0, 0xa3]);
    out.extend(b"GPU");
    out.push(0);
    out
}

async fn publish(socket: &mut PubSocket, sequence: u64, payload: Vec<u8>) {
    let frames = vec![Vec::new(), sequence.to_be_bytes().to_vec(), payload];
    let message = ZmqMessage::try_from(frames.into_iter().map(bytes::Bytes::from).collect::<Vec<_>>()).unwrap();
    socket.send(message).await.unwrap();
}

#[tokio::test]
async fn what_an_engine_publishes_is_found_until_its_worker_is_removed() {
    let mut engine = PubSocket::new();
    let endpoint = engine.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    let ranks = vec![proto::RankSpec { events_endpoint: endpoint, ..Default::default() }];
    // This publisher's names are no hashes at all: the sampled check has to say so.
    let scheme = Some("vllm:sha256_cbor:seed=42".to_owned());
    let checked = proto::WorkerSpec { ranks, hash_scheme: scheme, hash_check_every: Some(1), ..spec("engine") };
    clients.register(checked.clone()).await.unwrap();
    let pushed = clients.apply(vec![batch("engine", 0, Vec::new())]).await.unwrap();
    assert_eq!(pushed[0].status(), proto::apply_ack::Status::OtherSource);

    // What is published before the subscription arrives is lost, as with an engine: so it is published until it is seen.
    let mut period = tokio::time::interval(Duration::from_millis(5));
    let mut sequence = 0;
    let seen = async {
        loop {
            publish(&mut engine, sequence, payload(100, &tokens(3))).await;
            sequence += 1;
            let answer = clients.lookup(ask(tokens(5))).await.unwrap();
            // The blocks are there a moment before the rank's status says so.
            if rows(&answer) == [("engine", 0, 3)] && answer.trust[0] != i32::from(proto::Trust::NeverSeen) {
                return answer;
            }
            period.tick().await;
        }
    };
    let answer = in_time(seen).await;
    let trust = proto::Trust::try_from(answer.trust[0]).unwrap();
    assert!(matches!(trust, proto::Trust::Exact | proto::Trust::Partial), "{trust:?}");

    let mismatches = async {
        loop {
            let listed = clients.workers.list(proto::ListRequest::default()).await.unwrap().into_inner().workers;
            let counters = &listed[0].ranks[0].counters;
            if counters.iter().any(|c| c.reason == "hash_mismatch" && c.count > 0) {
                return listed[0].spec.clone();
            }
            period.tick().await;
        }
    };
    // What is listed is what was registered: registering it again would change nothing.
    assert_eq!(in_time(mismatches).await, Some(checked));

    // A block size that the registration does not have is a visible state, and no silent zero.
    let mut watch = clients.workers.watch(proto::WatchRequest::default()).await.unwrap().into_inner();
    let misconfigured = async {
        loop {
            let wrong = payload(900, &tokens(2)).into_iter();
            let wrong: Vec<u8> = wrong.rev().enumerate().map(|(i, b)| if i == 6 { 8 } else { b }).collect();
            publish(&mut engine, sequence, wrong.into_iter().rev().collect()).await;
            sequence += 1;
            if let Some(proto::watch_event::Event::TrustChanged(change)) = watch.message().await.unwrap().unwrap().event
            {
                return change;
            }
        }
    };
    let change = in_time(misconfigured).await;
    assert_eq!((change.to(), change.worker.as_str()), (proto::Trust::Misconfigured, "engine"), "{change:?}");
    let explain = proto::ExplainRequest { lookup: Some(ask(tokens(2))), max_ranks: 0 };
    let explained = clients.index.explain(explain).await.unwrap().into_inner();
    assert_eq!(explained.findings[0].kind(), proto::finding::Kind::BlockSizeMismatch, "{explained:?}");

    let request = proto::DeregisterRequest { worker: "engine".into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    publish(&mut engine, sequence, payload(100, &tokens(3))).await;
    assert_eq!(clients.lookup(ask(tokens(3))).await.unwrap_err().code(), tonic::Code::NotFound);
    running.shutdown().await;
}
