//! `WorkerService`: registration, lists and changes.

use super::admission::Admission;
use super::error::ServiceError;
use super::limits::GrpcLimits;
use super::proto::watch_event::Event;
use super::proto::worker_service_server::WorkerService;
use super::{answers, proto, questions};
use crate::fleet::{Fleet, FleetEvent};
use crate::ingest::now_ms;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// The service's implementation. Cheap to clone.
#[derive(Clone)]
pub struct WorkerApi {
    fleet: Arc<Fleet>,
    admission: Admission,
    limits: GrpcLimits,
}

type WatchSender = mpsc::Sender<Result<proto::WatchEvent, Status>>;

impl WorkerApi {
    /// Registers workers in this fleet.
    pub fn new(fleet: Arc<Fleet>, admission: Admission, limits: GrpcLimits) -> Self {
        Self { fleet, admission, limits }
    }

    async fn serve_watch(self, model: String, mut changes: broadcast::Receiver<FleetEvent>, out: WatchSender) {
        let now = now_ms();
        let view = self.fleet.view();
        let there = view.workers().filter(|w| wanted(&model, &w.registration.worker.model));
        let mut first: Vec<_> = there.map(|w| Event::Registered(answers::worker_status(w, now))).collect();
        first.push(Event::SnapshotEnd(proto::SnapshotEnd {}));
        for event in first {
            if out.send(Ok(proto::WatchEvent { event: Some(event) })).await.is_err() {
                return;
            }
        }
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = self.admission.closing().cancelled() => Err(RecvError::Closed),
                () = out.closed() => return,
            };
            let event = match change {
                Ok(change) => watch_event(&model, &change),
                Err(RecvError::Lagged(missed)) => Some(Event::Lagged(proto::Lagged { missed })),
                Err(RecvError::Closed) => {
                    let _ = out.send(Err(ServiceError::Draining.into())).await;
                    return;
                }
            };
            let Some(event) = event else { continue };
            if out.send(Ok(proto::WatchEvent { event: Some(event) })).await.is_err() {
                return;
            }
        }
    }
}

fn wanted(asked: &str, model: &str) -> bool {
    asked.is_empty() || asked == model
}

fn watch_event(asked: &str, change: &FleetEvent) -> Option<Event> {
    match change {
        FleetEvent::Registered(entry) if wanted(asked, &entry.registration.worker.model) => {
            Some(Event::Registered(answers::worker_status(entry, now_ms())))
        }
        FleetEvent::Deregistered(entry) if wanted(asked, &entry.registration.worker.model) => {
            let (worker, generation) = (entry.registration.worker.id.clone(), entry.generation);
            Some(Event::Deregistered(proto::WorkerGone { worker, generation }))
        }
        FleetEvent::TrustChanged { worker, model, rank, from, to, detail } if wanted(asked, model) => {
            Some(Event::TrustChanged(proto::TrustChanged {
                worker: worker.to_string(),
                rank: *rank,
                from: answers::trust(*from).into(),
                to: answers::trust(*to).into(),
                detail: detail.clone().unwrap_or_default(),
            }))
        }
        FleetEvent::VetoChanged { worker, model, from, to, since_ms } if wanted(asked, model) => {
            Some(Event::VetoChanged(proto::VetoChanged {
                worker: worker.to_string(),
                from: answers::veto(*from).into(),
                to: answers::veto(*to).into(),
                since_unix_ms: *since_ms,
            }))
        }
        _ => None,
    }
}

#[tonic::async_trait]
impl WorkerService for WorkerApi {
    async fn register(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Result<Response<proto::RegisterResponse>, Status> {
        self.admission.open()?;
        let proto::RegisterRequest { worker, replace } = request.into_inner();
        let spec = worker.ok_or_else(|| ServiceError::invalid("worker", "required"))?;
        let registration = questions::registration_from_proto(spec)?;
        let done = self.fleet.register(registration, false, replace).await.map_err(ServiceError::from)?;
        Ok(Response::new(proto::RegisterResponse { generation: done.generation, unchanged: done.unchanged }))
    }

    async fn deregister(
        &self,
        request: Request<proto::DeregisterRequest>,
    ) -> Result<Response<proto::DeregisterResponse>, Status> {
        self.admission.open()?;
        let proto::DeregisterRequest { worker, generation } = request.into_inner();
        let blocks_dropped = self.fleet.deregister(&worker, generation).await.map_err(ServiceError::from)?;
        Ok(Response::new(proto::DeregisterResponse { blocks_dropped }))
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Result<Response<proto::ListResponse>, Status> {
        self.admission.open()?;
        let proto::ListRequest { model, worker } = request.into_inner();
        let (view, now) = (self.fleet.view(), now_ms());
        if !worker.is_empty() {
            let entry = view.worker(&worker).map_err(ServiceError::from)?;
            let workers = if wanted(&model, &entry.registration.worker.model) {
                vec![answers::worker_status(entry, now)]
            } else {
                Vec::new()
            };
            return Ok(Response::new(proto::ListResponse { workers }));
        }
        let workers = view.workers().filter(|w| wanted(&model, &w.registration.worker.model));
        let workers = workers.map(|w| answers::worker_status(w, now)).collect();
        Ok(Response::new(proto::ListResponse { workers }))
    }

    type WatchStream = ReceiverStream<Result<proto::WatchEvent, Status>>;

    async fn watch(&self, request: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.admission.open()?;
        // Before the view is taken, so that no change falls between the two.
        let changes = self.fleet.watch();
        let (sender, events) = mpsc::channel(self.limits.stream_answers_max);
        tokio::spawn(self.clone().serve_watch(request.into_inner().model, changes, sender));
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn report_load(
        &self,
        _: Request<tonic::Streaming<proto::LoadReport>>,
    ) -> Result<Response<proto::ReportLoadResponse>, Status> {
        Err(Status::unimplemented("loads are not taken yet"))
    }
}
