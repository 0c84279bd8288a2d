//! Peers that say what a test wants them to say, and the copies that real ones give.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use super::common::in_time;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::event_service_client::EventServiceClient;
use kvatlas_service::grpc::proto::event_service_server::{EventService, EventServiceServer};
use kvatlas_service::grpc::proto::snapshot_chunk::Part;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status, Streaming};

/// One thing that a made-up peer does.
#[allow(clippy::large_enum_variant, reason = "a test has a few of them")]
#[derive(Clone)]
pub enum Step {
    Send(Part),
    /// Waits until the test says so.
    Wait(Arc<Notify>),
    Fail(Code),
}

pub fn send(parts: &[Part]) -> Vec<Step> {
    parts.iter().cloned().map(Step::Send).collect()
}

type Script = dyn Fn(usize, &proto::GetSnapshotRequest) -> Vec<Step> + Send + Sync;

/// A peer that plays a script for each call; the number of the call and its request decide which.
pub struct FakePeer {
    pub at: String,
    pub calls: Arc<Mutex<Vec<proto::GetSnapshotRequest>>>,
    _server: JoinSet<()>,
}

impl FakePeer {
    pub async fn start(
        script: impl Fn(usize, &proto::GetSnapshotRequest) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let calls = Arc::<Mutex<Vec<proto::GetSnapshotRequest>>>::default();
        let service = EventServiceServer::new(Fake { script: Arc::new(script), calls: calls.clone() });
        let mut server = JoinSet::new();
        server.spawn(async move {
            Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { at, calls, _server: server }
    }
}

struct Fake {
    script: Arc<Script>,
    calls: Arc<Mutex<Vec<proto::GetSnapshotRequest>>>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl EventService for Fake {
    type ApplyStream = Answers<proto::ApplyAck>;
    type SubscribeStream = Answers<proto::RelayedBatch>;
    type GetSnapshotStream = Answers<proto::SnapshotChunk>;

    async fn apply(
        &self,
        _request: Request<Streaming<proto::EventBatch>>,
    ) -> Result<Response<Self::ApplyStream>, Status> {
        Err(Status::unimplemented("a made-up peer"))
    }

    async fn subscribe(
        &self,
        _request: Request<proto::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(Status::unimplemented("a made-up peer"))
    }

    async fn get_snapshot(
        &self,
        request: Request<proto::GetSnapshotRequest>,
    ) -> Result<Response<Self::GetSnapshotStream>, Status> {
        let request = request.into_inner();
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(request.clone());
            calls.len() - 1
        };
        let steps = (self.script)(number, &request);
        let (sender, answers) = mpsc::channel(1);
        tokio::spawn(async move {
            for step in steps {
                let answer = match step {
                    Step::Send(part) => Ok(proto::SnapshotChunk { part: Some(part) }),
                    Step::Wait(go_on) => {
                        go_on.notified().await;
                        continue;
                    }
                    Step::Fail(code) => Err(Status::new(code, "a made-up failure")),
                };
                if sender.send(answer).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}

/// Everything that a replica tells.
pub async fn copy(channel: &Channel, request: proto::GetSnapshotRequest) -> Result<Vec<Part>, Status> {
    let mut client = EventServiceClient::new(channel.clone());
    let mut stream = in_time(client.get_snapshot(request)).await?.into_inner();
    let mut parts = Vec::new();
    while let Some(message) = in_time(stream.message()).await? {
        parts.push(message.part.expect("no part is left out"));
    }
    Ok(parts)
}

pub fn header(part: &Part) -> &proto::RankHeader {
    let Part::Header(header) = part else { panic!("{part:?} is no header") };
    header
}

/// `w:0` of a header, `0` of a chunk, and so on.
pub fn brief(parts: &[Part]) -> Vec<String> {
    let word = |part: &Part| match part {
        Part::Header(header) => {
            let told = if header.cut.is_some() { "" } else { " without a state" };
            format!("{}:{}{told}", header.worker.as_ref().unwrap().id, header.rank)
        }
        Part::Chunk(chunk) => format!("{}", chunk.number),
        Part::End(end) => format!("end {}", end.chunks),
        Part::All(all) => format!("all {}", all.ranks),
    };
    parts.iter().map(word).collect()
}
