//! `[routing.cache_aware]` and the other policies' sections.

use super::super::limit::{at_least, at_most, millis, refused, some_millis, to_millis, within};
use super::super::raw::ConfigError;
use super::{RATE, SECONDS, SHARE, SOME_SHARE, WEIGHT, bounded};
use crate::routing::{
    BalancedSettings, CacheAwareSettings, CreditMode, CreditSettings, ExpectedTtftSettings, HashModeSettings,
    OwnerPressureSettings,
};
use serde::{Deserialize, Serialize};

/// Blocks from which a worker may first count as a holder.
const OVERLAP_MAX: u32 = 1 << 20;
/// Boundaries of heads: each is a hash of every prompt.
const BOUNDARIES_MAX: usize = 64;
/// Tokens at which a head may end.
const BOUNDARY_MAX: u32 = 1 << 24;
/// Holders of a head, and owners of a prefix.
const HOLDERS_MAX: usize = 256;
/// Heads and prefixes that may be remembered.
const REMEMBERED_MAX: usize = 1 << 28;

/// `[routing.cache_aware]`: as [`CacheAwareSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `CacheAwareSettings`")]
pub struct RawCacheAware {
    pub cache_threshold: f64,
    pub event_min_overlap_blocks: u32,
    pub balance_abs_threshold: f64,
    pub balance_rel_threshold: f64,
    pub balance_token_usage_threshold: f64,
    pub overload_token_usage_threshold: f64,
    pub overlap_decay: f64,
    pub selection_temperature: f64,
}

impl Default for RawCacheAware {
    fn default() -> Self {
        let cache = CacheAwareSettings::default();
        Self {
            cache_threshold: cache.cache_threshold,
            event_min_overlap_blocks: cache.event_min_overlap_blocks,
            balance_abs_threshold: cache.balance_abs_threshold,
            balance_rel_threshold: cache.balance_rel_threshold,
            balance_token_usage_threshold: cache.balance_token_usage_threshold,
            overload_token_usage_threshold: cache.overload_token_usage_threshold,
            overlap_decay: cache.overlap_decay,
            selection_temperature: cache.selection_temperature,
        }
    }
}

impl RawCacheAware {
    pub(super) fn resolve(&self) -> Result<CacheAwareSettings, ConfigError> {
        let name = |setting: &str| format!("routing.cache_aware.{setting}");
        let share = |setting: &str, value| within(SHARE, &name(setting), value);
        let overlap = at_least(1, &name("event_min_overlap_blocks"), self.event_min_overlap_blocks)?;
        Ok(CacheAwareSettings {
            cache_threshold: share("cache_threshold", self.cache_threshold)?,
            event_min_overlap_blocks: at_most(OVERLAP_MAX, &name("event_min_overlap_blocks"), overlap)?,
            balance_abs_threshold: within(WEIGHT, &name("balance_abs_threshold"), self.balance_abs_threshold)?,
            balance_rel_threshold: within(1.0..=1e6, &name("balance_rel_threshold"), self.balance_rel_threshold)?,
            balance_token_usage_threshold: share("balance_token_usage_threshold", self.balance_token_usage_threshold)?,
            overload_token_usage_threshold: share(
                "overload_token_usage_threshold",
                self.overload_token_usage_threshold,
            )?,
            overlap_decay: within(WEIGHT, &name("overlap_decay"), self.overlap_decay)?,
            selection_temperature: within(WEIGHT, &name("selection_temperature"), self.selection_temperature)?,
        })
    }
}

/// `[routing.hash_mode]`: as [`HashModeSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `HashModeSettings`")]
pub struct RawHashMode {
    pub boundaries: Vec<u32>,
    pub ttl_ms: u64,
    pub holders_max: usize,
    pub heads_max: usize,
}

impl Default for RawHashMode {
    fn default() -> Self {
        let HashModeSettings { boundaries, ttl, holders_max, heads_max } = HashModeSettings::default();
        Self { boundaries, ttl_ms: to_millis(ttl), holders_max, heads_max }
    }
}

impl RawHashMode {
    pub(super) fn resolve(&self) -> Result<HashModeSettings, ConfigError> {
        Ok(HashModeSettings {
            boundaries: boundaries(&self.boundaries)?,
            ttl: some_millis("routing.hash_mode.ttl_ms", self.ttl_ms)?,
            holders_max: bounded(HOLDERS_MAX, "routing.hash_mode.holders_max", self.holders_max)?,
            heads_max: bounded(REMEMBERED_MAX, "routing.hash_mode.heads_max", self.heads_max)?,
        })
    }
}

/// Where heads end, in order and each once.
fn boundaries(written: &[u32]) -> Result<Vec<u32>, ConfigError> {
    const SETTING: &str = "routing.hash_mode.boundaries";
    if written.len() > BOUNDARIES_MAX {
        return Err(refused(SETTING, format!("{} of them are more than {BOUNDARIES_MAX}", written.len())));
    }
    let mut boundaries = Vec::with_capacity(written.len());
    for &boundary in written {
        boundaries.push(at_most(BOUNDARY_MAX, SETTING, at_least(1, SETTING, boundary)?)?);
    }
    boundaries.sort_unstable();
    boundaries.dedup();
    Ok(boundaries)
}

/// `[routing.owner_pressure]`: as [`OwnerPressureSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `OwnerPressureSettings`")]
pub struct RawOwnerPressure {
    pub watermark: f64,
    pub slack: f64,
    pub owners_max: usize,
    pub cooldown_ms: u64,
    pub provisional_ms: u64,
    pub prefixes_max: usize,
}

impl Default for RawOwnerPressure {
    fn default() -> Self {
        let owner = OwnerPressureSettings::default();
        Self {
            watermark: owner.watermark,
            slack: owner.slack,
            owners_max: owner.owners_max,
            cooldown_ms: to_millis(owner.cooldown),
            provisional_ms: to_millis(owner.provisional),
            prefixes_max: owner.prefixes_max,
        }
    }
}

impl RawOwnerPressure {
    pub(super) fn resolve(&self) -> Result<OwnerPressureSettings, ConfigError> {
        let name = |setting: &str| format!("routing.owner_pressure.{setting}");
        // Queued requests count in a pressure, so it has no natural end at 1.
        Ok(OwnerPressureSettings {
            watermark: within(1e-3..=1e3, &name("watermark"), self.watermark)?,
            slack: within(0.0..=1e3, &name("slack"), self.slack)?,
            owners_max: bounded(HOLDERS_MAX, &name("owners_max"), self.owners_max)?,
            cooldown: millis(&name("cooldown_ms"), self.cooldown_ms)?,
            provisional: some_millis(&name("provisional_ms"), self.provisional_ms)?,
            prefixes_max: bounded(REMEMBERED_MAX, &name("prefixes_max"), self.prefixes_max)?,
        })
    }
}

/// `routing.credit.mode`: what is done with bounded cache credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RawCreditMode {
    /// Nothing.
    #[default]
    Off,
    /// It is computed and counted.
    Shadow,
    /// It moves requests.
    Enforce,
}

/// `[routing.credit]`: as [`CreditSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `CreditSettings`")]
pub struct RawCredit {
    pub mode: RawCreditMode,
    pub prefill_throughput: f64,
}

impl Default for RawCredit {
    fn default() -> Self {
        let CreditSettings { mode: _, prefill_throughput } = CreditSettings::default();
        Self { mode: RawCreditMode::default(), prefill_throughput }
    }
}

impl RawCredit {
    pub(super) fn resolve(&self) -> Result<CreditSettings, ConfigError> {
        Ok(CreditSettings {
            mode: match self.mode {
                RawCreditMode::Off => CreditMode::Off,
                RawCreditMode::Shadow => CreditMode::Shadow,
                RawCreditMode::Enforce => CreditMode::Enforce,
            },
            prefill_throughput: within(RATE, "routing.credit.prefill_throughput", self.prefill_throughput)?,
        })
    }
}

/// `[routing.balanced]`: as [`BalancedSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `BalancedSettings`")]
pub struct RawBalanced {
    pub credit_max_seconds: f64,
}

impl Default for RawBalanced {
    fn default() -> Self {
        let BalancedSettings { credit_max_seconds } = BalancedSettings::default();
        Self { credit_max_seconds }
    }
}

impl RawBalanced {
    pub(super) fn resolve(&self) -> Result<BalancedSettings, ConfigError> {
        let most = within(SECONDS, "routing.balanced.credit_max_seconds", self.credit_max_seconds)?;
        Ok(BalancedSettings { credit_max_seconds: most })
    }
}

/// `[routing.expected_ttft]`: as [`ExpectedTtftSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `ExpectedTtftSettings`")]
pub struct RawExpectedTtft {
    pub beta: f64,
    pub mean_output_tokens: f64,
    pub pool_share: f64,
    pub residence_weight: f64,
    pub use_reported_work: bool,
}

impl Default for RawExpectedTtft {
    fn default() -> Self {
        let ttft = ExpectedTtftSettings::default();
        Self {
            beta: ttft.beta,
            mean_output_tokens: ttft.mean_output_tokens,
            pool_share: ttft.pool_share,
            residence_weight: ttft.residence_weight,
            use_reported_work: ttft.use_reported_work,
        }
    }
}

impl RawExpectedTtft {
    pub(super) fn resolve(&self) -> Result<ExpectedTtftSettings, ConfigError> {
        let name = |setting: &str| format!("routing.expected_ttft.{setting}");
        Ok(ExpectedTtftSettings {
            timing: None,
            beta: within(WEIGHT, &name("beta"), self.beta)?,
            mean_output_tokens: within(0.0..=1e9, &name("mean_output_tokens"), self.mean_output_tokens)?,
            pool_share: within(SOME_SHARE, &name("pool_share"), self.pool_share)?,
            residence_weight: within(SOME_SHARE, &name("residence_weight"), self.residence_weight)?,
            use_reported_work: self.use_reported_work,
        })
    }
}
