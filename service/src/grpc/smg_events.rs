//! `SubscribeKvEvents`: what the relay keeps for ranks that are republished, to gateways of `smg.grpc.common`.
//!
//! | `start_sequence_number` | sent |
//! |---|---|
//! | 0 | everything that is kept, from the publisher's first batch where nothing went out; then what comes |
//! | the newest, or one in what is kept | what came after it; then what comes |
//! | older, beyond the newest, or of a rank that has nothing yet | OUT_OF_RANGE |
//!
//! A batch that the protocol has no words for is left out, and the gateway sees a gap. Another life of the publisher, or a gateway
//! that is slower than what is kept goes out, is DATA_LOSS.

use super::admission::Admission;
use super::error::ServiceError;
use super::limits::GrpcLimits;
use crate::fleet::{Fleet, FleetError, RankEntry};
use crate::relay::{End, SubscribeError, WireCounters, WireLog};
use crate::smg::proto::common::{KvEventBatch, SubscribeKvEventsRequest};
use crate::smg::proto::sglang_scheduler_server::SglangScheduler;
use crate::smg::proto::vllm_engine_server::VllmEngine;
use crate::smg::{RANK_KEY, WORKER_KEY, said};
use crate::wire::{DecodeLimits, TokenRoom, decode_batch_in};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

/// Bytes of payloads that are taken out of the log at once, about.
const BURST_BYTES: usize = 64 << 10;

/// The service's implementation, for both engines' services. Cheap to clone.
#[derive(Clone)]
pub struct SmgApi {
    fleet: Arc<Fleet>,
    admission: Admission,
    limits: GrpcLimits,
    decode: DecodeLimits,
}

type BatchStream = ReceiverStream<Result<KvEventBatch, Status>>;

impl SmgApi {
    /// Streams the republished ranks of this fleet.
    pub fn new(fleet: Arc<Fleet>, admission: Admission, limits: GrpcLimits, decode: DecodeLimits) -> Self {
        Self { fleet, admission, limits, decode }
    }

    fn subscribe(&self, request: Request<SubscribeKvEventsRequest>) -> Result<Response<BatchStream>, Status> {
        self.admission.open()?;
        let rank = self.rank(request.metadata())?;
        let name = || format!("{} rank {}", rank.worker, rank.rank);
        let Some(log) = rank.relay.wire().cloned() else {
            return Err(ServiceError::NotRepublished { rank: name() }.into());
        };
        let place = rank.relay.place().map_err(|full| ServiceError::from(SubscribeError::from(full)))?;
        let (next, life) = begin(&log, request.into_inner().start_sequence_number)?;
        let (sender, batches) = mpsc::channel(self.limits.stream_answers_max);
        let stream = Stream { rank, log, next, life, decode: self.decode, room: TokenRoom::default(), _place: place };
        let admission = self.admission.clone();
        tokio::spawn(async move {
            tokio::select! {
                end = stream.send(&sender) => {
                    // A client that is gone needs no word.
                    if let Some(end) = end {
                        sender.send(Err(end.into())).await.ok();
                    }
                }
                () = admission.closing().cancelled() => {
                    sender.try_send(Err(ServiceError::Draining.into())).ok();
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(batches)))
    }

    fn rank(&self, metadata: &MetadataMap) -> Result<Arc<RankEntry>, ServiceError> {
        let text = |key: &'static str| match metadata.get(key).map(|value| value.to_str()) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(ServiceError::invalid(key, "not a text")),
        };
        let number = match text(RANK_KEY)? {
            None => 0,
            Some(text) => text.parse().map_err(|_| ServiceError::invalid(RANK_KEY, "not a number"))?,
        };
        let view = self.fleet.view();
        let worker = match text(WORKER_KEY)? {
            Some(worker) => worker.to_owned(),
            None => {
                let mut workers = view.workers();
                match (workers.next(), workers.next()) {
                    (Some(only), None) => only.registration.worker.id.clone(),
                    _ => return Err(ServiceError::invalid(WORKER_KEY, "required: there is not one worker")),
                }
            }
        };
        let rank = view.rank(&worker, number).map_err(|error: FleetError| ServiceError::from(error))?;
        Ok(rank.clone())
    }
}

/// Where a stream after `last` begins.
fn begin(log: &WireLog, last: u64) -> Result<(u64, u64), ServiceError> {
    let kept = log.span();
    if last == 0 {
        return Ok((kept.first, kept.life));
    }
    match kept.sequences {
        Some((oldest, _)) if last.saturating_add(1) < oldest => {
            Err(SubscribeError::Gone { asked: last, oldest: Some(oldest) }.into())
        }
        Some((_, newest)) if last <= newest => Ok((log.from_sequence(last.saturating_add(1)).start, kept.life)),
        sequences => {
            let next = sequences.map_or(0, |(_, newest)| newest.saturating_add(1));
            Err(SubscribeError::Ahead { asked: last, next }.into())
        }
    }
}

/// One gateway's place.
struct Stream {
    rank: Arc<RankEntry>,
    log: Arc<WireLog>,
    next: u64,
    life: u64,
    decode: DecodeLimits,
    room: TokenRoom,
    _place: OwnedSemaphorePermit,
}

impl Stream {
    /// Sends until the stream has to end; says why, unless the client is gone.
    async fn send(mut self, to: &mpsc::Sender<Result<KvEventBatch, Status>>) -> Option<ServiceError> {
        let mut changes = self.log.changes();
        let mut batches = Vec::new();
        loop {
            // Before the look: a change after it is not missed.
            changes.borrow_and_update();
            batches.clear();
            let read = self.log.read(self.next, u64::MAX, BURST_BYTES, &mut batches);
            if self.rank.is_closed() {
                return Some(End::Removed.into());
            }
            if read.life != self.life {
                return Some(End::OtherLife.into());
            }
            if read.missed > 0 {
                WireCounters::add(&self.log.counters().missed, read.missed);
                return Some(End::Slow.into());
            }
            self.next = read.next;
            for (sequence, payload) in &batches {
                let Some(batch) = self.say(*sequence, payload) else { continue };
                if to.send(Ok(batch)).await.is_err() {
                    return None;
                }
                WireCounters::add(&self.log.counters().streamed, 1);
            }
            if batches.is_empty() {
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return Some(End::Removed.into()) },
                    () = to.closed() => return None,
                }
            }
        }
    }

    /// `None`: the protocol has no words for it.
    fn say(&mut self, sequence: u64, payload: &Bytes) -> Option<KvEventBatch> {
        let batch = decode_batch_in(payload, &self.decode, &mut self.room).map_err(Into::into);
        let said = batch.and_then(|batch| said(&batch, sequence, self.rank.rank));
        if said.is_err() {
            WireCounters::add(&self.log.counters().unsayable, 1);
        }
        said.ok()
    }
}

#[tonic::async_trait]
impl VllmEngine for SmgApi {
    type SubscribeKvEventsStream = BatchStream;

    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<BatchStream>, Status> {
        self.subscribe(request)
    }
}

#[tonic::async_trait]
impl SglangScheduler for SmgApi {
    type SubscribeKvEventsStream = BatchStream;

    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<BatchStream>, Status> {
        self.subscribe(request)
    }
}
