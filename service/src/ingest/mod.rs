//! Admission of one rank's events: cursor, normalizer, trust, and the subscriber that feeds them.

mod status;

pub use status::{RankStatus, Trust};
