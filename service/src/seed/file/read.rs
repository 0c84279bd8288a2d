//! Reading a state file: all of it is checked before any of it is taken.

use super::codec::{RankFrame, read_rank};
use super::map::Mapped;
use super::ops::{check_ops, read_ops};
use super::{END, END_BYTES, FRAME_BYTES, HEADER_BYTES, MAGIC, RANK, STORES, StateError, VERSION, frame_checksum};
use crate::seed::{Cut, Identity, Learned, Seed, Stores};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// A whole and undamaged state file.
#[derive(Debug)]
pub struct StateFile {
    map: Mapped,
    written_at_ms: u64,
    ranks: Vec<SavedRank>,
}

/// One rank in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedRank {
    /// Whose state it is.
    pub identity: Identity,
    cut: Cut,
    learned: Learned,
    /// Payloads of its stores frames.
    stores: Vec<Range<usize>>,
}

impl StateFile {
    /// Opens and checks a file; `None` if there is none. Blocks; reads every byte.
    pub fn open(path: &Path, bytes_max: u64) -> Result<Option<Self>, StateError> {
        let failed = |doing, error| StateError::Io { doing, path: path.to_owned(), error };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("opening", error)),
        };
        let bytes = file.metadata().map_err(|error| failed("opening", error))?.len();
        if bytes > bytes_max {
            return Err(StateError::TooLarge { bytes, limit: bytes_max });
        }
        if bytes < HEADER_BYTES as u64 {
            return Err(StateError::Truncated { frame: 0, offset: 0, expected: HEADER_BYTES as u64, found: bytes });
        }
        let map = Mapped::new(&file).map_err(|error| failed("mapping", error))?;
        let (written_at_ms, ranks) = Check { bytes: map.bytes(), offset: 0, frame: 0 }.whole()?;
        Ok(Some(Self { map, written_at_ms, ranks }))
    }

    /// When it was written, in Unix milliseconds.
    pub fn written_at_ms(&self) -> u64 {
        self.written_at_ms
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.map.bytes().len() as u64
    }

    /// The ranks in it.
    pub fn ranks(&self) -> &[SavedRank] {
        &self.ranks
    }

    /// The seed of one of its ranks. `None` if the file was changed in place since it was checked. Allocates the whole state.
    pub fn seed(&self, rank: &SavedRank) -> Option<Seed> {
        let mut parts = Vec::with_capacity(rank.stores.len());
        for stores in &rank.stores {
            let checksum = self.map.bytes().get(stores.start.checked_sub(8)?..stores.start)?;
            let payload = self.map.bytes().get(stores.clone())?;
            if checksum != frame_checksum(STORES, payload).to_le_bytes() {
                return None;
            }
            parts.push(read_ops(payload).ok()?);
        }
        let SavedRank { identity, cut, learned, .. } = rank.clone();
        Some(Seed { identity, cut, learned, stores: Stores::new(parts) })
    }
}

/// A file being checked, from its beginning to its end.
struct Check<'a> {
    bytes: &'a [u8],
    /// Where the next frame begins.
    offset: usize,
    /// Its number; the header is 0.
    frame: u64,
}

impl<'a> Check<'a> {
    fn whole(mut self) -> Result<(u64, Vec<SavedRank>), StateError> {
        let written_at_ms = self.header()?;
        let mut ranks = Vec::new();
        loop {
            let (kind, payload) = self.next()?;
            match kind {
                RANK => ranks.push(self.rank(payload)?),
                END => {
                    self.end(payload, &ranks)?;
                    return Ok((written_at_ms, ranks));
                }
                STORES => return Err(self.malformed(&payload, "stores without a rank")),
                _ => return Err(self.malformed(&payload, "a frame of an unknown kind")),
            }
        }
    }

    fn header(&self) -> Result<u64, StateError> {
        let header = &self.bytes[..HEADER_BYTES];
        if header[..8] != MAGIC {
            return Err(StateError::Foreign { found: header[..8].to_vec() });
        }
        let found = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        if found != VERSION {
            return Err(StateError::Version { found });
        }
        let expected = word(header, 24);
        let found = xxh3_64(&header[..24]);
        if expected != found {
            return Err(StateError::Damaged { frame: 0, offset: 0, expected, found });
        }
        Ok(word(header, 16))
    }

    /// The next frame's kind and payload, checked. The end of the file is no frame.
    fn next(&mut self) -> Result<(u32, Range<usize>), StateError> {
        if self.frame == 0 {
            self.offset = HEADER_BYTES;
        }
        self.frame += 1;
        let start = self.offset;
        self.has(FRAME_BYTES)?;
        let head = &self.bytes[start..start + FRAME_BYTES];
        let kind = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
        let length = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
        self.has(FRAME_BYTES + length)?;
        let payload = start + FRAME_BYTES..start + FRAME_BYTES + length;
        let (expected, found) = (word(head, 8), frame_checksum(kind, &self.bytes[payload.clone()]));
        if expected != found {
            return Err(StateError::Damaged { frame: self.frame, offset: start as u64, expected, found });
        }
        self.offset = payload.end;
        Ok((kind, payload))
    }

    fn rank(&mut self, payload: Range<usize>) -> Result<SavedRank, StateError> {
        let said = read_rank(&self.bytes[payload.clone()]);
        let RankFrame { identity, cut, learned, stores_frames } =
            said.map_err(|what| self.malformed(&payload, what))?;
        let mut stores = Vec::new();
        for _ in 0..stores_frames {
            let (kind, payload) = self.next()?;
            if kind != STORES {
                return Err(self.malformed(&payload, "stores of a rank were expected"));
            }
            check_ops(&self.bytes[payload.clone()]).map_err(|what| self.malformed(&payload, what))?;
            stores.push(payload);
        }
        Ok(SavedRank { identity, cut, learned, stores })
    }

    fn end(&self, payload: Range<usize>, ranks: &[SavedRank]) -> Result<(), StateError> {
        if payload.len() != END_BYTES {
            return Err(self.malformed(&payload, "the end has another length"));
        }
        let said = &self.bytes[payload.clone()];
        if (word(said, 0), word(said, 8)) != (ranks.len() as u64, self.frame - 1) {
            return Err(self.malformed(&payload, "the end counts other ranks or frames"));
        }
        let start = payload.start - FRAME_BYTES;
        let (expected, found) = (word(said, 16), xxh3_64(&self.bytes[..start]));
        if expected != found {
            return Err(StateError::Damaged { frame: self.frame, offset: start as u64, expected, found });
        }
        if payload.end != self.bytes.len() {
            return Err(self.malformed(&payload, "the file goes on behind its end"));
        }
        Ok(())
    }

    /// Whether so many bytes are there from the offset on.
    fn has(&self, expected: usize) -> Result<(), StateError> {
        let found = self.bytes.len() - self.offset;
        if found >= expected {
            return Ok(());
        }
        let (offset, expected, found) = (self.offset as u64, expected as u64, found as u64);
        Err(StateError::Truncated { frame: self.frame, offset, expected, found })
    }

    fn malformed(&self, payload: &Range<usize>, what: &'static str) -> StateError {
        StateError::Malformed { frame: self.frame, offset: (payload.start - FRAME_BYTES) as u64, what }
    }
}

/// The number at a place that is known to be there.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
