//! `[relay]`: what was written, and what comes of it.

use super::limit::{PLACES_MAX, millis, size, to_millis};
use super::raw::ConfigError;
use super::wire::RawWire;
use crate::relay::RelayLimits;
use crate::relay::snapshot::SnapshotLimits;
use crate::republish::{WireLimits, WireSettings};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[relay]`: as [`RelayLimits`], durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `RelayLimits`, `SnapshotLimits` and `WireLimits`")]
pub struct RawRelay {
    pub history_batches_max: usize,
    pub history_bytes_max: u64,
    pub bytes_max: u64,
    pub subscribers_max: usize,
    pub snapshots_in_flight_max: usize,
    pub snapshot_stall_max_ms: u64,
    pub snapshot_blocks_max: usize,
    pub snapshot_bytes_max: usize,
    pub wire_consumers_max: usize,
    pub wire_stall_max_ms: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wire: Vec<RawWire>,
}

impl Default for RawRelay {
    fn default() -> Self {
        let (relay, wire) = (RelayLimits::default(), WireLimits::default());
        Self {
            history_batches_max: relay.history_batches_max,
            history_bytes_max: relay.history_bytes_max,
            bytes_max: relay.bytes_max,
            subscribers_max: relay.subscribers_max,
            snapshots_in_flight_max: relay.snapshots_in_flight_max,
            snapshot_stall_max_ms: to_millis(relay.snapshot_stall_max),
            snapshot_blocks_max: relay.snapshot.blocks_max,
            snapshot_bytes_max: relay.snapshot.bytes_max,
            wire_consumers_max: wire.consumers_max,
            wire_stall_max_ms: to_millis(wire.stall_max),
            wire: Vec::new(),
        }
    }
}

impl RawRelay {
    /// The limits, each in its range. A history of 0 batches or bytes is allowed: every subscription is then a snapshot, and
    /// ends with the next batch.
    pub(super) fn resolve(&self) -> Result<RelayLimits, ConfigError> {
        Ok(RelayLimits {
            history_batches_max: self.history_batches_max,
            history_bytes_max: self.history_bytes_max,
            bytes_max: self.bytes_max,
            subscribers_max: self.subscribers_max.min(PLACES_MAX),
            snapshots_in_flight_max: size("relay.snapshots_in_flight_max", self.snapshots_in_flight_max)?
                .min(PLACES_MAX),
            snapshot_stall_max: Duration::from_millis(self.snapshot_stall_max_ms),
            snapshot: SnapshotLimits {
                blocks_max: size("relay.snapshot_blocks_max", self.snapshot_blocks_max)?,
                bytes_max: size("relay.snapshot_bytes_max", self.snapshot_bytes_max)?,
            },
        })
    }

    /// What is republished.
    pub(super) fn resolve_wire(&self) -> Result<WireSettings, ConfigError> {
        let limits = WireLimits {
            consumers_max: size("relay.wire_consumers_max", self.wire_consumers_max)?,
            stall_max: millis("relay.wire_stall_max_ms", self.wire_stall_max_ms.max(1))?,
        };
        Ok(WireSettings { rules: self.wire.iter().map(RawWire::resolve).collect::<Result<_, _>>()?, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_limits_own() {
        assert_eq!(RawRelay::default().resolve().unwrap(), RelayLimits::default());
        assert_eq!(RawRelay::default().resolve_wire().unwrap(), WireSettings::default());
    }

    #[test]
    fn what_cannot_be_zero_is_named() {
        for (raw, expected) in [
            (RawRelay { snapshots_in_flight_max: 0, ..RawRelay::default() }, "relay.snapshots_in_flight_max"),
            (RawRelay { snapshot_blocks_max: 0, ..RawRelay::default() }, "relay.snapshot_blocks_max"),
            (RawRelay { snapshot_bytes_max: 0, ..RawRelay::default() }, "relay.snapshot_bytes_max"),
        ] {
            assert!(raw.resolve().unwrap_err().to_string().contains(expected));
        }
    }
}
