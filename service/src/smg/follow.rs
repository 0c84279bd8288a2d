//! The task that follows one rank: a channel, a stream, the pure rank, and the sink that takes its operations.
//!
//! The stream is read at the sink's speed; flow control holds the server up, and nothing waits here. So there is no queue.

use super::cursor::End;
use super::endpoint::SmgEndpoint;
use super::proto::common::{KvEventBatch, SubscribeKvEventsRequest};
use super::proto::sglang_scheduler_client::SglangSchedulerClient;
use super::proto::vllm_engine_client::VllmEngineClient;
use super::rank::{SmgRank, Step};
use crate::ingest::{
    Engine, IngestLimits, Now, Pulse, RankSink, STATUS_PERIOD, SinkClosed, Trust, WorkerSpec, sleep_some,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

/// Which worker's events are meant, where a server has several (ours does). Others do not look at it.
pub const WORKER_KEY: &str = "kvatlas-worker";
/// Which rank's.
pub const RANK_KEY: &str = "kvatlas-rank";

/// Pings on a silent connection, so that a vanished server's stream ends. Stricter servers drop clients that ping more often.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time that a ping may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How a status begins that the transport makes of a message beyond its limit; its code is one that servers use for other things.
const TOO_LARGE: &str = "Error, decoded message length too large";

/// Follows one rank until `stop` is cancelled or the sink is closed. No server can end it.
pub async fn follow_smg<S: RankSink>(
    spec: &WorkerSpec,
    rank: u32,
    endpoint: &SmgEndpoint,
    limits: &IngestLimits,
    mut sink: S,
    stop: CancellationToken,
) {
    // Seeds are proven by payloads as an engine sent them, which this protocol does not carry: there are none for such a rank.
    drop(sink.seed_calls());
    let mut follower = Follower {
        worker: spec.id.clone(),
        number: rank,
        engine: spec.engine,
        rank: SmgRank::new(spec, rank, limits),
        pulse: sink.pulse(),
        sink,
        limits: *limits,
        origin: Instant::now(),
        trust: Trust::default(),
        published_at: Instant::now(),
        dirty: false,
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _closed = follower.run(endpoint) => {}
    }
}

struct Follower<S> {
    worker: String,
    number: u32,
    engine: Engine,
    rank: SmgRank,
    sink: S,
    pulse: Arc<Pulse>,
    limits: IngestLimits,
    origin: Instant,
    /// As it was published last, and when.
    trust: Trust,
    published_at: Instant,
    /// Something happened since.
    dirty: bool,
}

/// How a stream came to its end.
enum Over {
    /// The rank wants another one.
    Again,
    Ended(Status),
}

impl<S: RankSink> Follower<S> {
    async fn run(&mut self, endpoint: &SmgEndpoint) -> Result<(), SinkClosed> {
        let mut pause = self.limits.reconnect_min;
        // Streams in a row that led to nothing.
        let mut barren = 0_u32;
        self.publish();
        loop {
            let applied = self.rank.cursor();
            let over = match self.open(endpoint).await {
                Ok(channel) => {
                    self.pulse.set_connected(true);
                    self.rank.connected();
                    self.publish();
                    let over = self.stream(channel).await?;
                    self.pulse.set_connected(false);
                    over
                }
                Err(()) => {
                    self.pulse.failed();
                    self.rank.count("connect_failures", 1);
                    Over::Ended(Status::unavailable("no connection"))
                }
            };
            let (end, at_once) = match over {
                Over::Again => (End::Broken, true),
                Over::Ended(status) => {
                    self.rank.count(label(&status), 1);
                    let end = end_of(&status);
                    (end, end == End::StartOver)
                }
            };
            let step = self.rank.ended(end);
            self.carry_out(step).await?;
            self.publish();
            if self.rank.cursor().is_some_and(|now| applied != Some(now)) {
                (pause, barren) = (self.limits.reconnect_min, 0);
            } else {
                barren = barren.saturating_add(1);
            }
            // Who leads nowhere twice is asked less and less often, whatever it says.
            if !at_once || barren > 1 {
                sleep(pause).await;
                pause = (pause * 2).min(self.limits.reconnect_max);
            }
        }
    }

    async fn open(&self, endpoint: &SmgEndpoint) -> Result<Channel, ()> {
        let to = Channel::from_shared(endpoint.uri()).map_err(|_| ())?;
        let to = to
            .connect_timeout(self.limits.handshake_max)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        to.connect().await.map_err(|_| ())
    }

    /// Reads one stream to its end. Servers may answer with their first batch only, so nothing but that and its end is waited for.
    async fn stream(&mut self, channel: Channel) -> Result<Over, SinkClosed> {
        let request = (self.rank.start(), self.worker.clone(), self.number);
        let subscribed = tokio::select! {
            subscribed = subscribe(channel, self.engine, request, self.limits.message_bytes_max) => subscribed,
            () = self.pulse.hung_up() => Err(Status::unavailable("hung up")),
        };
        let mut batches = match subscribed {
            Ok(batches) => batches,
            Err(status) => return Ok(Over::Ended(status)),
        };
        let pulse = self.pulse.clone();
        let mut hung_up = std::pin::pin!(pulse.hung_up());
        loop {
            let due = self.rank.next_tick().map(|at| self.origin + at);
            let stale = self.published_at + STATUS_PERIOD;
            tokio::select! {
                message = batches.message() => match message {
                    Ok(Some(batch)) => {
                        self.pulse.contact();
                        let step = self.rank.batch(self.now(), &batch);
                        let again = step.again;
                        self.carry_out(step).await?;
                        if again {
                            return Ok(Over::Again);
                        }
                    }
                    Ok(None) => return Ok(Over::Ended(Status::unavailable("the stream ended"))),
                    Err(status) => return Ok(Over::Ended(status)),
                },
                () = sleep_some(due) => {
                    if self.rank.tick(self.now()) {
                        return Ok(Over::Again);
                    }
                }
                () = &mut hung_up => return Ok(Over::Ended(Status::unavailable("hung up"))),
                () = sleep_until(stale), if self.dirty => self.publish(),
            }
        }
    }

    async fn carry_out(&mut self, step: Step) -> Result<(), SinkClosed> {
        for batch in step.apply {
            let did = self.sink.apply(batch).await?;
            self.rank.applied(self.now(), &did);
        }
        self.sink.settled(self.rank.trust());
        self.dirty = true;
        if self.rank.trust() != self.trust {
            self.publish();
        }
        Ok(())
    }

    fn publish(&mut self) {
        let status = self.rank.status();
        if self.trust != status.trust {
            let (trust, why) = (status.trust.name(), status.detail.as_deref().unwrap_or_default());
            tracing::info!(worker = %self.worker, rank = self.number, trust, why, "trust changed");
        }
        (self.trust, self.published_at, self.dirty) = (status.trust, Instant::now(), false);
        self.sink.publish(status);
    }

    fn now(&self) -> Now {
        Now::since(self.origin)
    }
}

/// Asks for the events after a sequence. Which of the two services a server has follows from its engine; unknown ones are asked for
/// both.
async fn subscribe(
    channel: Channel,
    engine: Engine,
    (start, worker, rank): (u64, String, u32),
    message_bytes_max: usize,
) -> Result<Streaming<KvEventBatch>, Status> {
    let request = || {
        let mut request = Request::new(SubscribeKvEventsRequest { start_sequence_number: start });
        // A name that does not go into a header is one that only a server of one worker can serve.
        if let Ok(worker) = MetadataValue::try_from(&worker) {
            request.metadata_mut().insert(WORKER_KEY, worker);
        }
        request.metadata_mut().insert(RANK_KEY, rank.into());
        request
    };
    if engine != Engine::Sglang {
        let mut client = VllmEngineClient::new(channel.clone()).max_decoding_message_size(message_bytes_max);
        match client.subscribe_kv_events(request()).await {
            Err(status) if status.code() == Code::Unimplemented && engine == Engine::Auto => {}
            answered => return answered.map(tonic::Response::into_inner),
        }
    }
    let mut client = SglangSchedulerClient::new(channel).max_decoding_message_size(message_bytes_max);
    client.subscribe_kv_events(request()).await.map(tonic::Response::into_inner)
}

fn end_of(status: &Status) -> End {
    match status.code() {
        Code::OutOfRange if status.message().starts_with(TOO_LARGE) => End::Broken,
        Code::OutOfRange | Code::DataLoss => End::StartOver,
        Code::Unimplemented | Code::FailedPrecondition => End::NotOffered,
        _ => End::Broken,
    }
}

/// The label in metrics.
fn label(status: &Status) -> &'static str {
    match status.code() {
        Code::OutOfRange if status.message().starts_with(TOO_LARGE) => "stream_message_too_large",
        Code::OutOfRange => "stream_out_of_range",
        Code::DataLoss => "stream_data_loss",
        Code::Unimplemented => "stream_unimplemented",
        Code::FailedPrecondition => "stream_failed_precondition",
        Code::Unavailable => "stream_unavailable",
        _ => "stream_failed",
    }
}
