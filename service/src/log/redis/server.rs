//! The server: one connection for everything that is asked at once, made anew when it fails, and the commands on it.

use super::entries::{BATCH, KIND, UPPER_BOUND};
use crate::config::LogSettings;
use crate::log::{EntryId, LogLimits, Outcome};
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value, cmd, pipe};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// Version of the keys and of what is under them.
const FORMAT: &str = "1";
/// What the server says of a name that is not larger than all before.
const NOT_LARGER: &str = "equal or smaller";

/// There is no answer: no connection, not in time, or not now.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(pub(super) String);

impl NoAnswer {
    /// The server says something else than what it was asked.
    pub(super) fn unexpected() -> Self {
        Self("no such answer was expected".into())
    }
}

impl From<RedisError> for NoAnswer {
    fn from(error: RedisError) -> Self {
        Self(error.to_string())
    }
}

/// The keys of one rank.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) stream: String,
    pub(super) lease: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, worker: &str, rank: u32) -> Self {
        let key = |what: &str| format!("{prefix}:{FORMAT}:{what}:{rank}:{worker}");
        Self { stream: key("stream"), lease: key("lease") }
    }
}

/// What is known of the connection.
#[derive(Default)]
struct Link {
    connection: Option<MultiplexedConnection>,
    /// Which one it is, so that a late failure does not end the next one.
    number: u64,
    retry_at: Option<Instant>,
    pause: Option<Duration>,
    trouble: Option<String>,
}

/// One server. Any task may call it.
pub(super) struct Server {
    client: Client,
    limits: LogLimits,
    link: Mutex<Link>,
}

impl Server {
    pub(super) fn new(settings: &LogSettings) -> Result<Self, String> {
        let client = Client::open(settings.url.as_str()).map_err(|error| error.to_string())?;
        Ok(Self { client, limits: settings.limits, link: Mutex::default() })
    }

    /// The address, without credentials.
    pub(super) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Whether the connection is there, and if not, why.
    pub(super) fn state(&self) -> (bool, Option<String>) {
        match self.link.try_lock() {
            Ok(link) => (link.connection.is_some(), link.trouble.clone()),
            // Somebody is connecting.
            Err(_) => (false, None),
        }
    }

    /// A connection of its own, for reads that wait.
    pub(super) async fn connect(&self, response_max: Duration) -> Result<MultiplexedConnection, NoAnswer> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.response_max))
            .set_response_timeout(Some(response_max));
        let connected = self.client.get_multiplexed_async_connection_with_config(&config);
        match timeout(self.limits.response_max, connected).await {
            Ok(connected) => Ok(connected?),
            Err(_) => Err(NoAnswer("not connected in time".into())),
        }
    }

    /// The shared connection. While a failed one is not tried again yet, there is none.
    async fn connection(&self) -> Result<(MultiplexedConnection, u64), NoAnswer> {
        let mut link = self.link.lock().await;
        if let Some(connection) = &link.connection {
            return Ok((connection.clone(), link.number));
        }
        if link.retry_at.is_some_and(|at| Instant::now() < at) {
            return Err(NoAnswer(link.trouble.clone().unwrap_or_default()));
        }
        match self.connect(self.limits.response_max).await {
            Ok(connection) => {
                link.number += 1;
                link.connection = Some(connection.clone());
                (link.retry_at, link.trouble) = (None, None);
                Ok((connection, link.number))
            }
            Err(error) => {
                self.fail(&mut link, error.to_string());
                Err(error)
            }
        }
    }

    fn fail(&self, link: &mut Link, trouble: String) {
        let pause = link.pause.unwrap_or(self.limits.retry_min);
        link.connection = None;
        link.retry_at = Some(Instant::now() + pause);
        link.pause = Some((pause * 2).min(self.limits.retry_max));
        link.trouble = Some(trouble);
    }

    /// Sends commands and gives each one's answer back. What cannot be answered ends the connection: nobody knows what of it comes
    /// later.
    async fn ask(&self, commands: Vec<Cmd>) -> Result<Vec<RedisResult<Value>>, NoAnswer> {
        let mut all = pipe();
        all.ignore_errors();
        for command in commands {
            all.add_command(command);
        }
        let (mut connection, number) = self.connection().await?;
        let asked = all.query_async::<Vec<RedisResult<Value>>>(&mut connection);
        let trouble = match timeout(self.limits.response_max, asked).await {
            Ok(Ok(answers)) => match answers.iter().find_map(|answer| not_now(answer.as_ref().err()?)) {
                None => {
                    self.link.lock().await.pause = None;
                    return Ok(answers);
                }
                Some(trouble) => trouble,
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".into(),
        };
        let mut link = self.link.lock().await;
        if link.number == number {
            self.fail(&mut link, trouble.clone());
        }
        Err(NoAnswer(trouble))
    }

    /// Takes or prolongs the lease, and keeps the stream from going. Whether the lease is ours, and whether the stream is there.
    pub(super) async fn lease(&self, keys: &Keys, token: &str) -> Result<(bool, bool), NoAnswer> {
        let lease = millis(self.limits.lease);
        // Prolonging another's is harmless: only its holder does so, or who is about to learn that it is not.
        let take = set_new(&keys.lease, token, lease);
        let keep = expire(&keys.stream, millis(self.limits.retention));
        let answers = self.ask(vec![take, one("GET", &keys.lease), keep]).await?;
        let ours = answers.get(1).is_some_and(|answer| is_text(answer, token));
        let stream = matches!(answers.get(2), Some(Ok(Value::Int(1))));
        if ours {
            self.ask(vec![expire(&keys.lease, lease)]).await?;
        }
        Ok((ours, stream))
    }

    /// Gives the lease back, if it is still ours.
    pub(super) async fn release(&self, keys: &Keys, token: &str) {
        let look = self.ask(vec![one("GET", &keys.lease)]).await;
        let ours = look.is_ok_and(|a| a.first().is_some_and(|a| is_text(a, token)));
        if ours {
            // It ends by itself in a moment otherwise.
            self.ask(vec![one("DEL", &keys.lease)]).await.ok();
        }
    }

    /// The newest entry of a stream.
    pub(super) async fn tail(&self, keys: &Keys) -> Result<Option<EntryId>, NoAnswer> {
        let answers = self.ask(vec![info(keys)]).await?;
        tail_of(answers.first())
    }

    /// Appends entries under names that count on from `first`. Only the first of an epoch makes a stream where there is none.
    pub(super) async fn append(
        &self,
        keys: &Keys,
        first: EntryId,
        entries: &[Bytes],
        kind: &str,
        upper_bound: bool,
    ) -> Outcome {
        let mut commands = Vec::with_capacity(entries.len());
        for (number, entry) in (first.number..).zip(entries) {
            let mut append = cmd("XADD");
            append.arg(&keys.stream);
            if number > 0 {
                append.arg("NOMKSTREAM");
            }
            append.arg(EntryId { number, ..first }.to_string()).arg(KIND).arg(kind).arg(BATCH).arg(&entry[..]);
            if upper_bound {
                append.arg(UPPER_BOUND).arg("1");
            }
            commands.push(append);
        }
        let Ok(answers) = self.ask(commands).await else { return Outcome::Unanswered };
        answers.iter().map(outcome).find(|outcome| *outcome != Outcome::Taken).unwrap_or(Outcome::Taken)
    }

    /// Trims what is before an entry.
    pub(super) async fn trim(&self, keys: &Keys, from: EntryId) -> Result<(), NoAnswer> {
        let trim = cmd("XTRIM").arg(&keys.stream).arg("MINID").arg(from.to_string()).take();
        self.ask(vec![trim]).await.map(drop)
    }

    /// Removes a stream.
    pub(super) async fn delete(&self, keys: &Keys) -> Result<(), NoAnswer> {
        self.ask(vec![one("DEL", &keys.stream)]).await.map(drop)
    }

    /// For each stream its newest entry, and whether anybody has the lease to write it.
    pub(super) async fn look(&self, all: &[Keys]) -> Result<Vec<(Option<EntryId>, bool)>, NoAnswer> {
        let commands = all.iter().flat_map(|keys| [info(keys), one("EXISTS", &keys.lease)]);
        let answers = self.ask(commands.collect()).await?;
        answers
            .chunks(2)
            .map(|pair| Ok((tail_of(pair.first())?, matches!(pair.get(1), Some(Ok(Value::Int(1)))))))
            .collect()
    }
}

/// The name that a value of an answer is, if it is one.
pub(super) fn entry_id(value: &Value) -> Option<EntryId> {
    match value {
        Value::BulkString(id) => std::str::from_utf8(id).ok()?.parse().ok(),
        _ => None,
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn one(name: &str, key: &str) -> Cmd {
    cmd(name).arg(key).take()
}

fn set_new(key: &str, token: &str, ms: u64) -> Cmd {
    cmd("SET").arg(key).arg(token).arg("NX").arg("PX").arg(ms).take()
}

fn expire(key: &str, ms: u64) -> Cmd {
    cmd("PEXPIRE").arg(key).arg(ms).take()
}

fn info(keys: &Keys) -> Cmd {
    cmd("XINFO").arg("STREAM").arg(&keys.stream).take()
}

fn is_text(answer: &RedisResult<Value>, text: &str) -> bool {
    matches!(answer, Ok(Value::BulkString(bytes)) if bytes == text.as_bytes())
}

/// Answers that say nothing about what was asked: the server is starting, or does not serve us.
fn not_now(error: &RedisError) -> Option<String> {
    let code = error.code().unwrap_or_default();
    let not_now = error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(code, "LOADING" | "TRYAGAIN" | "MASTERDOWN" | "CLUSTERDOWN" | "READONLY" | "NOAUTH" | "NOPERM");
    not_now.then(|| error.to_string())
}

fn outcome(answer: &RedisResult<Value>) -> Outcome {
    match answer {
        Ok(Value::Nil) => Outcome::Refused,
        Ok(_) => Outcome::Taken,
        Err(error) if error.to_string().contains(NOT_LARGER) => Outcome::Fenced,
        Err(_) => Outcome::Refused,
    }
}

/// The newest entry that the server tells of a stream; `None` where there is no such stream.
fn tail_of(answer: Option<&RedisResult<Value>>) -> Result<Option<EntryId>, NoAnswer> {
    let fields = match answer {
        Some(Ok(Value::Array(fields))) => fields,
        Some(Err(error)) if error.to_string().contains("no such key") => return Ok(None),
        Some(Err(error)) => return Err(NoAnswer(error.to_string())),
        _ => return Err(NoAnswer::unexpected()),
    };
    let field =
        fields.chunks(2).find(|pair| matches!(&pair[0], Value::BulkString(name) if name == b"last-generated-id"));
    let id = field.and_then(|pair| entry_id(pair.get(1)?));
    let id = id.ok_or_else(|| NoAnswer("the server does not tell the stream's newest entry".into()))?;
    // What a stream begins with: no entry was ever appended.
    Ok((id != EntryId::default()).then_some(id))
}
