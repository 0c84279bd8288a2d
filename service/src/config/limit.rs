//! Checks of single settings: each gives the value back, or an error that names the setting and its bound.

use super::raw::ConfigError;
use std::fmt::Display;
use std::time::Duration;

/// Longest deadline that a setting may ask for.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A number with a smallest value.
pub(super) fn at_least<T: PartialOrd + Display>(least: T, setting: &str, value: T) -> Result<T, ConfigError> {
    if value >= least { Ok(value) } else { Err(refused(setting, format!("{value} is not at least {least}"))) }
}

/// A number that may not be 0.
pub(super) fn at_least_1<T: PartialOrd + Display + From<u8>>(setting: &str, value: T) -> Result<T, ConfigError> {
    at_least(T::from(1), setting, value)
}

/// A number with a largest value.
pub(super) fn at_most<T: PartialOrd + Display>(most: T, setting: &str, value: T) -> Result<T, ConfigError> {
    if value <= most { Ok(value) } else { Err(refused(setting, format!("{value} is more than {most}"))) }
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
    millis(setting, at_least_1(setting, value)?)
}

fn refused(setting: &str, reason: String) -> ConfigError {
    ConfigError::Value { setting: setting.into(), reason }
}
