//! The fleet: which workers exist, where their events come from, how far each rank can be believed, and whether its worker is there.
//!
//! [`Fleet`] is the writing side: registrations are serialised, each rank gets a number, a lane and a generation. [`FleetView`] is
//! the reading side: an immutable snapshot that a lookup takes without a lock. A registration that ends is taken out of the view
//! first, then marked closed, then its blocks are dropped on its lane; its number may be given to another rank afterwards. An
//! answer that was computed with an older view drops rows of closed ranks, so a number is never read as the wrong rank.

mod error;
mod feed;
mod keeper;
mod keys;
mod liveness;
mod load_cell;
mod metrics_source;
mod placement;
mod push;
mod push_cursor;
mod registration;
mod registry;
mod republished;
mod shared_log;
mod status_cell;
mod view;
mod watcher;

pub use error::FleetError;
pub use feed::LaneSink;
pub use keeper::{KeepError, StateCounters, StateKeeper, StateSettings};
pub use liveness::{Liveness, LivenessInput, LivenessLimits, LivenessOutput, Veto};
pub use load_cell::{LoadCell, LoadTaken, WorkerLoads};
pub use metrics_source::{MetricsSource, MetricsSourceError};
pub use push::{PushBatch, PushOutcome};
pub use push_cursor::{PushHeader, PushVerdict};
pub use registration::{Feed, FleetLimits, Registration};
pub use registry::{Fleet, FleetEvent, LaneBalance, Registered};
pub use shared_log::{LOG_ENDPOINT, LogStatus, SharedLog};
pub use status_cell::{Brief, StatusCell};
pub use view::{FleetView, Group, RankEntry, WorkerEntry};
pub use watcher::{VetoCell, VetoCounters};
