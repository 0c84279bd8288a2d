//! `SubscribeKvEvents` of `smg.grpc.common`, both ends: against each other over every recorded stream with connections that are cut, and
//! each against a hand-made one that does what it should not.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;
mod engine;
mod publisher;
mod recorded;
mod stream;

use common::{DEADLINE, in_time, run, small};
use engine::apply;
use futures_util::{Stream, StreamExt, stream as streams};
use kvatlas_index::{EngineHash, Holder, Index, IndexConfig, RankKey};
use kvatlas_service::config::{Raw, RawWire};
use kvatlas_service::fleet::Registration;
use kvatlas_service::grpc::proto;
use kvatlas_service::ingest::{Engine, RankEndpoint, RankStatus, Trust, WorkerSpec};
use kvatlas_service::ops::OpBatch;
use kvatlas_service::relay::snapshot::SnapshotLimits;
use kvatlas_service::serve::Running;
use kvatlas_service::smg::proto::common as smg;
use kvatlas_service::smg::proto::vllm_engine_client::VllmEngineClient;
use kvatlas_service::smg::proto::vllm_engine_server::{VllmEngine, VllmEngineServer};
use kvatlas_service::smg::{RANK_KEY, WORKER_KEY, said};
use kvatlas_service::wire::{DecodeLimits, decode_batch};
use publisher::Publisher;
use smg::kv_cache_event::Data;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stream::{Holdings, Stream as Recorded, TIERS, sorted};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

const WORKER: &str = "w";
const AT_ONCE: usize = 3;

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

fn republishing() -> Raw {
    let mut raw = quick();
    raw.relay.wire = vec![RawWire::default()];
    raw
}

async fn follow(running: &Running, spec: &WorkerSpec, events: String, replay: Option<String>) {
    let worker =
        WorkerSpec { id: WORKER.into(), ranks: vec![RankEndpoint { rank: 0, events, replay }], ..spec.clone() };
    let registration = Registration { worker, pushed_ranks: Vec::new(), metrics: None };
    running.fleet().register(registration, false, false).await.unwrap();
}

fn status(running: &Running) -> RankStatus {
    RankStatus::clone(&running.fleet().view().rank(WORKER, 0).unwrap().status.full())
}

fn count(running: &Running, reason: &str) -> u64 {
    status(running).counters.get(reason).copied().unwrap_or(0)
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

async fn exact_at(running: &Running, sequence: u64) -> Result<(), RankStatus> {
    let there = || status(running).trust == Trust::Exact && status(running).cursor == Some(sequence);
    let wait = async {
        while !there() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.map_err(|_| status(running))
}

/// What the rank holds, out of its lane.
async fn holdings(running: &Running) -> Holdings {
    let chunks = {
        let view = running.fleet().view();
        view.rank(WORKER, 0).unwrap().lane.export(SnapshotLimits::default()).await.unwrap()
    };
    let (_, mut lanes) = Index::new(IndexConfig::default()).unwrap();
    let mut lane = lanes.remove(0);
    let slot = lane.open_rank(RankKey(0)).unwrap();
    for ops in chunks {
        apply(&mut lane, slot, &OpBatch { ops, ..OpBatch::default() });
    }
    TIERS.map(|tier| sorted(lane.names(Holder { rank: slot, tier }))).to_vec()
}

async fn device(running: &Running) -> Vec<(EngineHash, u64)> {
    holdings(running).await.remove(0)
}

fn named(names: &[u64]) -> Vec<(EngineHash, u64)> {
    names.iter().map(|name| (EngineHash(*name), 1)).collect()
}

// Both ends.

/// A way to a server that ends every connection after so many bytes, until it is calmed.
struct Cutter {
    at: String,
    calm: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
    _accept: JoinSet<()>,
}

impl Cutter {
    async fn start(to: std::net::SocketAddr, bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let (calm, cuts) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (calmed, counted) = (calm.clone(), cuts.clone());
        let mut accept = JoinSet::new();
        accept.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(carry(near, to, bytes, calmed.clone(), counted.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { at, calm, cuts, _accept: accept }
    }
}

async fn carry(near: TcpStream, to: std::net::SocketAddr, max: usize, calm: Arc<AtomicBool>, cuts: Arc<AtomicU64>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) = (near.into_split(), far.into_split());
    let down = async {
        let (mut left, mut buffer) = (max, vec![0; 1024]);
        while let Ok(read @ 1..) = far_read.read(&mut buffer).await {
            if left < read && !calm.load(Ordering::Relaxed) {
                cuts.fetch_add(1, Ordering::Relaxed);
                return;
            }
            left = left.saturating_sub(read);
            if near_write.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut near_read, &mut far_write) => {}
        () = down => {}
    }
}

/// Whether the protocol has words for every batch of the last life.
fn is_sayable(recorded: &Recorded) -> bool {
    (0..).zip(recorded.lives.last().unwrap()).all(|(sequence, payload)| {
        let batch = decode_batch(payload, &DecodeLimits::default()).unwrap();
        said(&batch, sequence, 0).is_ok()
    })
}

/// An engine, a service that follows it, and one that follows that one's `SubscribeKvEvents`. Whether the latter was exact.
async fn play(path: PathBuf, seed: u64, cuts: Arc<AtomicU64>) -> bool {
    let recorded = Recorded::read(&path);
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut publisher = Publisher::start().await;
    let (a, b) = (run(republishing()).await, run(quick()).await);
    follow(&a, &recorded.spec, publisher.events.clone(), Some(publisher.replay.clone())).await;
    let cutter = Cutter::start(a.grpc_addr(), 4_000 + 1_000 * seed as usize).await;
    // Of a recorded SGLang stream the first batch is the start-up clear, of vLLM's nothing is.
    let spec = WorkerSpec {
        engine: if seed.is_multiple_of(2) { Engine::Auto } else { recorded.spec.engine },
        ..recorded.spec.clone()
    };
    follow(&b, &spec, format!("smg://{}", cutter.at), None).await;
    for (number, life) in recorded.lives.iter().enumerate() {
        if number > 0 {
            let (at, replay_at) = (publisher.events.clone(), publisher.replay.clone());
            drop(publisher);
            publisher = Publisher::start_at(&at, &replay_at).await;
        }
        for payload in life {
            publisher.publish(payload.clone()).await;
            tokio::task::yield_now().await;
        }
        exact_at(&a, life.len() as u64 - 1).await.unwrap_or_else(|at| panic!("{name}: A is not exact: {at:?}"));
    }
    let newest = recorded.lives.last().unwrap().len() as u64 - 1;
    cutter.calm.store(true, Ordering::Relaxed);
    let (truth, sayable) = (recorded.truth(), is_sayable(&recorded));
    if sayable {
        exact_at(&b, newest).await.unwrap_or_else(|at| panic!("{name}: B is not exact: {at:?}"));
    } else {
        // It has come as far as there are words, and says what it says for good.
        until(|| count(&b, "lost_batches") > 0 || status(&b).trust == Trust::Exact).await;
    }
    let last = status(&b);
    let exact = last.trust == Trust::Exact && last.cursor == Some(newest);
    if exact {
        assert!(holdings(&b).await == truth, "{name}: exact and wrong: {last:?}");
    }
    assert!(holdings(&a).await == truth, "{name}: A");
    cuts.fetch_add(cutter.cuts.load(Ordering::Relaxed), Ordering::Relaxed);
    in_time(b.shutdown()).await;
    in_time(a.shutdown()).await;
    exact
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_follows_another_is_exact_or_says_that_it_is_not() {
    let (paths, cuts) = (recorded::paths(), Arc::<AtomicU64>::default());
    let (mut running, mut exact, mut all) = (JoinSet::new(), 0, 0);
    let mut done = |outcome: Result<bool, tokio::task::JoinError>| match outcome {
        Ok(was_exact) => (exact, all) = (exact + u64::from(was_exact), all + 1),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    for (seed, path) in (0..).zip(&paths) {
        if running.len() == AT_ONCE {
            done(running.join_next().await.expect("some run"));
        }
        running.spawn(play(path.clone(), seed, cuts.clone()));
    }
    while let Some(outcome) = running.join_next().await {
        done(outcome);
    }
    let cuts = cuts.load(Ordering::Relaxed);
    println!("seeds 0 to {all}: {exact} of {all} exact, {cuts} connections cut");
    assert!(exact >= 15 && exact < all && cuts > 0);
}

// A hand-made server.

type Script = Vec<Result<smg::KvEventBatch, Status>>;

/// Streams that are served one after the other; after the last one, silence. What was asked for, in order.
#[derive(Clone, Default)]
struct Scripted {
    scripts: Arc<Mutex<VecDeque<Script>>>,
    asked: Arc<Mutex<Vec<u64>>>,
}

#[tonic::async_trait]
impl VllmEngine for Scripted {
    type SubscribeKvEventsStream = Pin<Box<dyn Stream<Item = Result<smg::KvEventBatch, Status>> + Send>>;

    async fn subscribe_kv_events(
        &self,
        request: Request<smg::SubscribeKvEventsRequest>,
    ) -> Result<Response<Self::SubscribeKvEventsStream>, Status> {
        self.asked.lock().unwrap().push(request.into_inner().start_sequence_number);
        let script = self.scripts.lock().unwrap().pop_front().unwrap_or_default();
        Ok(Response::new(streams::iter(script).chain(streams::pending()).boxed()))
    }
}

/// A service that follows a server with these streams.
async fn behind(scripts: Vec<Script>, raw: Raw) -> (Running, Scripted, JoinSet<()>) {
    let scripted = Scripted { scripts: Arc::new(Mutex::new(scripts.into())), ..Scripted::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(VllmEngineServer::new(scripted.clone()));
    let mut task = JoinSet::new();
    task.spawn(async move {
        server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)).await.unwrap();
    });
    let running = run(raw).await;
    follow(&running, &WorkerSpec { engine: Engine::Vllm, ..engine::spec(4) }, format!("smg://{at}"), None).await;
    (running, scripted, task)
}

fn batch(sequence: u64, data: Vec<Data>) -> Result<smg::KvEventBatch, Status> {
    let events = data.into_iter().map(|data| smg::KvCacheEvent { event_id: 0, data: Some(data) }).collect();
    Ok(smg::KvEventBatch { sequence_number: sequence, timestamp: 1.0, events, dp_rank: None })
}

/// One block named as its sequence says, after the one before.
fn block(sequence: u64) -> Result<smg::KvEventBatch, Status> {
    let tokens = (0..4).map(|t| (sequence as u32).wrapping_mul(4).wrapping_add(t)).collect();
    batch(sequence, vec![stored(sequence.checked_sub(1), sequence, tokens)])
}

fn stored(parent: Option<u64>, name: u64, tokens: Vec<u32>) -> Data {
    let block =
        smg::KvBlock { block_hash: name as i64, token_ids: tokens, block_size: 4, lora_id: None, cache_level: None };
    Data::Stored(smg::KvBlocksStored { blocks: vec![block], parent_block_hash: parent.map(|p| p as i64) })
}

fn broken() -> Result<smg::KvEventBatch, Status> {
    Err(Status::unavailable("gone"))
}

#[tokio::test]
async fn a_stream_that_ends_is_gone_on_with_after_it_was_proven() {
    let first = vec![block(0), block(1), block(2), block(3), broken()];
    let second = vec![block(3), block(4), broken()];
    // A life of the publisher that was not seen to begin: batch 4 is another one.
    let third = vec![batch(4, vec![]), block(5)];
    let fourth = vec![block(0), block(1)];
    let (b, scripted, _server) = behind(vec![first, second, third, fourth], quick()).await;
    exact_at(&b, 1).await.unwrap();
    assert_eq!(*scripted.asked.lock().unwrap(), [0, 2, 3, 0]);
    assert_eq!((device(&b).await, status(&b).incarnation), (named(&[0, 1]), 2));
    assert_eq!(count(&b, "restarts"), 1);
}

#[tokio::test]
async fn a_gap_is_asked_for_again_and_what_cannot_be_had_is_said() {
    let filled = vec![block(1), block(2), block(3), block(4)];
    let lost = vec![block(4), block(7), block(8)];
    let scripts = vec![vec![block(0), block(1), block(4)], [filled, vec![block(7)]].concat(), lost];
    let mut raw = quick();
    raw.ingest.recovery_attempts_max = 0;
    let (b, scripted, _server) = behind(scripts, raw).await;
    until(|| status(&b).cursor == Some(8)).await;
    let now = status(&b);
    assert_eq!((now.trust, now.detail.as_deref()), (Trust::Degraded, Some("batches were lost")));
    assert_eq!((count(&b, "gaps"), count(&b, "lost_batches")), (2, 2));
    assert_eq!(*scripted.asked.lock().unwrap(), [0, 0, 3]);
}

#[tokio::test]
async fn what_is_tainted_is_mended_by_everything_from_the_start() {
    let tainted = vec![block(5), block(6)];
    let nothing_new = vec![block(6)];
    let all = (0..8).map(block).collect();
    let (b, scripted, _server) = behind(vec![tainted, nothing_new, all], quick()).await;
    exact_at(&b, 7).await.unwrap();
    assert_eq!(*scripted.asked.lock().unwrap(), [0, 0, 0]);
    assert_eq!(device(&b).await, named(&[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(count(&b, "recovered"), 1);
}

#[tokio::test]
async fn statuses_mean_what_the_protocol_says() {
    let scripts = vec![
        vec![block(0), block(1), Err(Status::out_of_range("x"))],
        vec![block(0), block(1), block(2), Err(Status::data_loss("x"))],
        vec![Err(Status::data_loss("x"))],
        vec![Err(Status::data_loss("x"))],
        vec![Err(Status::internal("x"))],
        vec![block(0)],
    ];
    let (b, scripted, _server) = behind(scripts, quick()).await;
    until(|| scripted.asked.lock().unwrap().len() == 6).await;
    exact_at(&b, 0).await.unwrap();
    assert_eq!(*scripted.asked.lock().unwrap(), [0; 6]);
    assert_eq!(device(&b).await, named(&[0]));
    let counts = ["stream_out_of_range", "stream_data_loss", "stream_failed", "start_overs"].map(|r| count(&b, r));
    assert_eq!(counts, [1, 3, 1, 4]);
}

#[tokio::test]
async fn a_server_that_offers_no_events_is_said_so_and_asked_now_and_then() {
    let scripts =
        vec![vec![block(0), Err(Status::failed_precondition("off"))], vec![Err(Status::unimplemented("off"))]];
    let scripts = [scripts, vec![vec![Err(Status::unimplemented("off"))]; 3], vec![vec![block(0)]]].concat();
    let (b, _scripted, _server) = behind(scripts, quick()).await;
    let mut changes = b.fleet().watch();
    in_time(async {
        loop {
            if let Ok(kvatlas_service::fleet::FleetEvent::TrustChanged { to: Trust::Misconfigured, detail, .. }) =
                changes.recv().await
            {
                assert_eq!(detail.as_deref(), Some("the server offers no events of this worker"));
                break;
            }
        }
    })
    .await;
    exact_at(&b, 0).await.unwrap();
    assert_eq!(count(&b, "not_offered"), 5);
    // Nothing at the other end, or something that speaks no HTTP/2, is waited for.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = plain.local_addr().unwrap();
    let c = run(quick()).await;
    follow(&c, &engine::spec(4), format!("smg://{at}"), None).await;
    let (mut stream, _) = in_time(plain.accept()).await.unwrap();
    stream.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    drop((stream, plain));
    until(|| count(&c, "connect_failures") > 1).await;
    assert_eq!(status(&c).trust, Trust::NeverSeen);
}

#[tokio::test]
async fn content_that_makes_no_sense_is_not_exact_and_hurts_nobody() {
    let short = smg::KvBlock { block_hash: 9, token_ids: vec![1, 2], block_size: 4, lora_id: None, cache_level: None };
    let nowhere = smg::KvBlocksRemoved { block_hashes: vec![0], cache_level: Some(77) };
    for bad in
        [Data::Stored(smg::KvBlocksStored { blocks: vec![short], parent_block_hash: None }), Data::Removed(nowhere)]
    {
        let (b, _scripted, _server) = behind(vec![vec![block(0), batch(1, vec![bad]), block(2)]], quick()).await;
        until(|| status(&b).cursor == Some(2)).await;
        assert_eq!(status(&b).trust, Trust::Degraded);
        assert_eq!(count(&b, "decode_skipped_missing_field"), 1);
    }
    // Of an event that nobody knows, nothing is known; a clear is a new beginning.
    let unknown = smg::KvEventBatch { events: vec![smg::KvCacheEvent::default()], ..block(1).unwrap() };
    let cleared = batch(2, vec![Data::Cleared(smg::KvCacheCleared {}), stored(None, 5, vec![1, 2, 3, 4])]);
    let (b, _scripted, _server) = behind(vec![vec![block(0), Ok(unknown), cleared]], quick()).await;
    exact_at(&b, 2).await.unwrap();
    assert_eq!(device(&b).await, named(&[5]));
}

#[tokio::test]
async fn batches_of_other_ranks_and_of_unlikely_sequences_are_sorted_out() {
    let other = |rank| Ok(smg::KvEventBatch { dp_rank: Some(rank), ..block(7).unwrap() });
    let flood = (0..200).rev().map(|s| batch(s, vec![stored(None, s + 1_000, vec![9; 4])]));
    let script = vec![block(0), other(1), other(-1), other(i32::MAX), block(1)];
    let scripts = [vec![script], vec![flood.collect()], vec![vec![block(u64::MAX)], vec![block(0), block(1)]]].concat();
    let (b, scripted, _server) = behind(scripts, quick()).await;
    exact_at(&b, 1).await.unwrap();
    assert_eq!((count(&b, "other_rank_batches"), device(&b).await), (3, named(&[0, 1])));
    assert_eq!(scripted.asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_no_word_of_the_server() {
    let large = batch(1, vec![stored(Some(0), 1, vec![1; 4]); 2_000]);
    let mut raw = quick();
    raw.ingest.message_bytes_max = 10_000;
    let (b, _scripted, _server) =
        behind(vec![vec![block(0), large.clone()], vec![block(0), large], vec![block(0), block(1)]], raw).await;
    exact_at(&b, 1).await.unwrap();
    assert_eq!((count(&b, "stream_message_too_large"), count(&b, "start_overs")), (2, 0));
    assert_eq!(device(&b).await, named(&[0, 1]));
}

// A hand-made client.

async fn client(running: &Running) -> VllmEngineClient<Channel> {
    VllmEngineClient::new(common::channel(running).await)
}

async fn ask(
    client: &mut VllmEngineClient<Channel>,
    start: u64,
    metadata: &[(&'static str, &str)],
) -> Result<Streaming<smg::KvEventBatch>, Status> {
    let mut request = Request::new(smg::SubscribeKvEventsRequest { start_sequence_number: start });
    for (key, value) in metadata {
        request.metadata_mut().insert(*key, value.parse().unwrap());
    }
    in_time(client.subscribe_kv_events(request)).await.map(Response::into_inner)
}

async fn next(stream: &mut Streaming<smg::KvEventBatch>) -> Result<u64, Status> {
    in_time(stream.message()).await.map(|batch| batch.expect("no end").sequence_number)
}

async fn code_of(client: &mut VllmEngineClient<Channel>, start: u64, metadata: &[(&'static str, &str)]) -> Code {
    match ask(client, start, metadata).await {
        Ok(mut stream) => next(&mut stream).await.unwrap_err().code(),
        Err(status) => status.code(),
    }
}

fn push(sequence: u64) -> proto::EventBatch {
    let first = sequence * 10 + 1;
    common::batch(WORKER, sequence, vec![common::stored(None, first, (first as u32..first as u32 + 8).collect())])
}

async fn pushed(raw: Raw) -> (Running, common::Clients) {
    let running = run(raw).await;
    let mut clients = common::clients(&running).await;
    clients.register(common::spec(WORKER)).await.unwrap();
    (running, clients)
}

#[tokio::test]
async fn a_gateway_gets_what_is_kept_and_then_what_comes() {
    let mut raw = republishing();
    raw.relay.history_batches_max = 4;
    let (running, mut clients) = pushed(raw).await;
    let mut gateway = client(&running).await;
    assert_eq!(code_of(&mut gateway, 3, &[]).await, Code::OutOfRange);
    let mut waiting = ask(&mut gateway, 0, &[]).await.unwrap();
    clients.apply((0..4).map(push).collect()).await.unwrap();
    for sequence in 0..4 {
        assert_eq!(next(&mut waiting).await.unwrap(), sequence);
    }
    let mut from_the_start = ask(&mut gateway, 0, &[(WORKER_KEY, WORKER), (RANK_KEY, "0")]).await.unwrap();
    let first = in_time(from_the_start.message()).await.unwrap().unwrap();
    let Some(Data::Stored(stored)) = &first.events[0].data else { panic!("{first:?}") };
    assert_eq!((first.dp_rank, stored.blocks.len(), stored.blocks[1].block_hash), (Some(0), 2, 2));
    assert_eq!((stored.parent_block_hash, stored.blocks[1].token_ids.as_slice()), (None, &[5, 6, 7, 8][..]));
    let mut after_two = ask(&mut gateway, 2, &[]).await.unwrap();
    assert_eq!(next(&mut after_two).await.unwrap(), 3);
    let mut after_all = ask(&mut gateway, 3, &[]).await.unwrap();
    clients.apply(vec![push(4)]).await.unwrap();
    assert_eq!((next(&mut after_two).await.unwrap(), next(&mut after_all).await.unwrap()), (4, 4));
    clients.apply((5..8).map(push).collect()).await.unwrap();
    // Kept are 4 to 7: after 3 nothing is missing, after 2 there is.
    assert_eq!(next(&mut ask(&mut gateway, 3, &[]).await.unwrap()).await.unwrap(), 4);
    for beyond in [2, 8, u64::MAX] {
        assert_eq!(code_of(&mut gateway, beyond, &[]).await, Code::OutOfRange, "{beyond}");
    }
    assert_eq!(next(&mut ask(&mut gateway, 0, &[]).await.unwrap()).await.unwrap(), 4);
}

#[tokio::test]
async fn what_a_gateway_may_not_ask_has_its_status() {
    let mut raw = republishing();
    raw.relay.subscribers_max = 2;
    let (running, mut clients) = pushed(raw).await;
    let mut gateway = client(&running).await;
    for (metadata, code) in [
        (&[(WORKER_KEY, "x")][..], Code::NotFound),
        (&[(RANK_KEY, "1")], Code::NotFound),
        (&[(RANK_KEY, "first")], Code::InvalidArgument),
    ] {
        assert_eq!(code_of(&mut gateway, 0, metadata).await, code, "{metadata:?}");
    }
    clients.register(common::spec("second")).await.unwrap();
    assert_eq!(code_of(&mut gateway, 0, &[]).await, Code::InvalidArgument);
    let named = [(WORKER_KEY, WORKER)];
    let (first, mut second) =
        (ask(&mut gateway, 0, &named).await.unwrap(), ask(&mut gateway, 0, &named).await.unwrap());
    assert_eq!(code_of(&mut gateway, 0, &named).await, Code::ResourceExhausted);
    drop(first);
    in_time(async { while ask(&mut gateway, 0, &named).await.is_err() {} }).await;
    let request = proto::DeregisterRequest { worker: WORKER.into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    assert_eq!(next(&mut second).await.unwrap_err().code(), Code::NotFound);
    let mut last = ask(&mut gateway, 0, &[(WORKER_KEY, "second")]).await.unwrap();
    let (ended, ()) = tokio::join!(next(&mut last), running.shutdown());
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    let (plain, _clients) = pushed(quick()).await;
    assert_eq!(code_of(&mut client(&plain).await, 0, &[]).await, Code::FailedPrecondition);
}

#[tokio::test]
async fn another_life_and_a_slow_gateway_are_data_loss_and_what_has_no_words_is_a_gap() {
    let mut raw = republishing();
    raw.relay.history_batches_max = 8;
    let (running, mut clients) = pushed(raw).await;
    let mut gateway = client(&running).await;
    let mut stream = ask(&mut gateway, 0, &[]).await.unwrap();
    let mut salted = push(1);
    if let Some(proto::event::Event::Stored(stored)) = &mut salted.events[0].event {
        stored.namespace = Some(proto::Namespace { cache_salt: "s".into(), ..Default::default() });
    }
    clients.apply(vec![push(0), salted, push(2)]).await.unwrap();
    assert_eq!((next(&mut stream).await.unwrap(), next(&mut stream).await.unwrap()), (0, 2));
    clients.apply(vec![proto::EventBatch { reset: true, ..push(0) }]).await.unwrap();
    assert_eq!(next(&mut stream).await.unwrap_err().code(), Code::DataLoss);
    // One that reads nothing, until all that lies between is full and the log has moved on.
    let mut slow = ask(&mut gateway, 0, &[]).await.unwrap();
    let counted = |reason: &str| {
        let view = running.fleet().view();
        let all = view.rank(WORKER, 0).unwrap().relay.wire().unwrap().counters().all();
        all.into_iter().find(|(r, _)| *r == reason).unwrap().1
    };
    assert_eq!(counted("unsayable"), 1);
    let names: Vec<_> = (0..40_000).collect();
    for sequence in 1..100 {
        let removal = common::batch(WORKER, sequence, vec![common::removed(&names)]);
        clients.apply(vec![removal]).await.unwrap();
    }
    let end = loop {
        if let Err(status) = next(&mut slow).await {
            break status;
        }
    };
    assert_eq!(end.code(), Code::DataLoss);
    assert!(counted("missed") > 0);
}
