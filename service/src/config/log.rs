//! `[shared_log]`: what was written, and what comes of it.

use super::limit::{refused, size, some_millis, to_millis};
use super::raw::ConfigError;
use crate::log::LogLimits;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most entries that one read may take: there is a channel for twice as many.
const READ_ENTRIES_MAX: usize = 1 << 16;

/// `[shared_log]`: where the log is, and [`LogLimits`], durations in milliseconds.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each limit is documented at `LogLimits`")]
pub struct RawLog {
    /// Valkey or Redis server: `redis://[user:password@]host:port[/database]` or `redis+unix:///path`. Empty: there is no log.
    pub url: String,
    /// Whether ranks are appended to the log (those that are not read from it).
    pub append: bool,
    /// First word of every key on the server. Replicas with the same word share their streams.
    pub prefix: String,
    pub entries_max: u64,
    pub bytes_max: u64,
    pub entry_bytes_max: usize,
    pub queue_entries_max: usize,
    pub queue_bytes_max: usize,
    pub lease_ms: u64,
    pub retention_ms: u64,
    pub response_max_ms: u64,
    pub retry_min_ms: u64,
    pub retry_max_ms: u64,
    pub block_ms: u64,
    pub read_entries_max: usize,
    pub catching_up_max: usize,
    pub state_bytes_max: usize,
}

/// The log that is used.
#[derive(Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// The server.
    pub url: String,
    /// Whether ranks are appended.
    pub append: bool,
    /// First word of every key.
    pub prefix: String,
    /// Bounds and deadlines.
    pub limits: LogLimits,
}

// The address may hold a password.
impl fmt::Debug for RawLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawLog").field("append", &self.append).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl fmt::Debug for LogSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, append, prefix, limits } = self;
        f.debug_struct("LogSettings")
            .field("append", append)
            .field("prefix", prefix)
            .field("limits", limits)
            .finish_non_exhaustive()
    }
}

impl Default for RawLog {
    fn default() -> Self {
        let limits = LogLimits::default();
        Self {
            url: String::new(),
            append: false,
            prefix: "kvatlas".into(),
            entries_max: limits.entries_max,
            bytes_max: limits.bytes_max,
            entry_bytes_max: limits.entry_bytes_max,
            queue_entries_max: limits.queue_entries_max,
            queue_bytes_max: limits.queue_bytes_max,
            lease_ms: to_millis(limits.lease),
            retention_ms: to_millis(limits.retention),
            response_max_ms: to_millis(limits.response_max),
            retry_min_ms: to_millis(limits.retry_min),
            retry_max_ms: to_millis(limits.retry_max),
            block_ms: to_millis(limits.block),
            read_entries_max: limits.read_entries_max,
            catching_up_max: limits.catching_up_max,
            state_bytes_max: limits.state_bytes_max,
        }
    }
}

impl RawLog {
    /// The log, if there is to be one, with every limit in its range.
    pub(super) fn resolve(&self) -> Result<Option<LogSettings>, ConfigError> {
        let limits = self.limits()?;
        let refuse = |setting: &str, reason: &str| Err(refused(&name(setting), reason));
        if self.url.is_empty() {
            return if self.append { refuse("append", "without shared_log.url") } else { Ok(None) };
        }
        if !cfg!(feature = "redis") {
            return refuse("url", "this binary was built without the feature `redis`");
        }
        if self.prefix.is_empty() || self.prefix.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return refuse("prefix", "one word");
        }
        Ok(Some(LogSettings { url: self.url.clone(), append: self.append, prefix: self.prefix.clone(), limits }))
    }

    fn limits(&self) -> Result<LogLimits, ConfigError> {
        let size = |setting: &str, value: usize| size(&name(setting), value);
        let value = |setting: &str, value: u64| size(setting, value as usize).map(|value| value as u64);
        let time = |setting: &str, ms: u64| some_millis(&name(setting), ms);
        let limits = LogLimits {
            entries_max: value("entries_max", self.entries_max)?,
            bytes_max: value("bytes_max", self.bytes_max)?,
            entry_bytes_max: size("entry_bytes_max", self.entry_bytes_max)?,
            queue_entries_max: size("queue_entries_max", self.queue_entries_max)?,
            queue_bytes_max: size("queue_bytes_max", self.queue_bytes_max)?,
            lease: time("lease_ms", self.lease_ms)?,
            retention: time("retention_ms", self.retention_ms)?,
            response_max: time("response_max_ms", self.response_max_ms)?,
            retry_min: time("retry_min_ms", self.retry_min_ms)?,
            retry_max: time("retry_max_ms", self.retry_max_ms.max(self.retry_min_ms))?,
            block: time("block_ms", self.block_ms)?,
            read_entries_max: size("read_entries_max", self.read_entries_max)?.min(READ_ENTRIES_MAX),
            catching_up_max: size("catching_up_max", self.catching_up_max)?,
            state_bytes_max: size("state_bytes_max", self.state_bytes_max)?,
        };
        if limits.renewal() <= limits.block {
            return Err(refused(&name("lease_ms"), "a third of it has to be longer than shared_log.block_ms"));
        }
        Ok(limits)
    }
}

fn name(setting: &str) -> String {
    format!("shared_log.{setting}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_limits_own_and_no_log() {
        assert_eq!(RawLog::default().limits().unwrap(), LogLimits::default());
        assert_eq!(RawLog::default().resolve().unwrap(), None);
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Change = fn(&mut RawLog);
        let cases: [(Change, &str); 6] = [
            (|log| log.append = true, "shared_log.append"),
            (|log| log.entries_max = 0, "shared_log.entries_max"),
            (|log| log.queue_bytes_max = 0, "shared_log.queue_bytes_max"),
            (|log| log.lease_ms = 0, "shared_log.lease_ms"),
            (|log| log.lease_ms = 300, "shared_log.lease_ms"),
            (|log| log.retention_ms = u64::MAX, "shared_log.retention_ms"),
        ];
        for (change, expected) in cases {
            let mut raw = RawLog::default();
            change(&mut raw);
            let error = raw.resolve().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_address_needs_the_feature_and_is_not_printed() {
        let raw = RawLog { url: "redis://:secret@h:1".into(), ..RawLog::default() };
        assert!(!format!("{raw:?}").contains("secret"));
        let resolved = raw.resolve();
        assert_eq!(resolved.is_ok(), cfg!(feature = "redis"));
        match resolved {
            Ok(settings) => assert!(!format!("{settings:?}").contains("secret")),
            Err(error) => assert!(error.to_string().contains("feature `redis`"), "{error}"),
        }
    }
}
