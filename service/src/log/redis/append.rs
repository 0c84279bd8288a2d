//! The task that appends one rank.

use super::Shared;
use super::entries::{kind, last_word, write};
use super::server::Keys;
use crate::fleet::RankEntry;
use crate::ingest::{Now, Trust, sleep_some};
use crate::log::{Appender, AppenderInput, AppenderOutput};
use crate::relay::{End, Item, Life, Message, Start, SubscribeError, Subscription};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Appends a rank until `stop` is cancelled or the rank is gone.
pub(super) async fn append(shared: Arc<Shared>, rank: Arc<RankEntry>, stop: CancellationToken) {
    let keys = Keys::new(&shared.prefix, &rank.worker, rank.rank);
    let token = format!("{:016x}-{}", shared.nonce, rank.generation);
    shared.standby.up();
    let mut writer = Writer {
        machine: Appender::new(shared.limits, shared.nonce.rotate_left(rank.key.0)),
        origin: Instant::now(),
        source: Source::default(),
        command: None,
        upper_bound: false,
        keys: keys.clone(),
        token: token.clone(),
        shared: shared.clone(),
        rank,
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = writer.run() => {}
    }
    let writing = writer.machine.is_writing();
    drop(writer);
    (if writing { &shared.writing } else { &shared.standby }).down();
    shared.server.release(&keys, &token).await;
}

struct Writer {
    machine: Appender,
    origin: Instant,
    source: Source,
    /// The command on its way.
    command: Option<BoxFuture<'static, AppenderInput>>,
    /// What the stream says of the rank's upper bound.
    upper_bound: bool,
    keys: Keys,
    token: String,
    shared: Arc<Shared>,
    rank: Arc<RankEntry>,
}

impl Writer {
    /// Ends when the rank is gone.
    async fn run(&mut self) {
        self.step(AppenderInput::Tick);
        loop {
            let tick_at = self.machine.next_tick().map(|at| self.origin + at);
            let wants_more = self.machine.wants_more();
            let input = tokio::select! {
                input = on_its_way(&mut self.command) => {
                    self.command = None;
                    input
                }
                next = self.source.next(&self.rank), if wants_more => match self.said(next) {
                    Some(input) => input,
                    None => return,
                },
                () = sleep_some(tick_at) => AppenderInput::Tick,
            };
            self.step(input);
            self.say_upper_bound();
            // What is there already is taken, so that the next command carries it all.
            while self.command.is_some() && self.machine.wants_more() {
                let Some(next) = self.source.next(&self.rank).now_or_never() else { break };
                let Some(input) = self.said(next) else { return };
                self.step(input);
            }
        }
    }

    /// What a subscription said; `None`: the rank is gone.
    fn said(&self, next: Result<Message, (End, Life)>) -> Option<AppenderInput> {
        match next {
            Ok(message) => Some(AppenderInput::Piece(write(&self.rank, message))),
            Err((End::Removed, _)) => None,
            Err((_, life)) => Some(AppenderInput::Over(last_word(&self.rank, life))),
        }
    }

    /// The upper bound goes with every entry; where it changes without one, a word is added.
    fn say_upper_bound(&mut self) {
        let upper_bound = self.rank.status.brief().upper_bound;
        if std::mem::replace(&mut self.upper_bound, upper_bound) == upper_bound || !self.machine.wants_more() {
            return;
        }
        if let (Some(life), Some(trust)) = (self.source.life(), self.source.trust) {
            let word = Message { life, trust: Some(trust), item: Item::Trust };
            self.step(AppenderInput::Piece(write(&self.rank, word)));
        }
    }

    fn step(&mut self, input: AppenderInput) {
        let now = Now::since(self.origin);
        let was_writing = self.machine.is_writing();
        let mut outputs = Vec::new();
        self.machine.step(now, input, &mut outputs);
        for output in outputs {
            self.carry_out(output);
        }
        self.shared.add(self.machine.take_counters());
        let writing = self.machine.is_writing();
        if writing != was_writing {
            let (from, to) = if writing {
                (&self.shared.standby, &self.shared.writing)
            } else {
                (&self.shared.writing, &self.shared.standby)
            };
            from.down();
            to.up();
            tracing::info!(worker = %self.rank.worker, rank = self.rank.rank, writing, "the rank's log");
        }
    }

    fn carry_out(&mut self, output: AppenderOutput) {
        let (shared, keys) = (self.shared.clone(), self.keys.clone());
        let command = match output {
            AppenderOutput::Subscribe => return self.source.subscribe(&self.rank),
            AppenderOutput::Unsubscribe => return self.source = Source::default(),
            AppenderOutput::Lease => {
                let token = self.token.clone();
                async move {
                    match shared.server.lease(&keys, &token).await {
                        Ok((ours, stream)) => AppenderInput::Lease { ours, stream },
                        Err(_) => AppenderInput::Unanswered,
                    }
                }
                .boxed()
            }
            AppenderOutput::Tail => {
                async move { shared.server.tail(&keys).await.map_or(AppenderInput::Unanswered, AppenderInput::Tail) }
                    .boxed()
            }
            AppenderOutput::Append { first, entries } => {
                let (kind, upper_bound) = (kind(&self.rank), self.rank.status.brief().upper_bound);
                self.upper_bound = upper_bound;
                async move {
                    AppenderInput::Appended(shared.server.append(&keys, first, &entries, &kind, upper_bound).await)
                }
                .boxed()
            }
            AppenderOutput::Trim { from } => async move {
                shared.server.trim(&keys, from).await.map_or(AppenderInput::Unanswered, |()| AppenderInput::Trimmed)
            }
            .boxed(),
            AppenderOutput::Delete => async move {
                shared.server.delete(&keys).await.map_or(AppenderInput::Unanswered, |()| AppenderInput::Trimmed)
            }
            .boxed(),
        };
        self.command = Some(command);
    }
}

async fn on_its_way(command: &mut Option<BoxFuture<'static, AppenderInput>>) -> AppenderInput {
    match command {
        Some(command) => command.await,
        None => std::future::pending().await,
    }
}

/// Where entries come from: a subscription, and beside it perhaps another one that begins with a state. The first one goes on to
/// where the state was cut, so that whoever follows the stream passes the state by.
#[derive(Default)]
struct Source {
    now: Option<Subscription>,
    then: Option<Subscription>,
    /// It is on its way; in a task of its own, since the rank's feed waits while it is cut.
    coming: Option<Coming>,
    trust: Option<Trust>,
}

struct Coming(JoinHandle<Result<Subscription, SubscribeError>>);

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Source {
    fn subscribe(&mut self, rank: &Arc<RankEntry>) {
        let rank = rank.clone();
        self.then = None;
        self.coming = Some(Coming(tokio::spawn(async move { rank.relay.subscribe(&rank.lane, Start::State).await })));
    }

    fn life(&self) -> Option<Life> {
        self.now.as_ref().map(Subscription::life)
    }

    /// Waits for the next item, or the end of it. Safe to drop.
    async fn next(&mut self, rank: &Arc<RankEntry>) -> Result<Message, (End, Life)> {
        loop {
            if let Some(then) = self.then.take_if(|then| {
                let reached =
                    |now: &Subscription| now.life() != then.life() || now.next_sequence() >= then.next_sequence();
                self.now.as_ref().is_none_or(reached)
            }) {
                self.now = Some(then);
            }
            let waits_for = self.then.is_none();
            tokio::select! {
                biased;
                came = arrival(&mut self.coming), if waits_for => {
                    self.coming = None;
                    match came {
                        Ok(subscription) => self.then = Some(subscription),
                        Err(SubscribeError::Removed) => return Err((End::Removed, Life(0))),
                        Err(error) => {
                            tracing::debug!(worker = %rank.worker, rank = rank.rank, %error, "no state for the log yet");
                            self.coming = Some(later(rank.clone()));
                        }
                    }
                }
                next = next_of(&mut self.now) => match next {
                    Ok(message) => {
                        self.trust = message.trust.or(self.trust);
                        return Ok(message);
                    }
                    // What comes instead is there, or on its way.
                    Err(end) => {
                        let life = self.life().unwrap_or(Life(0));
                        self.now = None;
                        if end == End::Removed || self.then.is_none() && self.coming.is_none() {
                            return Err((end, life));
                        }
                    }
                },
            }
        }
    }
}

/// Pause before a state is asked for again: relays refuse for want of room, or because lanes move blocks just then.
const STATE_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

fn later(rank: Arc<RankEntry>) -> Coming {
    Coming(tokio::spawn(async move {
        tokio::time::sleep(STATE_PAUSE).await;
        rank.relay.subscribe(&rank.lane, Start::State).await
    }))
}

async fn arrival(coming: &mut Option<Coming>) -> Result<Subscription, SubscribeError> {
    match coming {
        Some(Coming(task)) => task.await.unwrap_or(Err(SubscribeError::Removed)),
        None => std::future::pending().await,
    }
}

async fn next_of(subscription: &mut Option<Subscription>) -> Result<Message, End> {
    match subscription {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}
