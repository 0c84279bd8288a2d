//! `grpc.health.v1`: liveness always, readiness and each service as the service is.

use crate::grpc::proto::event_service_server::EventServiceServer;
use crate::grpc::proto::index_service_server::IndexServiceServer;
use crate::grpc::proto::routing_service_server::RoutingServiceServer;
use crate::grpc::proto::worker_service_server::WorkerServiceServer;
use crate::grpc::{EventApi, IndexApi, RoutingApi, WorkerApi};
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService as HealthApi};

/// The health service as the server takes it.
pub(super) type HealthService = HealthServer<HealthApi>;

/// Names whose status follows readiness. The empty one stands for the whole server.
const FOLLOW_READINESS: [&str; 6] = [
    "",
    "readiness",
    <IndexServiceServer<IndexApi> as NamedService>::NAME,
    <EventServiceServer<EventApi> as NamedService>::NAME,
    <RoutingServiceServer<RoutingApi> as NamedService>::NAME,
    <WorkerServiceServer<WorkerApi> as NamedService>::NAME,
];

/// Reports health. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Health(HealthReporter);

impl Health {
    pub(super) fn new() -> (Self, HealthService) {
        let reporter = HealthReporter::new();
        let service = HealthServer::new(HealthApi::from_health_reporter(reporter.clone()));
        (Self(reporter), service)
    }

    /// Sets readiness. Liveness stays SERVING also while draining, so that nobody kills a service that is finishing.
    pub(super) async fn set(&self, ready: bool) {
        self.0.set_service_status("liveness", ServingStatus::Serving).await;
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in FOLLOW_READINESS {
            self.0.set_service_status(name, status).await;
        }
    }

    /// Ends every stream that watches health: nothing else does, and a server waits for its streams. For the very end.
    pub(super) async fn end(mut self) {
        for name in FOLLOW_READINESS.into_iter().chain(["liveness"]) {
            self.0.clear_service_status(name).await;
        }
    }
}
