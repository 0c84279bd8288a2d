//! The gRPC face: protobuf at the edge, converted here and never passed further in.
//!
//! One file for each service, one for the conversions of each direction, and [`error`], the only place that chooses status codes.

mod admission;
mod answers;
mod bookings;
mod copies;
pub mod error;
mod events;
mod facts;
mod index;
mod leases;
mod limits;
mod loads;
mod peers;
mod placements;
pub mod proto;
mod push_wire;
mod questions;
mod relayed;
mod routing;
mod smg_events;
mod workers;

pub use admission::Admission;
pub use bookings::follow_bookings;
pub use events::EventApi;
pub use facts::{ServiceFacts, Waiting, WaitingRank};
pub use index::IndexApi;
pub use leases::LeaseApi;
pub use limits::GrpcLimits;
pub use peers::start_from_peers;
pub use questions::registration_from_proto;
#[cfg(feature = "redis")]
pub(crate) use questions::{push_batch, trust_from_proto};
#[cfg(feature = "redis")]
pub(crate) use relayed::relayed_batch;
pub use routing::RoutingApi;
pub use smg_events::SmgApi;
pub use workers::WorkerApi;
