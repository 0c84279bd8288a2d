//! Checks of single settings: each gives the value back, or an error that names the setting and its bound.

use super::raw::ConfigError;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Largest count or size that a setting may ask for: far above every use, far below what channels and semaphores take.
const SIZE_MAX: u64 = 1 << 40;
/// Longest deadline that a setting may ask for.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most places of a semaphore. Tokio's count to about 2^61: more places than these are not to be had anyway.
pub(super) const PLACES_MAX: usize = 1 << 32;

/// A number with a smallest value.
pub(super) fn at_least<T: PartialOrd + Display>(least: T, setting: &str, value: T) -> Result<T, ConfigError> {
    if value >= least { Ok(value) } else { Err(refused(setting, format!("{value} is not at least {least}"))) }
}

/// A count or a size in bytes: not 0, and not beyond what any queue could be made for.
pub(super) fn size(setting: &str, value: usize) -> Result<usize, ConfigError> {
    at_most(SIZE_MAX, setting, at_least(1, setting, value)? as u64)?;
    Ok(value)
}

/// A number with a largest value.
pub(super) fn at_most<T: PartialOrd + Display>(most: T, setting: &str, value: T) -> Result<T, ConfigError> {
    if value <= most { Ok(value) } else { Err(refused(setting, format!("{value} is more than {most}"))) }
}

/// A number between two others. What is no number is between none.
pub(super) fn within(range: RangeInclusive<f64>, setting: &str, value: f64) -> Result<f64, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(refused(setting, format!("{value} is not between {} and {}", range.start(), range.end())))
}

/// What [`millis`] makes a duration of.
pub(super) fn to_millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

/// Milliseconds, no more than a day.
pub(super) fn millis(setting: &str, value: u64) -> Result<Duration, ConfigError> {
    let duration = Duration::from_millis(value);
    if duration > DEADLINE_MAX {
        return Err(refused(setting, format!("{value} ms is longer than a day")));
    }
    Ok(duration)
}

/// The same, but not 0.
pub(super) fn some_millis(setting: &str, value: u64) -> Result<Duration, ConfigError> {
    millis(setting, at_least(1, setting, value)?)
}

/// An error that names the setting.
pub(super) fn refused(setting: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Value { setting: setting.into(), reason: reason.into() }
}
