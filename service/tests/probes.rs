//! Health, reflection, metrics and drain, as an operator's tools see them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::grpc::proto;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

async fn health(client: &mut HealthClient<tonic::transport::Channel>, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.into() };
    client.check(request).await.map(|r| r.into_inner().status()).map_err(|s| s.code())
}

#[tokio::test]
async fn health_knows_every_service_and_probe() {
    let running = run(small()).await;
    let mut client = HealthClient::new(channel(&running).await);
    let services =
        ["", "liveness", "readiness", "kvatlas.v1.IndexService", "kvatlas.v1.EventService", "kvatlas.v1.WorkerService"];
    for service in services {
        assert_eq!(health(&mut client, service).await, Ok(ServingStatus::Serving), "{service:?}");
    }
    assert_eq!(health(&mut client, "other").await, Err(Code::NotFound));
    let admin = running.admin_addr().unwrap();
    assert_eq!(get(admin, "/livez").await.0, 200);
    assert_eq!(get(admin, "/readyz").await.0, 200);
    assert_eq!(get(admin, "/other").await.0, 404);
    running.shutdown().await;
}

#[tokio::test]
async fn a_static_rank_that_was_never_seen_holds_readiness_back_until_its_deadline() {
    let mut raw = small();
    raw.lifecycle.ready_deadline_ms = 24 * 3600 * 1000;
    // A port that nobody listens on: bound here, never accepted.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let flag = format!("id=w,model=m,block_size=16,events=tcp://{}", nobody.local_addr().unwrap());
    raw.workers.push(kvatlas_service::config::RawWorker::from_flag(&flag).unwrap());
    let running = run(raw.clone()).await;
    let mut client = HealthClient::new(channel(&running).await);
    assert_eq!(health(&mut client, "readiness").await, Ok(ServingStatus::NotServing));
    assert_eq!(health(&mut client, "liveness").await, Ok(ServingStatus::Serving));
    assert_eq!(get(running.admin_addr().unwrap(), "/readyz").await.0, 503);
    running.shutdown().await;

    raw.lifecycle.ready_deadline_ms = 1;
    let running = run(raw).await;
    let mut client = HealthClient::new(channel(&running).await);
    let request = HealthCheckRequest { service: "readiness".into() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    let serving = async {
        while watch.message().await.unwrap().unwrap() != (HealthCheckResponse { status: ServingStatus::Serving.into() })
        {
        }
    };
    in_time(serving).await;
    running.shutdown().await;
}

/// The names that server reflection lists.
macro_rules! listed_services {
    ($version:ident, $channel:expr) => {{
        use tonic_reflection::pb::$version as pb;
        let ask = |message_request| pb::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message_request),
        };
        let requests = [
            ask(pb::server_reflection_request::MessageRequest::ListServices(String::new())),
            ask(pb::server_reflection_request::MessageRequest::FileContainingSymbol("kvatlas.v1.LookupRequest".into())),
        ];
        let mut client = pb::server_reflection_client::ServerReflectionClient::new($channel);
        let mut answers = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
        let listed = answers.message().await.unwrap().unwrap().message_response.unwrap();
        let file = answers.message().await.unwrap().unwrap().message_response.unwrap();
        assert!(matches!(file, pb::server_reflection_response::MessageResponse::FileDescriptorResponse(_)), "{file:?}");
        match listed {
            pb::server_reflection_response::MessageResponse::ListServicesResponse(list) => {
                list.service.into_iter().map(|s| s.name).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    }};
}

#[tokio::test]
async fn reflection_speaks_both_versions() {
    let running = run(small()).await;
    let channel = channel(&running).await;
    for names in [listed_services!(v1, channel.clone()), listed_services!(v1alpha, channel.clone())] {
        for service in ["IndexService", "EventService", "WorkerService"] {
            assert!(names.contains(&format!("kvatlas.v1.{service}")), "{names:?}");
        }
        for service in ["vllm.grpc.engine.VllmEngine", "sglang.grpc.scheduler.SglangScheduler"] {
            assert!(names.contains(&service.to_owned()), "{names:?}");
        }
        assert!(names.contains(&"grpc.health.v1.Health".to_owned()), "{names:?}");
    }
    running.shutdown().await;
}

#[tokio::test]
async fn metrics_tell_ranks_lookups_and_lanes_and_forget_removed_workers() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w\"1")).await.unwrap();
    clients.apply(vec![batch("w\"1", 0, vec![stored(None, 1, tokens(3)), removed(&[404])])]).await.unwrap();
    clients.lookup(ask(tokens(3))).await.unwrap();
    let admin = running.admin_addr().unwrap();
    let (status, text) = get(admin, "/metrics").await;
    assert_eq!(status, 200);
    let labels = r#"worker="w\"1",rank="0""#;
    for line in [
        format!("kvatlas_rank_exact{{{labels}}} 1"),
        format!("kvatlas_rank_cursor{{{labels}}} 0"),
        format!("kvatlas_rank_trust{{{labels},trust=\"EXACT\"}} 1"),
        format!("kvatlas_rank_events_total{{{labels},reason=\"unknown_removals\"}} 1"),
        format!("kvatlas_rank_events_total{{{labels},reason=\"stored\"}} 3"),
        "kvatlas_lookup_seconds_count 1".to_owned(),
        "kvatlas_index_blocks_held 3".to_owned(),
        "kvatlas_workers 1".to_owned(),
        "kvatlas_ready 1".to_owned(),
        "# EOF".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in:\n{text}");
    }
    let request = proto::DeregisterRequest { worker: "w\"1".into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    let (_, text) = get(admin, "/metrics").await;
    assert!(!text.contains("worker="), "{text}");
    running.shutdown().await;
}

#[tokio::test]
async fn drain_ends_streams_with_unavailable_and_finishes() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec("w")).await.unwrap();
    let (_lookups, receiver) = tokio::sync::mpsc::channel::<proto::LookupBatch>(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut answers = clients.index.lookup_stream(stream).await.unwrap().into_inner();
    let (_batches, receiver) = tokio::sync::mpsc::channel::<proto::EventBatch>(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut acks = clients.events.apply(stream).await.unwrap().into_inner();
    let mut watch = clients.workers.watch(proto::WatchRequest::default()).await.unwrap().into_inner();
    for _ in 0..2 {
        in_time(watch.message()).await.unwrap().unwrap();
    }
    let admin = running.admin_addr().unwrap();
    let drained = tokio::spawn(running.shutdown());
    assert_eq!(in_time(answers.message()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(in_time(acks.message()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(in_time(watch.message()).await.unwrap_err().code(), Code::Unavailable);
    in_time(drained).await.unwrap();
    assert!(tokio::net::TcpStream::connect(admin).await.is_err(), "the port is closed");
}
