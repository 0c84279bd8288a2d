//! A service that republishes its ranks on the engines' own wire, and another one that stands behind it: over every recorded stream,
//! with what travels between the two dropped, repeated, swapped, delayed and cut, both hold what a clean reading gives.
//!
//! Seed `n` plays recording `n` modulo their number; `KVATLAS_SEEDS` asks for so many seeds from `KVATLAS_SEED` on.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;
mod engine;
mod proxy;
mod publisher;
mod recorded;
mod stream;

use bytes::Bytes;
use common::{in_time, run, small};
use engine::{apply, batch, ints, list, map, nil, text};
use kvatlas_index::{Holder, Index, IndexConfig, RankKey};
use kvatlas_service::config::{Raw, RawWire};
use kvatlas_service::fleet::Registration;
use kvatlas_service::grpc::proto;
use kvatlas_service::ingest::socket::{Connection, Endpoint, Role, SocketLimits};
use kvatlas_service::ingest::{RankEndpoint, RankStatus, Trust, WorkerSpec};
use kvatlas_service::ops::OpBatch;
use kvatlas_service::relay::snapshot::SnapshotLimits;
use kvatlas_service::serve::Running;
use kvatlas_service::wire::replay_request;
use proxy::{Harm, Proxy, Random};
use publisher::Publisher;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stream::{Holdings, Stream, TIERS, sorted};

/// Streams played at once.
const AT_ONCE: usize = 3;
const DEADLINE: Duration = Duration::from_secs(60);
const WORKER: &str = "w";
const PAYLOAD_BYTES: usize = 64 << 10;

/// Quick to notice and to try again.
fn quick() -> Raw {
    let mut raw = small();
    raw.ingest.reconnect_min_ms = 2;
    raw.ingest.reconnect_max_ms = 20;
    raw.ingest.replay_silence_max_ms = 200;
    raw.ingest.idle_probe_ms = 50;
    raw.ingest.recovery_attempts_max = 1_000_000;
    raw.ingest.recovery_backoff_min_ms = 2;
    raw.ingest.recovery_backoff_max_ms = 50;
    raw.liveness.enabled = false;
    raw
}

fn republishing(wire: RawWire) -> Raw {
    let mut raw = quick();
    raw.relay.wire = vec![wire];
    raw
}

async fn follow(running: &Running, spec: &WorkerSpec, events: String, replay: String) {
    let ranks = vec![RankEndpoint { rank: 0, events, replay: Some(replay) }];
    let worker = WorkerSpec { id: WORKER.into(), ranks, ..spec.clone() };
    let registration = Registration { worker, pushed_ranks: Vec::new(), metrics: None };
    running.fleet().register(registration, false, false).await.unwrap();
}

/// Where a rank is republished: live stream and replays.
fn endpoints(running: &Running, rank: u32) -> (String, String) {
    let view = running.fleet().view();
    let at = view.rank(WORKER, rank).unwrap().relay.wire().unwrap().addresses().unwrap();
    (format!("tcp://{}", at.events), format!("tcp://{}", at.replay))
}

fn status(running: &Running) -> RankStatus {
    RankStatus::clone(&running.fleet().view().rank(WORKER, 0).unwrap().status.full())
}

/// Waits until the rank is exact at this batch.
async fn exact_at(running: &Running, sequence: u64) -> Result<(), RankStatus> {
    // Taken before the look, so that no change falls between.
    let mut changes = running.fleet().watch();
    let wait = async {
        loop {
            let now = status(running);
            if now.trust == Trust::Exact && now.cursor == Some(sequence) {
                return;
            }
            // Trust does not change with every batch: look now and then.
            let _ = tokio::time::timeout(Duration::from_millis(10), changes.recv()).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.map_err(|_| status(running))
}

/// What the rank holds, out of its lane.
async fn holdings(running: &Running) -> Holdings {
    let chunks = {
        let view = running.fleet().view();
        let rank = view.rank(WORKER, 0).unwrap();
        rank.lane.export(SnapshotLimits::default()).await.unwrap()
    };
    let (_, mut lanes) = Index::new(IndexConfig::default()).unwrap();
    let mut lane = lanes.remove(0);
    let slot = lane.open_rank(RankKey(0)).unwrap();
    for ops in chunks {
        apply(&mut lane, slot, &OpBatch { ops, ..OpBatch::default() });
    }
    TIERS.map(|tier| sorted(lane.names(Holder { rank: slot, tier }))).to_vec()
}

/// An engine's publisher, a service that follows it and republishes, a hostile network, and a service that follows that.
async fn play(path: PathBuf, seed: u64, harm: Arc<Harm>) {
    let stream = Stream::read(&path);
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut random = Random(seed);
    let layout = if random.one_in(2) { "with_topic" } else { "without_topic" };
    let wire = RawWire { topic: "kv@{worker}@{model}".into(), replay_layout: layout.into(), ..RawWire::default() };
    let mut publisher = Publisher::start().await;
    let (a, b) = (run(republishing(wire)).await, run(quick()).await);
    follow(&a, &stream.spec, publisher.events.clone(), publisher.replay.clone()).await;
    let (events, replay) = endpoints(&a, 0);
    let every = 3 + random.next() % 30;
    let events = Proxy::start(&events, random.next(), every, harm.clone()).await;
    let replay = Proxy::start(&replay, random.next(), 4 * every, harm).await;
    let spec = WorkerSpec { topic: "kv@w@".into(), ..stream.spec.clone() };
    follow(&b, &spec, events.at.clone(), replay.at.clone()).await;

    for (number, life) in stream.lives.iter().enumerate() {
        if number > 0 {
            let (at, replay_at) = (publisher.events.clone(), publisher.replay.clone());
            drop(publisher);
            publisher = Publisher::start_at(&at, &replay_at).await;
        }
        for payload in life {
            publisher.publish(payload.clone()).await;
            if random.one_in(16) {
                tokio::time::sleep(Duration::from_micros(random.next() % 2_000)).await;
            }
        }
        if number + 1 < stream.lives.len() {
            // A life that nobody followed is none of the relay's business.
            exact_at(&a, life.len() as u64 - 1).await.unwrap_or_else(|at| panic!("{name}, seed {seed}: A {at:?}"));
        }
    }
    let newest = stream.lives.last().unwrap().len() as u64 - 1;
    exact_at(&a, newest).await.unwrap_or_else(|at| panic!("{name}, seed {seed}: A is not exact: {at:?}"));
    // All of it was on its way through the hostile network before that is calm. A replay whose first reply was lost twice on one
    // connection looks like a window that has moved on, which B then does not ask about again before the next connection.
    events.cut_and_calm();
    replay.cut_and_calm();
    exact_at(&b, newest).await.unwrap_or_else(|at| panic!("{name}, seed {seed}: B is not exact: {at:?}"));
    let (held_a, held_b, truth) = (holdings(&a).await, holdings(&b).await, stream.truth());
    let counts = |held: &Holdings| held.iter().map(Vec::len).collect::<Vec<_>>();
    assert!(held_a == truth, "{name}, seed {seed}: A holds {:?} of {:?}", counts(&held_a), counts(&truth));
    assert!(held_b == truth, "{name}, seed {seed}: B holds {:?} of {:?}", counts(&held_b), counts(&truth));
    in_time(b.shutdown()).await;
    in_time(a.shutdown()).await;
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stands_behind_a_relay_holds_what_the_engine_does() {
    let paths = recorded::paths();
    let (first, seeds) = (number("KVATLAS_SEED").unwrap_or(0), number("KVATLAS_SEEDS").unwrap_or(paths.len() as u64));
    println!("seeds {first} to {}", first + seeds);
    let harm = Arc::<Harm>::default();
    let mut running = tokio::task::JoinSet::new();
    let done = |outcome: Result<(), tokio::task::JoinError>| {
        if let Err(error) = outcome {
            std::panic::resume_unwind(error.into_panic());
        }
    };
    for seed in first..first + seeds {
        if running.len() == AT_ONCE {
            done(running.join_next().await.expect("some run"));
        }
        running.spawn(play(paths[seed as usize % paths.len()].clone(), seed, harm.clone()));
    }
    while let Some(outcome) = running.join_next().await {
        done(outcome);
    }
    let harm =
        [&harm.dropped, &harm.repeated, &harm.swapped, &harm.delayed, &harm.cut].map(|n| n.load(Ordering::Relaxed));
    println!("{seeds} exact; dropped, repeated, swapped, delayed, cut: {harm:?}");
    assert!(harm.iter().all(|count| *count > 0), "{harm:?}");
}

// Raw consumers.

fn limits() -> SocketLimits {
    SocketLimits { message_bytes_max: 1 << 20, handshake_max: Duration::from_secs(10) }
}

async fn open(endpoint: &str, role: Role) -> Connection {
    let endpoint: Endpoint = endpoint.parse().unwrap();
    Connection::open(&endpoint, role, limits()).await.unwrap()
}

/// Asks a ROUTER and reads up to the end marker: frames after the delimiter.
async fn replayed(dealer: &mut Connection, from: u64) -> Vec<Vec<Bytes>> {
    dealer.send(&replay_request(from)).await.unwrap();
    let mut replies = Vec::new();
    loop {
        let mut reply = in_time(dealer.receive()).await.unwrap();
        assert!(reply.remove(0).is_empty());
        let end = reply[reply.len() - 2][..] == [0xff; 8];
        replies.push(reply);
        if end {
            return replies;
        }
    }
}

fn sequence_of(frames: &[Bytes]) -> u64 {
    u64::from_be_bytes(frames[frames.len() - 2][..].try_into().unwrap())
}

/// A service with one pushed worker of so many ranks, each republished, and its clients.
async fn pushed(raw: Raw, ranks: u32) -> (Running, common::Clients) {
    let running = run(raw).await;
    let mut clients = common::clients(&running).await;
    let ranks = (0..ranks).map(|rank| proto::RankSpec { rank, ..Default::default() }).collect();
    clients.register(proto::WorkerSpec { ranks, ..common::spec(WORKER) }).await.unwrap();
    (running, clients)
}

fn removal(rank: u32, sequence: u64, names: u64) -> proto::EventBatch {
    let names: Vec<_> = (0..names).map(|name| name | 1 << 60).collect();
    proto::EventBatch { rank, ..common::batch(WORKER, sequence, vec![common::removed(&names)]) }
}

fn counted(running: &Running, rank: u32, reason: &str) -> u64 {
    let view = running.fleet().view();
    let all = view.rank(WORKER, rank).unwrap().relay.wire().unwrap().counters().all();
    all.into_iter().find(|(r, _)| *r == reason).unwrap().1
}

/// Waits for something that happens on another task.
async fn until(what: impl Fn() -> bool) {
    in_time(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn other_implementations_of_the_sockets_are_served_in_both_layouts() {
    use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket};
    for (layout, frames) in [("with_topic", 4), ("without_topic", 3)] {
        let wire = RawWire { topic: "kv".into(), replay_layout: layout.into(), ..RawWire::default() };
        let (running, mut clients) = pushed(republishing(wire), 1).await;
        let (events, replay) = endpoints(&running, 0);
        let (mut sub, mut dealer) = (SubSocket::new(), DealerSocket::new());
        sub.connect(&events).await.unwrap();
        sub.subscribe("k").await.unwrap();
        dealer.connect(&replay).await.unwrap();
        clients.apply((0..3).map(|s| removal(0, s, 1)).collect()).await.unwrap();
        for sequence in 0..3 {
            let message = in_time(sub.recv()).await.unwrap().into_vec();
            assert_eq!((message.len(), &message[0][..], sequence_of(&message)), (3, &b"kv"[..], sequence));
        }
        dealer.send(publisher::message([Bytes::new(), Bytes::copy_from_slice(&1_u64.to_be_bytes())])).await.unwrap();
        for sequence in [1, 2, u64::MAX] {
            let message = in_time(dealer.recv()).await.unwrap().into_vec();
            assert_eq!((message.len(), sequence_of(&message)), (frames, sequence));
            let topic = if sequence == u64::MAX { &b""[..] } else { &b"kv"[..] };
            assert!(frames == 3 || message[1][..] == *topic);
        }
    }
}

#[tokio::test]
async fn topics_that_are_not_ours_get_nothing_and_a_cancelled_one_no_more() {
    let wire = RawWire { topic: "kv@w".into(), ..RawWire::default() };
    let (running, mut clients) = pushed(republishing(wire), 1).await;
    let (events, _) = endpoints(&running, 0);
    let (mut ours, mut other) = (open(&events, Role::Sub).await, open(&events, Role::Sub).await);
    ours.subscribe("kv@").await.unwrap();
    other.subscribe("kv@x").await.unwrap();
    clients.apply(vec![removal(0, 0, 1)]).await.unwrap();
    assert_eq!(sequence_of(&in_time(ours.receive()).await.unwrap()), 0);
    // Cancelled, then garbage to know that it was read.
    ours.send(&[b"\x00kv@".to_vec()]).await.unwrap();
    ours.send(&[b"\x07".to_vec()]).await.unwrap();
    until(|| counted(&running, 0, "garbage") == 1).await;
    clients.apply(vec![removal(0, 1, 1)]).await.unwrap();
    ours.subscribe("").await.unwrap();
    ours.send(&[b"\x07".to_vec()]).await.unwrap();
    until(|| counted(&running, 0, "garbage") == 2).await;
    clients.apply(vec![removal(0, 2, 1)]).await.unwrap();
    assert_eq!(sequence_of(&in_time(ours.receive()).await.unwrap()), 2);
    assert_eq!(counted(&running, 0, "sent"), 2);
}

#[tokio::test]
async fn garbage_is_counted_and_ignored() {
    let (running, mut clients) = pushed(republishing(RawWire::default()), 1).await;
    let (events, replay) = endpoints(&running, 0);
    clients.apply(vec![removal(0, 0, 1)]).await.unwrap();
    let mut dealer = open(&replay, Role::Dealer).await;
    for frames in [vec![vec![]], vec![vec![], vec![1; 7]], vec![vec![1], vec![0; 8]], vec![vec![], vec![], vec![0; 8]]]
    {
        dealer.send(&frames).await.unwrap();
    }
    assert_eq!(replayed(&mut dealer, 0).await.len(), 2);
    assert_eq!(counted(&running, 0, "garbage"), 4);
    // What vLLM's proposal for states asks: a sequence beyond all to whoever does not know it.
    dealer.send(&[vec![], b"snapshot".to_vec()]).await.unwrap();
    assert_eq!(in_time(dealer.receive()).await.unwrap().len(), 4);
    // Too long, of the wrong kind, no ZeroMQ at all: such connections end.
    dealer.send(&[vec![], vec![0; 8 << 10]]).await.unwrap();
    assert!(in_time(dealer.receive()).await.is_err());
    until(|| counted(&running, 0, "garbage") == 5).await;
    let endpoint: Endpoint = events.parse().unwrap();
    assert!(Connection::open(&endpoint, Role::Dealer, limits()).await.is_err());
    let mut plain = tokio::net::TcpStream::connect(events.trim_start_matches("tcp://")).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut plain, &[b'G'; 100]).await.unwrap();
    until(|| counted(&running, 0, "bad_handshakes") == 2).await;
    let mut sub = open(&events, Role::Sub).await;
    sub.subscribe("").await.unwrap();
    clients.apply(vec![removal(0, 1, 1)]).await.unwrap();
    assert_eq!(sequence_of(&in_time(sub.receive()).await.unwrap()), 1);
}

#[tokio::test]
async fn connections_have_a_limit() {
    let mut raw = republishing(RawWire::default());
    raw.relay.wire_consumers_max = 2;
    let (running, mut clients) = pushed(raw, 1).await;
    let (events, replay) = endpoints(&running, 0);
    let (first, _second) = (open(&events, Role::Sub).await, open(&events, Role::Sub).await);
    let endpoint: Endpoint = events.parse().unwrap();
    assert!(Connection::open(&endpoint, Role::Sub, limits()).await.is_err());
    assert_eq!(counted(&running, 0, "refused"), 1);
    // The other socket has its own, and who goes makes room.
    clients.apply(vec![removal(0, 0, 1)]).await.unwrap();
    assert_eq!(replayed(&mut open(&replay, Role::Dealer).await, 0).await.len(), 2);
    drop(first);
    in_time(async { while Connection::open(&endpoint, Role::Sub, limits()).await.is_err() {} }).await;
}

#[tokio::test]
async fn a_consumer_that_reads_nothing_costs_itself_only() {
    let mut raw = republishing(RawWire::default());
    raw.relay.history_batches_max = 50;
    raw.relay.wire_stall_max_ms = 500;
    let (running, mut clients) = pushed(raw, 1).await;
    let (events, replay) = endpoints(&running, 0);
    let (mut stuck, mut reader) = (open(&events, Role::Sub).await, open(&events, Role::Sub).await);
    stuck.subscribe("").await.unwrap();
    reader.subscribe("").await.unwrap();
    // More than all buffers of a connection take.
    let names = PAYLOAD_BYTES as u64 / 9;
    for sequence in 0..600 {
        clients.apply(vec![removal(0, sequence, names)]).await.unwrap();
        assert_eq!(sequence_of(&in_time(reader.receive()).await.unwrap()), sequence);
        let view = running.fleet().view();
        let (kept, bytes) = view.rank(WORKER, 0).unwrap().relay.wire().unwrap().kept();
        assert!(kept <= 50 && bytes <= 51 * 2 * PAYLOAD_BYTES as u64, "{kept} {bytes}");
    }
    until(|| counted(&running, 0, "stalled") == 1).await;
    assert_eq!(replayed(&mut open(&replay, Role::Dealer).await, 590).await.len(), 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_replay_that_nobody_reads_holds_up_no_other_rank() {
    const BATCHES: u64 = 10_000;
    let (running, mut clients) = pushed(republishing(RawWire::default()), 2).await;
    clients.apply((0..BATCHES).map(|s| removal(0, s, 200)).collect()).await.unwrap();
    let (_, replay) = endpoints(&running, 0);
    let mut stuck = open(&replay, Role::Dealer).await;
    for _ in 0..20 {
        stuck.send(&replay_request(0)).await.unwrap();
    }
    until(|| counted(&running, 0, "replayed") > 0).await;
    let (events, _) = endpoints(&running, 1);
    let mut sub = open(&events, Role::Sub).await;
    sub.subscribe("").await.unwrap();
    for sequence in 0..100 {
        clients.apply(vec![removal(1, sequence, 1)]).await.unwrap();
        assert_eq!(sequence_of(&in_time(sub.receive()).await.unwrap()), sequence);
    }
    assert!(counted(&running, 0, "replayed") < 20 * BATCHES, "the other one is still not read");
    let mut dealer = open(&replay, Role::Dealer).await;
    let whole = replayed(&mut dealer, 0).await;
    assert!(whole[..BATCHES as usize].iter().map(|frames| sequence_of(frames)).eq(0..BATCHES));
    assert_eq!(whole.len() as u64, BATCHES + 1);
}

#[tokio::test]
async fn pushed_batches_reach_a_consumer_as_an_engines_would() {
    let (a, mut clients) = pushed(republishing(RawWire::default()), 1).await;
    let b = run(quick()).await;
    let (events, replay) = endpoints(&a, 0);
    let spec = WorkerSpec { block_size: common::BLOCK_SIZE, ..engine::spec(common::BLOCK_SIZE) };
    let store =
        |sequence, parent, first, ids| common::batch(WORKER, sequence, vec![common::stored(parent, first, ids)]);
    clients.apply(vec![store(0, None, 1, common::tokens(4)), store(1, Some(4), 5, (90..98).collect())]).await.unwrap();
    follow(&b, &spec, events, replay).await;
    exact_at(&b, 1).await.unwrap();
    clients.apply(vec![store(2, Some(2), 20, (50..58).collect()), removal(0, 3, 2)]).await.unwrap();
    exact_at(&b, 3).await.unwrap();
    assert_eq!(holdings(&b).await, holdings(&a).await);
    // What this wire has no words for is a gap that nobody can fill: the consumer says so, and the engine's clear mends it.
    let again =
        proto::BlocksStored { announced_again: true, ..stored_event(common::stored(None, 30, (7..15).collect())) };
    let event = proto::Event { event: Some(proto::event::Event::Stored(again)) };
    clients.apply(vec![common::batch(WORKER, 4, vec![event]), removal(0, 5, 1)]).await.unwrap();
    until(|| status(&b).cursor == Some(5) && status(&b).trust == Trust::Degraded).await;
    assert_eq!(counted(&a, 0, "unencodable"), 1);
    clients.apply(vec![common::batch(WORKER, 6, vec![common::cleared()])]).await.unwrap();
    exact_at(&b, 6).await.unwrap();
    // The publisher starts over: its sequences do on the wire, too.
    let reset = proto::EventBatch { reset: true, ..store(0, None, 1, common::tokens(3)) };
    clients.apply(vec![reset, store(1, Some(3), 9, (60..64).collect())]).await.unwrap();
    exact_at(&b, 1).await.unwrap();
    assert_eq!(holdings(&b).await, holdings(&a).await);
    assert_eq!(holdings(&b).await[0].len(), 4);
}

fn stored_event(event: proto::Event) -> proto::BlocksStored {
    let Some(proto::event::Event::Stored(stored)) = event.event else { panic!("{event:?}") };
    stored
}

/// One block, written as vLLM does.
fn block(time: f64, parent: Option<u64>, name: u64) -> Bytes {
    let fields = [
        ("type", text("BlockStored")),
        ("block_hashes", ints([name])),
        ("parent_block_hash", parent.map_or_else(nil, |p| engine::int(p.into()))),
        ("token_ids", ints(name * 4..name * 4 + 4)),
        ("block_size", engine::int(4)),
        ("medium", text("GPU")),
    ];
    batch(time, vec![map(&fields)])
}

#[tokio::test]
async fn a_gap_that_could_not_be_filled_stays_one_and_payloads_are_the_engines() {
    let mut publisher = Publisher::start().await;
    let a = run(republishing(RawWire::default())).await;
    follow(&a, &engine::spec(4), publisher.events.clone(), publisher.replay.clone()).await;
    let (events, replay) = endpoints(&a, 0);
    let mut sub = open(&events, Role::Sub).await;
    sub.subscribe("").await.unwrap();
    // Readable, unreadable, and of a kind that does not exist: all go through as they are.
    let payloads = [
        block(1.0, None, 1),
        Bytes::from_static(b"\xc1 no msgpack"),
        batch(3.0, vec![list([text("Unknown")])]),
        block(4.0, Some(1), 2),
        block(5.0, Some(2), 3),
        block(6.0, Some(3), 4),
    ];
    for (sequence, payload) in payloads[..3].iter().enumerate() {
        publisher.publish(payload.clone()).await;
        let message = in_time(sub.receive()).await.unwrap();
        assert_eq!((sequence_of(&message), &message[2]), (sequence as u64, payload));
    }
    until(|| status(&a).cursor == Some(2)).await;
    publisher.lose(payloads[3].clone());
    publisher.ring.lock().unwrap().oldest = 4;
    publisher.publish(payloads[4].clone()).await;
    publisher.publish(payloads[5].clone()).await;
    assert_eq!(sequence_of(&in_time(sub.receive()).await.unwrap()), 4);
    assert_eq!(sequence_of(&in_time(sub.receive()).await.unwrap()), 5);
    let replies = replayed(&mut open(&replay, Role::Dealer).await, 0).await;
    let sequences: Vec<_> = replies.iter().map(|frames| sequence_of(frames)).collect();
    assert_eq!(sequences, [0, 1, 2, 4, 5, u64::MAX]);
    assert!(replies[..5].iter().all(|f| f[2] == payloads[sequence_of(f) as usize]));
    assert_ne!(status(&a).trust, Trust::Exact);
}

#[tokio::test]
async fn a_port_that_is_taken_is_tried_again_and_one_beyond_all_is_not() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (running, mut clients) = pushed(republishing(RawWire { events_port: port, ..RawWire::default() }), 1).await;
    let log = running.fleet().view().rank(WORKER, 0).unwrap().relay.wire().unwrap().clone();
    assert_eq!((log.addresses(), counted(&running, 0, "bind_failures")), (None, 1));
    drop(taken);
    until(|| log.addresses().is_some()).await;
    assert_eq!(log.addresses().unwrap().events.port(), port);
    // A worker that goes frees its ports.
    let (events, _) = endpoints(&running, 0);
    let mut sub = open(&events, Role::Sub).await;
    let request = proto::DeregisterRequest { worker: WORKER.into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    assert!(in_time(sub.receive()).await.is_err());
    until(|| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()).await;
}

#[tokio::test]
async fn the_list_and_the_metrics_tell_where_and_how_much() {
    let (running, mut clients) = pushed(republishing(RawWire::default()), 1).await;
    clients.apply(vec![removal(0, 0, 1)]).await.unwrap();
    let listed = clients.workers.list(proto::ListRequest::default()).await.unwrap().into_inner();
    let rank = &listed.workers[0].ranks[0];
    let (events, replay) = endpoints(&running, 0);
    assert_eq!((&rank.wire_events_endpoint, &rank.wire_replay_endpoint), (&events, &replay));
    let _dealer = replayed(&mut open(&replay, Role::Dealer).await, 0).await;
    let (code, metrics) = common::get(running.admin_addr().unwrap(), "/metrics").await;
    assert_eq!(code, 200);
    for line in [
        "kvatlas_wire_bound{worker=\"w\",rank=\"0\"} 1",
        "kvatlas_wire_batches{worker=\"w\",rank=\"0\"} 1",
        "kvatlas_wire_events_total{worker=\"w\",rank=\"0\",reason=\"replayed\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let (plain, mut clients) = pushed(quick(), 1).await;
    clients.apply(vec![removal(0, 0, 1)]).await.unwrap();
    let listed = clients.workers.list(proto::ListRequest::default()).await.unwrap().into_inner();
    assert!(listed.workers[0].ranks[0].wire_events_endpoint.is_empty());
    assert!(plain.fleet().view().rank(WORKER, 0).unwrap().relay.wire().is_none());
}
