//! Which code and which settings decide, as one word for receipts: two arms of a comparison prove by it that they differ.

use super::settings::RoutingSettings;
use sha2::{Digest, Sha256};
use std::fmt;

/// Hash of the sources of this module and everything below it, made when the program was built.
const CODE: &str = env!("ROUTING_CODE");

/// What decides. Equal only where both code and settings are: the code is a hash of its sources, the settings one of their values in
/// force, wherever they were written. Shown as `code-settings`, 16 hexadecimal digits each.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PolicyVersion {
    settings: u64,
}

impl PolicyVersion {
    /// The version of this program under these settings. Allocates; for once a configuration, not once a decision.
    pub fn new(settings: &RoutingSettings) -> Self {
        // Every field by name and in order, floats in the shortest digits that tell them apart.
        let canonical = serde_json::to_vec(settings).expect("numbers, words and lists of them can always be written");
        let hash = Sha256::digest(&canonical);
        let head = hash.iter().take(8).fold(0, |head, &byte| head << 8 | u64::from(byte));
        Self { settings: head }
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CODE}-{:016x}", self.settings)
    }
}

impl fmt::Debug for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{PolicyName, Timing};
    use std::collections::BTreeSet;
    use std::time::Duration;

    #[test]
    fn equal_settings_have_equal_versions_and_any_change_another() {
        type Change = fn(&mut RoutingSettings);
        let changes: [Change; 9] = [
            |_| {},
            |s| s.policy = PolicyName::LeastLoad,
            |s| s.tie_seconds = 1.000_000_000_000_000_2e-6,
            |s| s.overload.waiting_requests = None,
            |s| s.overload.token_usage = None,
            |s| s.hash_mode.boundaries = vec![256],
            |s| s.load.ack_delay += Duration::from_nanos(1),
            |s| s.expected_ttft.timing = Some(Timing::CLASS_8B),
            |s| s.expected_ttft.timing = Some(Timing { ka: 0.0, ..Timing::CLASS_8B }),
        ];
        let version = |change: &Change| {
            let mut settings = RoutingSettings::default();
            change(&mut settings);
            PolicyVersion::new(&settings).to_string()
        };
        let versions: BTreeSet<_> = changes.iter().map(version).collect();
        assert_eq!(versions.len(), changes.len());
        assert_eq!(versions, changes.iter().map(version).collect());
        assert!(versions.iter().all(|version| version.starts_with(CODE)));
    }

    #[test]
    fn a_version_is_two_words_of_sixteen_digits() {
        let version = PolicyVersion::new(&RoutingSettings::default()).to_string();
        let (code, settings) = version.split_once('-').unwrap();
        for word in [code, settings] {
            assert!(word.len() == 16 && word.bytes().all(|b| b.is_ascii_hexdigit()), "{version}");
        }
    }
}
