//! The shared log: what one replica relays of a rank, as a stream on a Valkey or Redis server, from which other replicas read it
//! without a connection to the rank's engine. Off unless it is configured; the client needs the feature `redis`.
//!
//! One stream for each rank. Its entries are what [`crate::relay`] gives a subscriber: the rank's state in parts, then its batches,
//! each with what is believed of the rank; so an appender is a subscriber like any other, keeps nothing that the relay does not
//! keep anyway, and holds nobody up. Whenever enough has come after a state another one is appended, and what lies before it
//! is trimmed: whoever begins at the oldest entry finds a state soon.
//!
//! Who appends: of the replicas with `shared_log.append` the one that has the rank's lease. The lease only says whose turn it is; what
//! keeps two writers from mixing is the entries' names ([`EntryId`]), since the server refuses a name that is not larger than all
//! before. A reader checks that no number is missing and that one life of the stream leads on, begins anew at the next state
//! otherwise, and says so until then.
//!
//! Both sides are pure ([`Appender`], [`Reader`]); connections are in `redis/`.

mod appender;
mod entry;
mod id;
mod limits;
#[cfg(test)]
mod property;
mod reader;
#[cfg(feature = "redis")]
mod redis;

pub use appender::{Appender, AppenderInput, AppenderOutput, Outcome, Piece};
pub use entry::{Entry, EntryError, Says};
pub use id::{EntryId, NoEntryId};
pub use limits::LogLimits;
pub use reader::{Reader, ReaderInput, ReaderOutput};
#[cfg(feature = "redis")]
pub use redis::RedisLog;
