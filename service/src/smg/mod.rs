//! `SubscribeKvEvents` of `smg.grpc.common`: the stream by which engine servicers tell a gateway of that protocol their events.
//!
//! As client: a rank whose events endpoint is `smg://host:port` is followed through it ([`follow_smg`]), by a cursor of its own
//! ([`StreamCursor`]), since the protocol has no replay beside the stream. Batches become payloads of the engines' wire
//! ([`payload`]) and go the way of those. As server (`grpc`): what is kept for ranks that are republished is said in its words
//! ([`said`]).

mod convert;
mod cursor;
#[cfg(test)]
mod cursor_tests;
mod endpoint;
mod follow;
pub mod proto;
mod rank;

pub use convert::{Unsayable, payload, said};
pub use cursor::{End, Header, StreamCursor, Verdict};
pub use endpoint::{SmgEndpoint, SmgEndpointError};
pub use follow::{RANK_KEY, WORKER_KEY, follow_smg};
pub use rank::SmgRank;
