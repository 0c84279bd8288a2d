//! The desks of the service: one for each model and routing group, fed with what the fleet, the index and the loads say, and asked
//! where requests should go.
//!
//! [`Router`] is the way in. A selection hashes and looks up on its own thread, then locks its desk for the microseconds of the
//! choice; no lock is held across anything that waits. What the fleet says of registrations is taken under that lock too, so a
//! decision is never about a worker that had left before it began.
//!
//! Not here: protobuf; how a worker is chosen ([`crate::routing`]).

mod cell;
mod exchange;
mod feed;
mod levels;
mod order;
mod receipt;
mod registry;
mod router;
mod selection;

pub use exchange::{BookingsListener, ForeignTotals};
pub use order::{Evidence, Order, RouteError, Selected};
pub use receipt::{CandidateReceipt, Receipt};
pub use router::{BookingLimits, DeskTotals, Router};
