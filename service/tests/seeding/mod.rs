//! Workers whose engines are scripted, an admission that is enforced, and a router that seeds over gRPC.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::common::*;
use kvatlas_service::config::Raw;
use kvatlas_service::grpc::proto;
use kvatlas_service::lease::{
    Answer, End, EndProof, Fences, Heard, Lease, LeaseKey, LeaseSettings, Outcome, Partition, Reason as LeaseReason,
    Refused, Seeder, Seen, Wish, may_seed,
};
use kvatlas_service::routing::{LoadReport, OwnerPressureSettings, RankLoad, WorkerLoad};
use kvatlas_service::serve::Running;
use proto::acquire_response::Result as Acquired;
use proto::commit_request::Proof;
use proto::lease_event::Event;
use proto::lease_refused::Reason;
use proto::lease_service_client::LeaseServiceClient;
use proto::lease_state::State;
use std::time::Duration;
use tonic::transport::Channel;

const BLOCKS: u64 = 8;

/// Short times, so that nothing waits for long.
pub fn quick() -> Raw {
    let mut raw = small();
    raw.lease.ttl_ms = 4_000;
    raw.lease.skew_max_ms = 0;
    raw.lease.cooldown_committed_ms = 1;
    raw.lease.cooldown_failed_ms = 1;
    raw.lease.sweep_period_ms = 5;
    raw.lease.watch_poll_ms = 5;
    raw
}

pub fn partition() -> proto::Partition {
    proto::Partition { model: MODEL.into(), ..proto::Partition::default() }
}

pub fn blocks() -> Vec<u64> {
    (1..=BLOCKS).map(|i| i * 0x9e37_79b9).collect()
}

pub fn usage() -> Proof {
    let tokens = BLOCKS * u64::from(BLOCK_SIZE);
    Proof::End(proto::EndProof {
        clean: true,
        finish_reason: "stop".into(),
        output_tokens: 3,
        prompt_tokens: tokens,
        router_prompt_tokens: tokens,
        block_size: BLOCK_SIZE,
    })
}

pub fn index() -> Proof {
    Proof::Index(proto::IndexProof { content_hashes: blocks() })
}

/// An engine with 38 places, as its load shows it.
pub struct Engine {
    pub worker: String,
    load: WorkerLoad,
    sequence: u64,
}

impl Engine {
    pub fn set(&mut self, running: i64, waiting: i64) {
        let rank = RankLoad { running, waiting, max_running: 38, token_usage: 0.12, ..RankLoad::default() };
        let report = LoadReport { rank_count: 1, ranks: vec![rank], ..LoadReport::default() };
        self.load = WorkerLoad::from_report(&report).unwrap();
    }
}

pub struct Seeded {
    pub running: Running,
    pub clients: Clients,
    pub leases: LeaseServiceClient<Channel>,
    pub engines: Vec<Engine>,
    /// Added to every target's generation.
    pub other_generation: u64,
    router: String,
}

impl Seeded {
    pub async fn start(raw: Raw, workers: &[&str]) -> Self {
        let running = run(raw).await;
        let mut clients = clients(&running).await;
        let mut engines = Vec::new();
        for worker in workers {
            clients.register(spec(worker)).await.unwrap();
            let mut engine = Engine { worker: (*worker).into(), load: WorkerLoad::default(), sequence: 0 };
            engine.set(0, 0);
            engines.push(engine);
        }
        let leases = LeaseServiceClient::new(channel(&running).await);
        let router = format!("router at {}", running.grpc_addr());
        Self { running, clients, leases, engines, other_generation: 0, router }
    }

    /// The worker as the service knows it.
    async fn target(&mut self, worker: &str) -> proto::LeaseTarget {
        let request = proto::ListRequest { worker: worker.into(), ..proto::ListRequest::default() };
        let listed = self.clients.workers.list(request).await.unwrap().into_inner().workers.remove(0);
        let incarnation = listed.ranks.iter().map(|rank| rank.incarnation.max(1)).sum();
        proto::LeaseTarget { worker: worker.into(), generation: listed.generation + self.other_generation, incarnation }
    }

    /// The owner set's revision, by a watch from the beginning.
    async fn revision(&mut self) -> u64 {
        let mut watch = self.watch().await;
        watch.owners().await;
        watch.set_revision
    }

    pub async fn request(&mut self, worker: &str, token: &str) -> proto::AcquireRequest {
        proto::AcquireRequest {
            partition: Some(partition()),
            prefix: b"prefix".to_vec(),
            router: self.router.clone(),
            admission_token: token.into(),
            target: Some(self.target(worker).await),
            owner_revision: self.revision().await,
            telemetry_digest: 0,
            deadline_ms: 0,
            content_hashes: blocks(),
        }
    }

    async fn ask(&mut self, worker: &str, token: &str) -> Result<proto::Lease, proto::LeaseRefused> {
        let request = self.request(worker, token).await;
        match self.leases.acquire(request).await.unwrap().into_inner().result.unwrap() {
            Acquired::Lease(lease) => Ok(lease),
            Acquired::Refused(refused) => Err(refused),
        }
    }

    pub async fn acquire(&mut self, worker: &str, token: &str) -> Result<LeaseKey, Reason> {
        let asked = self.ask(worker, token).await;
        asked.map(|lease| LeaseKey { lease_id: lease.lease_id, fence: lease.fence }).map_err(|refused| refused.reason())
    }

    /// Waits as long as a refusal says.
    pub async fn acquire_when_free(&mut self, worker: &str, token: &str) -> LeaseKey {
        self.settled(worker, token).await.unwrap()
    }

    /// The same, to the first refusal for another reason than a pause.
    pub async fn refused_when_free(&mut self, worker: &str, token: &str) -> Reason {
        self.settled(worker, token).await.unwrap_err()
    }

    /// As [`Self::acquire`], after any pause.
    pub async fn settled(&mut self, worker: &str, token: &str) -> Result<LeaseKey, Reason> {
        in_time(async {
            loop {
                match self.ask(worker, token).await {
                    Ok(lease) => return Ok(LeaseKey { lease_id: lease.lease_id, fence: lease.fence }),
                    Err(refused) if refused.reason() != Reason::Cooldown => return Err(refused.reason()),
                    Err(refused) => tokio::time::sleep(Duration::from_millis(refused.retry_after_ms.max(1))).await,
                }
            }
        })
        .await
    }

    /// A watch, as soon as the store answers.
    pub async fn watch_when_there(&mut self) -> Watcher {
        let request = proto::WatchLeasesRequest { partition: Some(partition()), from_revision: 0 };
        let mut period = tokio::time::interval(Duration::from_millis(5));
        while self.leases.watch(request.clone()).await.is_err() {
            period.tick().await;
        }
        self.watch().await
    }

    pub async fn renew(&mut self, key: LeaseKey, dispatching: bool) -> proto::RenewResponse {
        let LeaseKey { lease_id, fence } = key;
        let request = proto::RenewRequest { partition: Some(partition()), lease_id, fence, dispatching };
        self.leases.renew(request).await.unwrap().into_inner()
    }

    pub async fn commit(&mut self, key: LeaseKey, proof: Proof) -> proto::CommitResponse {
        let LeaseKey { lease_id, fence } = key;
        let request = proto::CommitRequest { partition: Some(partition()), lease_id, fence, proof: Some(proof) };
        self.leases.commit(request).await.unwrap().into_inner()
    }

    pub async fn abort(&mut self, key: LeaseKey) -> bool {
        let LeaseKey { lease_id, fence } = key;
        let request = proto::AbortRequest { partition: Some(partition()), lease_id, fence, reason: "test".into() };
        self.leases.abort(request).await.unwrap().into_inner().token_refunded
    }

    pub async fn watch(&mut self) -> Watcher {
        let request = proto::WatchLeasesRequest { partition: Some(partition()), from_revision: 0 };
        let events = self.leases.watch(request).await.unwrap().into_inner();
        Watcher { events, owners: Vec::new(), state: State::Unspecified, set_revision: 0 }
    }

    /// As far as the engine, which lets the fence in.
    pub async fn dispatch(&mut self, worker: &str, fences: &mut Fences, token: &str) -> LeaseKey {
        let key = self.acquire_when_free(worker, token).await;
        assert!(!self.renew(key, true).await.lost);
        fences.admit(&fenced(), key.fence).unwrap();
        key
    }

    /// The worker's engine computes the prefix, and its events say so.
    pub async fn serve(&mut self, worker: &str) {
        let names: Vec<u64> = (1..=BLOCKS).collect();
        let hashes = proto::ContentHashes { hashes: blocks() };
        let stored = proto::event::Event::Stored(proto::BlocksStored {
            engine_hashes: names,
            content: Some(proto::blocks_stored::Content::ContentHashes(hashes)),
            ..proto::BlocksStored::default()
        });
        self.push(worker, proto::Event { event: Some(stored) }).await;
    }

    /// The worker's engine drops the prefix's last block.
    pub async fn forget(&mut self, worker: &str) {
        self.push(worker, removed(&[BLOCKS])).await;
    }

    async fn push(&mut self, worker: &str, event: proto::Event) {
        let engine = self.engines.iter_mut().find(|engine| engine.worker == worker).unwrap();
        let sequence = engine.sequence;
        engine.sequence += 1;
        let acks = self.clients.apply(vec![batch(worker, sequence, vec![event])]).await.unwrap();
        assert_eq!(acks[0].status(), proto::apply_ack::Status::Applied);
    }

    /// Until the service has looked the owners' blocks up twice: once to see them, and once more from the beginning.
    pub async fn seen_by_the_sweep(&mut self) {
        for _ in 0..2 {
            let before = self.sweeps().await;
            in_time(async {
                while self.sweeps().await == before {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    }

    async fn sweeps(&mut self) -> u64 {
        let status = self.clients.index.get_status(proto::GetStatusRequest::default()).await.unwrap().into_inner();
        counted(&status.leases.unwrap().counters, "sweeps")
    }

    pub async fn metrics(&self) -> String {
        get(self.running.admin_addr().unwrap(), "/metrics").await.1
    }

    /// Enforced admission: a request of the prefix is let in where an owner has nobody waiting and a place left; which one. `None`
    /// is 429.
    pub fn admit(&self, owners: &[String]) -> Option<usize> {
        let owned = |engine: &Engine| owners.contains(&engine.worker);
        self.engines.iter().position(|engine| {
            let place = engine.load.running < engine.load.running_max.unwrap_or(0);
            owned(engine) && engine.load.waiting == 0 && place
        })
    }

    /// A whole seeded request by the router's machine: preconditions, lease, dispatch, renewal, commit.
    pub async fn seed(&mut self, worker: &str, owners: usize, fences: &mut Fences, token: &str) -> Outcome {
        let seen = |(i, engine): (usize, &Engine)| (i < owners, engine.load);
        let loads: Vec<(bool, WorkerLoad)> = self.engines.iter().enumerate().map(seen).collect();
        let seen: Vec<Seen<'_>> =
            loads.iter().map(|(is_owner, load)| Seen { load: Some(load), is_owner: *is_owner }).collect();
        let at = self.engines.iter().position(|engine| engine.worker == worker).unwrap();
        may_seed(&seen, at, true, &OwnerPressureSettings::default()).unwrap();
        // The first quiet time of a partition is not the router's to wait for.
        let freed = self.acquire_when_free(worker, &format!("{token}-probe")).await;
        self.abort(freed).await;
        let origin = tokio::time::Instant::now();
        let mut wishes = Vec::new();
        let settings = LeaseSettings::default();
        let mut seeder = Seeder::begin(origin.elapsed(), &settings, &mut wishes);
        in_time(async {
            loop {
                let Some(wish) = (!wishes.is_empty()).then(|| wishes.remove(0)) else {
                    panic!("nothing to do: {seeder:?}")
                };
                let heard = match wish {
                    Wish::Acquire => Some(Heard::Acquired(self.acquired(worker, token).await)),
                    Wish::Recheck => Some(Heard::Rechecked(true)),
                    Wish::Renew { key, dispatching } => {
                        let answer = self.renew(key, dispatching).await;
                        Some(Heard::Renewed((!answer.lost).then(|| Duration::from_millis(answer.ttl_ms))))
                    }
                    Wish::Dispatch { fence } => {
                        fences.admit(&fenced(), fence).unwrap();
                        self.serve(worker).await;
                        let Proof::End(end) = usage() else { unreachable!("an end") };
                        Some(Heard::Ended(End::Usage(end_proof(&end))))
                    }
                    Wish::Commit { key, .. } => {
                        let committed = self.commit(key, usage()).await.result();
                        let done = committed == proto::commit_response::Result::Committed;
                        Some(Heard::Committed(if done { Answer::Done } else { Answer::Over }))
                    }
                    Wish::Abort { key, .. } => {
                        self.abort(key).await;
                        None
                    }
                    Wish::Cut => None,
                    Wish::Finished(outcome) => return outcome,
                };
                heard.into_iter().for_each(|heard| seeder.step(origin.elapsed(), heard, &mut wishes));
            }
        })
        .await
    }

    async fn acquired(&mut self, worker: &str, token: &str) -> Result<Lease, Refused> {
        in_time(async {
            loop {
                match self.ask(worker, token).await {
                    Ok(lease) => {
                        let key = LeaseKey { lease_id: lease.lease_id, fence: lease.fence };
                        let (ttl, max_hold) =
                            (Duration::from_millis(lease.ttl_ms), Duration::from_millis(lease.max_hold_ms));
                        return Ok(Lease { key, ttl, max_hold });
                    }
                    Err(refused) if refused.reason() == Reason::Cooldown => {
                        tokio::time::sleep(Duration::from_millis(refused.retry_after_ms.max(1))).await;
                    }
                    Err(refused) => {
                        let retry_after = Duration::from_millis(refused.retry_after_ms);
                        let owner_revision = refused.owner_revision;
                        return Err(Refused { reason: LeaseReason::Held, retry_after, owner_revision });
                    }
                }
            }
        })
        .await
    }
}

fn fenced() -> Partition {
    Partition { model: MODEL.into(), namespace: String::new(), pool: String::new() }
}

fn end_proof(end: &proto::EndProof) -> EndProof {
    EndProof {
        clean: end.clean,
        finish_reason: end.finish_reason.clone(),
        output_tokens: end.output_tokens,
        prompt_tokens: end.prompt_tokens,
        router_prompt_tokens: end.router_prompt_tokens,
        block_size: end.block_size,
    }
}

/// What a router is told of owners and the lease.
pub struct Watcher {
    events: tonic::Streaming<proto::LeaseEvent>,
    owners: Vec<String>,
    state: State,
    pub set_revision: u64,
}

impl Watcher {
    async fn next(&mut self) -> Result<(), tonic::Status> {
        match in_time(self.events.message()).await?.unwrap().event.unwrap() {
            Event::Owners(set) => {
                self.set_revision = set.revision;
                self.owners = set.owners.into_iter().map(|owner| owner.worker).collect();
            }
            Event::Lease(lease) => self.state = lease.state(),
        }
        Ok(())
    }

    /// The owners, once the whole state was told: the lease comes last.
    pub async fn owners(&mut self) -> Vec<String> {
        while self.state == State::Unspecified {
            self.next().await.unwrap();
        }
        self.owners.clone()
    }

    pub async fn until_owners(&mut self, count: usize) -> Vec<String> {
        self.owners().await;
        while self.owners.len() != count {
            self.next().await.unwrap();
        }
        self.owners.clone()
    }

    /// The owners at the time at which the lease is in this state.
    pub async fn until_state(&mut self, state: State) -> Vec<String> {
        while self.state != state {
            self.next().await.unwrap();
        }
        self.owners.clone()
    }

    pub async fn end(&mut self) -> tonic::Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }
}
