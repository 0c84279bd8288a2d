//! `[liveness]`: what was written, and what comes of it.

use super::limit::{some_millis, to_millis};
use super::raw::ConfigError;
use crate::fleet::LivenessLimits;
use serde::{Deserialize, Serialize};

/// `[liveness]`: as [`LivenessLimits`], times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `LivenessLimits`")]
pub struct RawLiveness {
    pub enabled: bool,
    pub stall_ms: u64,
    pub wedge_ms: u64,
}

impl Default for RawLiveness {
    fn default() -> Self {
        let LivenessLimits { enabled, stall, wedge } = LivenessLimits::default();
        Self { enabled, stall_ms: to_millis(stall), wedge_ms: to_millis(wedge) }
    }
}

impl RawLiveness {
    /// The limits, each in its range.
    pub(super) fn resolve(&self) -> Result<LivenessLimits, ConfigError> {
        Ok(LivenessLimits {
            enabled: self.enabled,
            stall: some_millis("liveness.stall_ms", self.stall_ms)?,
            wedge: some_millis("liveness.wedge_ms", self.wedge_ms)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_limits_own() {
        assert_eq!(RawLiveness::default().resolve().unwrap(), LivenessLimits::default());
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (raw, expected) in [
            (RawLiveness { stall_ms: 0, ..RawLiveness::default() }, "liveness.stall_ms"),
            (RawLiveness { wedge_ms: 0, ..RawLiveness::default() }, "liveness.wedge_ms"),
            (RawLiveness { stall_ms: u64::MAX, ..RawLiveness::default() }, "liveness.stall_ms"),
        ] {
            assert!(raw.resolve().unwrap_err().to_string().contains(expected));
        }
    }
}
