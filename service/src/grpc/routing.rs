//! `RoutingService`: where requests go, and what becomes of them.

use super::admission::Admission;
use super::error::ServiceError;
use super::limits::GrpcLimits;
use super::proto::routing_service_server::RoutingService;
use super::{bookings, loads, placements, proto};
use crate::desks::Router;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Messages that wait for a replica that reads bookings; what comes meanwhile stays in the history.
const BATCHES_READY_MAX: usize = 2;

/// The service's implementation. Cheap to clone.
#[derive(Clone)]
pub struct RoutingApi {
    router: Arc<Router>,
    admission: Admission,
    limits: GrpcLimits,
}

/// Reservations made on one stream. Those that are left when it goes, however it goes, are released.
struct Made {
    router: Arc<Router>,
    open: HashSet<u64>,
}

impl Drop for Made {
    fn drop(&mut self) {
        for reservation in self.open.drain() {
            self.router.abandon(reservation);
        }
    }
}

type Answers = mpsc::Sender<Result<proto::RouteResponse, Status>>;

impl RoutingApi {
    /// Serves this router.
    pub fn new(router: Arc<Router>, admission: Admission, limits: GrpcLimits) -> Self {
        Self { router, admission, limits }
    }

    fn choose(&self, request: proto::SelectRequest) -> Result<proto::SelectResponse, ServiceError> {
        let _permit = self.admission.lookup()?;
        let order = placements::order(&self.router, request)?;
        Ok(placements::select_response(self.router.select(&order)?))
    }

    fn progressed(&self, request: proto::ProgressRequest) -> Result<proto::ProgressResponse, ServiceError> {
        self.router.progress(request.reservation)?;
        Ok(proto::ProgressResponse {})
    }

    fn completed(&self, request: &proto::CompleteRequest) -> Result<proto::CompleteResponse, ServiceError> {
        let ending = placements::ending(request)?;
        Ok(proto::CompleteResponse { released: self.router.complete(request.reservation, ending)? })
    }

    /// One message of a stream.
    fn answer(&self, request: proto::RouteRequest, made: &mut Made) -> proto::RouteResponse {
        use proto::route_request::Request as Asked;
        use proto::route_response::Response as Told;
        let answer = match request.request {
            None => Err(ServiceError::invalid("request", "required: select, progress or complete")),
            Some(Asked::Select(select)) => self.choose(select).map(|response| {
                if response.reservation != 0 {
                    made.open.insert(response.reservation);
                }
                Told::Select(response)
            }),
            Some(Asked::Progress(progress)) => self.progressed(progress).map(Told::Progress),
            Some(Asked::Complete(complete)) => self.completed(&complete).map(|response| {
                made.open.remove(&complete.reservation);
                Told::Complete(response)
            }),
        };
        let answer = answer.unwrap_or_else(|error| {
            Told::Error(proto::LookupError { code: error.code() as i32, message: error.message() })
        });
        proto::RouteResponse { id: request.id, response: Some(answer) }
    }

    async fn serve_stream(self, mut requests: Streaming<proto::RouteRequest>, answers: Answers) {
        let mut made = Made { router: self.router.clone(), open: HashSet::new() };
        loop {
            let request = tokio::select! {
                request = requests.message() => request,
                () = self.admission.closing().cancelled() => Err(ServiceError::Draining.into()),
                () = answers.closed() => return,
            };
            let answer = match request {
                Ok(Some(request)) => Ok(self.answer(request, &mut made)),
                Ok(None) => return,
                Err(status) => Err(status),
            };
            let failed = answer.is_err();
            if answers.send(answer).await.is_err() || failed {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl RoutingService for RoutingApi {
    async fn select(&self, request: Request<proto::SelectRequest>) -> Result<Response<proto::SelectResponse>, Status> {
        Ok(Response::new(self.choose(request.into_inner())?))
    }

    type RouteStream = ReceiverStream<Result<proto::RouteResponse, Status>>;

    async fn route(
        &self,
        request: Request<Streaming<proto::RouteRequest>>,
    ) -> Result<Response<Self::RouteStream>, Status> {
        self.admission.open()?;
        let (sender, answers) = mpsc::channel(self.limits.stream_answers_max);
        tokio::spawn(self.clone().serve_stream(request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn progress(
        &self,
        request: Request<proto::ProgressRequest>,
    ) -> Result<Response<proto::ProgressResponse>, Status> {
        Ok(Response::new(self.progressed(request.into_inner())?))
    }

    async fn complete(
        &self,
        request: Request<proto::CompleteRequest>,
    ) -> Result<Response<proto::CompleteResponse>, Status> {
        Ok(Response::new(self.completed(&request.into_inner())?))
    }

    async fn get_loads(
        &self,
        request: Request<proto::GetLoadsRequest>,
    ) -> Result<Response<proto::GetLoadsResponse>, Status> {
        self.admission.open()?;
        Ok(Response::new(loads::loads(&self.router, &request.into_inner().model)?))
    }

    type BookingsStream = ReceiverStream<Result<proto::BookingsBatch, Status>>;

    async fn bookings(&self, _: Request<proto::BookingsRequest>) -> Result<Response<Self::BookingsStream>, Status> {
        self.admission.open()?;
        let listener = self.router.listen().ok_or(ServiceError::NoPeers)?;
        let (sender, batches) = mpsc::channel(BATCHES_READY_MAX);
        tokio::spawn(bookings::tell(self.router.clone(), listener, self.admission.clone(), sender));
        Ok(Response::new(ReceiverStream::new(batches)))
    }
}
