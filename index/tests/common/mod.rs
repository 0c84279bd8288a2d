//! What the suites share: one generator, one pair of index and oracle, one table of configurations.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod bytes;
pub mod configurations;
pub mod copies;
pub mod generator;
pub mod history;
pub mod operation;
pub mod pair;
pub mod profiles;
pub mod rng;
pub mod sides;
