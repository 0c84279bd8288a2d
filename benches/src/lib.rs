//! What the benchmarks share: indexes behind one seam, memory accounts, and honest medians, and the gate table.
//!
//! Beside the benchmarks, the harness's ladder plays the same indexes through [`indexers`].

pub mod clock;
pub mod histogram;
pub mod indexers;
pub mod laps;
pub mod memory;
pub mod provenance;
pub mod results;
pub mod sampling;
pub mod tending;
