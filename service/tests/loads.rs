//! Loads as they come in: reported, beside batches of events, and polled from a server that answers by a script.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::config::Raw;
use kvatlas_service::fleet::WorkerLoads;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::routing_service_client::RoutingServiceClient;
use kvatlas_service::routing::{LoadSource, RankLoad};
use kvatlas_service::serve::Running;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn load(rank: u32, running: i64, waiting: i64) -> proto::RankLoad {
    proto::RankLoad { rank, running, waiting, token_usage: 0.25, ..Default::default() }
}

fn report(worker: &str, ranks: Vec<proto::RankLoad>) -> proto::LoadReport {
    proto::LoadReport { worker: worker.into(), ranks }
}

fn loads(running: &Running, worker: &str) -> WorkerLoads {
    running.fleet().view().worker(worker).unwrap().loads.get()
}

fn count(loads: &WorkerLoads, reason: &str) -> u64 {
    loads.counters.get(reason).copied().unwrap_or(0)
}

/// Looks until the worker's loads are as wanted.
async fn until(running: &Running, wanted: impl Fn(&WorkerLoads) -> bool) -> WorkerLoads {
    in_time(async {
        let mut period = tokio::time::interval(Duration::from_millis(1));
        loop {
            let loads = loads(running, "engine");
            if wanted(&loads) {
                return loads;
            }
            period.tick().await;
        }
    })
    .await
}

#[tokio::test]
async fn reports_are_taken_or_counted_by_reason_and_the_stream_goes_on() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    let two = (0..2).map(|rank| proto::RankSpec { rank, ..Default::default() }).collect();
    clients.register(proto::WorkerSpec { ranks: two, ..spec("engine") }).await.unwrap();
    let usage = |usage| proto::RankLoad { token_usage: usage, ..load(1, 1, 0) };
    let reports = vec![
        report("engine", vec![load(0, 3, 2), load(1, 1, 0)]),
        report("engine", vec![load(0, 3, 2)]),
        report("engine", vec![load(0, 3, 2), load(0, 3, 2)]),
        report("engine", vec![load(0, 3, 2), load(2, 3, 2)]),
        report("engine", vec![load(0, 3, -1), load(1, 1, 0)]),
        report("engine", vec![load(0, 3, 2), usage(1.5)]),
        report("engine", vec![load(0, 3, 2), usage(f64::NAN)]),
        report("engine", (0..257).map(|rank| load(rank, 0, 0)).collect()),
        report("nobody", vec![load(0, 3, 2)]),
        report("engine", vec![load(1, 5, 0), load(0, 4, 2)]),
    ];
    let sent = reports.len() as u64;
    let answer = clients.workers.report_load(tokio_stream::iter(reports)).await.unwrap().into_inner();
    let refused: Vec<_> = answer.refused.iter().map(|c| (c.reason.as_str(), c.count)).collect();
    let expected = [
        ("rank_missing", 1),
        ("rank_repeated", 1),
        ("rank_unknown", 1),
        ("token_usage", 2),
        ("too_many_ranks", 1),
        ("unknown_worker", 1),
        ("waiting", 1),
    ];
    assert_eq!((answer.taken, &refused[..]), (2, &expected[..]));
    assert_eq!(2 + refused.iter().map(|(_, count)| count).sum::<u64>(), sent);

    let is = loads(&running, "engine");
    let (_, latest, figures) = is.latest.as_ref().unwrap();
    assert_eq!((figures.running, figures.waiting, figures.usage), (9, 2, 0.25));
    assert_eq!((latest.source, latest.fresh_for), (LoadSource::Pushed, Duration::from_secs(3)));
    assert!(is.is_fresh(tokio::time::Instant::now()));
    let text = get(running.admin_addr().unwrap(), "/metrics").await.1;
    for line in [
        r#"kvatlas_worker_load_events_total{worker="engine",reason="pushed"} 2"#,
        r#"kvatlas_worker_load_events_total{worker="engine",reason="token_usage"} 2"#,
        r#"kvatlas_worker_load_fresh{worker="engine"} 1"#,
        r#"kvatlas_worker_requests_running{worker="engine"} 9"#,
        r#"kvatlas_worker_requests_waiting{worker="engine"} 2"#,
        r#"kvatlas_worker_kv_usage_ratio{worker="engine"} 0.25"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }
    assert!(text.contains("kvatlas_worker_load_age_milliseconds{worker=\"engine\"}"));
    // The registration's end takes everything along; the next of the name begins with nothing.
    let request = proto::DeregisterRequest { worker: "engine".into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    let text = get(running.admin_addr().unwrap(), "/metrics").await.1;
    assert!(!text.lines().any(|l| !l.starts_with('#') && l.contains("_load_")), "{text}");
    clients.register(spec("engine")).await.unwrap();
    assert!(loads(&running, "engine").latest.is_none());
    running.shutdown().await;
}

#[tokio::test]
async fn decisions_follow_what_is_reported_and_a_malformed_report_is_forgotten_news() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("a")).await.unwrap();
    clients.register(spec("b")).await.unwrap();
    let mut routing = RoutingServiceClient::new(channel(&running).await);
    let mut placed = async |reports: Vec<proto::LoadReport>| {
        clients.workers.report_load(tokio_stream::iter(reports)).await.unwrap();
        let request = proto::SelectRequest {
            model: MODEL.into(),
            policy: "least_load".into(),
            dry_run: true,
            ..Default::default()
        };
        routing.select(request).await.unwrap().into_inner().worker
    };
    assert_eq!(placed(vec![report("a", vec![load(0, 1, 6)]), report("b", vec![load(0, 1, 2)])]).await, "b");
    assert_eq!(placed(vec![report("b", vec![load(0, 1, 7)])]).await, "a");
    // Dark is neither idle nor full: what counts is what was dispatched, and that is nothing.
    assert_eq!(placed(vec![report("b", vec![load(0, 1, -7)])]).await, "b");
    running.shutdown().await;
}

#[tokio::test]
async fn what_is_known_of_every_worker_is_told() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    let blue = proto::WorkerSpec { routing_group: "blue".into(), ..spec("a") };
    let other = proto::WorkerSpec { model: "other".into(), ..spec("z") };
    for spec in [blue, other, spec("b"), spec("c")] {
        clients.register(spec).await.unwrap();
    }
    let reports = vec![
        report("b", vec![load(0, 1, 2)]),
        report("b", vec![load(0, 5, 40)]),
        report("c", vec![load(0, 1, 0)]),
        report("c", vec![load(0, 1, -1)]),
    ];
    clients.workers.report_load(tokio_stream::iter(reports)).await.unwrap();
    let mut routing = RoutingServiceClient::new(channel(&running).await);
    let only = vec![proto::RankRef { worker: "b".into(), ..Default::default() }];
    let select = proto::SelectRequest {
        model: MODEL.into(),
        policy: "least_load".into(),
        prompt_tokens: Some(77),
        candidates: only,
        ..Default::default()
    };
    assert_eq!(routing.select(select).await.unwrap().into_inner().worker, "b");
    let all = routing.get_loads(proto::GetLoadsRequest::default()).await.unwrap().into_inner().workers;
    let order: Vec<_> = all.iter().map(|w| (w.model.as_str(), w.routing_group.as_str(), w.worker.as_str())).collect();
    assert_eq!(order, [("other", "", "z"), (MODEL, "", "b"), (MODEL, "", "c"), (MODEL, "blue", "a")]);
    let (z, b, c) = (&all[0], &all[1], &all[2]);
    assert_eq!((z.fresh, z.age_ms, z.source.as_str(), z.ranks.len(), z.counters.len()), (false, None, "", 0, 0));
    assert_eq!((b.fresh, b.source.as_str(), &b.ranks[..]), (true, "pushed", &[load(0, 5, 40)][..]));
    assert_eq!((b.overloaded, b.in_flight, b.unrecorded_tokens), (true, 1, 77));
    assert_eq!(counted(&b.counters, "pushed"), 2);
    // The latest valid record is shown, and that it is not believed.
    assert_eq!((c.fresh, c.age_ms.is_some(), &c.ranks[..]), (false, true, &[load(0, 1, 0)][..]));
    assert_eq!((c.in_flight, c.overloaded, counted(&c.counters, "waiting")), (0, false, 1));

    let one = |model: &str| proto::GetLoadsRequest { model: model.into() };
    assert_eq!(routing.get_loads(one("other")).await.unwrap().into_inner().workers, std::slice::from_ref(z));
    assert_eq!(routing.get_loads(one("none")).await.unwrap_err().code(), tonic::Code::NotFound);
    running.shutdown().await;
}

#[tokio::test]
async fn a_load_beside_a_batch_is_taken_and_never_hurts_the_events() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("engine")).await.unwrap();
    let beside = |sequence, events, loads| proto::EventBatch { loads, ..batch("engine", sequence, events) };
    let first = beside(0, vec![stored(None, 1, tokens(3))], vec![load(0, 3, 2)]);
    let acks = clients
        .apply(vec![
            first.clone(),
            beside(1, vec![removed(&[3])], vec![load(0, -3, 2)]),
            beside(2, vec![], vec![load(0, 1, 0)]),
            // Sent again: what it says of the load was true when it was sent first.
            first,
            // Behind a gap: its events wait, its load is news.
            beside(9, vec![], vec![load(0, 2, 0)]),
            beside(3, vec![], vec![]),
        ])
        .await
        .unwrap();
    use proto::apply_ack::Status::{Applied, Duplicate, Gap};
    let statuses: Vec<_> = acks.iter().map(|ack| ack.status()).collect();
    assert_eq!(statuses, [Applied, Applied, Applied, Duplicate, Gap, Applied]);
    assert_eq!(rows(&clients.lookup(ask(tokens(3))).await.unwrap()), [("engine", 0, 2)]);
    let is = loads(&running, "engine");
    assert_eq!((count(&is, "pushed"), count(&is, "running"), is.counters.len()), (3, 1, 2));
    assert_eq!(is.latest.unwrap().2.running, 2);
    running.shutdown().await;
}

#[tokio::test]
async fn a_load_that_changed_shows_that_a_wedged_engine_makes_passes_again() {
    let mut raw = small();
    raw.liveness.wedge_ms = 50;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec("engine")).await.unwrap();
    let mut send = async |running: i64, waiting: i64| {
        let reports = vec![report("engine", vec![load(0, running, waiting)])];
        assert_eq!(clients.workers.report_load(tokio_stream::iter(reports)).await.unwrap().into_inner().taken, 1);
    };
    let veto = running.fleet().view().worker("engine").unwrap().veto.clone();
    let turns = |wanted: bool| {
        let veto = veto.clone();
        in_time(async move {
            let mut period = tokio::time::interval(Duration::from_millis(1));
            while veto.get().is_some() != wanted {
                period.tick().await;
            }
        })
    };
    send(1, 0).await;
    veto.dispatched(Duration::ZERO);
    turns(true).await;
    // The queue before a hanging engine grows: that is no sign of life.
    send(1, 5).await;
    assert!(veto.get().is_some());
    send(2, 4).await;
    turns(false).await;
    running.shutdown().await;
}

/// What the server does with a request.
#[derive(Clone)]
enum Reply {
    Text(String),
    /// The whole answer, head and all.
    Raw(String),
    Silence,
    HangUp,
}

/// A server whose answers can be changed, and which counts.
struct Server {
    at: String,
    reply: Arc<Mutex<Reply>>,
    connections: Arc<AtomicU32>,
    requests: Arc<AtomicU32>,
}

impl Server {
    async fn start(first: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let server =
            Self { at, reply: Arc::new(Mutex::new(first)), connections: Arc::default(), requests: Arc::default() };
        let (reply, connections, requests) =
            (server.reply.clone(), server.connections.clone(), server.requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, reply.clone(), requests.clone()));
            }
        });
        server
    }

    fn answers(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    fn counts(&self) -> (u32, u32) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }

    fn spec(&self) -> proto::WorkerSpec {
        proto::WorkerSpec { metrics: Some(format!("http://{}", self.at)), load_poll_ms: Some(5), ..spec("engine") }
    }
}

async fn serve(mut stream: TcpStream, reply: Arc<Mutex<Reply>>, requests: Arc<AtomicU32>) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while let Ok(1) = stream.read(&mut byte).await {
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        assert!(head.starts_with(b"GET /metrics HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&head));
        head.clear();
        requests.fetch_add(1, Ordering::SeqCst);
        let reply = reply.lock().unwrap().clone();
        let answer = match reply {
            Reply::Text(text) => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len()),
            Reply::Raw(answer) => answer,
            Reply::Silence => continue,
            Reply::HangUp => return,
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn vllm(running: i64) -> Reply {
    Reply::Text(format!(
        "# HELP vllm:num_requests_running Number of requests.\n\
         # TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"tiny\"}} {running}.0\n\
         # TYPE vllm:num_requests_waiting gauge\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"tiny\"}} 1.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"tiny\"}} 0.5\n"
    ))
}

fn quick() -> Raw {
    let mut raw = small();
    raw.routing.load.poll_timeout_ms = 100;
    raw.routing.load.poll_bytes_max = 4096;
    raw
}

#[tokio::test]
async fn a_worker_that_pushes_nothing_is_polled_over_one_connection() {
    let server = Server::start(vllm(3)).await;
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    clients.register(server.spec()).await.unwrap();
    let is = until(&running, |loads| count(loads, "polled") >= 5).await;
    let (_, report, figures) = is.latest.as_ref().unwrap();
    assert_eq!((figures.running, figures.waiting, figures.usage, figures.running_max), (3, 1, 0.5, None));
    // Twice the worker's own interval, and a second.
    assert_eq!((report.source, report.fresh_for), (LoadSource::Polled, Duration::from_millis(1_010)));
    assert_eq!(server.counts().0, 1, "the connection is used again");
    server.answers(vllm(4));
    until(&running, |loads| loads.latest.as_ref().is_some_and(|(_, _, figures)| figures.running == 4)).await;
    // The specification says so, and another place is another specification.
    let listed = clients.workers.list(proto::ListRequest::default()).await.unwrap().into_inner();
    let listed = listed.workers[0].spec.clone().unwrap();
    assert_eq!((listed.metrics, listed.load_poll_ms), (Some(format!("http://{}/metrics", server.at)), Some(5)));
    assert!(clients.register(server.spec()).await.unwrap().unchanged);
    assert_eq!(clients.register(spec("engine")).await.unwrap_err().code(), tonic::Code::AlreadyExists);
    // With the worker, its polls end.
    let request = proto::DeregisterRequest { worker: "engine".into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    clients.register(spec("engine")).await.unwrap();
    assert!(loads(&running, "engine").counters.is_empty());
    running.shutdown().await;
}

#[tokio::test]
async fn polls_that_bring_nothing_are_counted_by_kind_and_darken_nothing() {
    let server = Server::start(vllm(3)).await;
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    clients.register(server.spec()).await.unwrap();
    until(&running, |loads| count(loads, "polled") > 0).await;
    let head = |status: &str| {
        format!("HTTP/1.1 {status}\r\nlocation: http://{}/elsewhere\r\ncontent-length: 0\r\n\r\n", server.at)
    };
    for (reply, kind) in [
        (Reply::Raw(head("302 Found")), "poll_redirect"),
        (Reply::Raw(head("503 Service Unavailable")), "poll_status"),
        (Reply::Raw(head("204 No Content")), "poll_status"),
        (Reply::Text("x 1\n".repeat(1025)), "poll_too_long"),
        (Reply::Text("go_threads 7\n".into()), "poll_no_load"),
        (Reply::Raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nup 1".into()), "poll_timeout"),
        (Reply::Raw("nonsense\r\n\r\n".into()), "poll_connection"),
        (Reply::Silence, "poll_timeout"),
        (Reply::HangUp, "poll_connection"),
    ] {
        let before = count(&loads(&running, "engine"), kind);
        server.answers(reply);
        let is = until(&running, |loads| count(loads, kind) > before).await;
        assert!(!is.darkened && is.latest.is_some_and(|(_, _, figures)| figures.running == 3), "{kind}");
    }
    // What an engine says that cannot be is another matter.
    server.answers(vllm(-1));
    let is = until(&running, |loads| count(loads, "running") > 0).await;
    assert!(is.darkened);
    server.answers(vllm(2));
    until(&running, |loads| !loads.darkened).await;
    running.shutdown().await;
}

#[tokio::test]
async fn while_loads_are_pushed_nobody_polls_and_then_somebody_does_again() {
    const EVERY: Duration = Duration::from_millis(100);
    let server = Server::start(vllm(3)).await;
    let running = run(quick()).await;
    let mut clients = clients(&running).await;
    let every_ms = Some(EVERY.as_millis() as u64);
    clients.register(proto::WorkerSpec { load_poll_ms: every_ms, ..server.spec() }).await.unwrap();
    until(&running, |loads| count(loads, "polled") > 0).await;
    let worker = running.fleet().view().worker("engine").unwrap().clone();
    let push = || running.loads().take(&worker, vec![RankLoad { running: 1, ..RankLoad::default() }], None).unwrap();
    in_time(async {
        let mut period = tokio::time::interval(EVERY / 20);
        // A stretch counts in which this test itself was never late, so that every turn of the poller met a push.
        loop {
            push();
            let (begun, mut last, mut late) = (Instant::now(), Instant::now(), false);
            let before = server.counts().1;
            while begun.elapsed() < 4 * EVERY {
                period.tick().await;
                push();
                late |= last.elapsed() > EVERY / 2;
                last = Instant::now();
            }
            // One that was on its way when the first was pushed.
            let polls = server.counts().1 - before;
            if !late {
                assert!(polls <= 1, "{polls} polls while loads were pushed");
                return;
            }
        }
    })
    .await;
    let before = count(&loads(&running, "engine"), "polled");
    until(&running, |loads| count(loads, "polled") > before).await;
    running.shutdown().await;
}
