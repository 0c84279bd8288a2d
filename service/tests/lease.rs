//! Seeding leases over gRPC, on the embedded store, with scripted engines behind them.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod seeding;

use common::*;
use kvatlas_service::grpc::proto;
use kvatlas_service::lease::{Fences, Outcome};
use proto::lease_refused::Reason;
use proto::lease_state::State;
use seeding::*;
use tonic::Code;

/// Enforced admission closes while the prefix's owners have requests waiting; the trapped owner keeps it closed for ever, until a
/// lease makes the idle peer an owner.
#[tokio::test]
async fn sl9_a_trapped_owner_and_an_idle_peer() {
    let mut fleet = Seeded::start(quick(), &["owner", "peer"]).await;
    let mut fences = Fences::new(8);
    let first = fleet.seed("owner", 0, &mut fences, "admitted-0").await;
    assert_eq!(first, Outcome::Seeded, "a cold prefix gets its first owner by the same rule");
    let mut watch = fleet.watch().await;
    assert_eq!(watch.owners().await, ["owner"]);
    fleet.engines[0].set(38, 36);
    fleet.engines[1].set(0, 0);
    let owners = vec!["owner".to_owned()];
    assert!((0..20).all(|_| fleet.admit(&owners).is_none()), "429 for ever: nothing that is admitted could change it");
    // While the seeded request is in flight ordinary ones still see the one owner, and another router gets nothing.
    let key = fleet.dispatch("peer", &mut fences, "admitted-1").await;
    assert_eq!(fleet.acquire("peer", "admitted-2").await.unwrap_err(), Reason::Held);
    assert_eq!(watch.until_state(State::Seeding).await, ["owner"]);
    assert!(fleet.admit(&owners).is_none(), "ordinary requests go to committed owners only (SL3)");
    fleet.serve("peer").await;
    let committed = fleet.commit(key, usage()).await;
    assert_eq!(committed.result(), proto::commit_response::Result::Committed, "{committed:?}");
    let owners = watch.until_owners(2).await;
    assert_eq!(owners, ["owner", "peer"]);
    assert!((0..20).all(|_| fleet.admit(&owners) == Some(1)), "the 429s stopped, and the peer serves");
    let page = fleet.metrics().await;
    assert!(page.contains("kvatlas_lease_events_total{reason=\"committed\"} 2"), "{page}");
    assert!(page.contains("kvatlas_lease_events_total{reason=\"refused_held\"} 1"), "{page}");
    let status = fleet.clients.index.get_status(proto::GetStatusRequest::default()).await.unwrap().into_inner();
    let leases = status.leases.unwrap();
    assert_eq!((leases.store.as_str(), leases.connected, leases.watched), ("embedded", true, 1));
}

#[tokio::test]
async fn sl5_a_stream_without_usage_is_proven_by_the_index() {
    let mut fleet = Seeded::start(quick(), &["peer"]).await;
    let key = fleet.dispatch("peer", &mut Fences::new(8), "t").await;
    let rejected = fleet.commit(key, index()).await;
    assert_eq!(rejected.result(), proto::commit_response::Result::ProofRejected);
    assert!(rejected.message.contains("index"), "{}", rejected.message);
    fleet.serve("peer").await;
    // The status of a rank is published a moment after its blocks.
    let committed = in_time(async {
        loop {
            let answer = fleet.commit(key, index()).await;
            if answer.result() != proto::commit_response::Result::ProofRejected {
                return answer;
            }
            assert!(!fleet.renew(key, false).await.lost);
        }
    })
    .await;
    assert_eq!(committed.result(), proto::commit_response::Result::Committed);
}

#[tokio::test]
async fn sl8_a_target_that_starts_over_is_not_committed() {
    let mut fleet = Seeded::start(quick(), &["peer"]).await;
    let key = fleet.dispatch("peer", &mut Fences::new(8), "t").await;
    let replaced = proto::WorkerSpec { routing_group: String::new(), ..spec("peer") };
    let request = proto::DeregisterRequest { worker: "peer".into(), generation: None };
    fleet.clients.workers.deregister(request).await.unwrap();
    fleet.clients.register(replaced).await.unwrap();
    let answer = fleet.commit(key, usage()).await;
    assert_eq!(answer.result(), proto::commit_response::Result::TargetChanged);
    assert!(fleet.renew(key, false).await.lost);
}

#[tokio::test]
async fn an_owner_whose_blocks_go_is_none_any_more() {
    let mut fleet = Seeded::start(quick(), &["owner", "peer"]).await;
    let mut fences = Fences::new(8);
    for (worker, token) in [("owner", "a"), ("peer", "b")] {
        assert_eq!(fleet.seed(worker, 0, &mut fences, token).await, Outcome::Seeded);
    }
    let mut watch = fleet.watch().await;
    assert_eq!(watch.until_owners(2).await, ["owner", "peer"]);
    fleet.seen_by_the_sweep().await;
    fleet.forget("peer").await;
    assert_eq!(watch.until_owners(1).await, ["owner"]);
    // And a worker that leaves owns nothing.
    let request = proto::DeregisterRequest { worker: "owner".into(), generation: None };
    fleet.clients.workers.deregister(request).await.unwrap();
    assert_eq!(watch.until_owners(0).await, [""; 0]);
}

#[tokio::test]
async fn a_token_comes_back_only_where_nothing_was_dispatched() {
    let mut fleet = Seeded::start(quick(), &["peer"]).await;
    let key = fleet.acquire_when_free("peer", "t").await;
    assert!(fleet.abort(key).await && fleet.abort(key).await);
    let key = fleet.acquire_when_free("peer", "t").await;
    assert!(!fleet.renew(key, true).await.lost);
    assert!(fleet.renew(key, true).await.lost, "a dispatch is announced once");
    assert!(!fleet.abort(key).await);
    assert_eq!(fleet.acquire("peer", "t").await.unwrap_err(), Reason::TokenUsed);
}

#[tokio::test]
async fn what_is_malformed_is_named_and_nothing_is_granted() {
    let mut fleet = Seeded::start(quick(), &["peer"]).await;
    type Change = fn(&mut proto::AcquireRequest);
    let cases: [(Change, Code, &str); 9] = [
        (|r| r.partition = None, Code::InvalidArgument, "partition"),
        (|r| r.partition.as_mut().unwrap().model.clear(), Code::InvalidArgument, "partition.model"),
        (|r| r.partition.as_mut().unwrap().namespace = "n".repeat(257), Code::InvalidArgument, "lease.name_bytes_max"),
        (|r| r.prefix.clear(), Code::InvalidArgument, "prefix"),
        (|r| r.prefix = vec![0; 65], Code::InvalidArgument, "lease.prefix_bytes_max"),
        (|r| r.admission_token.clear(), Code::InvalidArgument, "admission_token"),
        (|r| r.router.clear(), Code::InvalidArgument, "router"),
        (|r| r.content_hashes = vec![0; 8193], Code::InvalidArgument, "lease.prefix_blocks_max"),
        (|r| r.target.as_mut().unwrap().worker = "nobody".into(), Code::NotFound, "nobody"),
    ];
    for (change, code, named) in cases {
        let mut request = fleet.request("peer", "t").await;
        change(&mut request);
        let status = fleet.leases.acquire(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(named), "{status}");
    }
    let key = fleet.acquire_when_free("peer", "t").await;
    assert!(fleet.metrics().await.contains("kvatlas_lease_events_total{reason=\"granted\"} 1"), "only this one");
    fleet.abort(key).await;
    fleet.other_generation = 1;
    assert_eq!(fleet.refused_when_free("peer", "t").await, Reason::TargetChanged);
    let other = proto::Partition { model: "other".into(), ..proto::Partition::default() };
    let request = proto::WatchLeasesRequest { partition: Some(other), from_revision: 0 };
    assert_eq!(fleet.leases.watch(request).await.unwrap_err().code(), Code::NotFound);
    let request = proto::WatchLeasesRequest { partition: Some(partition()), from_revision: 7 };
    assert_eq!(fleet.leases.watch(request).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn watches_are_bounded_and_end_with_the_service() {
    let mut raw = quick();
    raw.lease.watches_max = 1;
    let mut fleet = Seeded::start(raw, &["peer"]).await;
    let mut watch = fleet.watch().await;
    assert_eq!(watch.owners().await, [""; 0]);
    let request = proto::WatchLeasesRequest { partition: Some(partition()), from_revision: 0 };
    assert_eq!(fleet.leases.watch(request).await.unwrap_err().code(), Code::ResourceExhausted);
    let Seeded { running, .. } = fleet;
    running.shutdown().await;
    assert_eq!(watch.end().await.code(), Code::Unavailable);
}
