//! Replicas that tell each other their bookings over real sockets, and decide as one router would.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod router;

use common::*;
use kvatlas_service::config::Resolved;
use kvatlas_service::desks::ForeignTotals;
use kvatlas_service::grpc::proto;
use kvatlas_service::routing::{Behind, RankLoad};
use kvatlas_service::serve::{Running, start};
use router::*;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::Code;

const WORKERS: [&str; 4] = ["a", "b", "c", "d"];

/// The way from one replica to another, which can be cut and mended.
struct Link {
    at: SocketAddr,
    to: SocketAddr,
    cut: CancellationToken,
}

impl Link {
    fn open(listener: TcpListener, to: SocketAddr) -> Self {
        let link = Self { at: listener.local_addr().unwrap(), to, cut: CancellationToken::new() };
        let cut = link.cut.clone();
        tokio::spawn(async move {
            while let Some(Ok((mut from, _))) = cut.run_until_cancelled(listener.accept()).await {
                let cut = cut.clone();
                tokio::spawn(async move {
                    let Ok(mut there) = TcpStream::connect(to).await else { return };
                    let _ = cut.run_until_cancelled(copy_bidirectional(&mut from, &mut there)).await;
                });
            }
        });
        link
    }

    async fn mend(&mut self) {
        *self = Self::open(TcpListener::bind(self.at).await.unwrap(), self.to);
    }
}

/// Replicas with the same workers, each with a link to every other.
struct Replicas {
    running: Vec<Running>,
    routing: Vec<Routing>,
    /// By who listens, then by peer.
    links: Vec<Vec<Link>>,
}

impl Replicas {
    async fn start(replicas: usize, change: impl Fn(&mut Resolved)) -> Self {
        let mut all = Self { running: Vec::new(), routing: Vec::new(), links: Vec::new() };
        let mut listeners = Vec::new();
        for _ in 0..replicas {
            let mut own = Vec::new();
            for _ in 1..replicas {
                own.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
            }
            let mut resolved = Resolved::new(&small()).unwrap();
            resolved.replicas.peers =
                own.iter().map(|listener| format!("http://{}", listener.local_addr().unwrap())).collect();
            resolved.replicas.pause_max = resolved.replicas.pause_min;
            change(&mut resolved);
            listeners.push(own);
            all.add(resolved).await;
        }
        let at: Vec<_> = all.running.iter().map(Running::grpc_addr).collect();
        for (here, own) in listeners.into_iter().enumerate() {
            let others = at.iter().enumerate().filter(|(there, _)| *there != here).map(|(_, at)| *at);
            all.links.push(own.into_iter().zip(others).map(|(listener, to)| Link::open(listener, to)).collect());
        }
        for here in 0..replicas {
            all.until(here, |totals| totals.routers == 1).await;
        }
        all
    }

    async fn add(&mut self, resolved: Resolved) {
        let running = start(resolved).await.unwrap();
        let mut clients = clients(&running).await;
        for (worker, queued) in WORKERS.into_iter().zip([11, 24, 45, 70]) {
            clients.register(spec(worker)).await.unwrap();
            // No two workers are ever equal, whatever whole blocks are added, so that no draw decides.
            let load =
                RankLoad { running: 1, gen_throughput: 1000.0, waiting_uncached_tokens: queued, ..Default::default() };
            running.desks().load(worker, record(load));
        }
        self.routing.push(routing(&running).await);
        self.running.push(running);
    }

    /// Waits until what a replica heard is as wanted.
    async fn until(&self, here: usize, wanted: impl Fn(ForeignTotals) -> bool) {
        let mut period = tokio::time::interval(Duration::from_millis(1));
        in_time(async {
            while !self.running[here].desks().foreign().is_none_or(&wanted) {
                period.tick().await;
            }
        })
        .await;
    }

    /// Waits until everybody has heard of every open booking, and of so many in all that were ever made and ended.
    async fn settle(&self, made: u64, ended: u64) {
        let own = |at: usize| self.running[at].desks().totals().open;
        let open: usize = (0..self.running.len()).map(own).sum();
        for here in 0..self.running.len() {
            self.until(here, |totals| totals.open == open - own(here)).await;
        }
        let heard = self.running.iter().filter_map(|running| running.desks().foreign());
        let (taken, over) = heard.fold((0, 0), |(taken, over), t| (taken + t.counters.taken, over + t.counters.ended));
        let others = self.running.len() as u64 - 1;
        assert_eq!((taken, over), (made * others, ended * others));
    }

    async fn select(&mut self, here: usize, number: u32) -> proto::SelectResponse {
        let request = by("least_load", place(number, 1 + number % 5));
        self.routing[here].select(request).await.unwrap().into_inner()
    }

    /// Requests in flight by worker, as a replica's decisions see them.
    async fn in_flight(&mut self, here: usize) -> Vec<(String, u32)> {
        let request = proto::SelectRequest { explain: true, dry_run: true, ..place(999, 1) };
        let receipt = self.routing[here].select(request).await.unwrap().into_inner().receipt.unwrap();
        receipt.candidates.into_iter().map(|candidate| (candidate.worker, candidate.in_flight)).collect()
    }

    async fn shutdown(self) {
        for running in self.running {
            running.shutdown().await;
        }
    }
}

/// What a fleet's routers decide in turns, and what they see in flight after it.
async fn decisions(replicas: usize) -> Vec<(String, Vec<(String, u32)>)> {
    let mut all = Replicas::start(replicas, |_| ()).await;
    let (mut made, mut ended, mut decisions) = (Vec::new(), 0, Vec::new());
    for number in 0..60_u32 {
        let here = number as usize % replicas;
        let selected = all.select(here, number).await;
        made.push((here, selected.reservation));
        all.settle(made.len() as u64, ended).await;
        let there = (here + 1) % replicas;
        let in_flight = all.in_flight(there).await;
        decisions.push((selected.worker, in_flight));
        if number % 3 == 2 {
            let (there, reservation) = made[ended as usize];
            all.routing[there].progress(proto::ProgressRequest { reservation }).await.unwrap();
            assert!(all.routing[there].complete(done(reservation)).await.unwrap().into_inner().released);
            ended += 1;
            all.settle(made.len() as u64, ended).await;
        }
    }
    all.shutdown().await;
    decisions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_and_three_replicas_decide_as_one() {
    let one = decisions(1).await;
    assert!(WORKERS.iter().all(|worker| one.iter().any(|(chosen, _)| chosen == worker)), "{one:?}");
    assert_eq!(one, decisions(2).await);
    assert_eq!(one, decisions(3).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_lost_loses_its_bookings_and_gets_them_back() {
    let keep = Duration::from_millis(50);
    let mut all = Replicas::start(2, |resolved| resolved.routing.bookings.foreign_keep = keep).await;
    for number in 0..6 {
        all.select(1, number).await;
    }
    let own = all.select(0, 6).await;
    all.until(0, |totals| totals.open == 6).await;
    let before = all.in_flight(0).await;
    all.links[0][0].cut.cancel();
    all.until(0, |totals| totals.routers == 2).await;
    all.until(0, |totals| totals.open == 0 && totals.counters.lost == 6).await;
    assert_eq!(all.in_flight(0).await.iter().map(|(_, requests)| requests).sum::<u32>(), 1, "our own");
    all.until(1, |totals| (totals.open, totals.routers) == (1, 1)).await;
    all.links[0][0].mend().await;
    all.until(0, |totals| (totals.open, totals.routers) == (6, 1)).await;
    assert_eq!(all.in_flight(0).await, before);
    assert!(all.routing[0].complete(done(own.reservation)).await.unwrap().into_inner().released);
    all.until(1, |totals| totals.open == 0).await;
    all.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_registered_later_has_what_others_booked_before() {
    let mut all = Replicas::start(2, |_| ()).await;
    let only = |worker: &str| vec![proto::RankRef { worker: worker.into(), ..Default::default() }];
    let mut late = clients(&all.running[1]).await;
    late.register(spec("late")).await.unwrap();
    for number in 0..3 {
        let request = proto::SelectRequest { candidates: only("late"), ..place(number, 2) };
        assert_eq!(all.routing[1].select(request).await.unwrap().into_inner().worker, "late");
    }
    all.until(0, |totals| totals.open == 3).await;
    clients(&all.running[0]).await.register(spec("late")).await.unwrap();
    let there = all.in_flight(0).await;
    assert!(there.contains(&("late".into(), 3)), "{there:?}");
    all.shutdown().await;
}

#[tokio::test]
async fn a_listener_that_is_too_slow_and_one_of_a_lone_replica_are_told_so() {
    let mut all = Replicas::start(2, |resolved| resolved.routing.bookings.history_max = 4).await;
    let mut slow = all.running[0].desks().listen().unwrap();
    assert!(slow.next(9).await.unwrap().is_open_complete);
    for number in 0..5 {
        all.select(0, number).await;
    }
    assert_eq!(slow.next(9).await, Err(Behind));
    all.shutdown().await;
    let lone = Replicas::start(1, |_| ()).await;
    let refused = lone.routing[0].clone().bookings(proto::BookingsRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    lone.shutdown().await;
}
