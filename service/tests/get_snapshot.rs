//! `EventService.GetSnapshot` over real sockets: what a copy says, where it goes on, and how it is bounded.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod engine;
mod peers;
mod publisher;
mod traffic;

use common::*;
use kvatlas_service::config::{Raw, RawWorker};
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::event_service_client::EventServiceClient;
use kvatlas_service::grpc::proto::snapshot_chunk::Part;
use kvatlas_service::ingest::Trust;
use kvatlas_service::serve::Running;
use peers::{brief, copy, header};
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::Code;
use tonic::transport::Channel;
use traffic::Traffic;
use xxhash_rust::xxh3::xxh3_64;

fn all() -> proto::GetSnapshotRequest {
    proto::GetSnapshotRequest::default()
}

fn follow(raw: &mut Raw, id: &str, traffic: &Traffic) {
    raw.workers.push(RawWorker::from_flag(&traffic.worker(id)).unwrap());
}

/// Waits until the rank is exact at this sequence.
async fn exact(running: &Running, worker: &str, sequence: u64) {
    let mut period = tokio::time::interval(Duration::from_millis(1));
    in_time(async {
        loop {
            let view = running.fleet().view();
            let status = view.rank(worker, 0).unwrap().status.full();
            if status.trust == Trust::Exact && status.cursor == Some(sequence) {
                return;
            }
            period.tick().await;
        }
    })
    .await;
}

/// Names that the chunks store and do not remove again, and of each how many copies.
fn held(parts: &[Part]) -> BTreeMap<u64, u64> {
    use proto::event::Event;
    let mut held = BTreeMap::new();
    let chunks = parts.iter().filter_map(|part| if let Part::Chunk(chunk) = part { Some(chunk) } else { None });
    for event in chunks.flat_map(|chunk| &chunk.events) {
        match event.event.as_ref().unwrap() {
            Event::Stored(stored) => held.extend(stored.engine_hashes.iter().map(|name| (*name, 1))),
            Event::Removed(removed) => removed.engine_hashes.iter().for_each(|name| {
                held.remove(name);
            }),
            Event::CopiesLeft(left) => {
                held.insert(left.engine_hash, left.copies);
            }
            Event::Cleared(_) => panic!("a state clears nothing"),
        }
    }
    held
}

#[tokio::test]
async fn a_copy_names_every_rank_and_tells_the_exact_ones() {
    let (mut one, mut short, two) = (Traffic::start(1).await, Traffic::start(2).await, Traffic::start(3).await);
    one.lose(300);
    short.lose(300);
    short.forget_the_first();
    let mut raw = small();
    raw.relay.snapshot_blocks_max = 512;
    for (id, traffic) in [("a", &one), ("b", &short), ("c", &two)] {
        follow(&mut raw, id, traffic);
    }
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("pushed")).await.unwrap();
    clients.apply(vec![batch("pushed", 0, vec![stored(None, 1, tokens(3))])]).await.unwrap();
    exact(&running, "a", 299).await;
    in_time(async {
        while running.fleet().view().rank("b", 0).unwrap().status.full().trust != Trust::Partial {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let channel = channel(&running).await;
    let parts = copy(&channel, all()).await.unwrap();
    let told = brief(&parts);
    assert_eq!((told[0].as_str(), told.last().unwrap().as_str()), ("a:0", "all 4"));
    let named: Vec<_> = told.iter().filter(|part| part.contains("without")).map(String::as_str).collect();
    assert_eq!(named, ["b:0 without a state", "c:0 without a state", "pushed:0 without a state"]);

    let head = header(&parts[0]);
    assert_eq!((head.trust(), head.first_chunk), (proto::Trust::Exact, 0));
    assert_eq!(head.worker.as_ref().unwrap().ranks[0].events_endpoint, one.publisher.events);
    let cut = head.cut.as_ref().unwrap();
    let last = cut.proofs.last().unwrap();
    let payload = one.publisher.ring.lock().unwrap().batches[299].clone();
    assert_eq!((cut.cursor, last.sequence, last.hash), (299, 299, xxh3_64(&payload)));
    let chunks = told.iter().filter(|part| part.parse::<u32>().is_ok()).count();
    assert!(chunks > 1 && told.contains(&format!("end {chunks}")), "{told:?}");
    // 500 whole chains, 500 of which one block is left or, of every seventh, two; twice stored ones have two copies of the first.
    let held = held(&parts);
    let blocks = one.truth().map(|(_, depth)| u64::from(depth)).sum::<u64>();
    assert_eq!(held.len() as u64, blocks);
    assert!(held.values().any(|copies| *copies == 2) && held.values().all(|copies| *copies <= 2));
    let Some(Part::End(end)) = parts.iter().find(|part| matches!(part, Part::End(_))) else { panic!("no end") };
    assert!(end.blocks >= blocks);

    let other_model = proto::GetSnapshotRequest { model: "other".into(), ..all() };
    assert_eq!(brief(&copy(&channel, other_model).await.unwrap()), ["all 0"]);
    assert_eq!(running.fleet().relay().copies(), 1);
}

/// The checksum over the first chunks, as a reader computes it.
fn checksum(parts: &[Part], chunks: usize) -> u64 {
    use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};
    use kvatlas_service::ops::Op;
    use kvatlas_service::replica::ChunksSum;
    use proto::event::Event;
    let names = |hashes: &[u64]| hashes.iter().copied().map(EngineHash).collect::<Vec<_>>();
    let op = |event: &proto::Event| match event.event.as_ref().unwrap() {
        Event::Stored(stored) => {
            let Some(proto::blocks_stored::Content::ContentHashes(contents)) = &stored.content else { panic!() };
            Op::Store {
                tier: Tier::Device,
                parent: stored.parent.map(EngineHash),
                names: names(&stored.engine_hashes),
                contents: contents.hashes.iter().copied().map(ContentHash).collect(),
                kind: if stored.announced_again { StoreKind::Announce } else { StoreKind::Copy },
            }
        }
        Event::Removed(removed) => Op::Remove { tier: Tier::Device, names: names(&removed.engine_hashes) },
        Event::CopiesLeft(left) => {
            Op::SetCopies { tier: Tier::Device, name: EngineHash(left.engine_hash), left: left.copies }
        }
        Event::Cleared(_) => panic!("a state clears nothing"),
    };
    let mut sum = ChunksSum::default();
    let all = parts.iter().filter_map(|part| if let Part::Chunk(chunk) = part { Some(chunk) } else { None });
    all.take(chunks).for_each(|chunk| sum.add(&chunk.events.iter().map(op).collect::<Vec<_>>()));
    sum.value()
}

#[tokio::test]
async fn a_copy_goes_on_where_it_ended_or_begins_the_rank_anew() {
    let mut traffic = Traffic::start(1).await;
    traffic.lose(300);
    let mut raw = small();
    raw.relay.snapshot_blocks_max = 256;
    for id in ["a", "b", "c"] {
        follow(&mut raw, id, &traffic);
    }
    let running = run(raw).await;
    for id in ["a", "b", "c"] {
        exact(&running, id, 299).await;
    }
    let channel = channel(&running).await;
    let whole = copy(&channel, all()).await.unwrap();
    let ends: Vec<_> =
        whole.iter().filter_map(|part| if let Part::End(end) = part { Some(end) } else { None }).collect();
    let (chunks, sum) = (ends[0].chunks, ends[0].checksum);
    assert!(chunks > 3 && ends.len() == 3);
    assert_eq!(checksum(&whole, chunks as usize), sum, "the reader's own sum");

    let of_a = &whole[..=chunks as usize];
    let resume = |worker: &str, rank, chunks, checksum| proto::GetSnapshotRequest {
        resume: Some(proto::SnapshotResume { worker: worker.into(), rank, chunks, checksum }),
        ..all()
    };
    let first_of = |parts: &[Part]| (brief(parts)[0].clone(), header(&parts[0]).first_chunk, brief(parts)[1].clone());
    let of_b = copy(&channel, resume("b", 0, 2, checksum(of_a, 2))).await.unwrap();
    // The same events in the same order made the three alike, up to where the index happened to cut their runs.
    let goes_on = first_of(&of_b);
    assert!(goes_on == ("b:0".into(), 2, "2".into()) || goes_on == ("b:0".into(), 0, "0".into()), "{goes_on:?}");
    let of_a_again = copy(&channel, resume("a", 0, 2, checksum(of_a, 2))).await.unwrap();
    assert_eq!(first_of(&of_a_again), ("a:0".into(), 2, "2".into()));
    let Some(Part::End(end)) = of_a_again.iter().find(|part| matches!(part, Part::End(_))) else { panic!("no end") };
    assert_eq!((end.chunks, end.checksum), (chunks, sum), "the end speaks of the whole rank");
    let complete = copy(&channel, resume("a", 0, chunks, sum)).await.unwrap();
    assert_eq!(first_of(&complete), ("a:0".into(), chunks, format!("end {chunks}")));

    for (request, told) in [
        (resume("a", 0, 2, checksum(of_a, 2) ^ 1), ("a:0", 0, "0")),
        (resume("a", 0, chunks + 1, sum), ("a:0", 0, "0")),
        (resume("a", 1, 0, 0), ("b:0", 0, "0")),
        (resume("bb", 0, 9, 9), ("c:0", 0, "0")),
    ] {
        let parts = copy(&channel, request.clone()).await.unwrap();
        assert_eq!(first_of(&parts), (told.0.into(), told.1, told.2.into()), "{request:?}");
    }
    assert_eq!(brief(&copy(&channel, resume("d", 0, 0, 0)).await.unwrap()), ["all 0"]);
    assert_eq!(copy(&channel, resume("", 0, 0, 0)).await.unwrap_err().code(), Code::InvalidArgument);

    // The rank moved on: what was told of its beginning is not true any more.
    traffic.publish().await;
    exact(&running, "a", 300).await;
    let moved = copy(&channel, resume("a", 0, chunks - 1, checksum(of_a, chunks as usize - 1))).await.unwrap();
    assert_eq!((first_of(&moved).1, header(&moved[0]).cut.as_ref().unwrap().cursor), (0, 300));
}

const WORKERS: u32 = 32;

/// A service whose copy has 800 KB: more than a narrow connection and the queues before it take.
async fn with_much_to_tell(mut raw: Raw) -> (Running, Traffic) {
    let mut traffic = Traffic::start(1).await;
    traffic.lose(250);
    raw.relay.snapshot_blocks_max = 256;
    (0..WORKERS).for_each(|worker| follow(&mut raw, &format!("w{worker:02}"), &traffic));
    let running = run(raw).await;
    for worker in 0..WORKERS {
        exact(&running, &format!("w{worker:02}"), 249).await;
    }
    (running, traffic)
}

/// A connection that holds little of what is not read.
async fn narrow_channel(running: &Running) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", running.grpc_addr())).unwrap();
    endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535).connect().await.unwrap()
}

#[tokio::test]
async fn copies_are_bounded_in_number_and_in_time() {
    let mut raw = small();
    raw.limits.copies_in_flight_max = 1;
    // Longer than one who reads ever takes, on cores that are shared.
    raw.relay.snapshot_stall_max_ms = 500;
    let (running, _traffic) = with_much_to_tell(raw).await;
    let channel = narrow_channel(&running).await;
    let mut client = EventServiceClient::new(channel.clone());
    let mut stuck = client.get_snapshot(all()).await.unwrap().into_inner();
    let refused = copy(&channel, all()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("limits.copies_in_flight_max"), "{refused}");
    // Nobody reads until the place is free again: the one who does not read was cut off.
    let mut period = tokio::time::interval(Duration::from_millis(5));
    let after = in_time(async {
        loop {
            match copy(&common::channel(&running).await, all()).await {
                Ok(parts) => return parts,
                Err(status) => assert_eq!(status.code(), Code::ResourceExhausted),
            }
            period.tick().await;
        }
    })
    .await;
    assert_eq!(brief(&after).last().unwrap(), &format!("all {WORKERS}"));
    let ended = loop {
        match in_time(stuck.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("cut off without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended:?}");
    assert!(ended.message().contains("relay.snapshot_stall_max_ms"), "{ended}");
}

#[tokio::test]
async fn a_drain_ends_copies() {
    let (running, _traffic) = with_much_to_tell(small()).await;
    let mut client = EventServiceClient::new(narrow_channel(&running).await);
    let mut stream = client.get_snapshot(all()).await.unwrap().into_inner();
    in_time(stream.message()).await.unwrap().unwrap();
    let ended = async {
        loop {
            match in_time(stream.message()).await {
                Ok(part) => assert!(part.is_some(), "the copy is long"),
                Err(status) => return status,
            }
        }
    };
    let (_, status) = tokio::join!(running.shutdown(), ended);
    assert_eq!(status.code(), Code::Unavailable);
}
