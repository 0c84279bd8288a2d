//! The relay: what was applied for a rank, passed on to whoever subscribes, without a gap and without a copy.
//!
//! A rank's feed (its engine's publisher or `EventService.Apply`) admits every batch through the rank's [`RankRelay`], which
//! applies it to the lane and keeps it in a bounded [`History`]. A [`Subscription`] is a place in that history, not a queue: it
//! reads at its own speed, costs nothing while it waits, and ends with [`End::Slow`] when the history has moved past it. Who
//! has no place yet, or an old one, gets the rank's state out of the index ([`snapshot`]), cut between two batches, and goes on
//! from there.
//!
//! Where a rank is republished on the engines' own wire, its payloads are kept beside that, in a [`WireLog`].

mod history;
mod limits;
mod payloads;
mod rank;
mod relayed;
pub mod snapshot;
mod subscription;
mod wire_log;

pub use history::{History, Place};
pub use limits::{RelayFull, RelayLimits, RelayShared};
pub use payloads::{Payloads, Read, Span};
pub use rank::{RankRelay, RelayStatus, Start, SubscribeError};
pub use relayed::{Life, Relayed};
pub use subscription::{End, Item, Message, Part, Subscription};
pub use wire_log::{Consumer, WireAddresses, WireCounters, WireLog};
