//! Admission of one rank's events: cursor, normalizer, trust, and the subscriber that feeds them.

mod counters;
pub mod cursor;
pub mod normalize;
mod rank;
mod spec;
mod status;

pub use counters::Counters;
pub use rank::{Now, Rank, RankInput, RankOutput};
pub use spec::{Engine, IngestLimits, RankEndpoint, WorkerSpec};
pub use status::{RankStatus, Trust};
