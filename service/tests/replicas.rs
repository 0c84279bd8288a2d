//! Replicas that start from each other, over real sockets: exact by a peer's copy where the engines' replays do not reach back, and
//! never wrong by one.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod engine;
mod peers;
mod publisher;
mod traffic;

use common::*;
use kvatlas_service::config::{Raw, RawWorker};
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::snapshot_chunk::Part;
use kvatlas_service::ingest::{RankStatus, Trust};
use kvatlas_service::serve::Running;
use peers::{FakePeer, Step, copy, send};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tonic::Code;
use traffic::Traffic;

const WORKER: &str = "engine";

/// A replica that follows these workers and starts from these peers.
fn replica(workers: &[String], peers: &[String]) -> Raw {
    let mut raw = small();
    raw.index.blocks_max = 1 << 20;
    raw.workers = workers.iter().map(|worker| RawWorker::from_flag(worker).unwrap()).collect();
    raw.replicas.peers = peers.to_vec();
    raw.replicas.pause_min_ms = 5;
    raw.replicas.pause_max_ms = 20;
    raw.ingest.reconnect_min_ms = 5;
    raw.ingest.recovery_attempts_max = 0;
    raw
}

fn address(running: &Running) -> String {
    running.grpc_addr().to_string()
}

async fn status(running: &Running, worker: &str) -> Arc<RankStatus> {
    running.fleet().view().rank(worker, 0).unwrap().status.full()
}

/// Waits until the rank is as wanted, and gives its status.
async fn until(running: &Running, worker: &str, wanted: impl Fn(&RankStatus) -> bool) -> Arc<RankStatus> {
    let mut period = tokio::time::interval(Duration::from_millis(1));
    let reached = tokio::time::timeout(DEADLINE, async {
        loop {
            let status = match running.fleet().view().rank(worker, 0) {
                Ok(rank) => rank.status.full(),
                Err(_) => Arc::default(),
            };
            if wanted(&status) {
                return status;
            }
            period.tick().await;
        }
    });
    match reached.await {
        Ok(status) => status,
        Err(_) => panic!("still {:?}", status(running, worker).await),
    }
}

fn exact_at(sequence: u64) -> impl Fn(&RankStatus) -> bool {
    move |status| status.trust == Trust::Exact && status.cursor == Some(sequence)
}

fn count(status: &RankStatus, reason: &str) -> u64 {
    status.counters.get(reason).copied().unwrap_or(0)
}

/// The start from peers, as the status call shows it.
async fn copies(clients: &mut Clients) -> proto::CopiesStatus {
    let status = clients.index.get_status(proto::GetStatusRequest {}).await.unwrap().into_inner();
    status.copies.expect("there are peers")
}

async fn until_over(clients: &mut Clients) -> proto::CopiesStatus {
    let mut period = tokio::time::interval(Duration::from_millis(2));
    in_time(async {
        loop {
            let copies = copies(clients).await;
            if !copies.outcome.is_empty() {
                return copies;
            }
            period.tick().await;
        }
    })
    .await
}

/// Every chain of the engine's last rounds, looked up: all as the engine has it.
async fn assert_true(running: &Running, worker: &str, traffic: &Traffic) {
    let mut clients = clients(running).await;
    for (number, (tokens, depth)) in traffic.truth().enumerate() {
        let answer = clients.lookup(ask(tokens)).await.unwrap();
        let held = rows(&answer).iter().find(|(of, _, _)| *of == worker).map_or(0, |(_, _, blocks)| *blocks);
        assert_eq!(held, depth, "chain {number} of those that are compared");
    }
}

/// A replica that has followed the engine from its first batch, whose replay does not reach back to that any more.
async fn old_replica(traffic: &mut Traffic, batches: u32) -> Running {
    traffic.lose(batches);
    let running = run(replica(&[traffic.worker(WORKER)], &[])).await;
    until(&running, WORKER, exact_at(traffic.newest())).await;
    traffic.forget_the_first();
    running
}

/// Publishes about 10,000 events a second until told to stop.
fn load(mut traffic: Traffic, stop: Arc<AtomicBool>) -> JoinHandle<Traffic> {
    tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_micros(1_500));
        let (began, first) = (Instant::now(), traffic.next);
        while !stop.load(Ordering::Relaxed) {
            pace.tick().await;
            traffic.publish().await;
        }
        let events = f64::from((traffic.next - first) * traffic::TURNS) * 22.0 / 7.0;
        println!("load: {:.0} events a second", events / began.elapsed().as_secs_f64());
        traffic
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_replica_becomes_exact_by_a_peer_under_load() {
    let mut traffic = Traffic::start(1).await;
    let old = old_replica(&mut traffic, 400).await;
    let stop = Arc::<AtomicBool>::default();
    let worker = traffic.worker(WORKER);
    let load = load(traffic, stop.clone());
    until(&old, WORKER, |status| status.cursor >= Some(450)).await;

    let began = Instant::now();
    let fresh = run(replica(&[worker], &[address(&old)])).await;
    let loaded = until(&fresh, WORKER, |status| status.trust == Trust::Exact).await;
    println!("exact {:.0} ms after its start, at batch {:?}", began.elapsed().as_secs_f64() * 1e3, loaded.cursor);
    assert_eq!(count(&loaded, "seeds_loaded"), 1, "{loaded:?}");
    // The load goes on for a while behind the cut.
    until(&fresh, WORKER, |status| status.cursor >= loaded.cursor.map(|cursor| cursor + 400)).await;
    stop.store(true, Ordering::Relaxed);
    let traffic = load.await.unwrap();
    for running in [&old, &fresh] {
        until(running, WORKER, exact_at(traffic.newest())).await;
        assert_true(running, WORKER, &traffic).await;
    }
    let mut clients = clients(&fresh).await;
    assert_eq!(until_over(&mut clients).await.outcome, "complete");
}

/// A way to a replica that does not listen yet: connections wait until the target is known.
struct Way {
    at: String,
    target: Arc<std::sync::Mutex<Option<SocketAddr>>>,
    _accept: JoinSet<()>,
}

impl Way {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let target = Arc::<std::sync::Mutex<Option<SocketAddr>>>::default();
        let (to, mut accept) = (target.clone(), JoinSet::new());
        accept.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut here, _)) = listener.accept().await {
                // Nobody there yet: hung up, as a port that nobody listens at would.
                let Some(target) = *to.lock().unwrap() else { continue };
                connections.spawn(async move {
                    let mut there = TcpStream::connect(target).await.unwrap();
                    let _ended = tokio::io::copy_bidirectional(&mut here, &mut there).await;
                });
            }
        });
        Self { at, target, _accept: accept }
    }

    fn leads_to(&self, running: &Running) {
        *self.target.lock().unwrap() = Some(running.grpc_addr());
    }
}

#[tokio::test]
async fn two_replicas_that_start_from_each_other_go_by_their_engines() {
    let (mut whole, mut short) = (Traffic::start(1).await, Traffic::start(2).await);
    whole.lose(300);
    short.lose(300);
    short.forget_the_first();
    let workers = [whole.worker("whole"), short.worker("short")];
    let ways = [Way::start().await, Way::start().await];
    let with_peer = |peer: &Way| {
        let mut raw = replica(&workers, std::slice::from_ref(&peer.at));
        raw.replicas.deadline_ms = 1_000;
        raw
    };
    let (one, two) = tokio::join!(run(with_peer(&ways[1])), run(with_peer(&ways[0])));
    ways[0].leads_to(&one);
    ways[1].leads_to(&two);
    for running in [&one, &two] {
        until(running, "whole", exact_at(299)).await;
        assert_true(running, "whole", &whole).await;
        let mut clients = clients(running).await;
        assert_eq!(until_over(&mut clients).await.outcome, "deadline");
        // Neither has what the engine forgot, and neither believes the other to have it.
        let short = status(running, "short").await;
        assert_eq!((short.trust, count(&short, "seeds_offered")), (Trust::Partial, 0));
    }
}

#[tokio::test]
async fn a_peers_workers_become_known_and_hold_readiness_back() {
    let mut traffic = Traffic::start(1).await;
    let old = old_replica(&mut traffic, 300).await;
    // A replica without a configuration of its own.
    let fresh = run(replica(&[], &[address(&old)])).await;
    until(&fresh, WORKER, exact_at(traffic.newest())).await;
    assert_true(&fresh, WORKER, &traffic).await;
    let view = fresh.fleet().view();
    let worker = view.worker(WORKER).unwrap();
    assert!(!worker.is_static);
    assert_eq!(worker.registration, old.fleet().view().worker(WORKER).unwrap().registration);
    let mut clients = clients(&fresh).await;
    assert_eq!(counted(&until_over(&mut clients).await.counters, "workers_registered"), 1);

    let mut raw = replica(&[], &[address(&old)]);
    raw.replicas.register_workers = false;
    let other = run(raw).await;
    let mut clients = common::clients(&other).await;
    assert_eq!(until_over(&mut clients).await.outcome, "complete");
    assert_eq!(other.fleet().view().workers().len(), 0);
}

#[tokio::test]
async fn readiness_waits_for_exact_ranks_and_says_for_which() {
    let go_on = Arc::new(Notify::new());
    let mut traffic = Traffic::start(1).await;
    let old = old_replica(&mut traffic, 300).await;
    let mut parts = copy(&channel(&old).await, proto::GetSnapshotRequest::default()).await.unwrap();
    let rest = parts.split_off(2);
    let wait = go_on.clone();
    let peer = FakePeer::start(move |_, _| {
        let mut steps = send(&parts);
        steps.push(Step::Wait(wait.clone()));
        steps.extend(send(&rest));
        steps
    })
    .await;
    let mut raw = replica(&[traffic.worker(WORKER)], std::slice::from_ref(&peer.at));
    raw.lifecycle.ready_deadline_ms = 24 * 3600 * 1000;
    raw.replicas.silence_max_ms = 60_000;
    let fresh = run(raw.clone()).await;
    until(&fresh, WORKER, |status| status.trust == Trust::Partial).await;
    let admin = fresh.admin_addr().unwrap();
    let mut period = tokio::time::interval(Duration::from_millis(5));
    let (code, body) = in_time(async {
        loop {
            let answer = get(admin, "/readyz").await;
            if answer.1.contains("PARTIAL") {
                return answer;
            }
            period.tick().await;
        }
    })
    .await;
    assert_eq!(code, 503);
    assert!(body.contains("waiting for the first copy") && body.contains("engine rank 0: PARTIAL"), "{body}");
    let mut clients = clients(&fresh).await;
    let told = clients.index.get_status(proto::GetStatusRequest {}).await.unwrap().into_inner();
    let waiting = told.waiting_for.unwrap();
    assert_eq!((told.ready, waiting.copy, waiting.ranks.len()), (false, true, 1));
    assert_eq!((waiting.ranks[0].worker.as_str(), waiting.ranks[0].trust()), (WORKER, proto::Trust::Partial));

    go_on.notify_one();
    until(&fresh, WORKER, exact_at(traffic.newest())).await;
    in_time(async {
        while !fresh.ready() {
            period.tick().await;
        }
    })
    .await;
    assert_eq!(get(admin, "/readyz").await, (200, "ready\n".into()));
    let (_, metrics) = get(admin, "/metrics").await;
    assert!(metrics.contains("kvatlas_copies_events_total{reason=\"ranks_offered\"} 1"), "{metrics}");

    // A rank that nobody makes exact has its time, and no more.
    raw.replicas.peers.clear();
    raw.lifecycle.ready_deadline_ms = 1;
    let alone = run(raw).await;
    in_time(async {
        while !alone.ready() {
            period.tick().await;
        }
    })
    .await;
    assert_eq!(until(&alone, WORKER, |status| status.trust == Trust::Partial).await.cursor, Some(traffic.newest()));
}

/// What an old replica tells of its one rank: head, chunks, end, all.
async fn told(running: &Running) -> Vec<Part> {
    let parts = copy(&channel(running).await, proto::GetSnapshotRequest::default()).await.unwrap();
    assert!(parts.len() > 5, "several chunks");
    parts
}

/// As [`old_replica`], with small chunks.
async fn talkative(traffic: &mut Traffic, batches: u32) -> Running {
    traffic.lose(batches);
    let mut raw = replica(&[traffic.worker(WORKER)], &[]);
    raw.relay.snapshot_blocks_max = 256;
    let running = run(raw).await;
    until(&running, WORKER, exact_at(traffic.newest())).await;
    traffic.forget_the_first();
    running
}

#[tokio::test]
async fn a_publisher_that_restarts_during_a_copy_is_not_mixed_with_its_life_before() {
    let mut traffic = Traffic::start(1).await;
    let old = talkative(&mut traffic, 300).await;
    let parts = told(&old).await;
    let go_on = Arc::new(Notify::new());
    let (head, tail) = (parts[..3].to_vec(), parts[3..].to_vec());
    let wait = go_on.clone();
    let peer = FakePeer::start(move |call, _| match call {
        0 => {
            let mut steps = send(&head);
            steps.push(Step::Wait(wait.clone()));
            steps.extend(send(&tail));
            steps
        }
        _ => vec![Step::Fail(Code::Unavailable)],
    })
    .await;
    let mut raw = replica(&[traffic.worker(WORKER)], std::slice::from_ref(&peer.at));
    raw.replicas.silence_max_ms = 60_000;
    raw.replicas.deadline_ms = 60_000;
    let fresh = run(raw).await;
    until(&fresh, WORKER, |status| status.trust == Trust::Partial && status.cursor == Some(299)).await;
    // The next life has as many batches, and its replay does not reach back either: nothing but the payloads tells it apart.
    let mut traffic = traffic.restart(2).await;
    traffic.lose(300);
    traffic.forget_the_first();
    until(&fresh, WORKER, |status| status.incarnation == 2 && status.cursor == Some(299)).await;
    go_on.notify_one();
    let judged = until(&fresh, WORKER, |status| count(status, "seed_dropped_other_life") == 1).await;
    assert_eq!((judged.trust, count(&judged, "seeds_loaded")), (Trust::Partial, 0));
    traffic.publish().await;
    until(&fresh, WORKER, |status| status.cursor == Some(300)).await;
    assert_true(&fresh, WORKER, &traffic).await;
}

#[tokio::test]
async fn a_copy_of_an_older_life_makes_nothing_wrong() {
    let mut traffic = Traffic::start(1).await;
    let old = talkative(&mut traffic, 300).await;
    let parts = told(&old).await;
    let peer = FakePeer::start(move |_, _| send(&parts)).await;
    let mut traffic = traffic.restart(2).await;
    traffic.lose(200);
    let mut raw = replica(&[traffic.worker(WORKER)], std::slice::from_ref(&peer.at));
    // Until the copy was judged, the engine says nothing.
    traffic.publisher.ring.lock().unwrap().mute = true;
    raw.ingest.replay_silence_max_ms = 60_000;
    raw.ingest.replay_duration_max_ms = 60_000;
    let fresh = run(raw).await;
    until(&fresh, WORKER, |status| count(status, "seeds_offered") > 0).await;
    traffic.publisher.ring.lock().unwrap().mute = false;
    for _ in 0..3 {
        traffic.publish().await;
    }
    let exact = until(&fresh, WORKER, |status| status.trust == Trust::Exact).await;
    assert_eq!(count(&exact, "seeds_loaded"), 0, "{exact:?}");
    until(&fresh, WORKER, exact_at(traffic.newest())).await;
    assert_true(&fresh, WORKER, &traffic).await;
}

#[tokio::test]
async fn a_peer_that_dies_in_a_copy_is_gone_on_with_or_another_is() {
    let mut traffic = Traffic::start(1).await;
    let old = talkative(&mut traffic, 300).await;
    let parts = told(&old).await;
    // The first dies after two chunks, twice with one more, and is then gone for good.
    let (of_dying, first) = (parts.clone(), parts[..3].to_vec());
    let dying = FakePeer::start(move |call, request| {
        let mut steps = match (call, &request.resume) {
            (0, None) => send(&first),
            (1, Some(resume)) if resume.chunks == 2 => {
                let Part::Header(mut head) = of_dying[0].clone() else { unreachable!() };
                head.first_chunk = 2;
                send(&[Part::Header(head), of_dying[3].clone()])
            }
            _ => Vec::new(),
        };
        steps.push(Step::Fail(Code::Unavailable));
        steps
    })
    .await;
    let fresh = run(replica(&[traffic.worker(WORKER)], &[dying.at.clone(), address(&old)])).await;
    let exact = until(&fresh, WORKER, exact_at(traffic.newest())).await;
    assert_eq!(count(&exact, "seeds_loaded"), 1);
    assert_true(&fresh, WORKER, &traffic).await;
    let mut clients = clients(&fresh).await;
    let copies = until_over(&mut clients).await;
    assert!(
        counted(&copies.counters, "calls_resumed") >= 2 && counted(&copies.counters, "ranks_offered") >= 1,
        "{copies:?}"
    );
    let resumed: Vec<_> =
        dying.calls.lock().unwrap().iter().map(|call| call.resume.as_ref().map(|resume| resume.chunks)).collect();
    // While the copy of the second is being judged, the first may be asked again.
    assert_eq!(resumed[..3], [None, Some(2), Some(3)]);
}

#[tokio::test]
async fn peers_that_say_nonsense_are_left_for_one_that_does_not() {
    let mut traffic = Traffic::start(1).await;
    let old = talkative(&mut traffic, 300).await;
    let parts = told(&old).await;
    let Part::Header(head) = parts[0].clone() else { unreachable!() };
    let Some(Part::End(end)) = parts.iter().find(|part| matches!(part, Part::End(_))).cloned() else { unreachable!() };
    let without = |range: std::ops::Range<usize>| {
        let mut parts = parts.clone();
        parts.drain(range);
        parts
    };
    let with_end = |end: proto::RankEnd| {
        let mut parts = parts.clone();
        let at = parts.iter().position(|part| matches!(part, Part::End(_))).unwrap();
        parts[at] = Part::End(end);
        parts
    };
    let mut flipped = parts.clone();
    if let Part::Chunk(chunk) = &mut flipped[1]
        && let Some(proto::event::Event::Stored(stored)) = &mut chunk.events[0].event
    {
        stored.engine_hashes[0] ^= 1;
    }
    let cleared = proto::Event { event: Some(proto::event::Event::Cleared(proto::BlocksCleared::default())) };
    let huge = proto::Event {
        event: Some(proto::event::Event::Removed(proto::BlocksRemoved {
            engine_hashes: vec![7; 100_000],
            ..Default::default()
        })),
    };
    let chunk = |event| Part::Chunk(proto::RankChunk { number: 0, events: vec![event] });
    let nonsense: Vec<(Vec<Part>, &str)> = vec![
        (without(0..1), "misfit_no_rank"),
        (without(1..2), "misfit_number"),
        (without(parts.len() - 2..parts.len() - 1), "misfit_unfinished"),
        (with_end(proto::RankEnd { chunks: end.chunks + 1, ..end }), "misfit_count"),
        (with_end(proto::RankEnd { blocks: end.blocks - 1, ..end }), "misfit_count"),
        (with_end(proto::RankEnd { checksum: end.checksum ^ 1, ..end }), "misfit_checksum"),
        (flipped, "misfit_checksum"),
        (vec![parts[0].clone(), chunk(cleared)], "misfit_operation"),
        (vec![parts[0].clone(), chunk(huge)], "peers_useless"),
        (vec![Part::Header(proto::RankHeader { worker: None, ..head.clone() })], "header_without_worker"),
        (vec![Part::Header(proto::RankHeader { trust: 99, ..head.clone() })], "header_malformed"),
        (vec![Part::Header(proto::RankHeader { trust: proto::Trust::Degraded.into(), ..head })], "misfit_state"),
    ];
    let mut fakes = Vec::new();
    for (parts, _) in &nonsense {
        let parts = parts.clone();
        fakes.push(FakePeer::start(move |_, _| send(&parts)).await);
    }
    // One that speaks another protocol altogether, and one that is not there.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let babbler = listener.local_addr().unwrap().to_string();
    let mut babble = JoinSet::new();
    babble.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _gone = stream.write_all(b"220 mail.example.org ESMTP\r\n").await;
        }
    });
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();

    let mut peers: Vec<String> = fakes.iter().map(|fake| fake.at.clone()).collect();
    peers.extend([babbler, nobody, address(&old)]);
    let mut raw = replica(&[traffic.worker(WORKER)], &peers);
    raw.limits.message_bytes_max = 256 << 10;
    let fresh = run(raw).await;
    let exact = until(&fresh, WORKER, exact_at(traffic.newest())).await;
    assert_eq!(count(&exact, "seeds_loaded"), 1, "{exact:?}");
    assert_true(&fresh, WORKER, &traffic).await;
    let mut clients = clients(&fresh).await;
    let copies = until_over(&mut clients).await;
    assert_eq!(counted(&copies.counters, "peers_useless"), nonsense.len() as u64, "{copies:?}");
    for (_, reason) in &nonsense {
        let times = nonsense.iter().filter(|(_, other)| other == reason).count() as u64;
        assert!(counted(&copies.counters, reason) >= times, "{reason}: {copies:?}");
    }
    assert!(fakes.iter().all(|fake| fake.calls.lock().unwrap().len() == 1), "none is asked twice");
}

#[tokio::test]
async fn a_seed_for_another_registration_is_refused() {
    let mut traffic = Traffic::start(1).await;
    let old = talkative(&mut traffic, 300).await;
    let parts = told(&old).await;
    let peer = FakePeer::start(move |_, _| send(&parts)).await;
    let worker = format!("{},hash_seed=7", traffic.worker(WORKER));
    let mut raw = replica(&[worker], std::slice::from_ref(&peer.at));
    raw.replicas.deadline_ms = 3_000;
    let fresh = run(raw).await;
    let wanted = |status: &RankStatus| count(status, "seed_refused_registration") > 0 && status.trust == Trust::Partial;
    let refused = until(&fresh, WORKER, wanted).await;
    assert_eq!(count(&refused, "seeds_loaded"), 0);
    let mut clients = clients(&fresh).await;
    assert_eq!(until_over(&mut clients).await.outcome, "deadline");
}
