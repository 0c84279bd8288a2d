//! `LeaseService`: leases asked for, kept, committed and given back, and changes for whoever watches.

use super::admission::Admission;
use super::error::ServiceError;
use super::limits::GrpcLimits;
use super::proto;
use super::proto::lease_service_server::LeaseService;
use crate::fleet::FleetError;
use crate::lease::{
    Acquire, Asked, Change, EndProof, LeaseKey, Leases, NotCommitted, OwnerSet, Partition, Phase, Reason, Refused,
    Target, TokenHash, Watch,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

type EventSender = mpsc::Sender<Result<proto::LeaseEvent, Status>>;

/// The service's implementation. Cheap to clone.
#[derive(Clone)]
pub struct LeaseApi {
    leases: Arc<Leases>,
    admission: Admission,
    limits: GrpcLimits,
}

impl LeaseApi {
    /// Serves these leases.
    pub fn new(leases: Arc<Leases>, admission: Admission, limits: GrpcLimits) -> Self {
        Self { leases, admission, limits }
    }

    fn name(&self, field: &'static str, text: String, required: bool) -> Result<String, ServiceError> {
        if required && text.is_empty() {
            return Err(ServiceError::invalid(field, "required"));
        }
        bounded(field, text.len(), "lease.name_bytes_max", self.leases.settings().name_bytes_max)?;
        Ok(text)
    }

    fn partition(&self, partition: Option<proto::Partition>) -> Result<Partition, ServiceError> {
        let partition = partition.ok_or_else(|| ServiceError::invalid("partition", "required"))?;
        Ok(Partition {
            model: self.name("partition.model", partition.model, true)?,
            namespace: self.name("partition.namespace", partition.namespace, false)?,
            pool: self.name("partition.pool", partition.pool, false)?,
        })
    }

    fn blocks(&self, field: &'static str, hashes: &[u64]) -> Result<(), ServiceError> {
        bounded(field, hashes.len(), "lease.prefix_blocks_max", self.leases.settings().prefix_blocks_max)
    }

    fn asked(&self, request: proto::AcquireRequest) -> Result<(Partition, Acquire, Target, Vec<u64>), ServiceError> {
        let partition = self.partition(request.partition)?;
        if request.prefix.is_empty() {
            return Err(ServiceError::invalid("prefix", "required"));
        }
        let settings = self.leases.settings();
        bounded("prefix", request.prefix.len(), "lease.prefix_bytes_max", settings.prefix_bytes_max)?;
        self.blocks("content_hashes", &request.content_hashes)?;
        let target = request.target.ok_or_else(|| ServiceError::invalid("target", "required"))?;
        let worker = self.name("target.worker", target.worker, true)?;
        let token = self.name("admission_token", request.admission_token, true)?;
        let ask = Acquire {
            prefix: request.prefix,
            router: self.name("router", request.router, true)?,
            token: TokenHash::of(&token),
            target: self.leases.target(worker.clone(), target.generation, target.incarnation),
            owner_revision: request.owner_revision,
            telemetry_digest: request.telemetry_digest,
            deadline: (request.deadline_ms > 0).then(|| Duration::from_millis(request.deadline_ms)),
        };
        let present = self.leases.present(&partition, &worker);
        let present = present.ok_or(FleetError::UnknownWorker { worker })?;
        Ok((partition, ask, present.target, request.content_hashes))
    }

    fn proof(&self, proof: Option<proto::commit_request::Proof>) -> Result<Asked, ServiceError> {
        match proof.ok_or_else(|| ServiceError::invalid("proof", "required"))? {
            proto::commit_request::Proof::End(end) => Ok(Asked::End(EndProof {
                clean: end.clean,
                finish_reason: end.finish_reason,
                output_tokens: end.output_tokens,
                prompt_tokens: end.prompt_tokens,
                router_prompt_tokens: end.router_prompt_tokens,
                block_size: end.block_size,
            })),
            proto::commit_request::Proof::Index(index) if index.content_hashes.is_empty() => {
                Err(ServiceError::invalid("index.content_hashes", "required"))
            }
            proto::commit_request::Proof::Index(index) => {
                self.blocks("index.content_hashes", &index.content_hashes)?;
                Ok(Asked::Index(index.content_hashes))
            }
        }
    }

    async fn serve_watch(self, partition: Partition, mut watch: Watch, out: EventSender) {
        let mut period = tokio::time::interval(self.leases.settings().watch_poll);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let ended = tokio::select! {
                next = watch.next() => match next {
                    Ok(changes) => {
                        if send(&out, changes).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    Err(end) => ServiceError::from(end),
                },
                // Time alone ends leases, and other replicas change the partition, too. What it says comes by the watch.
                _ = period.tick() => match self.leases.look_at(&partition).await {
                    Ok(_) => continue,
                    Err(error) => error.into(),
                },
                () = self.admission.closing().cancelled() => ServiceError::Draining,
                () = out.closed() => return,
            };
            return drop(out.send(Err(ended.into())).await);
        }
    }
}

fn bounded(field: &'static str, len: usize, setting: &'static str, limit: usize) -> Result<(), ServiceError> {
    if len <= limit { Ok(()) } else { Err(ServiceError::TooLong { field, len, setting, limit }) }
}

fn key(lease_id: u64, fence: u64) -> LeaseKey {
    LeaseKey { lease_id, fence }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Sends changes; all but the last carry the revision before them, so that whoever is cut off between them goes on with what it has
/// not been told.
async fn send(out: &EventSender, told: crate::lease::Told) -> Result<(), ()> {
    let last = told.changes.len().saturating_sub(1);
    for (i, change) in told.changes.into_iter().enumerate() {
        let revision = if i == last { told.revision } else { told.before };
        let event = proto::LeaseEvent { revision, event: Some(event(change)) };
        out.send(Ok(event)).await.map_err(|_| ())?;
    }
    Ok(())
}

fn event(change: Change) -> proto::lease_event::Event {
    use proto::lease_event::Event;
    match change {
        Change::Owners(prefix, set) => Event::Owners(owner_set(prefix, set)),
        Change::Lease(phase, fence) => Event::Lease(lease_state(phase, fence)),
    }
}

fn owner_set(prefix: Vec<u8>, set: OwnerSet) -> proto::OwnerSet {
    let owners = set.owners.into_iter().map(|owner| lease_target(owner.target)).collect();
    proto::OwnerSet { prefix, revision: set.revision, owners }
}

fn lease_target(target: Target) -> proto::LeaseTarget {
    let Target { worker, generation, incarnation, replica: _ } = target;
    proto::LeaseTarget { worker, generation, incarnation }
}

fn lease_state(phase: Phase, fence: u64) -> proto::LeaseState {
    use proto::lease_state::State;
    let state = |state: State| proto::LeaseState { state: state.into(), fence, ..proto::LeaseState::default() };
    match phase {
        Phase::Free => state(State::Free),
        Phase::Cooldown { .. } => state(State::Cooldown),
        Phase::Granted(grant) => proto::LeaseState {
            router: grant.router,
            prefix: grant.prefix,
            target: Some(lease_target(grant.target)),
            ..state(if grant.dispatched.is_some() { State::Seeding } else { State::Held })
        },
    }
}

fn refused(refused: Refused, leases: &Leases) -> Result<proto::LeaseRefused, ServiceError> {
    use proto::lease_refused::Reason as Wire;
    let settings = leases.settings();
    let reason = match refused.reason {
        Reason::Held => Wire::Held,
        Reason::Cooldown => Wire::Cooldown,
        Reason::RevisionMismatch => Wire::RevisionMismatch,
        Reason::Ceiling => Wire::Ceiling,
        Reason::TokenUsed => Wire::TokenUsed,
        Reason::AlreadyOwner => Wire::AlreadyOwner,
        Reason::TargetChanged => Wire::TargetChanged,
        Reason::PrefixesFull => {
            let (setting, limit) = ("lease.prefixes_max", settings.prefixes_max);
            return Err(ServiceError::LeaseFull { what: "prefixes with owners", setting, limit });
        }
        Reason::TokensFull => {
            let (setting, limit) = ("lease.tokens_max", settings.tokens_max);
            return Err(ServiceError::LeaseFull { what: "used admission tokens", setting, limit });
        }
    };
    let (retry_after_ms, owner_revision) = (millis(refused.retry_after), refused.owner_revision);
    Ok(proto::LeaseRefused { reason: reason.into(), retry_after_ms, owner_revision })
}

#[tonic::async_trait]
impl LeaseService for LeaseApi {
    async fn acquire(
        &self,
        request: Request<proto::AcquireRequest>,
    ) -> Result<Response<proto::AcquireResponse>, Status> {
        use proto::acquire_response::Result as Wire;
        self.admission.open()?;
        let (partition, ask, target, blocks) = self.asked(request.into_inner())?;
        let answer = self.leases.acquire(&partition, &ask, &target, blocks).await.map_err(ServiceError::from)?;
        let result = match answer {
            Ok(lease) => Wire::Lease(proto::Lease {
                lease_id: lease.key.lease_id,
                fence: lease.key.fence,
                ttl_ms: millis(lease.ttl),
                max_hold_ms: millis(lease.max_hold),
            }),
            Err(why) => Wire::Refused(refused(why, &self.leases)?),
        };
        Ok(Response::new(proto::AcquireResponse { result: Some(result) }))
    }

    async fn renew(&self, request: Request<proto::RenewRequest>) -> Result<Response<proto::RenewResponse>, Status> {
        self.admission.open()?;
        let proto::RenewRequest { partition, lease_id, fence, dispatching } = request.into_inner();
        let partition = self.partition(partition)?;
        let renewed = self.leases.renew(&partition, key(lease_id, fence), dispatching).await;
        let renewed = renewed.map_err(ServiceError::from)?;
        let ttl_ms = renewed.map_or(0, millis);
        Ok(Response::new(proto::RenewResponse { lost: renewed.is_err(), ttl_ms }))
    }

    async fn commit(&self, request: Request<proto::CommitRequest>) -> Result<Response<proto::CommitResponse>, Status> {
        use proto::commit_response::Result as Wire;
        // The index may be asked.
        let _permit = self.admission.lookup()?;
        let proto::CommitRequest { partition, lease_id, fence, proof } = request.into_inner();
        let (partition, proof) = (self.partition(partition)?, self.proof(proof)?);
        let committed = self.leases.commit(&partition, key(lease_id, fence), proof).await;
        let (result, owner_revision, message) = match committed.map_err(ServiceError::from)? {
            Ok(revision) => (Wire::Committed, revision, String::new()),
            Err(NotCommitted::Lost) => (Wire::Lost, 0, String::new()),
            Err(NotCommitted::Rejected(why)) => (Wire::ProofRejected, 0, why.to_string()),
            Err(NotCommitted::TargetChanged) => (Wire::TargetChanged, 0, String::new()),
        };
        Ok(Response::new(proto::CommitResponse { result: result.into(), owner_revision, message }))
    }

    async fn abort(&self, request: Request<proto::AbortRequest>) -> Result<Response<proto::AbortResponse>, Status> {
        self.admission.open()?;
        let proto::AbortRequest { partition, lease_id, fence, reason } = request.into_inner();
        let (partition, reason) = (self.partition(partition)?, self.name("reason", reason, false)?);
        let token_refunded = self.leases.abort(&partition, key(lease_id, fence)).await.map_err(ServiceError::from)?;
        tracing::debug!(model = %partition.model, fence, reason, "a lease was given back");
        Ok(Response::new(proto::AbortResponse { token_refunded }))
    }

    type WatchStream = ReceiverStream<Result<proto::LeaseEvent, Status>>;

    async fn watch(&self, request: Request<proto::WatchLeasesRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.admission.open()?;
        let proto::WatchLeasesRequest { partition, from_revision } = request.into_inner();
        let partition = self.partition(partition)?;
        if !self.leases.has_partition(&partition) {
            return Err(
                ServiceError::from(FleetError::UnknownGroup { model: partition.model, group: partition.pool }).into()
            );
        }
        let watch = self.leases.open_watch(&partition, from_revision).await.map_err(ServiceError::from)?;
        let (sender, events) = mpsc::channel(self.limits.stream_answers_max);
        tokio::spawn(self.clone().serve_watch(partition, watch, sender));
        Ok(Response::new(ReceiverStream::new(events)))
    }
}
