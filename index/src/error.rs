//! Everything a caller may run into, as one enum: malformed events and limits that were reached.

use crate::types::EngineHash;

/// Why an operation was refused. A store that fails with a `*Full` variant may have been applied in part: the caller
/// clears the rank (a clear never needs memory) and marks it as not exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IndexError {
    /// `names` and `contents` differ in length. Nothing was applied.
    #[error("store has {names} names but {contents} content hashes")]
    LengthMismatch {
        /// Number of names.
        names: usize,
        /// Number of content hashes.
        contents: usize,
    },
    /// A block names itself as its parent. Nothing was applied.
    #[error("block {name} names itself as its parent")]
    SelfParent {
        /// The name.
        name: EngineHash,
    },
    /// The rank is not open on this lane (closed, or another lane's).
    #[error("rank slot {slot} is not open on this lane")]
    UnknownRank {
        /// The slot.
        slot: u32,
    },
    /// `ranks_max` ranks are open, or the lanes have taken every word of sixteen slots between them.
    #[error("all {limit} rank slots are taken (limit ranks_max)")]
    RanksFull {
        /// The limit.
        limit: u32,
    },
    /// The arena has no room for more distinct blocks.
    #[error("no room for more distinct blocks (limit blocks_max = {limit})")]
    BlocksFull {
        /// The limit.
        limit: u32,
    },
    /// The arena has no room for more runs.
    #[error("no room for more runs (limit runs_max = {limit})")]
    RunsFull {
        /// The limit.
        limit: u32,
    },
    /// No room for more holder blocks.
    #[error("no room for more holder blocks (limit exts_max = {limit})")]
    ExtsFull {
        /// The limit.
        limit: u32,
    },
    /// The lane has as many private names as it may.
    #[error("no room for more private names on the lane (limit private_names_max_per_lane = {limit})")]
    PrivateNamesFull {
        /// The limit.
        limit: u32,
    },
    /// The holder has as many names as it may.
    #[error("a holder has {limit} names already (limit names_max_per_holder)")]
    NamesFull {
        /// The limit.
        limit: u64,
    },
}

/// Why an index could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A setting is outside its range.
    #[error("{field} = {value} is outside {min}..={max}")]
    OutOfRange {
        /// The setting.
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
    },
    /// The address range for the arena could not be reserved.
    #[error("cannot reserve {bytes} bytes of address space for {region}: {reason}")]
    Reserve {
        /// Which region.
        region: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        reason: String,
    },
}
