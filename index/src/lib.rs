//! The chain index of KV Atlas: who holds which prefix.
//!
//! An [`Index`] has shards; a shard has single-writer [`Lane`]s and any number of [`Reader`]s. A lane applies the events of
//! the ranks it owns; a reader answers lookups of content hashes without a lock and without writing to shared memory.
//! [`mod@reference`] is the oracle that defines every answer.
//!
//! Blocks live in *runs*, stretches of one content chain in an arena; a further holder of a run is one cutoff or one bit, not
//! one map entry a block. A block's position never moves from its store to its death, so maps, child links and exceptions
//! are keyed by position and a split rewrites none of them.
//!
//! ```
//! use kvatlas_index::{
//!     ContentHash, EngineHash, Holder, Index, IndexConfig, LookupOptions, Outcome, RankKey, Store, StoreKind, Tier,
//! };
//!
//! let (index, mut lanes) = Index::new(IndexConfig::default())?;
//! let mut lane = lanes.remove(0); // goes to the one thread that applies events
//! let rank = lane.open_rank(RankKey(7))?;
//! let at = Holder { rank, tier: Tier::Device };
//!
//! // The engine stored two blocks from position 0 on, then freed the second one.
//! let (names, contents) = ([EngineHash(1), EngineHash(2)], [ContentHash(10), ContentHash(20)]);
//! lane.store(at, &Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy })?;
//! lane.remove(at, &[EngineHash(2)])?;
//!
//! let mut reader = index.reader(); // one for each thread that looks up
//! let mut answer = Vec::new();
//! let outcome = reader.lookup(&contents, &LookupOptions::default(), &mut answer);
//! assert_eq!(outcome, Outcome::Exact);
//! assert_eq!((answer[0].rank, answer[0].tier, answer[0].blocks), (RankKey(7), Tier::Device, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Deliberately absent: async, I/O, clocks, logging, protobuf.

mod alloc;
#[cfg(not(loom))]
mod bind;
mod check;
mod compare;
mod config;
mod cover;
mod edge;
mod error;
#[doc(hidden)]
pub mod fault;
mod hash;
mod index;
mod kids;
mod lane;
mod layout;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
#[cfg(not(loom))]
mod pages;
mod place;
mod prefetch;
mod read;
pub mod reference;
mod region;
mod reserved;
mod shard;
mod slots;
#[doc(hidden)]
pub mod sync;
mod types;
#[doc(hidden)]
pub mod version;
#[cfg(loom)]
#[doc(hidden)]
pub mod watch;

pub use config::IndexConfig;
pub use error::{ConfigError, IndexError};
pub use index::{Index, Stats};
pub use lane::Lane;
pub use lane::ahead::Upcoming;
pub use lane::export::{Export, ExportError, Exported};
pub use place::{Granted, HugePages, NodePolicy, PageFigures, PagesTended, ShardPlacement};
pub use read::{Holders, Levels, RankTier, Reader, ReaderCounters};
pub use types::{
    Cleared, ContentHash, EngineHash, Holder, HolderDepth, LookupOptions, Outcome, RankFilter, RankKey, RankSlot,
    Removed, Residency, Store, StoreKind, Stored, Tier, WalkStep,
};
