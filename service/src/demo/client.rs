//! The demo's client: nothing but gRPC calls that any router could make.

use super::engine::BLOCK_SIZE;
use super::names::Dialect;
use super::traffic::Prompt;
use super::worker::Worker;
use super::{DemoError, MODEL};
use crate::grpc::proto::index_service_client::IndexServiceClient;
use crate::grpc::proto::worker_service_client::WorkerServiceClient;
use crate::grpc::proto::{
    Engine, GetStatusRequest, GetStatusResponse, ListRequest, LookupRequest, LookupResponse, Namespace, RankSpec,
    RankStatus, RegisterRequest, TokenIds, WorkerSpec, lookup_request,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tonic::transport::{Channel, Endpoint};

/// A connection to the service. Cloning shares it.
#[derive(Clone)]
pub struct Client {
    index: IndexServiceClient<Channel>,
    workers: WorkerServiceClient<Channel>,
}

/// What the service says about itself and its workers.
pub struct View {
    /// Figures.
    pub status: GetStatusResponse,
    /// Rank 0 of each worker, by id.
    pub ranks: BTreeMap<String, RankStatus>,
}

impl Client {
    /// Connects.
    pub async fn connect(service: SocketAddr) -> Result<Self, DemoError> {
        let channel = Endpoint::from_shared(format!("http://{service}"))?.tcp_nodelay(true).connect().await?;
        Ok(Self { index: IndexServiceClient::new(channel.clone()), workers: WorkerServiceClient::new(channel) })
    }

    /// Makes a worker known.
    pub async fn register(&mut self, worker: &Worker) -> Result<(), DemoError> {
        let engine = match worker.engine.dialect() {
            Dialect::VllmMaps | Dialect::VllmArrays => Engine::Vllm,
            Dialect::SglangMaps => Engine::Sglang,
        };
        let rank = RankSpec {
            rank: 0,
            events_endpoint: worker.publisher.events.clone(),
            replay_endpoint: worker.publisher.replay.clone(),
        };
        let spec = WorkerSpec {
            id: worker.id.clone(),
            model: MODEL.into(),
            block_size: BLOCK_SIZE as u32,
            engine: engine.into(),
            ranks: vec![rank],
            ..WorkerSpec::default()
        };
        let request = RegisterRequest { worker: Some(spec), replace: false };
        self.workers.register(request).await.map_err(refused("Register"))?;
        Ok(())
    }

    /// Who holds how much of a prompt.
    pub async fn lookup(&mut self, prompt: &Prompt) -> Result<LookupResponse, DemoError> {
        let namespace =
            prompt.salt.as_ref().map(|salt| Namespace { cache_salt: salt.to_string(), ..Namespace::default() });
        let request = LookupRequest {
            model: MODEL.into(),
            prompt: Some(lookup_request::Prompt::TokenIds(TokenIds { ids: prompt.tokens.clone() })),
            namespace,
            ..LookupRequest::default()
        };
        Ok(self.index.lookup(request).await.map_err(refused("Lookup"))?.into_inner())
    }

    /// The present state.
    pub async fn view(&mut self) -> Result<View, DemoError> {
        let status = self.index.get_status(GetStatusRequest {}).await.map_err(refused("GetStatus"))?.into_inner();
        Ok(View { status, ranks: self.ranks().await? })
    }

    /// Rank 0 of each worker, by id.
    pub async fn ranks(&mut self) -> Result<BTreeMap<String, RankStatus>, DemoError> {
        let request = ListRequest { model: MODEL.into(), worker: String::new() };
        let workers = self.workers.list(request).await.map_err(refused("List"))?.into_inner().workers;
        let ranks = workers.into_iter().filter_map(|w| Some((w.spec?.id, w.ranks.into_iter().next()?)));
        Ok(ranks.collect())
    }
}

fn refused(call: &'static str) -> impl Fn(tonic::Status) -> DemoError {
    move |status| DemoError::Call { call, status: Box::new(status) }
}

/// The name of a rank's trust, without its prefix.
pub fn trust_name(rank: &RankStatus) -> &'static str {
    rank.trust().as_str_name().trim_start_matches("TRUST_")
}
