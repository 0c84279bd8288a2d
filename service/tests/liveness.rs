//! Workers that go away and come back, over real sockets: who is offered, who is left out, and who says so.
//!
//! Publishers stand behind cables: what a cut one cuts is the network, the publisher keeps its state. What a test waits for is a
//! condition, with the settings shortened so that it comes soon.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod engine;

use bytes::Bytes;
use common::*;
use kvatlas_service::config::Raw;
use kvatlas_service::grpc::proto;
use kvatlas_service::serve::Running;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tonic::Streaming;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// A way to a publisher that can be cut, and mended at the same port.
struct Cable {
    at: String,
    to: String,
    accept: JoinHandle<()>,
    open: Arc<Mutex<JoinSet<()>>>,
}

impl Cable {
    async fn lay(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let to = to.trim_start_matches("tcp://").to_owned();
        let open = Arc::default();
        let accept = tokio::spawn(carry(listener, to.clone(), Arc::clone(&open)));
        Self { at, to, accept, open }
    }

    /// Takes no more connections; those that are there stay.
    async fn refuse(&mut self) {
        self.accept.abort();
        // When the task is gone, so is its listener.
        let _ = (&mut self.accept).await;
    }

    async fn cut(&mut self) {
        self.refuse().await;
        self.open.lock().unwrap().abort_all();
    }

    async fn mend(&mut self) {
        let listener = in_time(async {
            loop {
                match TcpListener::bind(&self.at).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        });
        self.accept = tokio::spawn(carry(listener.await, self.to.clone(), self.open.clone()));
    }
}

async fn carry(listener: TcpListener, to: String, open: Arc<Mutex<JoinSet<()>>>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let Ok(mut far) = TcpStream::connect(&to).await else { continue };
        open.lock().unwrap().spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
    }
}

/// A publisher that has published one batch of three blocks, with a replay, each socket behind a cable.
struct Publisher {
    live: PubSocket,
    events: Cable,
    replay: Cable,
    answers: JoinHandle<()>,
}

impl Publisher {
    async fn start(first_name: u64) -> Self {
        let (mut live, mut router) = (PubSocket::new(), RouterSocket::new());
        let events = live.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let names = [first_name, first_name + 1, first_name + 2];
        let stored = engine::stored(None, &names, &tokens(3), u64::from(BLOCK_SIZE), &[]);
        let payload = engine::batch(1.0, vec![stored]);
        let answers = tokio::spawn(answer(router, payload));
        Self { live, events: Cable::lay(&events).await, replay: Cable::lay(&replay).await, answers }
    }

    /// The process is gone, with its listeners and connections.
    async fn kill(mut self) {
        self.answers.abort();
        self.events.cut().await;
        self.replay.cut().await;
        drop(self.live);
    }

    fn rank(&self, rank: u32) -> proto::RankSpec {
        let at = |cable: &Cable| format!("tcp://{}", cable.at);
        proto::RankSpec { rank, events_endpoint: at(&self.events), replay_endpoint: at(&self.replay) }
    }
}

/// Replays the one batch to whoever asks for it.
async fn answer(mut router: RouterSocket, payload: Bytes) {
    while let Ok(request) = router.recv().await {
        let peer = request.get(0).unwrap().clone();
        let from = u64::from_be_bytes(request.get(2).unwrap()[..].try_into().unwrap());
        let batch = (from == 0).then(|| (0_u64, payload.clone()));
        for (seq, payload) in batch.into_iter().chain([(u64::MAX, Bytes::new())]) {
            let frames = vec![peer.clone(), Bytes::new(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
            // A peer that is gone is the peer's business.
            router.send(ZmqMessage::try_from(frames).unwrap()).await.ok();
        }
    }
}

fn quick(stall_ms: u64) -> Raw {
    let mut raw = small();
    raw.liveness.stall_ms = stall_ms;
    raw.ingest.reconnect_min_ms = 5;
    raw.ingest.reconnect_max_ms = 10;
    raw.ingest.idle_probe_ms = 20;
    raw
}

fn worker(ranks: Vec<proto::RankSpec>) -> proto::WorkerSpec {
    proto::WorkerSpec { ranks, ..spec("engine") }
}

/// Asks until the answer is as wanted.
async fn until(
    clients: &mut Clients,
    request: &proto::LookupRequest,
    wanted: impl Fn(&proto::LookupResponse) -> bool,
) -> proto::LookupResponse {
    in_time(async {
        let mut period = tokio::time::interval(Duration::from_millis(2));
        loop {
            let answer = clients.lookup(request.clone()).await.unwrap();
            if wanted(&answer) {
                return answer;
            }
            period.tick().await;
        }
    })
    .await
}

/// Lists until the worker is as wanted.
async fn listed(clients: &mut Clients, wanted: impl Fn(&proto::WorkerStatus) -> bool) -> proto::WorkerStatus {
    in_time(async {
        let mut period = tokio::time::interval(Duration::from_millis(2));
        loop {
            let request = proto::ListRequest { worker: "engine".into(), ..Default::default() };
            let list = clients.workers.list(request).await.unwrap().into_inner();
            if wanted(&list.workers[0]) {
                return list.workers[0].clone();
            }
            period.tick().await;
        }
    })
    .await
}

fn count(rank: &proto::RankStatus, reason: &str) -> u64 {
    rank.counters.iter().find(|c| c.reason == reason).map_or(0, |c| c.count)
}

async fn next_veto(watch: &mut Streaming<proto::WatchEvent>) -> proto::VetoChanged {
    in_time(async {
        loop {
            let event = watch.message().await.unwrap().unwrap().event;
            if let Some(proto::watch_event::Event::VetoChanged(change)) = event {
                return change;
            }
        }
    })
    .await
}

async fn metrics(running: &Running) -> String {
    get(running.admin_addr().unwrap(), "/metrics").await.1
}

const OFFERED: &[(&str, u32, u32)] = &[("engine", 0, 3)];

#[tokio::test]
async fn a_worker_that_cannot_be_reached_is_left_out_and_is_back_with_its_first_contact() {
    let mut publisher = Publisher::start(100).await;
    let running = run(quick(100)).await;
    let mut clients = clients(&running).await;
    clients.register(worker(vec![publisher.rank(0)])).await.unwrap();
    let offered = until(&mut clients, &ask(tokens(3)), |a| rows(a) == OFFERED).await;
    assert_eq!((offered.ranks_vetoed, offered.vetoed.len()), (0, 0));
    let mut watch = clients.workers.watch(proto::WatchRequest::default()).await.unwrap().into_inner();

    publisher.events.cut().await;
    publisher.replay.cut().await;
    let left_out = until(&mut clients, &ask(tokens(3)), |a| a.ranks_vetoed == 1).await;
    assert_eq!((rows(&left_out).len(), left_out.holders_total, left_out.ranks_total), (0, 0, 1));
    let change = next_veto(&mut watch).await;
    assert_eq!(
        (change.worker.as_str(), change.from(), change.to()),
        ("engine", proto::Veto::Unspecified, proto::Veto::Unreachable)
    );
    let listing = listed(&mut clients, |w| w.veto() == proto::Veto::Unreachable).await;
    assert_eq!(listing.veto_since_unix_ms, Some(change.since_unix_ms));
    // A rank whose stream is interrupted is not exact, veto or not; the veto adds nothing to that.
    assert_eq!((listing.ranks[0].trust(), listing.ranks[0].connected), (proto::Trust::Degraded, false));
    let text = metrics(&running).await;
    for line in [
        r#"kvatlas_worker_vetoed{worker="engine",reason="UNREACHABLE"} 1"#,
        r#"kvatlas_vetoes_set_total{reason="UNREACHABLE"} 1"#,
        r#"kvatlas_vetoes_cleared_total{reason="UNREACHABLE"} 0"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }

    // The blocks are kept, and shown to whoever asks for them.
    let all = proto::LookupRequest { include_vetoed: true, ..ask(tokens(3)) };
    let shown = clients.lookup(all.clone()).await.unwrap();
    assert_eq!((rows(&shown), &shown.vetoed[..], shown.ranks_vetoed), (OFFERED.to_vec(), &[true][..], 1));
    let explain = proto::ExplainRequest { lookup: Some(ask(tokens(3))), max_ranks: 0 };
    let explained = clients.index.explain(explain).await.unwrap().into_inner();
    assert_eq!(
        (explained.ranks[0].stop(), explained.ranks[0].matched_blocks),
        (proto::rank_explanation::Stop::Vetoed, 3)
    );

    // Only the way to the events is mended: a connection is contact enough, no event has to come.
    publisher.events.mend().await;
    until(&mut clients, &ask(tokens(3)), |a| rows(a) == OFFERED && a.ranks_vetoed == 0).await;
    let change = next_veto(&mut watch).await;
    assert_eq!((change.from(), change.to()), (proto::Veto::Unreachable, proto::Veto::Unspecified));
    let again = clients.lookup(all).await.unwrap();
    assert_eq!((rows(&again), &again.vetoed[..]), (OFFERED.to_vec(), &[false][..]));
    let listing = listed(&mut clients, |w| w.veto() == proto::Veto::Unspecified).await;
    assert_eq!((listing.veto_since_unix_ms, listing.ranks[0].incarnation), (None, 1), "no restart was made up");
    let text = metrics(&running).await;
    assert!(text.lines().any(|l| l == r#"kvatlas_vetoes_cleared_total{reason="UNREACHABLE"} 1"#), "{text}");
    assert!(!text.contains("kvatlas_worker_vetoed{"), "{text}");
    running.shutdown().await;
}

#[tokio::test]
async fn only_a_killed_publisher_is_left_out_and_an_idle_or_pushed_worker_stays() {
    let (killed, idle) = (Publisher::start(100).await, Publisher::start(200).await);
    let running = run(quick(100)).await;
    let mut clients = clients(&running).await;
    clients.register(worker(vec![killed.rank(0)])).await.unwrap();
    clients.register(proto::WorkerSpec { ranks: vec![idle.rank(0)], ..spec("idle") }).await.unwrap();
    clients.register(spec("pushed")).await.unwrap();
    // The stream ends with the call, and stays ended.
    clients.apply(vec![batch("pushed", 0, vec![stored(None, 1, tokens(3))])]).await.unwrap();
    let all = [("engine", 0, 3), ("idle", 0, 3), ("pushed", 0, 3)];
    until(&mut clients, &ask(tokens(3)), |a| rows(a) == all).await;

    killed.kill().await;
    // Many stall times later, as the idle rank's own probes show, it is still there.
    let others = [("idle", 0, 3), ("pushed", 0, 3)];
    let probes = async |clients: &mut Clients| {
        let request = proto::ListRequest { worker: "idle".into(), ..Default::default() };
        let list = clients.workers.list(request).await.unwrap().into_inner();
        assert_eq!(list.workers[0].veto(), proto::Veto::Unspecified);
        count(&list.workers[0].ranks[0], "probes")
    };
    until(&mut clients, &ask(tokens(3)), |a| rows(a) == others).await;
    let so_far = probes(&mut clients).await;
    in_time(async {
        while probes(&mut clients).await < so_far + 15 {
            let answer = clients.lookup(ask(tokens(3))).await.unwrap();
            assert_eq!((rows(&answer), answer.ranks_vetoed), (others.to_vec(), 1));
        }
    })
    .await;
    // With the worker goes its veto; the next of its name begins without one.
    let request = proto::DeregisterRequest { worker: "engine".into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    let answer = clients.lookup(ask(tokens(3))).await.unwrap();
    assert_eq!((rows(&answer), answer.ranks_vetoed, answer.ranks_total), (others.to_vec(), 0, 2));
    clients.register(spec("engine")).await.unwrap();
    assert_eq!(listed(&mut clients, |_| true).await.veto(), proto::Veto::Unspecified);
    running.shutdown().await;
}

/// A worker that answers on one stream is there: the other streams are probed, and the worker is given up only if they are silent,
/// too. Then all of its streams end at once, also one that hangs.
#[tokio::test]
async fn of_two_ranks_one_lost_stream_leaves_the_worker_offered_while_the_other_answers() {
    let (mut lost, mut other) = (Publisher::start(100).await, Publisher::start(200).await);
    let running = run(quick(400)).await;
    let mut clients = clients(&running).await;
    clients.register(worker(vec![lost.rank(0), other.rank(1)])).await.unwrap();
    let both = [("engine", 0, 3), ("engine", 1, 3)];
    until(&mut clients, &ask(tokens(3)), |a| rows(a) == both).await;
    // The other rank's own replays shall not keep the worker: what is looked at here is the probe of its idle event stream.
    lost.replay.cut().await;
    other.replay.cut().await;
    lost.events.cut().await;
    // So many attempts, at least 10 ms apart, take longer than the stall time.
    let status = listed(&mut clients, |w| {
        assert_eq!(w.veto(), proto::Veto::Unspecified);
        count(&w.ranks[0], "connect_failures") >= 80
    })
    .await;
    assert_eq!((status.ranks[0].connected, status.ranks[1].connected), (false, true));
    assert_eq!(rows(&clients.lookup(ask(tokens(3))).await.unwrap()), both);

    // Now the other hangs: its connection stays, but nobody answers a new one.
    other.events.refuse().await;
    let left_out = until(&mut clients, &ask(tokens(3)), |a| a.ranks_vetoed == 2).await;
    assert_eq!(rows(&left_out), []);
    let hung_up = listed(&mut clients, |w| count(&w.ranks[1], "socket_hung_up") > 0).await;
    assert!(!hung_up.ranks[1].connected);

    // Contact with one of them is contact with the worker.
    other.events.mend().await;
    until(&mut clients, &ask(tokens(3)), |a| rows(a) == both && a.ranks_vetoed == 0).await;
    running.shutdown().await;
}

#[tokio::test]
async fn who_does_not_want_vetoes_has_none() {
    let publisher = Publisher::start(100).await;
    let mut raw = quick(1);
    raw.liveness.enabled = false;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(worker(vec![publisher.rank(0)])).await.unwrap();
    until(&mut clients, &ask(tokens(3)), |a| rows(a) == OFFERED).await;
    publisher.kill().await;
    let status = listed(&mut clients, |w| count(&w.ranks[0], "connect_failures") >= 5).await;
    assert_eq!(status.veto(), proto::Veto::Unspecified);
    assert_eq!(rows(&clients.lookup(ask(tokens(3))).await.unwrap()), OFFERED);
    running.shutdown().await;
}
