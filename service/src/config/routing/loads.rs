//! `[routing.load]`, `[routing.overload]`, `[routing.warmup]`: what workers say of themselves, and what it keeps them from.

use super::super::limit::{at_least, at_most, millis, size, some_millis, to_millis, within};
use super::super::raw::ConfigError;
use super::{RATE, SECONDS, SHARE, SOME_SHARE, bounded};
use crate::routing::{LoadSettings, OverloadSettings, WarmupSettings};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::str::FromStr;

/// Requests that a threshold may ask for.
const REQUESTS_MAX: i64 = 1 << 40;
/// Entries of a worker's tally.
const TALLY_ENTRIES_MAX: usize = 1 << 20;
/// Blocks that a worker may need to be warm.
const BLOCKS_MAX: u64 = 1 << 40;
/// Diverted hits of a worker at once.
const HITS_MAX: u32 = 1 << 20;

/// `[routing.load]`: as [`LoadSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `LoadSettings`")]
pub struct RawLoad {
    pub kv_pressure_weight: f64,
    pub mean_prefill_tokens: f64,
    pub default_throughput: f64,
    pub idle_rank_credit: bool,
    pub max_waiting_requests: i64,
    pub ack_delay_ms: u64,
    pub poll_interval_ms: u64,
    pub poll_timeout_ms: u64,
    pub poll_bytes_max: usize,
    pub pushed_fresh_for_ms: u64,
    pub tally_entries_max: usize,
}

impl Default for RawLoad {
    fn default() -> Self {
        let load = LoadSettings::default();
        Self {
            kv_pressure_weight: load.kv_pressure_weight,
            mean_prefill_tokens: load.mean_prefill_tokens,
            default_throughput: load.default_throughput,
            idle_rank_credit: load.idle_rank_credit,
            max_waiting_requests: load.max_waiting_requests,
            ack_delay_ms: to_millis(load.ack_delay),
            poll_interval_ms: to_millis(load.poll_interval),
            poll_timeout_ms: to_millis(load.poll_timeout),
            poll_bytes_max: load.poll_bytes_max,
            pushed_fresh_for_ms: to_millis(load.pushed_fresh_for),
            tally_entries_max: load.tally_entries_max,
        }
    }
}

impl RawLoad {
    pub(super) fn resolve(&self) -> Result<LoadSettings, ConfigError> {
        let name = |setting: &str| format!("routing.load.{setting}");
        Ok(LoadSettings {
            kv_pressure_weight: within(SECONDS, &name("kv_pressure_weight"), self.kv_pressure_weight)?,
            mean_prefill_tokens: within(1.0..=1e9, &name("mean_prefill_tokens"), self.mean_prefill_tokens)?,
            default_throughput: within(RATE, &name("default_throughput"), self.default_throughput)?,
            idle_rank_credit: self.idle_rank_credit,
            max_waiting_requests: requests(0, &name("max_waiting_requests"), self.max_waiting_requests)?,
            ack_delay: millis(&name("ack_delay_ms"), self.ack_delay_ms)?,
            poll_interval: some_millis(&name("poll_interval_ms"), self.poll_interval_ms)?,
            poll_timeout: some_millis(&name("poll_timeout_ms"), self.poll_timeout_ms)?,
            poll_bytes_max: size(&name("poll_bytes_max"), self.poll_bytes_max)?,
            pushed_fresh_for: some_millis(&name("pushed_fresh_for_ms"), self.pushed_fresh_for_ms)?,
            tally_entries_max: bounded(TALLY_ENTRIES_MAX, &name("tally_entries_max"), self.tally_entries_max)?,
        })
    }
}

/// A number of requests with a smallest value.
fn requests(least: i64, setting: &str, value: i64) -> Result<i64, ConfigError> {
    at_most(REQUESTS_MAX, setting, at_least(least, setting, value)?)
}

/// A threshold, or the word `off`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number or \"off\"")]
pub enum RawThreshold<T> {
    /// Here it begins.
    At(T),
    /// There is none.
    Off(Off),
}

/// The word `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Off {
    /// As written.
    Off,
}

impl<T: Copy> RawThreshold<T> {
    /// As settings have it.
    pub(super) fn number(self) -> Option<T> {
        match self {
            RawThreshold::At(number) => Some(number),
            RawThreshold::Off(_) => None,
        }
    }

    fn of(number: Option<T>) -> Self {
        number.map_or(RawThreshold::Off(Off::Off), RawThreshold::At)
    }
}

impl<T: FromStr<Err: Display>> FromStr for RawThreshold<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(RawThreshold::Off(Off::Off));
        }
        text.parse().map(RawThreshold::At).map_err(|error| format!("neither a number ({error}) nor off"))
    }
}

/// `[routing.overload]`: as [`OverloadSettings`]. One set for every source, so a threshold means the same wherever it is written:
/// it counts unless `enabled` is written as false.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `OverloadSettings`")]
pub struct RawOverload {
    pub enabled: bool,
    pub waiting_requests: RawThreshold<i64>,
    pub token_usage: RawThreshold<f64>,
    pub shed: bool,
}

impl Default for RawOverload {
    fn default() -> Self {
        let overload = OverloadSettings::default();
        Self {
            enabled: overload.enabled,
            waiting_requests: RawThreshold::of(overload.waiting_requests),
            token_usage: RawThreshold::of(overload.token_usage),
            shed: overload.shed,
        }
    }
}

impl RawOverload {
    pub(super) fn resolve(&self) -> Result<OverloadSettings, ConfigError> {
        let waiting = |most| requests(1, "routing.overload.waiting_requests", most);
        let usage = |most| within(SOME_SHARE, "routing.overload.token_usage", most);
        Ok(OverloadSettings {
            enabled: self.enabled,
            waiting_requests: self.waiting_requests.number().map(waiting).transpose()?,
            token_usage: self.token_usage.number().map(usage).transpose()?,
            shed: self.shed,
        })
    }
}

/// `[routing.warmup]`: as [`WarmupSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `WarmupSettings`")]
pub struct RawWarmup {
    pub enabled: bool,
    pub duration_ms: u64,
    pub share: f64,
    pub blocks: u64,
    pub thin_ratio: f64,
    pub hit_share: f64,
    pub hits_in_flight: u32,
}

impl Default for RawWarmup {
    fn default() -> Self {
        let warmup = WarmupSettings::default();
        Self {
            enabled: warmup.enabled,
            duration_ms: to_millis(warmup.duration),
            share: warmup.share,
            blocks: warmup.blocks,
            thin_ratio: warmup.thin_ratio,
            hit_share: warmup.hit_share,
            hits_in_flight: warmup.hits_in_flight,
        }
    }
}

impl RawWarmup {
    pub(super) fn resolve(&self) -> Result<WarmupSettings, ConfigError> {
        let name = |setting: &str| format!("routing.warmup.{setting}");
        Ok(WarmupSettings {
            enabled: self.enabled,
            duration: millis(&name("duration_ms"), self.duration_ms)?,
            share: within(SHARE, &name("share"), self.share)?,
            blocks: at_most(BLOCKS_MAX, &name("blocks"), self.blocks)?,
            thin_ratio: within(SHARE, &name("thin_ratio"), self.thin_ratio)?,
            hit_share: within(SHARE, &name("hit_share"), self.hit_share)?,
            hits_in_flight: at_most(HITS_MAX, &name("hits_in_flight"), self.hits_in_flight)?,
        })
    }
}
