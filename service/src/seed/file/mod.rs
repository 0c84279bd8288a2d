//! The state file: the seeds of every rank, for the next start of this service.
//!
//! It is written to another name in the same directory, synced, and renamed, so under its own name there is always a whole file.
//! It is read through a mapping, and every byte of it is checked before anything is taken from it. A file that fails any check is
//! refused as a whole, with a message that says where: what is in it was true once, but is not needed.
//!
//! Numbers are little-endian. Nothing in it depends on the build or the machine.
//!
//! ```text
//! header   "KVATLAST" | version u32 | reserved u32 | written at, Unix ms u64 | XXH3-64 of the 24 bytes before u64
//! frame    kind u32 | length u32 | XXH3-64 of kind, length and payload u64 | payload
//! ...
//! end      a frame of kind 3: ranks u64 | frames before it u64 | XXH3-64 of every byte before it u64
//! ```
//!
//! | kind | payload |
//! |---|---|
//! | 1 rank | identity, cut, learned, number of stores frames that follow (`codec.rs`) |
//! | 2 stores | operations of one part (`ops.rs`) |
//! | 3 end | as above; nothing follows it |

mod codec;
mod map;
mod ops;
mod read;
mod write;

pub use read::{SavedRank, StateFile};
pub use write::{StateWriter, Written};

use std::io;
use std::path::PathBuf;
use xxhash_rust::xxh3::Xxh3;

/// What a state file begins with.
const MAGIC: [u8; 8] = *b"KVATLAST";
/// Rises with every change of the layout, and of what a content hash means.
pub const VERSION: u32 = 1;
/// Bytes of the header.
const HEADER_BYTES: usize = 32;
/// Bytes of a frame before its payload.
const FRAME_BYTES: usize = 16;
/// Bytes of the end frame's payload.
const END_BYTES: usize = 24;

const RANK: u32 = 1;
const STORES: u32 = 2;
const END: u32 = 3;

/// Why a state file is not believed, or was not written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The system refused.
    #[error("{doing} {}: {error}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file, or its directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Larger than allowed.
    #[error("the state file has {bytes} bytes, at most {limit} (limit state.file_bytes_max)")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// No state file.
    #[error("offset 0: no state file: it begins with {found:02x?}, expected {MAGIC:02x?} (\"KVATLAST\")")]
    Foreign {
        /// What it begins with.
        found: Vec<u8>,
    },
    /// Of another version.
    #[error(
        "offset 8: state file of format version {found}, {} than {VERSION}, which is read here",
        if *found < VERSION { "older" } else { "newer" }
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// It ends too early.
    #[error("frame {frame} at offset {offset}: the file is cut short: expected {expected} more bytes, found {found}")]
    Truncated {
        /// Number of the frame; 0 is the header.
        frame: u64,
        /// Where it begins.
        offset: u64,
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Its bytes are not those that were written.
    #[error("frame {frame} at offset {offset}: damaged: expected checksum {expected:016x}, found {found:016x}")]
    Damaged {
        /// Number of the frame; 0 is the header.
        frame: u64,
        /// Where it begins.
        offset: u64,
        /// What the file says.
        expected: u64,
        /// What its bytes come to.
        found: u64,
    },
    /// Its bytes are those that were written, but mean nothing.
    #[error("frame {frame} at offset {offset}: {what}")]
    Malformed {
        /// Number of the frame; 0 is the header.
        frame: u64,
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The checksum of a frame.
fn frame_checksum(kind: u32, payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&kind.to_le_bytes());
    hash.update(&(payload.len() as u64).to_le_bytes());
    hash.update(payload);
    hash.digest()
}

#[cfg(test)]
mod tests;
