//! Lane threads: one writer of the index each, fed through a bounded queue.
//!
//! Promise: the operations of one rank are applied in the order in which they were sent, nothing is ever dropped, and a full
//! queue makes the sender wait. A rank is opened under a generation; whatever carries another generation (a late event
//! of a removed worker) does nothing. A store that meets a memory limit costs its rank its blocks, and says so.
//!
//! Not here: which rank goes to which lane (the fleet's choice), cursors, trust.

mod apply;
mod export;
mod handle;
mod thread;

pub use export::RankExport;
pub use handle::{LaneCounters, LaneError, LaneHandle, RankLane};
pub use thread::{LaneSettings, spawn_lanes};
