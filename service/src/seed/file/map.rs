//! The bytes of a file, mapped.

#![expect(unsafe_code, reason = "a mapping of a file is sound only as long as the file keeps its bytes")]

use std::fs::File;
use std::io;

/// A file that is only read.
#[derive(Debug)]
pub(super) struct Mapped(memmap2::Mmap);

impl Mapped {
    /// Maps the whole file.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: nothing in this service writes to a file under the state file's name: a new one is written under another name and
        // takes the place of the old one, whose bytes stay as they are while they are mapped (`write.rs`). Somebody else who changes
        // the file in place is told by the checksums; one who cuts it short ends this process, as with any mapped file, so the state
        // file belongs into a directory of the service's own (README).
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Self(map))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
