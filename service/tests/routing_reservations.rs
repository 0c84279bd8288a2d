//! Reservations over gRPC: made with the choice, released once, and never leaked, whatever becomes of the router that made them.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod router;

use common::*;
use kvatlas_service::config::Resolved;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::route_request::Request as Asked;
use kvatlas_service::grpc::proto::route_response::Response as Told;
use kvatlas_service::serve::{Running, start};
use router::*;
use std::time::Duration;
use tonic::Code;

/// A service with these workers, and other routing settings.
async fn service(change: impl FnOnce(&mut Resolved), workers: &[&str]) -> Running {
    let mut resolved = Resolved::new(&small()).unwrap();
    change(&mut resolved);
    let running = start(resolved).await.unwrap();
    let mut clients = clients(&running).await;
    for worker in workers {
        clients.register(spec(worker)).await.unwrap();
    }
    running
}

/// Reservations released, by completion, stream end, silence and the end of a worker.
fn released(running: &Running) -> [u64; 4] {
    running.desks().totals().counters.released
}

#[tokio::test]
async fn a_stream_that_is_cut_releases_what_was_made_on_it_and_nothing_else() {
    let running = service(|_| (), &["a", "b"]).await;
    let mut routing = routing(&running).await;
    let unary = routing.select(place(1, 2)).await.unwrap().into_inner();
    let mut stream = Route::start(&mut routing).await;
    let first = stream.select(place(2, 2)).await;
    for number in 3..6 {
        stream.select(place(number, 2)).await;
    }
    assert_eq!(open(&running), 5);
    // One of them ends on another connection, one as it should.
    assert!(routing.complete(done(first.reservation)).await.unwrap().into_inner().released);
    let last = stream.select(place(7, 2)).await;
    assert!(matches!(stream.call(Asked::Complete(done(last.reservation))).await, Told::Complete(is) if is.released));
    // The router dies in the middle of the rest.
    drop(stream);
    until_open(&running, 1).await;
    assert_eq!(released(&running), [2, 3, 0, 0]);
    assert!(routing.complete(done(unary.reservation)).await.unwrap().into_inner().released);
    assert_eq!((open(&running), released(&running)), (0, [3, 3, 0, 0]));
    running.shutdown().await;
}

#[tokio::test]
async fn silence_releases_and_progress_is_a_sign_of_life() {
    let ttl = Duration::from_millis(300);
    let running = service(|resolved| resolved.routing.bookings.ttl = ttl, &["a"]).await;
    let mut routing = routing(&running).await;
    let quiet = routing.select(place(1, 2)).await.unwrap().into_inner().reservation;
    let alive = routing.select(place(2, 2)).await.unwrap().into_inner().reservation;
    // The one that is spoken of outlives the other by as long as it is spoken of.
    in_time(async {
        while open(&running) == 2 {
            routing.progress(proto::ProgressRequest { reservation: alive }).await.unwrap();
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((open(&running), released(&running)), (1, [0, 0, 1, 0]));
    let late = routing.complete(done(quiet)).await.unwrap().into_inner();
    assert!(!late.released, "silence released it before");
    let status = routing.progress(proto::ProgressRequest { reservation: quiet }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    until_open(&running, 0).await;
    assert_eq!(released(&running), [0, 0, 2, 0]);
    running.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_leaves_takes_its_reservations_along() {
    let running = service(|_| (), &["a", "b"]).await;
    let (mut routing, mut clients) = (routing(&running).await, clients(&running).await);
    let mut on_a = Vec::new();
    for number in 0..8 {
        let answer = routing.select(by("round_robin", place(number, 2))).await.unwrap().into_inner();
        on_a.extend((answer.worker == "a").then_some(answer.reservation));
    }
    let leave = proto::DeregisterRequest { worker: "a".into(), generation: None };
    clients.workers.deregister(leave).await.unwrap();
    until_open(&running, 4).await;
    assert_eq!((on_a.len(), released(&running)), (4, [0, 0, 0, 4]));
    for reservation in on_a {
        assert!(!routing.complete(done(reservation)).await.unwrap().into_inner().released);
    }
    // With the last worker the model goes, and its desk.
    clients.workers.deregister(proto::DeregisterRequest { worker: "b".into(), generation: None }).await.unwrap();
    until_open(&running, 0).await;
    let status = routing.select(place(9, 2)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    clients.register(spec("a")).await.unwrap();
    assert_eq!(routing.select(place(9, 2)).await.unwrap().into_inner().worker, "a");
    assert_eq!((open(&running), released(&running)), (1, [0, 0, 0, 8]), "counts of a desk that went are kept");
    running.shutdown().await;
}

#[tokio::test]
async fn completion_stream_end_and_silence_race_and_one_of_them_releases() {
    let ttl = Duration::from_millis(20);
    let running = service(|resolved| resolved.routing.bookings.ttl = ttl, &["a", "b", "c"]).await;
    let mut made = 0;
    for round in 0..20_u32 {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..8 {
            let mut routing = routing(&running).await;
            let mut other = routing.clone();
            let mut stream = Route::start(&mut routing).await;
            made += 1;
            tasks.spawn(async move {
                let reservation = stream.select(place(round * 8 + number, 1)).await.reservation;
                let twice = [other.clone(), other.clone()].map(|mut client| {
                    tokio::spawn(async move { client.complete(done(reservation)).await.unwrap().into_inner().released })
                });
                drop(stream);
                let mut by_call = u64::from(other.complete(done(reservation)).await.unwrap().into_inner().released);
                for task in twice {
                    by_call += u64::from(task.await.unwrap());
                }
                by_call
            });
        }
        while let Some(by_call) = tasks.join_next().await {
            assert!(by_call.unwrap() <= 1, "no reservation is released by two calls");
        }
    }
    until_open(&running, 0).await;
    let totals = running.desks().totals().counters;
    assert_eq!((totals.booked, totals.released.iter().sum::<u64>()), (made, made));
    running.shutdown().await;
}

#[tokio::test]
async fn concurrent_identical_requests_never_see_the_same_count() {
    let running = service(|_| (), &["a", "b", "c", "d"]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let mut routing = routing(&running).await;
        // The receipt says what each candidate had in flight when this request was decided.
        let request = proto::SelectRequest { explain: true, ..by("least_load", place(1, 4)) };
        tasks.spawn(async move { routing.select(request).await.unwrap().into_inner() });
    }
    let mut seen = Vec::new();
    while let Some(answer) = tasks.join_next().await {
        let receipt = answer.unwrap().receipt.unwrap();
        seen.push(receipt.candidates.iter().map(|candidate| candidate.in_flight).sum::<u32>());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..64).collect::<Vec<_>>(), "each saw every one before it");
    running.shutdown().await;
}

#[tokio::test]
async fn a_full_book_places_without_a_reservation_and_a_dry_run_makes_none() {
    let running = service(|resolved| resolved.routing.bookings.bookings_max = 2, &["a"]).await;
    let mut routing = routing(&running).await;
    let dry = proto::SelectRequest { dry_run: true, ..place(1, 2) };
    assert_eq!(routing.select(dry).await.unwrap().into_inner().reservation, 0);
    let mut numbers = Vec::new();
    for number in 0..4 {
        numbers.push(routing.select(place(number, 2)).await.unwrap().into_inner().reservation);
    }
    assert!(numbers[0] != 0 && numbers[1] != 0 && numbers[2..] == [0, 0], "{numbers:?}");
    assert_eq!((open(&running), running.desks().totals().counters.book_full), (2, 2));
    routing.complete(done(numbers[0])).await.unwrap();
    assert_ne!(routing.select(place(5, 2)).await.unwrap().into_inner().reservation, 0, "there is room again");
    let (_, text) = get(running.admin_addr().unwrap(), "/metrics").await;
    for line in ["kvatlas_reservations_open 2", "kvatlas_reservations_full_total 2", "by=\"completion\"} 1"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    running.shutdown().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_with_its_limit() {
    let change = |resolved: &mut Resolved| {
        resolved.routing.bookings.request_id_bytes_max = 4;
        resolved.routing.bookings.candidates_max = 1;
        resolved.lookup.tokens_max = 64;
        resolved.lookup.blocks_max = 8;
    };
    let running = service(change, &["a"]).await;
    let mut routing = routing(&running).await;
    let hashes = |count: u64| {
        let hashes = proto::ContentHashes { hashes: (1..=count).collect() };
        Some(proto::select_request::Prompt::ContentHashes(hashes))
    };
    let named = |worker: &str| proto::RankRef { worker: worker.into(), rank: None };
    let namespace = Some(proto::Namespace { cache_salt: "s".into(), ..Default::default() });
    let base = || place(1, 2);
    let cases = [
        (proto::SelectRequest { model: "".into(), ..base() }, Code::InvalidArgument, "model"),
        (proto::SelectRequest { model: "other".into(), ..base() }, Code::NotFound, "other"),
        (proto::SelectRequest { routing_group: "blue".into(), ..base() }, Code::NotFound, "blue"),
        (by("fastest", base()), Code::InvalidArgument, "policy"),
        (
            proto::SelectRequest { request_id: "12345".into(), ..base() },
            Code::InvalidArgument,
            "limit routing.bookings.request_id_bytes_max",
        ),
        (
            proto::SelectRequest { candidates: vec![named("a"), named("b")], ..base() },
            Code::InvalidArgument,
            "limit routing.bookings.candidates_max",
        ),
        (proto::SelectRequest { candidates: vec![named("")], ..base() }, Code::InvalidArgument, "candidates.worker"),
        (proto::SelectRequest { candidates: vec![named("b")], ..base() }, Code::Unavailable, "ready"),
        (place(1, 17), Code::InvalidArgument, "limit limits.lookup_tokens_max"),
        (proto::SelectRequest { prompt: hashes(9), ..base() }, Code::InvalidArgument, "limit limits.lookup_blocks_max"),
        (proto::SelectRequest { prompt: hashes(2), namespace, ..base() }, Code::InvalidArgument, "namespace"),
        (
            proto::SelectRequest { prompt: hashes(2), prompt_tokens: Some(7), ..base() },
            Code::InvalidArgument,
            "prompt_tokens",
        ),
    ];
    for (request, code, word) in cases {
        let status = routing.select(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(word), "{word}: {status:?}");
    }
    for reservation in [0, 1, u64::MAX] {
        let status = routing.complete(done(reservation)).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{status:?}");
    }
    let status = routing.complete(proto::CompleteRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message().contains("outcome")), (Code::InvalidArgument, true));
    assert_eq!(open(&running), 0);
    // On a stream an error is an answer, and the stream goes on.
    let mut stream = Route::start(&mut routing).await;
    let told = stream.call(Asked::Select(by("fastest", place(1, 2)))).await;
    assert!(matches!(told, Told::Error(ref error) if error.code == Code::InvalidArgument as i32), "{told:?}");
    assert_eq!(stream.select(place(1, 2)).await.worker, "a");
    running.shutdown().await;
}

#[tokio::test]
async fn shedding_names_a_time_to_come_back() {
    let running = service(|resolved| resolved.routing.overload.shed = true, &["a"]).await;
    let mut routing = routing(&running).await;
    let waiting = kvatlas_service::routing::RankLoad { waiting: 8, ..Default::default() };
    running.desks().load("a", record(waiting));
    let status = routing.select(place(1, 2)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.metadata().contains_key("retry-after-ms") && status.message().contains("overloaded"), "{status:?}");
    running.desks().load("a", record(Default::default()));
    assert!(routing.select(place(1, 2)).await.is_ok(), "over until the next record only");
    running.shutdown().await;
}

#[tokio::test]
async fn streams_end_with_the_service_and_leave_nothing() {
    let running = service(|_| (), &["a"]).await;
    let mut routing = routing(&running).await;
    let mut stream = Route::start(&mut routing).await;
    stream.select(place(1, 2)).await;
    let desks = running.desks().clone();
    running.shutdown().await;
    let end = in_time(stream.answers.message()).await.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert_eq!(desks.totals().open, 0);
}

/// While nobody holds anything but on the device, tiers are looked at one by one; from the first block elsewhere on, together.
#[tokio::test]
async fn a_choice_counts_every_tier_with_the_nearer_ones() {
    let running = service(|_| (), &["a", "b"]).await;
    let (mut clients, mut routing) = (clients(&running).await, routing(&running).await);
    let ids = |ids| Some(proto::select_request::Prompt::TokenIds(proto::TokenIds { ids }));
    let asked =
        proto::SelectRequest { model: MODEL.into(), prompt: ids(tokens(5)), dry_run: true, ..Default::default() };
    let mut select = async || {
        let is = routing.select(asked.clone()).await.unwrap().into_inner();
        let matched: Vec<_> = is.matched.iter().map(|m| (m.tier(), m.blocks)).collect();
        (is.worker, matched, is.predicted_cached_tokens)
    };
    clients.apply(vec![batch("a", 0, vec![stored(None, 1, tokens(4))])]).await.unwrap();
    let whole = 4 * u64::from(BLOCK_SIZE);
    assert_eq!(select().await, ("a".to_owned(), vec![(proto::Tier::Device, 4)], whole));

    // The end moves to the host: names without content are blocks that the worker has already.
    let moved = proto::BlocksStored { tier: proto::Tier::Host.into(), engine_hashes: vec![3, 4], ..Default::default() };
    let moved = proto::Event { event: Some(proto::event::Event::Stored(moved)) };
    clients.apply(vec![batch("a", 1, vec![moved, removed(&[3, 4])])]).await.unwrap();
    let matched = vec![(proto::Tier::Device, 2), (proto::Tier::Host, 4)];
    assert_eq!(select().await, ("a".to_owned(), matched, whole));
    running.shutdown().await;
}
