//! Bookings between replicas, so that several routers decide as one: each tells the others what it dispatched and what ended, and
//! counts what it hears beside its own.
//!
//! [`OwnBookings`] is what a replica tells: everything that is open, then every change, from one bounded history that all its
//! listeners read. [`ForeignBookings`] is what it heard of others, as changes for its desks. A replica that is lost keeps its
//! bookings for a bounded time, then they are over. Nothing that another replica says touches a booking of our own.
//!
//! Pure: nothing here is a wire or a clock.

mod foreign;
mod own;
#[cfg(test)]
mod tests;

pub use foreign::{ForeignBookings, ForeignCounters, ForeignNews};
pub use own::{Behind, Listener, OwnBookings, Piece};

use std::sync::Arc;
use std::time::Duration;

/// A dispatch, as replicas tell it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// The model.
    pub model: Arc<str>,
    /// The routing group.
    pub routing_group: Arc<str>,
    /// The worker's id.
    pub worker: Arc<str>,
    /// Tokens of the prompt, where they were known.
    pub tokens: Option<u64>,
    /// Of these, expected to be found cached.
    pub cached_tokens: u64,
    /// When it was dispatched, by the clock of whoever holds this.
    pub dispatched_at: Duration,
}

/// What happened to a booking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BookingChange {
    /// It was made, or is open.
    Dispatched(Dispatch),
    /// The first token came.
    FirstToken,
    /// It ended.
    Ended,
}
