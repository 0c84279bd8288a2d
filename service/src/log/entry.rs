//! An entry of a stream, as its reader takes it.

use crate::ingest::Trust;
use crate::ops::{Op, OpBatch};
use crate::relay::{Life, Part};

/// One entry, read.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The life that it belongs to.
    pub life: Life,
    /// How far a copy with everything up to here can be believed, where that is known.
    pub trust: Option<Trust>,
    /// Answers about the rank may be too high.
    pub upper_bound: bool,
    /// Block size and hash mode are those of the registration.
    pub fits: bool,
    /// Bytes that it took in the stream.
    pub bytes: usize,
    /// The entry.
    pub says: Says,
}

/// What an entry says.
#[derive(Clone, PartialEq, Debug)]
pub enum Says {
    /// A part of the rank's state.
    Part {
        /// Which.
        part: Part,
        /// In the last part: the last batch that is in the state.
        sequence: u64,
        /// The part.
        ops: Vec<Op>,
    },
    /// A batch.
    Batch {
        /// What was before counts no more.
        reset: bool,
        /// The batch.
        batch: OpBatch,
    },
    /// Nothing but another trust.
    Nothing,
}

/// Why an entry is none. The words are the labels of counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EntryError {
    /// A field is missing.
    #[error("entry_without_fields")]
    Fields,
    /// It is larger than `shared_log.entry_bytes_max`.
    #[error("entry_too_large")]
    TooLarge,
    /// It is no message of ours, or beyond a limit of calls.
    #[error("entry_malformed")]
    Malformed,
    /// It is another rank's.
    #[error("entry_of_another_rank")]
    OtherRank,
}

impl EntryError {
    /// The name in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            EntryError::Fields => "entry_without_fields",
            EntryError::TooLarge => "entry_too_large",
            EntryError::Malformed => "entry_malformed",
            EntryError::OtherRank => "entry_of_another_rank",
        }
    }
}
