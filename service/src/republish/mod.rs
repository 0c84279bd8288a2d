//! Ranks republished on the engines' own ZeroMQ wire, so that consumers of that wire stand behind the relay unchanged: a PUB
//! socket and a ROUTER socket for each rank that a rule names.
//!
//! ```text
//! relay -> WireLog <- a task for each SUB that connected: a place in the log, and a socket
//!                  <- a task for each DEALER or REQ: a range of the log for each request, then the end marker
//! ```
//!
//! Nothing is queued for a consumer: one that is slow loses what the log lets go, which is the high-water mark of this PUB, and asks
//! the ROUTER for it like anybody who missed something. A replay is read out of the log a burst at a time, so it holds up nobody.
//! Sequences and payloads are the publisher's; a gap that could not be filled stays one, and another life begins as it did there.
//!
//! Not here: which payloads there are ([`crate::relay::WireLog`]), and what a pushed batch looks like on this wire (`grpc`).

mod listen;
mod publish;
mod replay;
mod rules;

pub use listen::{Rank, serve};
pub use rules::{ReplayLayout, ReplayLayoutError, WireLimits, WireRule, WireSettings};

use crate::relay::WireCounters;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::timeout;

/// Bytes that are taken out of the log and written at once, about.
const BURST_BYTES: usize = 256 << 10;

/// Writes, unless the peer takes nothing for so long.
async fn write(to: &mut OwnedWriteHalf, bytes: &[u8], stall_max: Duration, counters: &WireCounters) -> io::Result<()> {
    match timeout(stall_max, to.write_all(bytes)).await {
        Ok(written) => written,
        Err(_late) => {
            WireCounters::add(&counters.stalled, 1);
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}
