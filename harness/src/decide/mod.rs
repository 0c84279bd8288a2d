//! What a routing decision costs: the service's own router over a filled index, asked open loop on a pinned core.

mod command;
pub mod corpus;
mod fleet;
mod run;

pub use command::{DecideArguments, decide};
pub use fleet::{Inside, MODEL};
pub use run::{Shares, TrialFigures, TrialSpec, orders, shares, trial};
