//! A service in this process on free ports, and short ways to talk to it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use kvatlas_service::config::{Raw, Resolved};
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::event_service_client::EventServiceClient;
use kvatlas_service::grpc::proto::index_service_client::IndexServiceClient;
use kvatlas_service::grpc::proto::worker_service_client::WorkerServiceClient;
use kvatlas_service::serve::{Running, start};
use std::future::Future;
use std::time::Duration;
use tonic::transport::Channel;

pub const MODEL: &str = "tiny";
pub const BLOCK_SIZE: u32 = 4;
/// Longest time that a test waits for a condition.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A small service: little address space, free ports.
pub fn small() -> Raw {
    let mut raw = Raw::default();
    raw.grpc.listen = "127.0.0.1:0".into();
    raw.admin.listen = "127.0.0.1:0".into();
    raw.index.lanes_per_shard = 2;
    raw.index.blocks_max = 1 << 16;
    raw.index.runs_max = 1 << 14;
    raw.index.exts_max = 1 << 10;
    raw
}

pub async fn run(raw: Raw) -> Running {
    start(Resolved::new(&raw).unwrap()).await.unwrap()
}

pub async fn channel(running: &Running) -> Channel {
    Channel::from_shared(format!("http://{}", running.grpc_addr())).unwrap().connect().await.unwrap()
}

/// Every client over one connection.
pub struct Clients {
    pub index: IndexServiceClient<Channel>,
    pub events: EventServiceClient<Channel>,
    pub workers: WorkerServiceClient<Channel>,
}

pub async fn clients(running: &Running) -> Clients {
    let channel = channel(running).await;
    Clients {
        index: IndexServiceClient::new(channel.clone()),
        events: EventServiceClient::new(channel.clone()),
        workers: WorkerServiceClient::new(channel),
    }
}

pub fn spec(id: &str) -> proto::WorkerSpec {
    proto::WorkerSpec { id: id.into(), model: MODEL.into(), block_size: BLOCK_SIZE, ..Default::default() }
}

impl Clients {
    pub async fn register(&mut self, spec: proto::WorkerSpec) -> Result<proto::RegisterResponse, tonic::Status> {
        let request = proto::RegisterRequest { worker: Some(spec), replace: false };
        self.workers.register(request).await.map(tonic::Response::into_inner)
    }

    pub async fn lookup(&mut self, request: proto::LookupRequest) -> Result<proto::LookupResponse, tonic::Status> {
        self.index.lookup(request).await.map(tonic::Response::into_inner)
    }

    /// The status of the first rank of the first worker.
    pub async fn rank(&mut self) -> proto::RankStatus {
        let listed = self.workers.list(proto::ListRequest::default()).await.unwrap().into_inner();
        listed.workers[0].ranks[0].clone()
    }

    /// Waits until that rank is as wanted, and gives its status.
    pub async fn until(&mut self, wanted: impl Fn(&proto::RankStatus) -> bool) -> proto::RankStatus {
        let mut last = None;
        let reached = tokio::time::timeout(DEADLINE, async {
            let mut period = tokio::time::interval(Duration::from_millis(2));
            loop {
                let rank = self.rank().await;
                if wanted(&rank) {
                    return rank;
                }
                last = Some(rank);
                period.tick().await;
            }
        });
        match reached.await {
            Ok(rank) => rank,
            Err(_) => panic!("still {last:?}"),
        }
    }

    /// Applies the batches over one stream and collects the acknowledgements.
    pub async fn apply(&mut self, batches: Vec<proto::EventBatch>) -> Result<Vec<proto::ApplyAck>, tonic::Status> {
        let mut acks = self.events.apply(tokio_stream::iter(batches)).await?.into_inner();
        let mut all = Vec::new();
        while let Some(ack) = acks.message().await? {
            all.push(ack);
        }
        Ok(all)
    }
}

/// Token ids `0 .. blocks * BLOCK_SIZE`.
pub fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK_SIZE).collect()
}

pub fn ask(ids: Vec<u32>) -> proto::LookupRequest {
    proto::LookupRequest {
        model: MODEL.into(),
        prompt: Some(proto::lookup_request::Prompt::TokenIds(proto::TokenIds { ids })),
        ..Default::default()
    }
}

/// What is counted under a reason.
pub fn counted(counters: &[proto::Counter], reason: &str) -> u64 {
    counters.iter().find(|counter| counter.reason == reason).map_or(0, |counter| counter.count)
}

/// A store of blocks named `first ..`, with these tokens.
pub fn stored(parent: Option<u64>, first: u64, ids: Vec<u32>) -> proto::Event {
    let blocks = ids.len() as u64 / u64::from(BLOCK_SIZE);
    event(proto::event::Event::Stored(proto::BlocksStored {
        parent,
        engine_hashes: (first..first + blocks).collect(),
        content: Some(proto::blocks_stored::Content::TokenIds(proto::TokenIds { ids })),
        ..Default::default()
    }))
}

pub fn removed(names: &[u64]) -> proto::Event {
    event(proto::event::Event::Removed(proto::BlocksRemoved { engine_hashes: names.to_vec(), ..Default::default() }))
}

pub fn cleared() -> proto::Event {
    event(proto::event::Event::Cleared(proto::BlocksCleared::default()))
}

fn event(event: proto::event::Event) -> proto::Event {
    proto::Event { event: Some(event) }
}

pub fn batch(worker: &str, sequence: u64, events: Vec<proto::Event>) -> proto::EventBatch {
    proto::EventBatch { worker: worker.into(), sequence, events, ..Default::default() }
}

/// Worker, rank and blocks of each row.
pub fn rows(answer: &proto::LookupResponse) -> Vec<(&str, u32, u32)> {
    let columns = answer.worker.iter().zip(&answer.rank).zip(&answer.matched_blocks);
    columns.map(|((w, r), b)| (answer.workers[*w as usize].as_str(), *r, *b)).collect()
}

/// Waits for an answer without an end of its own.
pub async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("in time")
}

/// One GET over plain HTTP: status and body.
pub async fn get(addr: std::net::SocketAddr, path: &str) -> (u16, String) {
    http(addr, "GET", path).await
}

/// One POST without a body: status and body of the answer.
pub async fn post(addr: std::net::SocketAddr, path: &str) -> (u16, String) {
    http(addr, "POST", path).await
}

async fn http(addr: std::net::SocketAddr, method: &str, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: kvatlas\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    in_time(stream.read_to_string(&mut answer)).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}
