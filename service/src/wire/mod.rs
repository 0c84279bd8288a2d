//! Engine wires: what vLLM and SGLang send, as engine-neutral events.
//!
//! - [`decode_batch`]: one msgpack payload to events that borrow from it. A field that cannot be read costs its event, never
//!   the batch.
//! - [`parse_live`], [`parse_replay`], [`replay_request`]: the ZeroMQ frames around it.
//! - [`ContentHasher`], [`Namespace`]: the hashes that lookups and stores agree on.
//! - [`Verifier`], [`engine`]: the engines' own hashes, recomputed to check a registration.
//!
//! Nothing here does I/O, keeps a clock, logs or knows what a worker is. Every function is bounded by its input.

mod content;
mod decode;
#[cfg(test)]
mod decode_tests;
pub mod engine;
mod event;
mod extras;
mod fields;
mod frames;
mod hashes;
mod limits;
mod msgpack;
mod namespace;
mod remembered;
mod scheme;
#[cfg(test)]
mod testing;
mod token_room;
#[cfg(target_arch = "x86_64")]
mod token_run;
mod tokens;
mod verify;
mod written;

pub use content::{CONTENT_SEED, ContentHasher, HashMode, MultimodalItem, Prompt, StoreContentError, StoreContents};
pub use decode::{DecodeError, decode_batch, decode_batch_in};
pub use event::{Batch, Cleared, Event, Removed, Skip, SkipReason, Stored};
pub use extras::{Entry, Extra, ExtraKeys};
pub use frames::{
    FrameError, FrameLimits, LiveMessage, ReplayReply, parse_live, parse_replay, replay_request, snapshot_request,
};
pub use hashes::{Hashes, WireHash, WireHashes};
pub use limits::DecodeLimits;
pub use namespace::{Namespace, store_namespace};
pub use scheme::SchemeError;
pub use token_room::TokenRoom;
pub use tokens::{TokenIter, Tokens};
pub use verify::{HashScheme, Unverifiable, Verdict, Verifier};
pub(crate) use written::Msgpack;
