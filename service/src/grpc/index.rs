//! `IndexService`: lookups, explanations, figures.

use super::admission::Admission;
use super::error::ServiceError;
use super::facts::ServiceFacts;
use super::limits::GrpcLimits;
use super::proto::index_service_server::IndexService;
use super::{answers, proto, questions};
use crate::fleet::Fleet;
use crate::lanes::LaneCounters;
use crate::lookup::{LookupEngine, LookupTimes};
use crate::topology::shard_reports;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Ranks that one call explains unless it says otherwise.
const EXPLAIN_RANKS_DEFAULT: usize = 64;
/// Lookups of a batch that run before other tasks of the thread get a turn.
const LOOKUPS_PER_TURN: usize = 32;

/// The service's implementation. Cheap to clone.
#[derive(Clone)]
pub struct IndexApi {
    engine: Arc<LookupEngine>,
    fleet: Arc<Fleet>,
    times: Arc<LookupTimes>,
    admission: Admission,
    limits: GrpcLimits,
    facts: Arc<dyn ServiceFacts>,
}

impl IndexApi {
    /// Serves lookups of this engine.
    pub fn new(
        engine: Arc<LookupEngine>,
        fleet: Arc<Fleet>,
        times: Arc<LookupTimes>,
        admission: Admission,
        limits: GrpcLimits,
        facts: Arc<dyn ServiceFacts>,
    ) -> Self {
        Self { engine, fleet, times, admission, limits, facts }
    }

    /// One lookup, timed. Synchronous: nothing is held across an await.
    fn answer(&self, request: proto::LookupRequest) -> Result<proto::LookupResponse, ServiceError> {
        let start = Instant::now();
        let with_positions = request.with_positions;
        let question = questions::question(request)?;
        let answer = self.engine.lookup(&question)?;
        let response = answers::lookup_response(&answer, with_positions);
        self.times.record(start.elapsed());
        Ok(response)
    }

    async fn answer_batch(&self, batch: proto::LookupBatch) -> Result<proto::LookupBatchResult, ServiceError> {
        use proto::lookup_result::Result as Wire;
        let (len, limit) = (batch.lookups.len(), self.limits.lookups_per_batch_max);
        if len > limit {
            let (field, setting) = ("lookups", "limits.lookups_per_batch_max");
            return Err(ServiceError::TooLong { field, len, setting, limit });
        }
        let _permit = self.admission.batch().await?;
        let mut results = Vec::with_capacity(len);
        for (i, lookup) in batch.lookups.into_iter().enumerate() {
            let result = match self.answer(lookup) {
                Ok(response) => Wire::Response(response),
                Err(error) => Wire::Error(proto::LookupError { code: error.code() as i32, message: error.message() }),
            };
            results.push(proto::LookupResult { result: Some(result) });
            if i % LOOKUPS_PER_TURN == LOOKUPS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(proto::LookupBatchResult { id: batch.id, results })
    }

    async fn serve_stream(
        self,
        mut batches: Streaming<proto::LookupBatch>,
        answers: mpsc::Sender<Result<proto::LookupBatchResult, Status>>,
    ) {
        loop {
            let batch = tokio::select! {
                batch = batches.message() => batch,
                () = self.admission.closing().cancelled() => Err(ServiceError::Draining.into()),
                () = answers.closed() => return,
            };
            let answer = match batch {
                Ok(Some(batch)) => self.answer_batch(batch).await.map_err(Status::from),
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
impl IndexService for IndexApi {
    async fn lookup(&self, request: Request<proto::LookupRequest>) -> Result<Response<proto::LookupResponse>, Status> {
        let _permit = self.admission.lookup()?;
        Ok(Response::new(self.answer(request.into_inner())?))
    }

    type LookupStreamStream = ReceiverStream<Result<proto::LookupBatchResult, Status>>;

    async fn lookup_stream(
        &self,
        request: Request<Streaming<proto::LookupBatch>>,
    ) -> Result<Response<Self::LookupStreamStream>, Status> {
        self.admission.open()?;
        let (sender, answers) = mpsc::channel(self.limits.stream_answers_max);
        tokio::spawn(self.clone().serve_stream(request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<proto::ExplainResponse>, Status> {
        let _permit = self.admission.lookup()?;
        let proto::ExplainRequest { lookup, max_ranks } = request.into_inner();
        let lookup = lookup.ok_or_else(|| ServiceError::invalid("lookup", "required"))?;
        let question = questions::question(lookup)?;
        let asked = if max_ranks == 0 { EXPLAIN_RANKS_DEFAULT } else { max_ranks as usize };
        let explained = self.engine.explain(&question, asked.min(self.limits.explain_ranks_max));
        Ok(Response::new(answers::explain_response(&explained)))
    }

    async fn get_status(
        &self,
        _request: Request<proto::GetStatusRequest>,
    ) -> Result<Response<proto::GetStatusResponse>, Status> {
        let _permit = self.admission.lookup()?;
        let view = self.fleet.view();
        let mut by_trust = BTreeMap::new();
        for rank in view.ranks() {
            *by_trust.entry(rank.status.brief().trust).or_insert(0) += 1;
        }
        let stats = self.engine.index().stats();
        let lanes = self.fleet.lanes();
        let mut lane_ranks = vec![0; lanes.len()];
        view.ranks().for_each(|r| lane_ranks[r.lane.lane().number() as usize] += 1);
        let shards = shard_reports(self.engine.index(), self.facts.machine());
        Ok(Response::new(proto::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: self.facts.uptime_ms(),
            ready: self.facts.ready(),
            draining: self.facts.draining(),
            workers: view.workers().len() as u32,
            ranks: by_trust.values().sum(),
            ranks_by_trust: by_trust
                .into_iter()
                .map(|(trust, ranks)| proto::TrustCount { trust: answers::trust(trust).into(), ranks })
                .collect(),
            lanes: lanes.len() as u32,
            blocks_held: stats.held,
            blocks_distinct: stats.blocks,
            blocks_parked: stats.parked,
            bytes_live: stats.bytes_live,
            bytes_free: stats.bytes_free,
            lookups: self.times.sum().count(),
            shards: shards.iter().map(answers::shard_status).collect(),
            lane_threads: lanes.iter().map(|l| answers::lane_status(l, lane_ranks[l.number() as usize])).collect(),
            lookup_threads: self.facts.lookup_threads().into_iter().map(answers::thread_place).collect(),
            topology_source: self.facts.machine().source.to_owned(),
            waiting_for: Some(answers::waiting(&self.facts.waiting_for())),
            copies: self.facts.copies().map(|copies| answers::copies(&copies)),
            log: self.fleet.log().map(|log| answers::log_status(log.status())),
            leases: Some(answers::lease_status(self.facts.leases())),
            memory_nodes: self.facts.machine().usable_nodes().count() as u32,
            batches_applied: lanes.iter().map(|l| LaneCounters::read(&l.counters().batches)).sum(),
        }))
    }
}
