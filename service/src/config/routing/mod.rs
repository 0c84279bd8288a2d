//! `[routing]`: what was written, and what comes of it.

mod flags;
mod loads;
mod policies;
mod requests;

pub use flags::RoutingFlags;
pub use loads::{RawLoad, RawOverload, RawThreshold, RawWarmup};
pub use policies::{
    RawBalanced, RawCacheAware, RawCredit, RawCreditMode, RawExpectedTtft, RawHashMode, RawOwnerPressure,
};
pub use requests::{RawApproximate, RawBookings, RawHold};

use super::limit::{at_most, refused, size, within};
use super::raw::ConfigError;
use crate::routing::{PolicyName, RoutingSettings};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Holders that a selection may look at: as many as there may be candidates.
const HOLDERS_MAX: usize = 8192;
/// Bounds of a price, a weight or a share of nothing in particular: no negative one, and none beside which nothing else counts.
const WEIGHT: RangeInclusive<f64> = 0.0..=1e6;
/// Bounds of a time that a decision counts with, seconds.
const SECONDS: RangeInclusive<f64> = 0.0..=3600.0;
/// Bounds of a share.
const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// Bounds of a share of which something has to be left.
const SOME_SHARE: RangeInclusive<f64> = 1e-3..=1.0;
/// Bounds of a rate, tokens per second.
const RATE: RangeInclusive<f64> = 1e-3..=1e9;

/// `[routing]`: as [`RoutingSettings`], durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `RoutingSettings`")]
pub struct RawRouting {
    pub policy: String,
    pub tie_seconds: f64,
    pub holders_max: usize,
    pub near_tie: f64,
    pub load: RawLoad,
    pub cache_aware: RawCacheAware,
    pub hash_mode: RawHashMode,
    pub owner_pressure: RawOwnerPressure,
    pub credit: RawCredit,
    pub balanced: RawBalanced,
    pub overload: RawOverload,
    pub warmup: RawWarmup,
    pub expected_ttft: RawExpectedTtft,
    pub hold: RawHold,
    pub approximate: RawApproximate,
    pub bookings: RawBookings,
}

impl Default for RawRouting {
    fn default() -> Self {
        let settings = RoutingSettings::default();
        Self {
            policy: settings.policy.name().to_owned(),
            tie_seconds: settings.tie_seconds,
            holders_max: settings.holders_max,
            near_tie: settings.near_tie,
            load: RawLoad::default(),
            cache_aware: RawCacheAware::default(),
            hash_mode: RawHashMode::default(),
            owner_pressure: RawOwnerPressure::default(),
            credit: RawCredit::default(),
            balanced: RawBalanced::default(),
            overload: RawOverload::default(),
            warmup: RawWarmup::default(),
            expected_ttft: RawExpectedTtft::default(),
            hold: RawHold::default(),
            approximate: RawApproximate::default(),
            bookings: RawBookings::default(),
        }
    }
}

impl RawRouting {
    /// The settings, each in its range.
    pub fn resolve(&self) -> Result<RoutingSettings, ConfigError> {
        Ok(RoutingSettings {
            policy: policy(&self.policy)?,
            tie_seconds: within(SHARE, "routing.tie_seconds", self.tie_seconds)?,
            holders_max: bounded(HOLDERS_MAX, "routing.holders_max", self.holders_max)?,
            near_tie: within(SHARE, "routing.near_tie", self.near_tie)?,
            load: self.load.resolve()?,
            cache_aware: self.cache_aware.resolve()?,
            hash_mode: self.hash_mode.resolve()?,
            owner_pressure: self.owner_pressure.resolve()?,
            credit: self.credit.resolve()?,
            balanced: self.balanced.resolve()?,
            overload: self.overload.resolve()?,
            warmup: self.warmup.resolve()?,
            expected_ttft: self.expected_ttft.resolve()?,
            hold: self.hold.resolve()?,
            approximate: self.approximate.resolve()?,
            bookings: self.bookings.resolve()?,
        })
    }
}

/// The policy with a name, or an error that lists those there are.
fn policy(name: &str) -> Result<PolicyName, ConfigError> {
    PolicyName::from_name(name).ok_or_else(|| {
        let known: Vec<_> = PolicyName::ALL.iter().map(|policy| policy.name()).collect();
        refused("routing.policy", format!("{name:?} is none of {}", known.join(", ")))
    })
}

/// A count that is not 0, with a largest value of its own.
fn bounded(most: usize, setting: &str, value: usize) -> Result<usize, ConfigError> {
    at_most(most, setting, size(setting, value)?)
}

#[cfg(test)]
mod tests;
