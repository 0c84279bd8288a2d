//! Broken and hostile engines, all followed by one service at once. For each of them: the service lives, the rank says what is
//! wrong, and a healthy neighbour is exact and current after every single one.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod engine;

use common::{BLOCK_SIZE, Clients, ask, clients, get, in_time, rows, run, small, spec, tokens};
use engine::{bin, int, list, map, stored, text};
use kvatlas_service::config::Raw;
use kvatlas_service::grpc::proto::{self, Trust};
use kvatlas_service::serve::Running;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A service whose deadlines a test can wait for.
fn quick() -> Raw {
    let mut raw = small();
    raw.ingest.handshake_max_ms = 300;
    raw.ingest.replay_silence_max_ms = 300;
    raw.ingest.replay_duration_max_ms = 600;
    raw.ingest.replay_requests_max = 2;
    raw.ingest.reconnect_min_ms = 5;
    raw.ingest.reconnect_max_ms = 200;
    raw
}

/// The binding side of a ZMTP handshake.
fn hello(socket_type: &str) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((socket_type.len() as u32).to_be_bytes());
    ready.extend(socket_type.as_bytes());
    bytes.extend([4, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

fn frame(more: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2 | u8::from(more)];
    bytes.extend((body.len() as u64).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn frames(bodies: &[&[u8]]) -> Vec<u8> {
    let last = bodies.len() - 1;
    bodies.iter().enumerate().flat_map(|(i, body)| frame(i < last, body)).collect()
}

fn live(seq: u64, payload: &[u8]) -> Vec<u8> {
    frames(&[b"", &seq.to_be_bytes(), payload])
}

fn reply(seq: u64, payload: &[u8]) -> Vec<u8> {
    frames(&[b"", b"", &seq.to_be_bytes(), payload])
}

/// A batch with one event and any time stamp.
fn payload(time: f64, event: Vec<u8>) -> Vec<u8> {
    let stamp = [&[0xcb][..], &time.to_be_bytes()].concat();
    list([stamp, list([event]), int(0)])
}

fn block(parent: Option<u64>, name: u64) -> Vec<u8> {
    let first = (name as u32 - 1) * BLOCK_SIZE;
    let ids: Vec<u32> = (first..first + BLOCK_SIZE).collect();
    stored(parent, &[name], &ids, u64::from(BLOCK_SIZE), &[])
}

fn block_with(key: &str, value: Vec<u8>) -> Vec<u8> {
    stored(None, &[1], &[0, 1, 2, 3], u64::from(BLOCK_SIZE), &[(key, value)])
}

/// An event nobody knows, padded so that its message has so many bytes in all.
fn padded(bytes: usize) -> Vec<u8> {
    let event = |pad: usize| {
        let pad = [&[0xc6][..], &(pad as u32).to_be_bytes(), &vec![0; pad]].concat();
        payload(1.0, map(&[("type", text("Unheard")), ("pad", pad)]))
    };
    let without = event(0).len() + 8;
    event(bytes - without)
}

/// What one end of an engine does to whoever connects.
#[derive(Clone)]
enum Act {
    /// Sends these bytes and then nothing.
    Say(Vec<u8>),
    /// Waits for so many bytes, then sends these.
    Answer(usize, Vec<u8>),
    /// Sends these bytes once, then the other ones for ever, numbered upwards.
    Endless(Vec<u8>),
    /// Closes at once.
    Close,
}

async fn perform(mut stream: TcpStream, act: Act) {
    match act {
        Act::Say(bytes) => drop(stream.write_all(&bytes).await),
        Act::Answer(after, bytes) => {
            let _ = stream.write_all(&hello("ROUTER")).await;
            let mut heard = vec![0; after];
            let _ = stream.read_exact(&mut heard).await;
            let _ = stream.write_all(&bytes).await;
        }
        Act::Endless(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let mut seq = 0;
            while stream.write_all(&reply(seq, &payload(seq as f64, block(None, 1)))).await.is_ok() {
                seq += 1;
            }
        }
        Act::Close => return,
    }
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// Bytes of a DEALER's greeting, READY command and request.
const REQUEST_BYTES: usize = 64 + 30 + 2 + 10;

async fn bind(act: Act, tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    tasks.spawn(async move {
        let mut peers = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            peers.spawn(perform(stream, act.clone()));
        }
    });
    endpoint
}

/// The neighbour: an engine that does everything right.
struct Healthy {
    to: mpsc::UnboundedSender<Vec<u8>>,
    published: u64,
}

impl Healthy {
    async fn start(clients: &mut Clients, tasks: &mut JoinSet<()>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let events_endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let (to, mut messages) = mpsc::unbounded_channel::<Vec<u8>>();
        tasks.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&hello("PUB")).await.unwrap();
            while let Some(message) = messages.recv().await {
                stream.write_all(&message).await.unwrap();
            }
        });
        let ranks = vec![proto::RankSpec { events_endpoint, ..Default::default() }];
        clients.register(proto::WorkerSpec { ranks, ..spec("healthy") }).await.unwrap();
        Self { to, published: 0 }
    }

    /// Publishes one more block and waits until it is found, and the rank is exact up to it.
    async fn is_exact_and_current(&mut self, clients: &mut Clients, during: &str) {
        let seq = self.published;
        self.published += 1;
        let parent = (seq > 0).then_some(seq);
        self.to.send(live(seq, &payload(seq as f64, block(parent, seq + 1)))).unwrap();
        let status = until(clients, "healthy", |s| s.cursor == Some(seq)).await;
        assert_eq!(status.trust(), Trust::Exact, "{during}: {status:?}");
        let holders = vec![proto::RankRef { worker: "healthy".into(), rank: None }];
        let question = proto::LookupRequest { holders, ..ask(tokens(self.published as u32 + 1)) };
        let answer = in_time(clients.lookup(question)).await.unwrap();
        assert_eq!(rows(&answer), [("healthy", 0, self.published as u32)], "{during}");
    }
}

/// Sum of the counts of these reasons, separated by `|`.
fn count(status: &proto::RankStatus, reasons: &str) -> u64 {
    let named = |c: &&proto::Counter| reasons.split('|').any(|reason| reason == c.reason);
    status.counters.iter().filter(named).map(|c| c.count).sum()
}

async fn until(clients: &mut Clients, worker: &str, holds: impl Fn(&proto::RankStatus) -> bool) -> proto::RankStatus {
    let mut period = tokio::time::interval(Duration::from_millis(5));
    let mut last = None;
    let waited = tokio::time::timeout(common::DEADLINE, async {
        loop {
            let request = proto::ListRequest { worker: worker.into(), ..Default::default() };
            let mut list = clients.workers.list(request).await.unwrap().into_inner();
            let status = list.workers.remove(0).ranks.remove(0);
            if holds(&status) {
                return status;
            }
            last = Some(status);
            period.tick().await;
        }
    });
    let waited = waited.await;
    waited.unwrap_or_else(|_| panic!("{worker}: still {last:?}"))
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// Name, what its events socket does, what its replay socket does, the counter that tells of it, and whether the rank
/// may still call itself exact.
type Case = (&'static str, Act, Option<Act>, &'static str, bool);

fn say(messages: &[Vec<u8>]) -> Act {
    Act::Say([vec![hello("PUB")], messages.to_vec()].concat().concat())
}

fn one(event: Vec<u8>) -> Act {
    say(&[live(0, &payload(1.0, event))])
}

fn wire_cases() -> Vec<Case> {
    let far = u64::MAX - 1;
    let at = |time: f64| payload(time, block(None, 1));
    vec![
        ("greeting of garbage", Act::Say(vec![b'x'; 64]), None, "socket_bad_handshake", false),
        ("greeting of one byte", Act::Say(vec![0xff]), None, "socket_handshake_timeout", false),
        ("closes at once", Act::Close, None, "socket_io", false),
        ("a message that never ends", say(&[frame(false, &[0; 100])[..50].to_vec()]), None, "connections", false),
        ("one frame", say(&[frames(&[b"abc"])]), None, "frame_count", false),
        ("two frames", say(&[frames(&[b"", b"abc"])]), None, "frame_count", false),
        ("five frames", say(&[frames(&[b"", b"", b"", b"", b"abc"])]), None, "frame_count", false),
        ("sequence of 7 bytes", say(&[frames(&[b"", &[0; 7], b"abc"])]), None, "sequence_length", false),
        ("sequence 2^64-1", say(&[live(u64::MAX, &at(1.0))]), None, "reserved_sequence", false),
        (
            "sequences over the whole range, twice",
            say(&[live(0, &at(1.0)), live(far, &at(2.0)), live(0, &at(3.0)), live(far, &at(4.0)), live(0, &at(5.0))]),
            None,
            "gap_clears",
            true,
        ),
        (
            "sequences jumping",
            say(&[live(5, &at(1.0)), live(1000, &at(2.0)), live(70, &at(3.0))]),
            None,
            "restarts",
            false,
        ),
        ("no msgpack", say(&[live(0, &[0xc1; 100])]), None, "broken_msgpack", false),
        (
            "2^32-1 events",
            say(&[live(0, b"\x93\xcb\0\0\0\0\0\0\0\0\xdd\xff\xff\xff\xff")]),
            None,
            "broken_msgpack",
            false,
        ),
        ("2^32-1 keys", say(&[live(0, b"\x93\xc0\x91\xdf\xff\xff\xff\xff")]), None, "broken_msgpack", false),
        ("levels without an end", say(&[live(0, &vec![0x91; 1 << 20])]), None, "not_a_batch", false),
        ("not told sizes", say(&[live(0, b"\x90")]), None, "not_a_batch", false),
    ]
}

fn content_cases() -> Vec<Case> {
    let deep = [vec![0x91; 1 << 20], vec![0xc0]].concat();
    let hashes = [&[0xdd][..], &10_000_000_u32.to_be_bytes(), &[1; 10_000_000]].concat();
    let other_rank = list([int(1), list([block(None, 1)]), int(7)]);
    let twice = map(&[
        ("type", text("BlockRemoved")),
        ("block_hashes", int(-1)),
        ("block_hashes", list([int(4)])),
        ("type", text("AllBlocksCleared")),
        ("type", text("BlockRemoved")),
    ]);
    vec![
        ("10,000,000 hashes", one(block_with("block_hashes", hashes)), None, "decode_skipped_over_limit", false),
        (
            "a token of 33 bits",
            one(block_with("token_ids", list(vec![int(1 << 32); 4]))),
            None,
            "decode_skipped_token_out_of_range",
            false,
        ),
        ("negative block size", one(block_with("block_size", int(-4))), None, "decode_skipped_bad_field", false),
        (
            "block size 0",
            say(&[live(0, &payload(1.0, block(None, 1))), live(1, &payload(2.0, block_with("block_size", int(0))))]),
            None,
            "zero_block_size",
            false,
        ),
        ("NaN for a time", say(&[live(0, &payload(f64::NAN, block(None, 1)))]), None, "blocks_stored", true),
        (
            "infinity for a time",
            say(&[live(0, &payload(f64::NEG_INFINITY, block(None, 1)))]),
            None,
            "blocks_stored",
            true,
        ),
        ("another rank's number", say(&[live(0, &other_rank)]), None, "rank_mismatch", true),
        (
            "a medium that is no UTF-8",
            one(block_with("medium", vec![0xa2, 0xff, 0xfe])),
            None,
            "decode_skipped_bad_field",
            false,
        ),
        ("a million levels", one(block_with("unheard", deep)), None, "blocks_stored", true),
        ("a key twice", one(twice), None, "decode_skipped_bad_field", false),
        ("bytes of 64 MiB", say(&[live(0, &padded(MESSAGE_BYTES_MAX))]), None, "decode_skipped_unknown_tag", true),
        (
            "one byte above 64 MiB",
            say(&[live(0, &payload(1.0, block(None, 1))), live(1, &padded(MESSAGE_BYTES_MAX + 1))]),
            None,
            "socket_message_too_large",
            false,
        ),
        (
            "names for digests too short",
            one(block_with("block_hashes", list([bin(&[1; 7])]))),
            None,
            "decode_skipped_bad_field",
            false,
        ),
    ]
}

/// Connecting and waiting have the same deadline, and either may notice first.
const SILENT: &str = "replay_connect_failures|replay_timeouts";

fn replay_cases() -> Vec<Case> {
    let at = |seq: u64| reply(seq, &payload(seq as f64, block(None, seq + 1)));
    let end = || reply(u64::MAX, b"");
    let answer = |messages: &[Vec<u8>]| Some(Act::Answer(REQUEST_BYTES, messages.concat()));
    let second = || say(&[live(1, &payload(1.0, block(None, 2)))]);
    let backwards: Vec<_> = (0..10).rev().map(at).chain([end()]).collect();
    let other_life = [reply(0, b"\x92\xc0\x90"), reply(1, b"\x92\xc0\x90"), end()];
    let large = [at(0), at(1), reply(2, &padded(MESSAGE_BYTES_MAX + 1))];
    vec![
        ("mute replay", second(), answer(&[]), "replay_timeouts", false),
        ("deaf replay", second(), Some(Act::Say(Vec::new())), SILENT, false),
        ("replay closes at once", second(), Some(Act::Close), SILENT, false),
        ("replay of garbage", second(), answer(&[vec![0xee; 64]]), "replay_failed", false),
        ("replay of wrong frames", second(), answer(&[frames(&[b"x"]), frames(&[b"x", b"y"])]), "bad_replies", false),
        ("replay that never ends", second(), Some(Act::Endless(hello("ROUTER"))), "replay_timeouts", true),
        ("replay backwards", second(), answer(&backwards), "replayed", false),
        ("replay of another life", second(), answer(&other_life), "replay_conflicts", false),
        ("replay beyond the limit", second(), answer(&large), "socket_message_too_large", false),
    ]
}

async fn bombard(cases: Vec<Case>, resident_growth_max_mib: u64) {
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    let mut tasks = JoinSet::new();
    let mut healthy = Healthy::start(&mut clients, &mut tasks).await;
    healthy.is_exact_and_current(&mut clients, "before").await;
    let before = resident_mib();
    for (name, events, replay, reason, may_be_exact) in cases {
        let events_endpoint = bind(events, &mut tasks).await;
        let replay_endpoint = match replay {
            Some(act) => bind(act, &mut tasks).await,
            None => String::new(),
        };
        let ranks = vec![proto::RankSpec { events_endpoint, replay_endpoint, ..Default::default() }];
        clients.register(proto::WorkerSpec { ranks, ..spec(name) }).await.unwrap();
        let settled = |s: &proto::RankStatus| count(s, reason) > 0 && (may_be_exact || s.trust() != Trust::Exact);
        let status = until(&mut clients, name, settled).await;
        assert!(!status.detail.contains("subscriber failed"), "{name}: {status:?}");
        healthy.is_exact_and_current(&mut clients, name).await;
    }
    lives_and_tells(&running).await;
    let grown = resident_mib().saturating_sub(before);
    assert!(grown <= resident_growth_max_mib, "grew by {grown} MiB");
    healthy.is_exact_and_current(&mut clients, "after").await;
    let workers = clients.workers.list(proto::ListRequest::default()).await.unwrap().into_inner().workers;
    let failed: Vec<_> = workers.iter().filter(|w| w.ranks[0].detail.contains("subscriber failed")).collect();
    assert!(failed.is_empty(), "{failed:?}");
    drop(clients);
    in_time(running.shutdown()).await;
}

async fn lives_and_tells(running: &Running) {
    let admin = running.admin_addr().unwrap();
    assert_eq!(get(admin, "/livez").await.0, 200);
    let (status, metrics) = get(admin, "/metrics").await;
    assert_eq!(status, 200);
    assert!(metrics.contains("kvatlas_rank_events_total{worker=\"healthy\",rank=\"0\",reason=\"batches\"}"));
    assert!(metrics.lines().any(|l| l.starts_with("kvatlas_rank_exact{worker=\"healthy\"") && l.ends_with(" 1")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_sockets_frames_and_sequences_cost_their_own_rank_only() {
    bombard(wire_cases(), 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_and_monstrous_content_costs_its_own_rank_only() {
    bombard(content_cases(), 600).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_replays_cost_their_own_rank_only() {
    bombard(replay_cases(), 600).await;
}

/// The gap that a message too large leaves is known at once, not when the next batch arrives: a replay that breaks off at the same
/// message proves nothing about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_too_large_is_a_loss_although_the_replay_knows_the_batch_before_it() {
    let mut raw = quick();
    raw.ingest.message_bytes_max = 10_000;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    let mut tasks = JoinSet::new();
    let first = payload(1.0, block(None, 1));
    let large = padded(20_000);
    let events = bind(say(&[live(0, &first), live(1, &large)]), &mut tasks).await;
    let replies = [reply(0, &first), reply(1, &large), reply(u64::MAX, b"")].concat();
    let replay = bind(Act::Answer(REQUEST_BYTES, replies), &mut tasks).await;
    let ranks = vec![proto::RankSpec { events_endpoint: events, replay_endpoint: replay, ..Default::default() }];
    clients.register(proto::WorkerSpec { ranks, ..spec("w") }).await.unwrap();
    let mut exact = 0;
    for connections in 2..8 {
        let seen = |s: &proto::RankStatus| s.cursor == Some(0) && count(s, "connections") >= connections;
        exact += u32::from(until(&mut clients, "w", seen).await.trust() == Trust::Exact);
    }
    let status = until(&mut clients, "w", |s| count(s, "unreadable_messages") > 0).await;
    assert_eq!((exact, status.trust()), (0, Trust::Degraded), "{status:?}");
    running.shutdown().await;
}
