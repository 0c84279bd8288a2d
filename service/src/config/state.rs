//! `[state]`: what was written, and what comes of it.

use super::limit::{millis, refused, to_millis};
use super::raw::ConfigError;
use crate::fleet::StateSettings;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[state]`: as [`StateSettings`], durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `StateSettings`")]
pub struct RawState {
    /// An empty text keeps no state.
    pub file: String,
    pub file_bytes_max: u64,
    pub write_max_ms: u64,
}

impl Default for RawState {
    fn default() -> Self {
        let state = StateSettings::default();
        Self { file: String::new(), file_bytes_max: state.file_bytes_max, write_max_ms: to_millis(state.write_max) }
    }
}

impl RawState {
    /// The settings, each in its range.
    pub(super) fn resolve(&self) -> Result<StateSettings, ConfigError> {
        let file = (!self.file.is_empty()).then(|| PathBuf::from(&self.file));
        if file.as_ref().is_some_and(|file| file.file_name().is_none()) {
            let reason = format!("{:?} names no file", self.file);
            return Err(refused("state.file", reason));
        }
        let write_max = millis("state.write_max_ms", self.write_max_ms)?;
        Ok(StateSettings { file, file_bytes_max: self.file_bytes_max, write_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_settings_own_and_a_directory_is_no_file() {
        assert_eq!(RawState::default().resolve().unwrap(), StateSettings::default());
        let written = RawState { file: "/var/lib/kvatlas/state".into(), ..RawState::default() };
        assert_eq!(written.resolve().unwrap().file, Some("/var/lib/kvatlas/state".into()));
        let error = RawState { file: "/..".into(), ..RawState::default() }.resolve().unwrap_err();
        assert!(error.to_string().starts_with("state.file"), "{error}");
    }
}
