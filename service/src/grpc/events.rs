//! `EventService`: events that publishers push, and the relay of everything that was applied.

use super::admission::Admission;
use super::error::ServiceError;
use super::limits::GrpcLimits;
use super::proto::apply_ack::Status as AckStatus;
use super::proto::event_service_server::EventService;
use super::{answers, copies, loads, proto, questions, relayed};
use crate::fleet::{Fleet, FleetError, FleetView, PushVerdict};
use crate::lanes::LaneError;
use crate::loads::Loads;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The service's implementation. Cheap to clone.
#[derive(Clone)]
pub struct EventApi {
    fleet: Arc<Fleet>,
    loads: Arc<Loads>,
    admission: Admission,
    limits: GrpcLimits,
    copies: Arc<Semaphore>,
}

impl EventApi {
    /// Applies events to this fleet, and takes the loads beside them. Never sheds: a dropped batch would be a lost one.
    pub fn new(fleet: Arc<Fleet>, loads: Arc<Loads>, admission: Admission, limits: GrpcLimits) -> Self {
        Self { fleet, loads, admission, limits, copies: Arc::new(Semaphore::new(limits.copies_in_flight_max)) }
    }

    /// Takes the load that came beside a batch. Whatever is wrong with it is counted, and no matter of the batch.
    fn take_loads(&self, view: &FleetView, worker: &str, records: Vec<proto::RankLoad>) {
        if records.is_empty() || records.len() > self.fleet.limits().ranks_per_worker_max {
            return;
        }
        if let Ok(worker) = view.worker(worker) {
            let _ = self.loads.take(worker, loads::from_proto(records), None);
        }
    }

    async fn apply_one(&self, mut batch: proto::EventBatch) -> Result<proto::ApplyAck, ServiceError> {
        let mut ack = proto::ApplyAck {
            worker: batch.worker.clone(),
            rank: batch.rank,
            sequence: batch.sequence,
            ..proto::ApplyAck::default()
        };
        let view = self.fleet.view();
        let rank = match view.rank(&batch.worker, batch.rank) {
            Ok(rank) => rank,
            Err(_) => {
                ack.set_status(AckStatus::UnknownRank);
                return Ok(ack);
            }
        };
        if batch.generation.is_some_and(|g| g != rank.generation) {
            ack.set_status(AckStatus::Fenced);
            return Ok(ack);
        }
        let records = std::mem::take(&mut batch.loads);
        let pushed = questions::push_batch(rank, batch, &self.limits)?;
        match self.fleet.push(rank, pushed).await {
            None => {
                self.take_loads(&view, &ack.worker, records);
                ack.set_status(AckStatus::OtherSource);
            }
            Some(Ok(outcome)) => {
                // A batch that is sent again carries the load of when it was sent first.
                if outcome.verdict != PushVerdict::Duplicate {
                    self.take_loads(&view, &ack.worker, records);
                }
                return Ok(answers::applied_ack(ack, &outcome));
            }
            Some(Err(LaneError::Fenced { .. })) => ack.set_status(AckStatus::Fenced),
            Some(Err(error)) => return Err(FleetError::Lane(error).into()),
        }
        Ok(ack)
    }

    async fn serve_stream(
        self,
        mut batches: Streaming<proto::EventBatch>,
        acks: mpsc::Sender<Result<proto::ApplyAck, Status>>,
    ) {
        loop {
            let batch = tokio::select! {
                batch = batches.message() => batch,
                () = self.admission.closing().cancelled() => Err(ServiceError::Draining.into()),
                () = acks.closed() => return,
            };
            let ack = match batch {
                Ok(Some(batch)) => self.apply_one(batch).await.map_err(Status::from),
                Ok(None) => return,
                Err(status) => Err(status),
            };
            let failed = ack.is_err();
            if acks.send(ack).await.is_err() || failed {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl EventService for EventApi {
    type ApplyStream = ReceiverStream<Result<proto::ApplyAck, Status>>;
    type SubscribeStream = ReceiverStream<Result<proto::RelayedBatch, Status>>;
    type GetSnapshotStream = ReceiverStream<Result<proto::SnapshotChunk, Status>>;

    async fn get_snapshot(
        &self,
        request: Request<proto::GetSnapshotRequest>,
    ) -> Result<Response<Self::GetSnapshotStream>, Status> {
        self.admission.open()?;
        let wanted = copies::wanted(request.into_inner())?;
        let limit = self.limits.copies_in_flight_max;
        let place = self.copies.clone().try_acquire_owned().map_err(|_| ServiceError::CopiesFull { limit })?;
        let (sender, parts) = mpsc::channel(copies::PARTS_READY_MAX);
        tokio::spawn(copies::copy(self.fleet.clone(), wanted, self.admission.clone(), place, sender));
        Ok(Response::new(ReceiverStream::new(parts)))
    }

    async fn subscribe(
        &self,
        request: Request<proto::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        self.admission.open()?;
        let request = request.into_inner();
        let start = relayed::start(&request)?;
        let view = self.fleet.view();
        let rank = view.rank(&request.worker, request.rank).map_err(ServiceError::from)?;
        let subscription = tokio::select! {
            begun = rank.relay.subscribe(&rank.lane, start) => begun.map_err(ServiceError::from)?,
            () = self.admission.closing().cancelled() => return Err(ServiceError::Draining.into()),
        };
        let (sender, items) = mpsc::channel(self.limits.stream_answers_max);
        tokio::spawn(relayed::relay(rank.clone(), subscription, self.admission.clone(), sender));
        Ok(Response::new(ReceiverStream::new(items)))
    }

    async fn apply(
        &self,
        request: Request<Streaming<proto::EventBatch>>,
    ) -> Result<Response<Self::ApplyStream>, Status> {
        self.admission.open()?;
        let (sender, acks) = mpsc::channel(self.limits.stream_answers_max);
        tokio::spawn(self.clone().serve_stream(request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(acks)))
    }
}
