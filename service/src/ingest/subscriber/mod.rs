//! One rank's subscriber: sockets, the pure rank, and the sink that takes its operations.
//!
//! Tasks of a rank, all ended by dropping the future of [`follow_rank`]:
//!
//! ```text
//! events task (reads without a pause) --bounded queue--> the future itself: Rank::step --> sink
//! replay task (while one is asked for) --bounded queue----^
//! ```
//!
//! The events task never waits for anything but its socket: what finds no room in the queue is dropped and counted, and the
//! sequence shows the gap. So a slow index costs this rank a replay, and costs the engine and every other rank nothing.

mod events;
mod pulse;
mod queue;
mod replay;
mod snapshot;

use super::clock::{STATUS_PERIOD, sleep_some};
use super::rank::{Now, Rank, RankInput, RankOutput};
use super::socket::{Endpoint, EndpointError, SocketLimits};
use super::spec::{IngestLimits, RankEndpoint, WorkerSpec};
use super::status::{RankStatus, Trust};
use crate::ops::{Applied, Op, OpBatch};
use crate::seed::{NoSeed, Seed, SeedCall, Stores};
pub use pulse::{Pulse, probe};
use queue::{Entry, Queue};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Takes what a rank's events come down to.
pub trait RankSink: Send {
    /// Applies a batch, in order. May wait for room; the rank's stream is then held up, no other.
    fn apply(&mut self, batch: OpBatch) -> impl Future<Output = Result<Applied, SinkClosed>> + Send;

    /// Empties the rank and applies its state as of batch `sequence`, told in parts. Without a relay behind it, that is a batch
    /// for each part.
    fn load(&mut self, sequence: u64, parts: Vec<Vec<Op>>) -> impl Future<Output = Result<Applied, SinkClosed>> + Send {
        async move {
            let _ = sequence;
            let clear = vec![Op::Clear { tier: None }];
            let mut sum = Applied::default();
            for ops in std::iter::once(clear).chain(parts) {
                sum.add(&self.apply(OpBatch { ops, ..OpBatch::default() }).await?);
            }
            Ok(sum)
        }
    }

    /// The operations that make the rank as it is on an empty one, in parts. Nothing else applies to it meanwhile. `None` where
    /// the rank's blocks kept moving, or there is nobody who could tell.
    fn tell(&mut self) -> impl Future<Output = Option<Vec<Vec<Op>>>> + Send {
        std::future::ready(None)
    }

    /// Where the rank is offered seeds, and asked for its own. Asked for once.
    fn seed_calls(&mut self) -> Option<mpsc::Receiver<SeedCall>> {
        None
    }

    /// Room for states that are fetched at once, over all ranks. Asked for once.
    fn snapshot_room(&self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(1))
    }

    /// Takes a snapshot of the rank's status. Called at every change of trust, otherwise now and then while events come.
    fn publish(&mut self, status: RankStatus);

    /// Takes what is believed of everything applied so far, after every step that may have changed it. Without a relay
    /// behind it, nobody has to know.
    fn settled(&mut self, trust: Trust) {
        let _ = trust;
    }

    /// Where the rank's connections tell that the publisher is there, or is not. Asked for once.
    fn pulse(&self) -> Arc<Pulse> {
        Arc::default()
    }
}

/// The sink takes nothing any more: the rank was removed, or the service stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the rank's sink is closed")]
pub struct SinkClosed;

/// Follows one rank until `stop` is cancelled or the sink is closed. Fails at once if an endpoint is none; from then on, no
/// peer can end it.
pub async fn follow_rank<S: RankSink>(
    spec: &WorkerSpec,
    endpoint: &RankEndpoint,
    limits: &IngestLimits,
    mut sink: S,
    stop: CancellationToken,
) -> Result<(), EndpointError> {
    let events: Endpoint = endpoint.events.parse()?;
    let replay = endpoint.replay.as_deref().map(str::parse).transpose()?;
    let (pulse, snapshot_room) = (sink.pulse(), sink.snapshot_room());
    let seed_calls = sink.seed_calls();
    let mut follower = Follower {
        name: format!("{} rank {}", spec.id, endpoint.rank),
        rank: Rank::new(spec, endpoint, limits),
        sink,
        limits: *limits,
        turns: pulse.turns(),
        pulse: pulse.clone(),
        origin: Instant::now(),
        published: (Trust::default(), false, 0, None),
        source: snapshot::source(spec.snapshots, replay.as_ref()),
        replay,
        snapshot_room,
        snapshots: JoinSet::new(),
        seed_calls,
        replays: JoinSet::new(),
        replies: Queue::new(limits),
    };
    let queue = Queue::new(limits);
    let mut tasks = JoinSet::new();
    tasks.spawn(events::read_events(events, spec.topic.clone(), *limits, queue.sender(), pulse));
    tokio::select! {
        () = stop.cancelled() => {}
        _closed = follower.run(queue) => {}
    }
    Ok(())
}

struct Follower<S> {
    name: String,
    rank: Rank,
    sink: S,
    limits: IngestLimits,
    pulse: Arc<Pulse>,
    replay: Option<Endpoint>,
    source: Option<Arc<dyn snapshot::SnapshotSource>>,
    snapshot_room: Arc<Semaphore>,
    snapshots: JoinSet<()>,
    seed_calls: Option<mpsc::Receiver<SeedCall>>,
    origin: Instant,
    published: (Trust, bool, u64, Option<&'static str>),
    /// How often the rank was told that its event connection was made or ended.
    turns: u64,
    replays: JoinSet<()>,
    replies: Queue,
}

impl<S: RankSink> Follower<S> {
    async fn run(&mut self, mut events: Queue) -> Result<(), SinkClosed> {
        self.publish();
        // A seed that lies there already comes before the connection.
        while let Some(call) = self.seed_calls.as_mut().and_then(|calls| calls.try_recv().ok()) {
            self.answer(call).await?;
        }
        let mut publish_at = None;
        loop {
            let tick_at = self.rank.next_tick().map(|at| self.origin + at);
            let entry = tokio::select! {
                entry = events.next() => entry,
                entry = self.replies.next() => self.comparable(entry),
                call = next_call(&mut self.seed_calls) => {
                    self.answer(call).await?;
                    continue;
                }
                // Replies that wait already are no silence, however late they are looked at.
                () = sleep_some(tick_at), if self.replies.is_empty() => Entry::Input(RankInput::Tick),
                () = sleep_some(publish_at) => {
                    publish_at = None;
                    self.publish();
                    continue;
                }
            };
            if matches!(entry, Entry::Input(RankInput::Connected | RankInput::Disconnected)) {
                self.turns += 1;
            }
            match entry {
                Entry::Input(input) => self.step(input).await?,
                Entry::Count(reason, count) => self.rank.count(reason, count),
            }
            if self.brief() != self.published {
                publish_at = None;
                self.publish();
            } else if publish_at.is_none() {
                publish_at = Some(Instant::now() + STATUS_PERIOD);
            }
        }
    }

    /// What waits in the queue is older than the end of its connection that the socket has seen already, and a reply is perhaps of
    /// the publisher's next life: such an answer is given up. The rank asks again as soon as it knows.
    fn comparable(&mut self, entry: Entry) -> Entry {
        match entry {
            Entry::Input(RankInput::Replay { request, .. }) if self.pulse.turns() != self.turns => {
                Entry::Input(RankInput::ReplayFailed { request })
            }
            Entry::Input(RankInput::SnapshotEnd { request }) if self.pulse.turns() != self.turns => {
                Entry::Input(RankInput::SnapshotFailed { request })
            }
            entry => entry,
        }
    }

    async fn step(&mut self, input: RankInput) -> Result<(), SinkClosed> {
        let mut outputs = Vec::new();
        self.rank.step(self.now(), input, &mut outputs);
        for output in outputs {
            match output {
                RankOutput::Apply(batch) => {
                    let sequence = batch.sequence;
                    let did = self.sink.apply(batch).await?;
                    self.rank.applied(sequence, &did);
                }
                RankOutput::CancelReplay => self.replays.abort_all(),
                RankOutput::RequestReplay { request, from } => self.ask(request, from),
                RankOutput::RequestSnapshot { request } => self.ask_for_state(request),
                RankOutput::CancelSnapshot => self.snapshots.abort_all(),
                RankOutput::Load { sequence, parts } => {
                    let did = self.sink.load(sequence, parts).await?;
                    self.rank.applied(Some(sequence), &did);
                }
            }
        }
        self.sink.settled(self.rank.trust());
        // Ended tasks are taken out, so that the set stays as small as what runs.
        while self.replays.try_join_next().is_some() {}
        while self.snapshots.try_join_next().is_some() {}
        Ok(())
    }

    async fn answer(&mut self, call: SeedCall) -> Result<(), SinkClosed> {
        match call {
            SeedCall::Offer(seed) => {
                self.step(RankInput::Seed(seed)).await?;
                self.publish();
            }
            // Whoever asked may be gone, already or by then.
            SeedCall::Tell(reply) if reply.is_closed() => {}
            SeedCall::Tell(reply) => drop(reply.send(self.tell().await)),
        }
        Ok(())
    }

    /// The rank's state between two steps. Its stream waits meanwhile. A seed that waits is passed on as it came: it needs its
    /// proof there as well.
    async fn tell(&mut self) -> Result<Seed, NoSeed> {
        if let Some(seed) = self.rank.waiting_seed() {
            return Ok(seed);
        }
        let (cut, learned) = self.rank.cut()?;
        let parts = self.sink.tell().await.ok_or(NoSeed::Busy)?;
        Ok(Seed { identity: self.rank.identity().clone(), cut, learned, stores: Stores::new(parts) })
    }

    fn ask_for_state(&mut self, number: u64) {
        self.snapshots.abort_all();
        if let Some(source) = &self.source {
            let (to, pulse) = (self.replies.sender(), self.pulse.clone());
            let request = snapshot::Request { number, limits: self.limits, to, pulse };
            self.snapshots.spawn(snapshot::fetch(source.clone(), self.snapshot_room.clone(), request));
        }
    }

    fn ask(&mut self, request: u64, from: u64) {
        self.replays.abort_all();
        if let Some(endpoint) = &self.replay {
            let (replies, pulse) = (self.replies.sender(), self.pulse.clone());
            let fetch = replay::fetch(endpoint.clone(), request, from, self.limits, replies, pulse);
            self.replays.spawn(fetch);
        }
    }

    fn now(&self) -> Now {
        Now::since(self.origin)
    }

    fn brief(&self) -> (Trust, bool, u64, Option<&'static str>) {
        (self.rank.trust(), self.rank.connected(), self.rank.incarnation(), self.rank.upper_bound())
    }

    fn publish(&mut self) {
        let brief = self.brief();
        let before = std::mem::replace(&mut self.published, brief);
        let status = self.rank.status();
        if before.0 != status.trust {
            let (trust, why) = (status.trust.name(), status.detail.as_deref().unwrap_or_default());
            if is_trouble(before.0, status.trust) {
                warn!(rank = %self.name, trust, why, "trust changed");
            } else {
                info!(rank = %self.name, trust, why, "trust changed");
            }
        }
        self.sink.publish(status);
    }
}

/// Whether a change of trust is worth a warning: a rank that was exact and is no more, or one that cannot become so by itself.
/// A rank that is only starting is what everybody expects.
fn is_trouble(before: Trust, now: Trust) -> bool {
    before == Trust::Exact || matches!(now, Trust::Partial | Trust::Degraded | Trust::Misconfigured)
}

/// The next call; never, where none can come.
async fn next_call(calls: &mut Option<mpsc::Receiver<SeedCall>>) -> SeedCall {
    match calls {
        Some(open) => match open.recv().await {
            Some(call) => call,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

fn socket_limits(limits: &IngestLimits) -> SocketLimits {
    SocketLimits { message_bytes_max: limits.message_bytes_max, handshake_max: limits.handshake_max }
}

#[cfg(test)]
mod tests {
    use super::{Trust, is_trouble};

    #[test]
    fn only_lost_trust_is_a_warning() {
        use Trust::{Bootstrapping, Degraded, Exact, Misconfigured, NeverSeen, Partial};
        for (before, now) in [
            (NeverSeen, Bootstrapping),
            (NeverSeen, Exact),
            (Bootstrapping, Exact),
            (Degraded, Exact),
            (Partial, Exact),
        ] {
            assert!(!is_trouble(before, now), "{before:?} to {now:?}");
        }
        for (before, now) in [
            (Exact, Bootstrapping),
            (Exact, Degraded),
            (Bootstrapping, Partial),
            (Bootstrapping, Misconfigured),
            (NeverSeen, Degraded),
        ] {
            assert!(is_trouble(before, now), "{before:?} to {now:?}");
        }
    }
}
