//! The task that applies what is read of one rank.

use super::Shared;
use super::entries::{BATCH, Fields, KIND, UPPER_BOUND, read};
use super::read::News;
use crate::fleet::LaneSink;
use crate::ingest::{Now, RankSink, STATUS_PERIOD, SinkClosed, Trust};
use crate::log::{Reader, ReaderInput, ReaderOutput};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Applies a rank's entries until `stop` is cancelled or the rank is gone.
pub(super) async fn follow(
    shared: Arc<Shared>,
    sink: LaneSink,
    mut news: mpsc::Receiver<News>,
    stop: CancellationToken,
) {
    shared.reading.up();
    let machine = Reader::new(shared.limits);
    let origin = Instant::now();
    let mut follower = Follower { machine, sink, origin, published: origin, shared: shared.clone() };
    tokio::select! {
        () = stop.cancelled() => {}
        _closed = follower.run(&mut news) => {}
    }
    shared.reading.down();
}

struct Follower {
    machine: Reader,
    sink: LaneSink,
    origin: Instant,
    published: Instant,
    shared: Arc<Shared>,
}

impl Follower {
    async fn run(&mut self, news: &mut mpsc::Receiver<News>) -> Result<(), SinkClosed> {
        self.publish();
        while let Some(one) = news.recv().await {
            let input = match one {
                News::Connected(tail) => ReaderInput::Connected { tail },
                News::Disconnected => ReaderInput::Disconnected,
                News::Quiet(tail, writer) => ReaderInput::Quiet { tail, writer },
                News::Entry(id, fields) => {
                    let field = |name: &str| fields.iter().find(|(n, _)| n == name.as_bytes()).map(|(_, v)| &v[..]);
                    let upper_bound = field(UPPER_BOUND).is_some();
                    let fields = Fields { batch: field(BATCH), kind: field(KIND), upper_bound };
                    let (calls, bytes_max) = (&self.shared.calls, self.shared.limits.entry_bytes_max);
                    let read = read(self.sink.rank(), fields, calls, bytes_max).map_err(|error| error.label());
                    ReaderInput::Entry { id, read }
                }
            };
            self.step(input).await?;
            if news.is_empty() || self.published.elapsed() >= STATUS_PERIOD {
                self.publish();
            }
        }
        Ok(())
    }

    async fn step(&mut self, input: ReaderInput) -> Result<(), SinkClosed> {
        let now = Now::since(self.origin);
        let mut outputs = Vec::new();
        self.machine.step(now, input, &mut outputs);
        for output in outputs {
            let did = match output {
                ReaderOutput::Judge(trust) => {
                    self.judge(trust);
                    continue;
                }
                ReaderOutput::Apply(batch) => self.sink.apply(batch).await?,
                ReaderOutput::Load { sequence, parts } => self.sink.load(sequence, parts).await?,
            };
            let mut more = Vec::new();
            self.machine.applied(&did, &mut more);
            for output in more {
                if let ReaderOutput::Judge(trust) = output {
                    self.judge(trust);
                }
            }
        }
        self.sink.settled(self.machine.trust());
        Ok(())
    }

    fn judge(&mut self, trust: Trust) {
        let mut status = self.machine.status();
        status.trust = trust;
        if trust == Trust::Exact {
            status.detail = None;
        }
        let rank = self.sink.rank();
        let why = status.detail.as_deref().unwrap_or_default();
        tracing::info!(worker = %rank.worker, rank = rank.rank, trust = trust.name(), why, "trust changed");
        self.sink.publish(status);
    }

    fn publish(&mut self) {
        self.published = Instant::now();
        self.sink.publish(self.machine.status());
    }
}
