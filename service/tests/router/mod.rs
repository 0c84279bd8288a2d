//! A router's side of `RoutingService`, and engines that do what a script says.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use super::common::*;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::routing_service_client::RoutingServiceClient;
use kvatlas_service::routing::{LoadReport, LoadSource, RankLoad};
use kvatlas_service::serve::Running;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;

pub type Routing = RoutingServiceClient<Channel>;

pub async fn routing(running: &Running) -> Routing {
    RoutingServiceClient::new(channel(running).await)
}

/// A request of so many blocks that no other number shares.
pub fn prompt(number: u32, blocks: u32) -> proto::select_request::Prompt {
    let ids = (0..blocks * BLOCK_SIZE).map(|i| number * 1_000_000 + i).collect();
    proto::select_request::Prompt::TokenIds(proto::TokenIds { ids })
}

pub fn place(number: u32, blocks: u32) -> proto::SelectRequest {
    proto::SelectRequest { model: MODEL.into(), prompt: Some(prompt(number, blocks)), ..Default::default() }
}

pub fn by(policy: &str, request: proto::SelectRequest) -> proto::SelectRequest {
    proto::SelectRequest { policy: policy.into(), ..request }
}

pub fn done(reservation: u64) -> proto::CompleteRequest {
    proto::CompleteRequest { reservation, outcome: proto::Outcome::Ok.into(), ..Default::default() }
}

/// How many requests each worker got.
pub fn shares(answers: &[proto::SelectResponse]) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    answers.iter().for_each(|answer| *shares.entry(answer.worker.clone()).or_default() += 1);
    shares
}

/// A record of a worker with one rank.
pub fn record(rank: RankLoad) -> LoadReport {
    LoadReport { rank_count: 1, ranks: vec![rank], source: LoadSource::Pushed, fresh_for: Duration::from_secs(600) }
}

/// Open reservations, over all models.
pub fn open(running: &Running) -> usize {
    running.desks().totals().open
}

/// Waits until so many reservations are open.
pub async fn until_open(running: &Running, wanted: usize) {
    let mut period = tokio::time::interval(Duration::from_millis(1));
    in_time(async {
        while open(running) != wanted {
            period.tick().await;
        }
    })
    .await;
}

/// A stream of a router.
pub struct Route {
    pub requests: mpsc::UnboundedSender<proto::RouteRequest>,
    pub answers: tonic::Streaming<proto::RouteResponse>,
    last_id: u64,
}

impl Route {
    pub async fn start(routing: &mut Routing) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let answers = routing.route(UnboundedReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { requests, answers, last_id: 0 }
    }

    /// Asks or tells, and gives the answer.
    pub async fn call(&mut self, request: proto::route_request::Request) -> proto::route_response::Response {
        self.last_id += 1;
        let id = self.last_id;
        self.requests.send(proto::RouteRequest { id, request: Some(request) }).unwrap();
        let answer = in_time(self.answers.message()).await.unwrap().unwrap();
        assert_eq!(answer.id, id);
        answer.response.unwrap()
    }

    pub async fn select(&mut self, request: proto::SelectRequest) -> proto::SelectResponse {
        match self.call(proto::route_request::Request::Select(request)).await {
            proto::route_response::Response::Select(response) => response,
            other => panic!("{other:?}"),
        }
    }
}
