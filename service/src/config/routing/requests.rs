//! `[routing.hold]`, `[routing.approximate]`, `[routing.bookings]`: what is remembered of requests.

use super::super::limit::{at_least, at_most, some_millis, to_millis, within};
use super::super::raw::ConfigError;
use super::{SECONDS, WEIGHT, bounded};
use crate::routing::{ApproximateSettings, BookingSettings, HoldSettings};
use serde::{Deserialize, Serialize};

/// Requests that may be held: each keeps a caller waiting.
const HELD_MAX: usize = 1 << 20;
/// Blocks of routed prompts that may be remembered.
const BLOCKS_MAX: u32 = 1 << 30;
/// Reservations, of this replica or of others.
const BOOKINGS_MAX: usize = 1 << 28;
/// Bytes of a request's id: it is kept with the reservation.
const ID_BYTES_MAX: usize = 1 << 16;
/// Candidates that a request may name.
const CANDIDATES_MAX: usize = 1 << 20;

/// `[routing.hold]`: as [`HoldSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `HoldSettings`")]
pub struct RawHold {
    pub enabled: bool,
    pub backlog_seconds: f64,
    pub aging: f64,
    pub requests_max: usize,
    pub age_max_ms: u64,
}

impl Default for RawHold {
    fn default() -> Self {
        let HoldSettings { enabled, backlog_seconds, aging, requests_max, age_max } = HoldSettings::default();
        Self { enabled, backlog_seconds, aging, requests_max, age_max_ms: to_millis(age_max) }
    }
}

impl RawHold {
    pub(super) fn resolve(&self) -> Result<HoldSettings, ConfigError> {
        Ok(HoldSettings {
            enabled: self.enabled,
            backlog_seconds: within(SECONDS, "routing.hold.backlog_seconds", self.backlog_seconds)?,
            aging: within(WEIGHT, "routing.hold.aging", self.aging)?,
            requests_max: bounded(HELD_MAX, "routing.hold.requests_max", self.requests_max)?,
            age_max: some_millis("routing.hold.age_max_ms", self.age_max_ms)?,
        })
    }
}

/// `[routing.approximate]`: as [`ApproximateSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `ApproximateSettings`")]
pub struct RawApproximate {
    pub enabled: bool,
    pub blocks_max: u32,
    pub age_max_ms: u64,
    pub predicted_age_max_ms: u64,
}

impl Default for RawApproximate {
    fn default() -> Self {
        let ApproximateSettings { enabled, blocks_max, age_max, predicted_age_max } = ApproximateSettings::default();
        Self { enabled, blocks_max, age_max_ms: to_millis(age_max), predicted_age_max_ms: to_millis(predicted_age_max) }
    }
}

impl RawApproximate {
    pub(super) fn resolve(&self) -> Result<ApproximateSettings, ConfigError> {
        let name = |setting: &str| format!("routing.approximate.{setting}");
        let blocks_max = at_least(1, &name("blocks_max"), self.blocks_max)?;
        Ok(ApproximateSettings {
            enabled: self.enabled,
            blocks_max: at_most(BLOCKS_MAX, &name("blocks_max"), blocks_max)?,
            age_max: some_millis(&name("age_max_ms"), self.age_max_ms)?,
            predicted_age_max: some_millis(&name("predicted_age_max_ms"), self.predicted_age_max_ms)?,
        })
    }
}

/// `[routing.bookings]`: as [`BookingSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `BookingSettings`")]
pub struct RawBookings {
    pub bookings_max: usize,
    pub ttl_ms: u64,
    pub request_id_bytes_max: usize,
    pub candidates_max: usize,
    pub foreign_max: usize,
    pub foreign_keep_ms: u64,
    pub history_max: usize,
}

impl Default for RawBookings {
    fn default() -> Self {
        let bookings = BookingSettings::default();
        Self {
            bookings_max: bookings.bookings_max,
            ttl_ms: to_millis(bookings.ttl),
            request_id_bytes_max: bookings.request_id_bytes_max,
            candidates_max: bookings.candidates_max,
            foreign_max: bookings.foreign_max,
            foreign_keep_ms: to_millis(bookings.foreign_keep),
            history_max: bookings.history_max,
        }
    }
}

impl RawBookings {
    pub(super) fn resolve(&self) -> Result<BookingSettings, ConfigError> {
        let name = |setting: &str| format!("routing.bookings.{setting}");
        Ok(BookingSettings {
            bookings_max: bounded(BOOKINGS_MAX, &name("bookings_max"), self.bookings_max)?,
            ttl: some_millis(&name("ttl_ms"), self.ttl_ms)?,
            request_id_bytes_max: bounded(ID_BYTES_MAX, &name("request_id_bytes_max"), self.request_id_bytes_max)?,
            candidates_max: bounded(CANDIDATES_MAX, &name("candidates_max"), self.candidates_max)?,
            foreign_max: bounded(BOOKINGS_MAX, &name("foreign_max"), self.foreign_max)?,
            foreign_keep: some_millis(&name("foreign_keep_ms"), self.foreign_keep_ms)?,
            history_max: bounded(BOOKINGS_MAX, &name("history_max"), self.history_max)?,
        })
    }
}
