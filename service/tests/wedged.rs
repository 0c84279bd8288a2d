//! Workers that take requests and do nothing, through the public API: who is left out, what brings it back, and what never does
//! leave it out. What a test waits for is a change that is watched, with the bound shortened so that it comes soon.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::fleet::VetoCell;
use kvatlas_service::grpc::proto;
use kvatlas_service::serve::Running;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Streaming;

const WEDGE: Duration = Duration::from_millis(60);
const ZERO: Duration = Duration::ZERO;
const OFFERED: &[(&str, u32, u32)] = &[("engine", 0, 3)];

/// A service with one worker whose events are pushed, and the stream of its changes.
struct Stage {
    running: Running,
    clients: Clients,
    watch: Streaming<proto::WatchEvent>,
    sequence: u64,
}

impl Stage {
    async fn set(wedge: Duration) -> Self {
        let mut raw = small();
        raw.liveness.wedge_ms = wedge.as_millis() as u64;
        let running = run(raw).await;
        let mut clients = clients(&running).await;
        clients.register(spec("engine")).await.unwrap();
        let watch = clients.workers.watch(proto::WatchRequest::default()).await.unwrap().into_inner();
        let mut stage = Self { running, clients, watch, sequence: 0 };
        stage.publish().await;
        stage
    }

    /// The worker as whoever sends requests to it knows it.
    fn worker(&self) -> Arc<VetoCell> {
        self.running.fleet().view().worker("engine").unwrap().veto.clone()
    }

    /// A batch of events, as a pass of the engine leaves it.
    async fn publish(&mut self) {
        let event = stored(None, 1 + 3 * self.sequence, tokens(3));
        self.clients.apply(vec![batch("engine", self.sequence, vec![event])]).await.unwrap();
        self.sequence += 1;
    }

    async fn next_veto(&mut self) -> (proto::Veto, proto::Veto) {
        in_time(async {
            loop {
                let event = self.watch.message().await.unwrap().unwrap().event;
                if let Some(proto::watch_event::Event::VetoChanged(change)) = event {
                    return (change.from(), change.to());
                }
            }
        })
        .await
    }

    async fn rows(&mut self) -> (Vec<(String, u32, u32)>, u32) {
        let answer = self.clients.lookup(ask(tokens(3))).await.unwrap();
        (rows(&answer).into_iter().map(|(w, r, n)| (w.to_owned(), r, n)).collect(), answer.ranks_vetoed)
    }
}

const OFF: (proto::Veto, proto::Veto) = (proto::Veto::Unspecified, proto::Veto::Wedged);
const BACK: (proto::Veto, proto::Veto) = (proto::Veto::Wedged, proto::Veto::Unspecified);

#[tokio::test]
async fn a_paused_engine_is_left_out_within_the_bound_and_is_back_with_its_first_progress() {
    let mut stage = Stage::set(WEDGE).await;
    let offered = (OFFERED.iter().map(|(w, r, n)| ((*w).to_owned(), *r, *n)).collect::<Vec<_>>(), 0);
    assert_eq!(stage.rows().await, offered);
    let begun = Instant::now();
    stage.worker().dispatched(ZERO);
    stage.worker().dispatched(ZERO);
    assert_eq!(stage.next_veto().await, OFF);
    assert!(begun.elapsed() >= WEDGE, "not before the bound: {:?}", begun.elapsed());
    assert_eq!(stage.rows().await, (Vec::new(), 1));
    let request = proto::ListRequest { worker: "engine".into(), ..Default::default() };
    let listed = stage.clients.workers.list(request).await.unwrap().into_inner();
    assert_eq!(listed.workers[0].veto(), proto::Veto::Wedged);
    // The blocks are kept, and what the rank is believed is another matter.
    assert_eq!(listed.workers[0].ranks[0].trust(), proto::Trust::Exact);

    // An end is none: whoever waited gave up.
    stage.worker().finished(ZERO);
    assert_eq!(stage.worker().get().map(|(veto, _)| veto.name()), Some("WEDGED"));
    stage.worker().progress(ZERO);
    assert_eq!(stage.next_veto().await, BACK);
    assert_eq!(stage.rows().await, offered);

    // The request that is left is not seen to get on either.
    assert_eq!(stage.next_veto().await, OFF);
    let text = get(stage.running.admin_addr().unwrap(), "/metrics").await.1;
    for line in [
        r#"kvatlas_worker_vetoed{worker="engine",reason="WEDGED"} 1"#,
        r#"kvatlas_vetoes_set_total{reason="WEDGED"} 2"#,
        r#"kvatlas_vetoes_cleared_total{reason="WEDGED"} 1"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }
    stage.running.shutdown().await;
}

#[tokio::test]
async fn predicted_prefill_stretches_the_bound() {
    let mut stage = Stage::set(Duration::from_millis(1)).await;
    let prefill = Duration::from_millis(40);
    let begun = Instant::now();
    stage.worker().dispatched(prefill);
    assert_eq!(stage.next_veto().await, OFF);
    assert!(begun.elapsed() >= 2 * prefill, "{:?}", begun.elapsed());
    stage.running.shutdown().await;
}

#[tokio::test]
async fn a_batch_of_events_shows_that_the_engine_makes_passes() {
    let mut stage = Stage::set(WEDGE).await;
    stage.worker().dispatched(ZERO);
    assert_eq!(stage.next_veto().await, OFF);
    stage.publish().await;
    assert_eq!(stage.next_veto().await, BACK);
    stage.running.shutdown().await;
}

#[tokio::test]
async fn another_registration_of_the_name_knows_nothing_of_the_requests_of_the_one_before() {
    let mut stage = Stage::set(WEDGE).await;
    let old = stage.worker();
    old.dispatched(ZERO);
    assert_eq!(stage.next_veto().await, OFF);
    let request = proto::DeregisterRequest { worker: "engine".into(), generation: None };
    stage.clients.workers.deregister(request).await.unwrap();
    stage.clients.register(spec("engine")).await.unwrap();
    assert_eq!(stage.worker().get(), None);
    // Late news of the old one's requests do nothing to the new one, whose own request is waited for.
    stage.worker().dispatched(ZERO);
    old.progress(ZERO);
    old.finished(ZERO);
    assert_eq!(stage.next_veto().await, OFF);
    stage.running.shutdown().await;
}
