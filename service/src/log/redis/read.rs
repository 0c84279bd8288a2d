//! The one task that reads all streams: a connection that waits for entries of every rank at once.
//!
//! A rank whose task is behind is left out until there is room: nothing is dropped, and no other rank waits for it. Ranks that
//! have a past to read are few at a time, so that one answer stays small.

use super::Shared;
use super::server::{Keys, NoAnswer, entry_id, millis};
use crate::log::{EntryId, LogLimits};
use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

/// What the task has to tell a rank's.
pub(super) enum News {
    /// The server answers; the newest entry.
    Connected(Option<EntryId>),
    Disconnected,
    Entry(EntryId, Vec<(Vec<u8>, Vec<u8>)>),
    /// Nothing came for a while: the newest entry, and whether anybody has the lease.
    Quiet(Option<EntryId>, bool),
}

/// A rank to read.
pub(super) struct Follow {
    pub(super) keys: Keys,
    pub(super) to: mpsc::Sender<News>,
}

/// Room beside entries for the other news.
const NEWS_ROOM: usize = 4;

/// The way to a rank's task.
pub(super) fn channel(limits: &LogLimits) -> (mpsc::Sender<News>, mpsc::Receiver<News>) {
    mpsc::channel(limits.read_entries_max * 2 + NEWS_ROOM)
}

struct Followed {
    keys: Keys,
    to: mpsc::Sender<News>,
    last: EntryId,
    /// It was told that the connection is there, and so it is.
    connected: bool,
    /// The read before gave as many entries as one may.
    behind: bool,
    heard: Instant,
}

impl Followed {
    fn has_room(&self, limits: &LogLimits) -> bool {
        self.to.capacity() >= limits.read_entries_max + NEWS_ROOM
    }

    /// Tells something, if there is room.
    fn tell(&self, news: News) -> bool {
        self.to.try_send(news).is_ok()
    }
}

/// Reads until the log is gone.
pub(super) async fn read(shared: Arc<Shared>, mut follows: mpsc::UnboundedReceiver<Follow>) {
    let mut reading = Reading { shared, ranks: Vec::new(), connection: None, turn: 0 };
    let mut pause = reading.shared.limits.retry_min;
    loop {
        if reading.ranks.is_empty() {
            let Some(follow) = follows.recv().await else { return };
            reading.add(follow);
        }
        loop {
            match follows.try_recv() {
                Ok(follow) => reading.add(follow),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => return,
            }
        }
        reading.ranks.retain(|rank| !rank.to.is_closed());
        match reading.round().await {
            Ok(()) => {
                reading.shared.set_unread(None);
                pause = reading.shared.limits.retry_min;
            }
            Err(NoAnswer(why)) => {
                tracing::debug!(%why, "the log is not read");
                reading.shared.count("reads_failed");
                reading.shared.set_unread(Some(why.to_string()));
                reading.disconnected();
                sleep(pause).await;
                pause = (pause * 2).min(reading.shared.limits.retry_max);
            }
        }
    }
}

struct Reading {
    shared: Arc<Shared>,
    ranks: Vec<Followed>,
    connection: Option<MultiplexedConnection>,
    /// Whose turn it is to read its past.
    turn: usize,
}

impl Reading {
    fn add(&mut self, Follow { keys, to }: Follow) {
        let last = EntryId::default();
        self.ranks.push(Followed { keys, to, last, connected: false, behind: true, heard: Instant::now() });
    }

    fn disconnected(&mut self) {
        self.connection = None;
        for rank in &mut self.ranks {
            rank.connected = false;
            // A rank without room is told when the connection is there again.
            rank.tell(News::Disconnected);
        }
    }

    /// Connects if need be, looks at what is new or quiet, and reads once.
    async fn round(&mut self) -> Result<(), NoAnswer> {
        let limits = self.shared.limits;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.shared.server.connect(limits.block + limits.response_max).await?;
                self.shared.count("reads_connected");
                connection
            }
        };
        self.look().await?;
        self.read_once(connection).await
    }

    /// Looks at streams that are new, or have been quiet for a while.
    async fn look(&mut self) -> Result<(), NoAnswer> {
        let limits = self.shared.limits;
        let due =
            |rank: &Followed| (!rank.connected || rank.heard.elapsed() >= limits.renewal()) && rank.has_room(&limits);
        let at: Vec<usize> = (0..self.ranks.len()).filter(|&i| due(&self.ranks[i])).collect();
        if at.is_empty() {
            return Ok(());
        }
        let keys: Vec<Keys> = at.iter().map(|&i| self.ranks[i].keys.clone()).collect();
        let looks = self.shared.server.look(&keys).await?;
        for (i, (tail, writer)) in at.into_iter().zip(looks) {
            let rank = &mut self.ranks[i];
            rank.heard = Instant::now();
            // The rank's task sees the same, and begins anew with the oldest entry.
            if tail.unwrap_or_default() < rank.last {
                (rank.last, rank.behind) = (EntryId::default(), true);
            }
            if !rank.connected {
                rank.connected = rank.tell(News::Connected(tail));
            }
            rank.tell(News::Quiet(tail, writer));
        }
        Ok(())
    }

    async fn read_once(&mut self, mut connection: MultiplexedConnection) -> Result<(), NoAnswer> {
        let limits = self.shared.limits;
        let ready = |rank: &Followed| rank.connected && rank.has_room(&limits);
        let behind: Vec<usize> =
            (0..self.ranks.len()).filter(|&i| ready(&self.ranks[i]) && self.ranks[i].behind).collect();
        let first = behind.partition_point(|&i| i < self.turn);
        let chosen: Vec<usize> =
            behind[first..].iter().chain(&behind[..first]).copied().take(limits.catching_up_max).collect();
        self.turn = chosen.last().map_or(0, |last| last + 1);
        let current = (0..self.ranks.len()).filter(|&i| ready(&self.ranks[i]) && !self.ranks[i].behind);
        let all: Vec<usize> = current.chain(chosen.iter().copied()).collect();
        if all.is_empty() {
            self.connection = Some(connection);
            sleep(limits.block).await;
            return Ok(());
        }
        let block = if chosen.is_empty() { limits.block } else { Duration::from_millis(1) };
        let mut read = cmd("XREAD");
        read.arg("COUNT").arg(limits.read_entries_max);
        read.arg("BLOCK").arg(millis(block).max(1)).arg("STREAMS");
        all.iter().for_each(|&i| {
            read.arg(&self.ranks[i].keys.stream);
        });
        all.iter().for_each(|&i| {
            read.arg(self.ranks[i].last.to_string());
        });
        let answer = timeout(block + limits.response_max, read.query_async::<Value>(&mut connection)).await;
        let answer = answer.map_err(|_| NoAnswer("no answer in time".into()))??;
        self.take(&all, answer)?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Hands entries out.
    fn take(&mut self, asked: &[usize], answer: Value) -> Result<(), NoAnswer> {
        let mut streams: HashMap<Vec<u8>, Vec<Value>> = HashMap::new();
        for stream in list(answer)? {
            let mut pair = list(stream)?.into_iter();
            let (Some(Value::BulkString(key)), Some(entries)) = (pair.next(), pair.next()) else {
                return Err(NoAnswer::unexpected());
            };
            streams.insert(key, list(entries)?);
        }
        for &i in asked {
            let rank = &mut self.ranks[i];
            let entries = streams.remove(rank.keys.stream.as_bytes()).unwrap_or_default();
            rank.behind = entries.len() >= self.shared.limits.read_entries_max;
            for entry in entries {
                let mut parts = list(entry)?.into_iter();
                let (id, fields) = (parts.next(), parts.next());
                rank.last = id.as_ref().and_then(entry_id).ok_or_else(NoAnswer::unexpected)?;
                rank.heard = Instant::now();
                // There was room for all of them.
                rank.tell(News::Entry(rank.last, fields_of(fields)));
            }
        }
        Ok(())
    }
}

fn list(value: Value) -> Result<Vec<Value>, NoAnswer> {
    match value {
        Value::Array(list) => Ok(list),
        Value::Nil => Ok(Vec::new()),
        _ => Err(NoAnswer::unexpected()),
    }
}

/// Names and values; an entry that was deleted has none.
fn fields_of(fields: Option<Value>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Some(Value::Array(fields)) = fields else { return Vec::new() };
    let mut pairs = Vec::new();
    let mut fields = fields.into_iter();
    while let (Some(Value::BulkString(name)), Some(Value::BulkString(value))) = (fields.next(), fields.next()) {
        pairs.push((name, value));
    }
    pairs
}
