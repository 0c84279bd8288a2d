//! Which memory nodes the machine has, and what of the service belongs to which: shards to nodes, lanes and lookup threads to
//! cores of those nodes.
//!
//! [`Machine`] is what was found, [`Plan`] what is asked for (pure, so that tests plan for machines that nobody here has), and
//! [`Pinned`] and [`ShardPlacement`](kvatlas_index::ShardPlacement) say what came of it. [`Tending`] makes huge pages of memory in use. Whatever the system refuses is shown and
//! the service runs without it: a wrong place makes it slower, never wrong. Reading the topology blocks on a few small files; it
//! happens once, at start.

#[cfg(feature = "hwloc")]
mod hwloc;
mod machine;
mod pin;
mod plan;
mod report;
mod sysfs;
mod tending;

pub use machine::{Machine, Node, Topology};
pub use pin::{LookupPins, Pinned, Spot, pin_current_thread};
pub use plan::{Asked, Numa, Plan};
pub use report::{ShardReport, log_placement, shard_reports};
pub use sysfs::Sysfs;
pub use tending::{Tending, TendingSettings};
