//! What the benchmarks share: indexes behind one seam, memory accounts, and honest medians.
//!
//! Beside the benchmarks, the harness's ladder plays the same indexes through [`indexers`].

pub mod histogram;
pub mod indexers;
pub mod memory;
pub mod provenance;
pub mod sampling;
