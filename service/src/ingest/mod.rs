//! Admission of one rank's events: cursor, normalizer, trust, and the subscriber that feeds them.

mod clock;
mod counters;
pub mod cursor;
mod hash_check;
mod hash_choice;
pub mod normalize;
mod rank;
mod snapshot;
pub mod socket;
mod spec;
mod status;
mod subscriber;

pub(crate) use clock::{STATUS_PERIOD, now_ms, sleep_some};
pub use counters::Counters;
pub use hash_choice::{HASH_CHECK_EVERY_DEFAULT, HASH_SCHEME_BYTES_MAX, HashChoice, HashChoiceError};
pub use rank::{Now, Rank, RankInput, RankOutput};
pub use snapshot::{SnapshotDialect, SnapshotDialectError};
pub use spec::{Engine, IngestLimits, RankEndpoint, WorkerSpec};
pub use status::{RankStatus, Trust};
pub use subscriber::{Pulse, RankSink, SinkClosed, follow_rank, probe};
