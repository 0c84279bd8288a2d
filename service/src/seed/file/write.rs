//! Writing a state file: under another name first, which becomes its own when every byte is on the disk.

use super::codec::{RankFrame, write_rank};
use super::ops::write_op;
use super::{END, HEADER_BYTES, MAGIC, RANK, STORES, StateError, VERSION, frame_checksum};
use crate::seed::Seed;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Ended behind the state file's name while it is written.
const UNFINISHED: &str = ".unfinished";

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Ranks in the file.
    pub ranks: u64,
    /// Its size.
    pub bytes: u64,
}

/// A state file being written. Blocks; allocates for one frame at a time. Dropped before [`Self::finish`], it leaves the old file as
/// it was.
pub struct StateWriter {
    path: PathBuf,
    unfinished: PathBuf,
    out: BufWriter<File>,
    total: Xxh3,
    bytes: u64,
    bytes_max: u64,
    frames: u64,
    ranks: u64,
    /// One frame's payload.
    room: Vec<u8>,
    finished: bool,
}

impl StateWriter {
    /// Begins a file of at most `bytes_max` bytes; whatever an earlier attempt left under the other name is written over. A file
    /// that does not begin as a state file does is somebody else's and never replaced ([`StateError::Foreign`]).
    pub fn create(path: &Path, bytes_max: u64, written_at_ms: u64) -> Result<Self, StateError> {
        refuse_foreign(path)?;
        let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
        name.push(UNFINISHED);
        let unfinished = path.with_file_name(name);
        // The names of workers and models are nobody else's business.
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished);
        let file = file.map_err(|error| StateError::Io { doing: "creating", path: unfinished.clone(), error })?;
        let mut writer = Self {
            path: path.to_owned(),
            unfinished,
            out: BufWriter::with_capacity(1 << 18, file),
            total: Xxh3::new(),
            bytes: 0,
            bytes_max,
            frames: 0,
            ranks: 0,
            room: Vec::new(),
            finished: false,
        };
        let mut header = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 4], &written_at_ms.to_le_bytes()].concat();
        header.extend(xxh3_64(&header).to_le_bytes());
        debug_assert_eq!(header.len(), HEADER_BYTES);
        writer.put(&header)?;
        Ok(writer)
    }

    /// Adds a rank.
    pub fn rank(&mut self, seed: Seed) -> Result<(), StateError> {
        let Seed { identity, cut, learned, stores } = seed;
        let parts = stores.into_parts();
        self.room.clear();
        let stores_frames = parts.len() as u32;
        write_rank(&RankFrame { identity, cut, learned, stores_frames }, &mut self.room);
        self.frame(RANK)?;
        for part in parts {
            self.room.clear();
            part.iter().for_each(|op| write_op(op, &mut self.room));
            self.frame(STORES)?;
        }
        self.ranks += 1;
        Ok(())
    }

    /// Ends the file, and gives it its name once it is on the disk.
    pub fn finish(mut self) -> Result<Written, StateError> {
        self.room.clear();
        let words = [self.ranks, self.frames, self.total.digest()];
        self.room.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.frame(END)?;
        let synced = self.out.flush().and_then(|()| self.out.get_ref().sync_all());
        synced.map_err(|error| self.failed("writing", error))?;
        fs::rename(&self.unfinished, &self.path).map_err(|error| self.failed("renaming", error))?;
        self.finished = true;
        sync_directory(&self.path)?;
        Ok(Written { ranks: self.ranks, bytes: self.bytes })
    }

    /// Writes a frame whose payload is in the room.
    fn frame(&mut self, kind: u32) -> Result<(), StateError> {
        let room = std::mem::take(&mut self.room);
        let length = u32::try_from(room.len()).map_err(|_| {
            let reason = "an operation is larger than a frame can be";
            self.failed("writing", io::Error::new(io::ErrorKind::InvalidInput, reason))
        })?;
        let checksum = frame_checksum(kind, &room);
        let head = [&kind.to_le_bytes()[..], &length.to_le_bytes(), &checksum.to_le_bytes()].concat();
        self.put(&head)?;
        self.put(&room)?;
        self.room = room;
        self.frames += 1;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(StateError::TooLarge { bytes: self.bytes, limit: self.bytes_max });
        }
        self.total.update(bytes);
        self.out.write_all(bytes).map_err(|error| self.failed("writing", error))
    }

    fn failed(&self, doing: &'static str, error: io::Error) -> StateError {
        StateError::Io { doing, path: self.unfinished.clone(), error }
    }
}

/// Refuses a file that has another beginning than a state file or a part of one.
fn refuse_foreign(path: &Path) -> Result<(), StateError> {
    let mut found = Vec::new();
    match File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut found)) {
        Ok(_) if MAGIC.starts_with(&found) => Ok(()),
        Ok(_) => Err(StateError::Foreign { found }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StateError::Io { doing: "reading", path: path.to_owned(), error }),
    }
}

impl Drop for StateWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed is written over the next time.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// The new name lasts when its directory is on the disk.
fn sync_directory(path: &Path) -> Result<(), StateError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| StateError::Io { doing: "syncing the directory", path: directory.to_owned(), error })
}
