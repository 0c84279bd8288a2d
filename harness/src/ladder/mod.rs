//! `ladder`: how many block operations a second an indexer sustains, and how long lookups take at every load. Open loop, on
//! pinned cores, side by side with other indexers.
//!
//! `corpus` plays a schedule on mock workers and puts it on a `tape`. A `trial` is a fresh process (`child`) with a `result`: it fills
//! an indexer, then issuers hand over each operation at its deadline (`pace`, `clock`, `issuer`) and `lane`s serve
//! them, on the cores of a `layout`. `campaign` strings trials together: capacities, the `search` for sustained rates, a
//! `series` at every load; `disturbance` says which trials do not count, `statistics` what the others amount to, and
//! `report` shows it. `memory`, `churn` and `exact` are modes of their own.
//!
//! Coordinated omission is impossible by construction: an issuer waits for deadlines only, times count from the schedule, and
//! queues are bounded with overflow counted.

pub mod campaign;
pub mod check;
pub mod child;
mod churn;
pub(crate) mod clock;
mod command;
pub mod corpus;
pub mod counting;
pub mod disturbance;
mod exact;
mod issuer;
mod lane;
pub mod layout;
pub mod measure;
pub mod memory;
mod mirror;
pub mod pace;
pub mod report;
mod result;
pub mod search;
pub mod series;
pub mod statistics;
pub mod tape;
pub mod trial;

pub use command::{LadderArguments, LadderError, run};
