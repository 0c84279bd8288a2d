//! The chain index of KV Atlas: who holds which prefix.
//!
//! An [`Index`] has shards; a shard has single-writer [`Lane`]s and any number of [`Reader`]s. A lane applies the events of
//! the ranks it owns; a reader answers lookups of content hashes without a lock and without writing to shared memory.
//! [`reference`] is the oracle that defines every answer.
//!
//! Deliberately absent: async, I/O, clocks, logging, protobuf.

mod config;
mod error;
pub mod reference;
mod types;
mod api;

pub use api::{Index, Lane, Reader, Stats};
pub use config::IndexConfig;
pub use error::{ConfigError, IndexError};
pub use types::{
    Cleared, ContentHash, EngineHash, Holder, HolderDepth, LookupOptions, Outcome, RankFilter, RankKey, RankSlot,
    Removed, Residency, Store, StoreKind, Stored, Tier, WalkStep,
};
