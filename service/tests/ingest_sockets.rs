//! A rank followed over real sockets: the publisher's side is another implementation of ZeroMQ, or a hostile peer.
#![allow(clippy::unwrap_used, reason = "test code")]

mod engine;

use bytes::Bytes;
use engine::{apply, batch, cleared, removed, spec, stored};
use kvatlas_index::{Holder, Index, IndexConfig, Lane, RankKey, RankSlot, Tier};
use kvatlas_service::ingest::{
    IngestLimits, RankEndpoint, RankSink, RankStatus, SinkClosed, Trust, WorkerSpec, follow_rank,
};
use kvatlas_service::ops::{Applied, OpBatch};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// Nothing here takes long; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// An engine's publisher: everything published stays in its replay buffer.
struct Publisher {
    live: PubSocket,
    buffer: Arc<Mutex<Vec<Bytes>>>,
    events: String,
    replay: Option<String>,
    layout: Arc<Mutex<Layout>>,
    _answers: JoinSet<()>,
}

#[derive(Clone, Copy, PartialEq, Default)]
enum Layout {
    #[default]
    WithTopic,
    WithoutTopic,
    Mute,
}

impl Publisher {
    async fn start(events: &str, replay: Option<(&str, Layout)>) -> Self {
        let (live, events) = bind::<PubSocket>(events).await;
        let buffer = Arc::new(Mutex::new(Vec::new()));
        let mut answers = JoinSet::new();
        let mut replay_at = None;
        let answered_in = Arc::new(Mutex::new(Layout::default()));
        if let Some((endpoint, layout)) = replay {
            let (router, bound) = bind::<RouterSocket>(endpoint).await;
            replay_at = Some(bound);
            *answered_in.lock().unwrap() = layout;
            answers.spawn(answer(router, buffer.clone(), answered_in.clone()));
        }
        Self { live, buffer, events, replay: replay_at, layout: answered_in, _answers: answers }
    }

    async fn on_loopback(layout: Layout) -> Self {
        Self::start("tcp://127.0.0.1:0", Some(("tcp://127.0.0.1:0", layout))).await
    }

    /// Ends this life; the ports stay the next one's.
    async fn restart(self, layout: Layout) -> Self {
        let (events, replay) = (self.events.clone(), self.replay.clone().unwrap());
        drop(self);
        Self::start(&events, Some((&replay, layout))).await
    }

    /// A batch that is kept, but does not reach the subscriber.
    fn lose(&self, events: Vec<Vec<u8>>) {
        let mut buffer = self.buffer.lock().unwrap();
        // The clock tells lives apart, as the engines' does.
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        buffer.push(batch(time, events));
    }

    async fn publish(&mut self, events: Vec<Vec<u8>>) {
        self.lose(events);
        let (seq, payload) = {
            let buffer = self.buffer.lock().unwrap();
            (buffer.len() as u64 - 1, buffer.last().unwrap().clone())
        };
        self.live.send(message([Bytes::new(), be(seq), payload])).await.unwrap();
    }

    fn endpoint(&self) -> RankEndpoint {
        RankEndpoint { rank: 0, events: self.events.clone(), replay: self.replay.clone() }
    }
}

/// Binds; the life before may need a moment to let go of its port.
async fn bind<S: Socket>(endpoint: &str) -> (S, String) {
    let bound = tokio::time::timeout(DEADLINE, async {
        loop {
            let mut socket = S::new();
            match socket.bind(endpoint).await {
                Ok(bound) => return (socket, bound.to_string()),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    bound.await.expect("the port is free again")
}

async fn answer(mut router: RouterSocket, buffer: Arc<Mutex<Vec<Bytes>>>, layout: Arc<Mutex<Layout>>) {
    while let Ok(request) = router.recv().await {
        let layout = *layout.lock().unwrap();
        if layout == Layout::Mute {
            continue;
        }
        let peer = request.get(0).unwrap().clone();
        let from = u64::from_be_bytes(request.get(2).unwrap()[..].try_into().unwrap());
        let batches: Vec<(u64, Bytes)> = (0..).zip(buffer.lock().unwrap().clone()).collect();
        let replies = batches.into_iter().filter(|(seq, _)| *seq >= from).chain([(u64::MAX, Bytes::new())]);
        for (seq, payload) in replies {
            let reply = match layout {
                Layout::WithTopic => message([peer.clone(), Bytes::new(), Bytes::new(), be(seq), payload]),
                _ => message([peer.clone(), Bytes::new(), be(seq), payload]),
            };
            // A peer that is gone is the peer's business.
            router.send(reply).await.ok();
        }
    }
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames.into_iter().collect::<Vec<_>>()).unwrap()
}

fn be(seq: u64) -> Bytes {
    Bytes::copy_from_slice(&seq.to_be_bytes())
}

/// One followed rank and what it holds.
struct Followed {
    status: watch::Receiver<RankStatus>,
    lane: Arc<Mutex<(Lane, RankSlot)>>,
    /// A permit lets one batch through; closed to let all through.
    gate: Arc<Semaphore>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

struct IndexSink {
    lane: Arc<Mutex<(Lane, RankSlot)>>,
    status: watch::Sender<RankStatus>,
    gate: Arc<Semaphore>,
}

impl RankSink for IndexSink {
    async fn apply(&mut self, batch: OpBatch) -> Result<Applied, SinkClosed> {
        // An error says that the gate is open for good.
        if let Ok(permit) = self.gate.acquire().await {
            permit.forget();
        }
        let (lane, slot) = &mut *self.lane.lock().unwrap();
        Ok(apply(lane, *slot, &batch))
    }

    fn publish(&mut self, status: RankStatus) {
        self.status.send_replace(status);
    }
}

impl Followed {
    fn start(endpoint: RankEndpoint, limits: IngestLimits) -> Self {
        Self::gated(endpoint, limits, true)
    }

    fn gated(endpoint: RankEndpoint, limits: IngestLimits, open: bool) -> Self {
        let (_, mut lanes) = Index::new(IndexConfig::default()).unwrap();
        let mut lane = lanes.remove(0);
        let slot = lane.open_rank(RankKey(0)).unwrap();
        let lane = Arc::new(Mutex::new((lane, slot)));
        let (sender, status) = watch::channel(RankStatus::default());
        let gate = Arc::new(Semaphore::new(0));
        if open {
            gate.close();
        }
        let sink = IndexSink { lane: lane.clone(), status: sender, gate: gate.clone() };
        let stop = CancellationToken::new();
        let spec = WorkerSpec { ranks: vec![endpoint.clone()], ..spec(4) };
        let stopped = stop.clone();
        let task = tokio::spawn(async move { follow_rank(&spec, &endpoint, &limits, sink, stopped).await.unwrap() });
        Self { status, lane, gate, stop, task }
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&RankStatus) -> bool) -> RankStatus {
        let waited = tokio::time::timeout(DEADLINE, self.status.wait_for(holds)).await;
        if let Ok(status) = waited {
            return status.unwrap().clone();
        }
        drop(waited);
        panic!("{what}: still {:?}", *self.status.borrow());
    }

    fn names(&self) -> Vec<u64> {
        let (lane, slot) = &*self.lane.lock().unwrap();
        lane.names(Holder { rank: *slot, tier: Tier::Device }).into_iter().map(|(name, _)| name.0).collect()
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(DEADLINE, self.task).await.expect("stops at once").unwrap();
    }
}

fn quick() -> IngestLimits {
    IngestLimits {
        reconnect_min: Duration::from_millis(5),
        reconnect_max: Duration::from_millis(50),
        replay_silence_max: Duration::from_millis(500),
        idle_probe: Duration::from_millis(200),
        handshake_max: Duration::from_secs(2),
        ..IngestLimits::default()
    }
}

fn block(parent: Option<u64>, hash: u64) -> Vec<u8> {
    stored(parent, &[hash], &[hash as u32; 4], 4, &[])
}

fn at(cursor: u64) -> impl Fn(&RankStatus) -> bool {
    move |s| s.cursor == Some(cursor) && s.trust == Trust::Exact
}

#[tokio::test]
async fn a_stream_with_gaps_is_followed_exactly_in_both_replay_layouts() {
    for layout in [Layout::WithTopic, Layout::WithoutTopic] {
        let mut publisher = Publisher::on_loopback(layout).await;
        // Late join: two batches before anybody listens.
        publisher.lose(vec![block(None, 1)]);
        publisher.lose(vec![block(Some(1), 2)]);
        let mut rank = Followed::start(publisher.endpoint(), quick());
        rank.until("late join", at(1)).await;
        publisher.publish(vec![block(Some(2), 3)]).await;
        rank.until("live", at(2)).await;
        publisher.lose(vec![block(Some(3), 4)]);
        publisher.lose(vec![removed(&[2], &[])]);
        publisher.publish(vec![block(Some(1), 5)]).await;
        let status = rank.until("gap", at(5)).await;
        assert_eq!(rank.names(), [1, 3, 4, 5]);
        assert_eq!(status.counters.get("lost_batches"), None);
        // A tail that was lost while nothing follows: found by the probe.
        publisher.lose(vec![block(None, 6)]);
        rank.until("lost tail", at(6)).await;
        assert_eq!(rank.names(), [1, 3, 4, 5, 6]);
        rank.stop().await;
    }
}

#[tokio::test]
async fn a_restarted_publisher_is_a_new_life() {
    let mut publisher = Publisher::on_loopback(Layout::WithTopic).await;
    let mut rank = Followed::start(publisher.endpoint(), quick());
    for hash in 1..=3 {
        publisher.publish(vec![block(None, hash)]).await;
    }
    rank.until("first life", at(2)).await;
    // The second life is further on than the first was before anybody can listen: by sequence alone it looks contiguous.
    let mut publisher = publisher.restart(Layout::WithTopic).await;
    for hash in 11..=14 {
        publisher.publish(vec![block(None, hash)]).await;
    }
    let status = rank.until("second life", |s| s.incarnation == 2 && at(3)(s)).await;
    assert_eq!((rank.names(), status.counters["restarts"]), (vec![11, 12, 13, 14], 1));
    let mut publisher = publisher.restart(Layout::WithoutTopic).await;
    publisher.publish(vec![block(None, 21)]).await;
    rank.until("third life", |s| s.incarnation == 3 && at(0)(s)).await;
    assert_eq!(rank.names(), [21]);
    rank.stop().await;
}

#[tokio::test]
async fn a_mute_replay_endpoint_costs_its_deadline_and_exactness() {
    let mut publisher = Publisher::on_loopback(Layout::Mute).await;
    publisher.lose(vec![block(None, 1)]);
    let mut rank = Followed::start(publisher.endpoint(), quick());
    rank.until("deadline", |s| s.counters.get("replay_timeouts").is_some_and(|&n| n > 0)).await;
    publisher.publish(vec![block(None, 2)]).await;
    let status = rank.until("late join", |s| s.cursor == Some(1) && s.trust == Trust::Partial).await;
    assert!(status.detail.is_some());
    publisher.publish(vec![cleared(), block(None, 3)]).await;
    rank.until("a clear mends it", at(2)).await;
    assert_eq!(rank.names(), [3]);
    rank.stop().await;
}

#[tokio::test]
async fn a_rank_that_lost_batches_becomes_exact_when_the_replay_answers_again() {
    let mut publisher = Publisher::on_loopback(Layout::WithTopic).await;
    let limits = IngestLimits {
        replay_silence_max: Duration::from_millis(50),
        recovery_backoff_min: Duration::from_millis(10),
        recovery_backoff_max: Duration::from_millis(50),
        recovery_attempts_max: 1_000,
        ..quick()
    };
    let mut rank = Followed::start(publisher.endpoint(), limits);
    publisher.publish(vec![block(None, 1)]).await;
    rank.until("live", at(0)).await;
    *publisher.layout.lock().unwrap() = Layout::Mute;
    publisher.lose(vec![block(Some(1), 2)]);
    publisher.lose(vec![removed(&[1], &[]), block(None, 3)]);
    publisher.publish(vec![block(None, 4)]).await;
    let lost = |s: &RankStatus| s.cursor == Some(3) && s.trust == Trust::Degraded;
    rank.until("what the replay did not give is lost", lost).await;
    assert_eq!(rank.names(), [1, 4]);
    rank.until("attempts", |s| s.counters.get("recovery_failed").is_some_and(|&n| n > 1)).await;
    *publisher.layout.lock().unwrap() = Layout::WithoutTopic;
    let status = rank.until("made exact by itself", at(3)).await;
    assert_eq!(rank.names(), [2, 3, 4]);
    assert_eq!((status.counters["recovered_by_replay"], status.incarnation), (1, 1));
    publisher.publish(vec![block(None, 5)]).await;
    rank.until("and goes on", at(4)).await;
    rank.stop().await;
}

#[tokio::test]
async fn a_slow_index_loses_nothing_and_never_stops_the_socket() {
    let mut publisher = Publisher::on_loopback(Layout::WithTopic).await;
    let limits = IngestLimits { queue_batches_max: 4, ..quick() };
    let mut rank = Followed::gated(publisher.endpoint(), limits, false);
    rank.until("connected", |s| s.connected).await;
    for hash in 1..=200 {
        publisher.publish(vec![block(None, hash)]).await;
    }
    rank.gate.close();
    publisher.publish(vec![block(None, 201)]).await;
    rank.until("caught up", at(200)).await;
    assert_eq!(rank.names(), (1..=201).collect::<Vec<_>>());
    rank.stop().await;
}

#[tokio::test]
async fn unix_sockets_are_followed_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("ipc://{}", dir.path().join(name).display());
    let mut publisher = Publisher::start(&path("kv"), Some((&path("replay"), Layout::WithTopic))).await;
    let mut rank = Followed::start(RankEndpoint { rank: 0, events: path("kv"), replay: Some(path("replay")) }, quick());
    publisher.publish(vec![block(None, 1)]).await;
    rank.until("live", at(0)).await;
    rank.stop().await;
}

#[tokio::test]
async fn what_cannot_be_connected_to_is_refused_at_once() {
    let (status, _) = watch::channel(RankStatus::default());
    let (_, mut lanes) = Index::new(IndexConfig::default()).unwrap();
    let mut lane = lanes.remove(0);
    let slot = lane.open_rank(RankKey(0)).unwrap();
    let sink = IndexSink { lane: Arc::new(Mutex::new((lane, slot))), status, gate: Arc::new(Semaphore::new(0)) };
    let endpoint = RankEndpoint { rank: 0, events: "tcp://*:5557".into(), replay: None };
    let refused = follow_rank(&spec(4), &endpoint, &quick(), sink, CancellationToken::new()).await;
    assert!(refused.is_err());
}

/// What a hostile peer does to whoever connects.
type Misbehaviour = fn(tokio::net::TcpStream) -> JoinHandle<()>;

/// A peer that does `misbehave` to everyone who connects.
async fn hostile(misbehave: Misbehaviour) -> (RankEndpoint, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let events = format!("tcp://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            misbehave(stream);
        }
    });
    (RankEndpoint { rank: 0, events, replay: None }, task)
}

/// A publisher's side of the handshake, then `bytes`, then nothing until the other side hangs up.
fn greet_then(mut stream: tokio::net::TcpStream, bytes: Vec<u8>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut hello = [0; 64];
        hello[0] = 0xff;
        hello[9] = 0x7f;
        hello[10] = 3;
        hello[12..16].copy_from_slice(b"NULL");
        let mut all = hello.to_vec();
        all.extend(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
        all.extend(bytes);
        stream.write_all(&all).await.ok();
        let mut sink = Vec::new();
        stream.read_to_end(&mut sink).await.ok();
    })
}

fn live_message(seq: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 0, 1, 8];
    bytes.extend(seq.to_be_bytes());
    bytes.push(2);
    bytes.extend((payload.len() as u64).to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[tokio::test]
async fn hostile_peers_are_counted_and_cost_nobody_else_anything() {
    // A frame that announces 4 EiB; one beyond the limit; frames without an end; no handshake; hanging up; garbage payloads.
    let cases: [(&str, Misbehaviour); 8] = [
        ("socket_message_too_large", |s| greet_then(s, [vec![2, 0x40], vec![0; 7]].concat())),
        ("socket_message_too_large", |s| greet_then(s, live_message(0, &vec![0; 70_000])[..100].to_vec())),
        ("socket_too_many_frames", |s| greet_then(s, [1, 0].repeat(100))),
        ("socket_bad_handshake", |mut s| tokio::spawn(async move { s.write_all(&[b'x'; 64]).await.unwrap_or(()) })),
        ("socket_io", |s| tokio::spawn(async move { drop(s) })),
        ("bad_messages", |s| greet_then(s, [0, 3, 1, 2, 3].repeat(50))),
        ("undecodable_batches", |s| greet_then(s, live_message(0, &[0xc1; 100]))),
        ("undecodable_batches", |s| greet_then(s, live_message(0, b"\x93\xcb\0\0\0\0\0\0\0\0\xdd\xff\xff\xff\xff"))),
    ];
    let mut publisher = Publisher::on_loopback(Layout::WithTopic).await;
    let mut good = Followed::start(publisher.endpoint(), quick());
    let limits = IngestLimits { message_bytes_max: 65_536, ..quick() };
    for (seq, (reason, misbehave)) in (0..).zip(cases) {
        let (endpoint, peer) = hostile(misbehave).await;
        let mut rank = Followed::start(endpoint, limits);
        let status = rank.until(reason, |s| s.counters.get(reason).is_some_and(|&n| n > 0)).await;
        assert_ne!(status.trust, Trust::Exact, "{reason}");
        publisher.publish(vec![block(None, seq + 1)]).await;
        good.until("the neighbour", at(seq)).await;
        rank.stop().await;
        peer.abort();
    }
    good.stop().await;
}

#[tokio::test]
async fn ten_million_hashes_in_one_event_cost_that_event() {
    let hashes = [&[0xdd][..], &10_000_000_u32.to_be_bytes(), &[1; 10_000_000]].concat();
    let bomb = stored(None, &[], &[1, 2, 3, 4], 4, &[("block_hashes", hashes)]);
    let mut publisher = Publisher::on_loopback(Layout::WithTopic).await;
    let mut rank = Followed::start(publisher.endpoint(), quick());
    rank.until("connected", |s| s.connected).await;
    publisher.publish(vec![bomb, block(None, 1)]).await;
    let status = rank.until("the bomb", |s| s.cursor == Some(0)).await;
    assert_eq!((status.trust, status.counters["decode_skipped_over_limit"]), (Trust::Degraded, 1));
    assert_eq!(rank.names(), [1]);
    rank.stop().await;
}
