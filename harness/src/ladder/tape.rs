//! A tape: every operation of a corpus in the order of its virtual time, as flat arrays that a fresh process loads at once.

use kvatlas_benches::provenance::hex;
use kvatlas_index::{ContentHash, EngineHash};
use sha2::{Digest, Sha256};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// First words of a tape's file.
const MAGIC: u64 = 0x4b56_5441_5045_0001;
/// Words of an operation's record.
const RECORD_WORDS: usize = 5;
/// Hashes of one tape: bounds what a damaged file can ask for.
const HASHES_MAX: u64 = 1 << 32;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lookup of a prompt.
    Lookup,
    /// Blocks stored from position 0 on.
    StoreRoot,
    /// Blocks stored after the block that the first name names.
    StoreAfter,
    /// Blocks removed by name.
    Remove,
    /// A worker emptied.
    Clear,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Lookup, Kind::StoreRoot, Kind::StoreAfter, Kind::Remove, Kind::Clear];
}

/// One operation; its hashes are in the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Virtual time in microseconds.
    pub at_us: u64,
    /// The worker, dense from 0. Of a lookup: 0.
    pub worker: u32,
    /// What it does.
    pub kind: Kind,
    /// Number of content hashes (of a removal: of names, less none).
    pub len: u32,
    /// First content hash.
    pub contents: u32,
    /// First name; of [`Kind::StoreAfter`] that is the parent's, and the stored ones follow it.
    pub names: u32,
}

impl Operation {
    /// Requested, stored or removed hashes.
    pub fn block_ops(&self) -> u64 {
        u64::from(self.len)
    }

    /// Whether it goes to an event lane.
    pub fn is_event(&self) -> bool {
        self.kind != Kind::Lookup
    }
}

/// An operation with its hashes, as a lane applies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A lookup.
    Lookup(&'a [ContentHash]),
    /// A store.
    Store {
        /// The block before the first one; `None` for position 0.
        parent: Option<EngineHash>,
        /// Names.
        names: &'a [EngineHash],
        /// Contents of the same blocks.
        contents: &'a [ContentHash],
    },
    /// A removal.
    Remove(&'a [EngineHash]),
    /// Everything of a worker goes.
    Clear,
}

/// Everything that is replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape {
    /// Number of workers.
    pub workers: u32,
    /// Operations that fill the caches before anything is measured.
    pub warm: usize,
    /// The operations, by time.
    pub operations: Vec<Operation>,
    /// Content hashes, referred to by operations.
    pub contents: Vec<ContentHash>,
    /// Engine names, referred to by operations.
    pub names: Vec<EngineHash>,
}

/// A tape has as many hashes as its 32-bit references reach.
#[derive(Debug, thiserror::Error)]
#[error("more than {HASHES_MAX} hashes on a tape: take fewer requests or larger blocks")]
pub struct TapeFull;

impl Tape {
    /// An empty tape.
    pub fn new(workers: u32) -> Self {
        Self { workers, ..Self::default() }
    }

    /// Puts content hashes on the tape, to be referred to.
    pub fn put_contents(&mut self, contents: &[ContentHash]) -> Result<u32, TapeFull> {
        let at = u32::try_from(self.contents.len()).map_err(|_| TapeFull)?;
        self.contents.extend_from_slice(contents);
        Ok(at)
    }

    /// Appends a lookup of contents that are on the tape already.
    pub fn lookup(&mut self, at_us: u64, contents: u32, len: usize) -> Result<(), TapeFull> {
        self.push(at_us, 0, Kind::Lookup, len, contents, 0)
    }

    /// Appends a store of contents that are on the tape already.
    pub fn store(
        &mut self,
        (at_us, worker): (u64, u32),
        parent: Option<EngineHash>,
        names: &[EngineHash],
        contents: u32,
    ) -> Result<(), TapeFull> {
        let at = u32::try_from(self.names.len()).map_err(|_| TapeFull)?;
        let kind = if parent.is_some() { Kind::StoreAfter } else { Kind::StoreRoot };
        self.names.extend(parent);
        self.names.extend_from_slice(names);
        self.push(at_us, worker, kind, names.len(), contents, at)
    }

    /// Appends a removal.
    pub fn remove(&mut self, at_us: u64, worker: u32, names: &[EngineHash]) -> Result<(), TapeFull> {
        let at = u32::try_from(self.names.len()).map_err(|_| TapeFull)?;
        self.names.extend_from_slice(names);
        self.push(at_us, worker, Kind::Remove, names.len(), 0, at)
    }

    /// Appends a clear.
    pub fn clear(&mut self, at_us: u64, worker: u32) -> Result<(), TapeFull> {
        self.push(at_us, worker, Kind::Clear, 0, 0, 0)
    }

    fn push(
        &mut self,
        at_us: u64,
        worker: u32,
        kind: Kind,
        len: usize,
        contents: u32,
        names: u32,
    ) -> Result<(), TapeFull> {
        let len = u32::try_from(len).map_err(|_| TapeFull)?;
        let room = |at: u32| at.checked_add(len).and_then(|end| end.checked_add(1));
        room(contents).and(room(names)).ok_or(TapeFull)?;
        let at_us = at_us.max(self.operations.last().map_or(0, |o| o.at_us));
        self.operations.push(Operation { at_us, worker, kind, len, contents, names });
        Ok(())
    }

    /// An operation's hashes.
    #[inline]
    pub fn step(&self, operation: &Operation) -> Step<'_> {
        let Operation { kind, len, contents, names, .. } = *operation;
        let (len, contents, names) = (len as usize, contents as usize, names as usize);
        match kind {
            Kind::Lookup => Step::Lookup(&self.contents[contents..contents + len]),
            Kind::StoreRoot => Step::Store {
                parent: None,
                names: &self.names[names..names + len],
                contents: &self.contents[contents..contents + len],
            },
            Kind::StoreAfter => Step::Store {
                parent: Some(self.names[names]),
                names: &self.names[names + 1..names + 1 + len],
                contents: &self.contents[contents..contents + len],
            },
            Kind::Remove => Step::Remove(&self.names[names..names + len]),
            Kind::Clear => Step::Clear,
        }
    }

    /// Block operations of a range of operations.
    pub fn block_ops(&self, range: std::ops::Range<usize>) -> u64 {
        self.operations[range].iter().map(Operation::block_ops).sum()
    }

    /// Writes the tape and returns the SHA-256 of the file.
    pub fn save(&self, path: &Path) -> io::Result<String> {
        let mut out =
            Hashed { inner: BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?), hash: Sha256::new() };
        let lengths = [self.operations.len(), self.contents.len(), self.names.len()].map(|n| n as u64);
        let head = [MAGIC, u64::from(self.workers), self.warm as u64];
        out.words(head.into_iter().chain(lengths))?;
        for o in &self.operations {
            let kind = Kind::ALL.iter().position(|&k| k == o.kind).unwrap_or_default() as u64;
            out.words([o.at_us, u64::from(o.worker) << 8 | kind, o.len.into(), o.contents.into(), o.names.into()])?;
        }
        out.words(self.contents.iter().map(|c| c.0))?;
        out.words(self.names.iter().map(|n| n.0))?;
        out.inner.flush()?;
        Ok(hex(&out.hash.finalize()))
    }

    /// Reads a tape that [`Tape::save`] wrote.
    pub fn load(path: &Path) -> io::Result<Tape> {
        let mut file = BufReader::with_capacity(1 << 20, std::fs::File::open(path)?);
        let head = words(&mut file, 6)?;
        let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("tape: {what}"));
        if head[0] != MAGIC || head[3..].iter().any(|&n| n > HASHES_MAX) {
            return Err(damaged("not a tape of this version"));
        }
        let records = words(&mut file, head[3] as usize * RECORD_WORDS)?;
        let operation = |r: &[u64]| {
            let kind = Kind::ALL.get(r[1] as usize & 0xff).copied().ok_or_else(|| damaged("unknown kind"))?;
            let worker = (r[1] >> 8) as u32;
            Ok(Operation { at_us: r[0], worker, kind, len: r[2] as u32, contents: r[3] as u32, names: r[4] as u32 })
        };
        let operations = records.chunks_exact(RECORD_WORDS).map(operation).collect::<io::Result<Vec<_>>>()?;
        let contents = words(&mut file, head[4] as usize)?.into_iter().map(ContentHash).collect();
        let names = words(&mut file, head[5] as usize)?.into_iter().map(EngineHash).collect();
        Ok(Tape { workers: head[1] as u32, warm: head[2] as usize, operations, contents, names })
    }
}

fn words(file: &mut impl Read, count: usize) -> io::Result<Vec<u64>> {
    let mut out = Vec::with_capacity(count);
    let mut buffer = vec![0u8; 1 << 16];
    while out.len() < count {
        let bytes = ((count - out.len()) * 8).min(buffer.len());
        file.read_exact(&mut buffer[..bytes])?;
        let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("chunks of eight"));
        out.extend(buffer[..bytes].chunks_exact(8).map(word));
    }
    Ok(out)
}

/// A writer of words that hashes what it writes.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Hashed<W> {
    fn words(&mut self, words: impl IntoIterator<Item = u64>) -> io::Result<()> {
        for word in words {
            let bytes = word.to_le_bytes();
            self.hash.update(bytes);
            self.inner.write_all(&bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Tape {
        let mut tape = Tape::new(3);
        let at = tape.put_contents(&[1, 2, 3, 4].map(ContentHash)).unwrap();
        tape.lookup(5, at, 4).unwrap();
        tape.store((6, 2), None, &[10, 11].map(EngineHash), at).unwrap();
        tape.store((7, 2), Some(EngineHash(11)), &[12].map(EngineHash), at + 2).unwrap();
        tape.remove(8, 2, &[12, 11].map(EngineHash)).unwrap();
        tape.clear(7, 2).unwrap();
        tape.warm = 1;
        tape
    }

    #[test]
    fn steps_carry_their_hashes_and_times_never_go_back() {
        let tape = sample();
        let steps: Vec<Step<'_>> = tape.operations.iter().map(|o| tape.step(o)).collect();
        assert_eq!(steps[0], Step::Lookup(&[1, 2, 3, 4].map(ContentHash)));
        let (names, contents) = ([EngineHash(12)], [ContentHash(3)]);
        assert_eq!(steps[2], Step::Store { parent: Some(EngineHash(11)), names: &names, contents: &contents });
        assert_eq!(steps[3], Step::Remove(&[12, 11].map(EngineHash)));
        assert_eq!(steps[4], Step::Clear);
        assert_eq!(tape.operations[4].at_us, 8);
    }

    #[test]
    fn block_operations_are_requested_stored_and_removed_hashes() {
        let tape = sample();
        assert_eq!(tape.block_ops(0..5), 4 + 2 + 1 + 2);
        assert_eq!(tape.block_ops(1..3), 3);
    }

    #[test]
    fn a_saved_tape_comes_back_and_its_hash_is_of_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tape");
        let tape = sample();
        let hash = tape.save(&path).unwrap();
        assert_eq!(Tape::load(&path).unwrap(), tape);
        assert_eq!(hash, tape.save(&path).unwrap());
        let mut other = sample();
        other.contents[0] = ContentHash(9);
        assert_ne!(hash, other.save(&path).unwrap());
        std::fs::write(&path, [0u8; 48]).unwrap();
        assert!(Tape::load(&path).is_err());
    }
}
