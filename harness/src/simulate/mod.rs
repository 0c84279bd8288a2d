//! A fleet in virtual time: mock engines, routers and a network between them, in one queue of events. What routers know comes to
//! them as it does in a real fleet: loads and events as delivered, their own dispatches, first tokens and ends; never what an engine
//! holds in truth.
//!
//! Time is whole nanoseconds; what is due at one time happens in the order in which it was caused. A run is one thread and gives the
//! same result for the same seed, bit by bit; runs are made side by side.

mod arrivals;
mod command;
mod desk_router;
mod known;
mod metrics;
mod net;
mod router;
mod streams;
mod table;
#[cfg(test)]
mod tests;
mod world;

pub use arrivals::{Arrival, ArrivalError, ArrivalSpec, arrivals, infinite_reuse};
pub(crate) use command::policy_named;
pub use command::{SimulateArguments, SimulateError, simulate};
pub use desk_router::DeskRouter;
pub use known::Known;
pub use metrics::{Figures, Outcome, Slo};
pub use net::{Delay, NetSpec};
pub use router::{Dispatch, KvBatch, Router};
pub use table::{Arm, Mean, Row};
pub use world::{Loads, WorldSpec, run};
