//! `WorkerService`: registration, lists and changes, and loads that are reported.

use super::admission::Admission;
use super::error::ServiceError;
use super::limits::GrpcLimits;
use super::proto::watch_event::Event;
use super::proto::worker_service_server::WorkerService;
use super::{answers, loads, proto, questions};
use crate::fleet::{Fleet, FleetEvent};
use crate::ingest::now_ms;
use crate::loads::{Loads, Refused};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The service's implementation. Cheap to clone.
#[derive(Clone)]
pub struct WorkerApi {
    fleet: Arc<Fleet>,
    loads: Arc<Loads>,
    admission: Admission,
    limits: GrpcLimits,
}

type WatchSender = mpsc::Sender<Result<proto::WatchEvent, Status>>;

impl WorkerApi {
    /// Registers workers in this fleet, and takes their loads.
    pub fn new(fleet: Arc<Fleet>, loads: Arc<Loads>, admission: Admission, limits: GrpcLimits) -> Self {
        Self { fleet, loads, admission, limits }
    }

    fn take_load(&self, report: proto::LoadReport) -> Result<(), Refused> {
        let view = self.fleet.view();
        let worker = view.worker(&report.worker).map_err(|_| Refused::UnknownWorker)?;
        if report.ranks.len() > self.fleet.limits().ranks_per_worker_max {
            return Err(Refused::TooManyRanks);
        }
        self.loads.take(worker, loads::from_proto(report.ranks), None)
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
        request: Request<Streaming<proto::LoadReport>>,
    ) -> Result<Response<proto::ReportLoadResponse>, Status> {
        self.admission.open()?;
        let mut reports = request.into_inner();
        let (mut taken, mut refused) = (0, BTreeMap::<_, u64>::new());
        loop {
            let report = tokio::select! {
                report = reports.message() => report?,
                () = self.admission.closing().cancelled() => return Err(ServiceError::Draining.into()),
            };
            let Some(report) = report else { break };
            match self.take_load(report) {
                Ok(()) => taken += 1,
                Err(error) => *refused.entry(error.name()).or_default() += 1,
            }
        }
        let counter = |(reason, count): (&str, u64)| proto::Counter { reason: reason.to_owned(), count };
        Ok(Response::new(proto::ReportLoadResponse { taken, refused: refused.into_iter().map(counter).collect() }))
    }
}
