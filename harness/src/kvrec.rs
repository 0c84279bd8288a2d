//! Reader of recorded event streams (`.kvrec`).
//!
//! All integers are big-endian:
//!
//! ```text
//! file   := "KVEREC01" record*
//! record := kind(u8) publisher(u8) n_frames(u8) t_us(u64) frame{n_frames}
//! frame  := len(u32) bytes[len]
//! ```
//!
//! Kind 0 is a live message as a subscriber received it (topic, sequence, payload), kind 1 a reply of the replay endpoint (all
//! frames after the routing identity), kind 2 a marker that the recorder wrote, one frame of JSON. The reader holds one
//! record at a time and refuses frames over [`FRAME_BYTES_MAX`]; what the frames mean is not its business.

use std::io::{self, Read};

const MAGIC: &[u8; 8] = b"KVEREC01";
const HEADER_BYTES: usize = 11;

/// Largest frame the reader accepts, in bytes: the largest payload that the decoder of the service takes.
pub const FRAME_BYTES_MAX: u32 = 64 << 20;

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A message of the live stream.
    Live,
    /// A reply of the replay endpoint.
    Replay,
    /// A note of the recorder; it never was on the wire.
    Marker,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it is.
    pub kind: Kind,
    /// The publisher's number, equal to its data-parallel rank.
    pub publisher: u8,
    /// Microseconds from the opening of the recording to the receipt.
    pub t_us: u64,
    /// The frames, in order.
    pub frames: Vec<Vec<u8>>,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KvrecError {
    /// The file does not begin with the magic.
    #[error("not a recording: the first eight bytes are not KVEREC01")]
    Magic,
    /// The file ends inside a record.
    #[error("record {record} is cut short")]
    Truncated {
        /// Number of the record, from 0.
        record: u64,
    },
    /// A record of a kind that the format does not have.
    #[error("record {record} has the unknown kind {kind}")]
    UnknownKind {
        /// Number of the record, from 0.
        record: u64,
        /// The kind.
        kind: u8,
    },
    /// A frame over [`FRAME_BYTES_MAX`].
    #[error("record {record} has a frame of {bytes} bytes, the limit is {FRAME_BYTES_MAX}")]
    FrameTooLarge {
        /// Number of the record, from 0.
        record: u64,
        /// What the frame claims, in bytes.
        bytes: u32,
    },
    /// The file could not be read.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
}

/// Iterates over the records of a recording. Ends after the first error.
pub struct Reader<R> {
    input: R,
    record: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Checks the magic. The input should be buffered.
    pub fn new(mut input: R) -> Result<Self, KvrecError> {
        let mut magic = [0; 8];
        match input.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => Ok(Self { input, record: 0, ended: false }),
            Ok(()) => Err(KvrecError::Magic),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(KvrecError::Magic),
            Err(e) => Err(e.into()),
        }
    }

    fn next_record(&mut self) -> Result<Option<Record>, KvrecError> {
        let mut header = [0; HEADER_BYTES];
        if self.input.read(&mut header[..1])? == 0 {
            return Ok(None);
        }
        self.fill(&mut header[1..])?;
        let [kind, publisher, n_frames, t_us @ ..] = header;
        let kind = match kind {
            0 => Kind::Live,
            1 => Kind::Replay,
            2 => Kind::Marker,
            kind => return Err(KvrecError::UnknownKind { record: self.record, kind }),
        };
        let frames = (0..n_frames).map(|_| self.frame()).collect::<Result<_, _>>()?;
        Ok(Some(Record { kind, publisher, t_us: u64::from_be_bytes(t_us), frames }))
    }

    fn frame(&mut self) -> Result<Vec<u8>, KvrecError> {
        let mut len = [0; 4];
        self.fill(&mut len)?;
        let bytes = u32::from_be_bytes(len);
        if bytes > FRAME_BYTES_MAX {
            return Err(KvrecError::FrameTooLarge { record: self.record, bytes });
        }
        // Read through `take`, so that a length that lies about the file's rest does not allocate it all at once.
        let mut frame = Vec::new();
        if self.input.by_ref().take(u64::from(bytes)).read_to_end(&mut frame)? < bytes as usize {
            return Err(KvrecError::Truncated { record: self.record });
        }
        Ok(frame)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KvrecError> {
        self.input.read_exact(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => KvrecError::Truncated { record: self.record },
            _ => e.into(),
        })
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, KvrecError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_record().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        self.record += 1;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[(u8, u8, &[&[u8]])]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for (kind, publisher, frames) in records {
            out.extend([*kind, *publisher, frames.len() as u8]);
            out.extend(7u64.to_be_bytes());
            for frame in *frames {
                out.extend((frame.len() as u32).to_be_bytes());
                out.extend(*frame);
            }
        }
        out
    }

    #[test]
    fn records_come_back_as_written() {
        let bytes = file(&[(2, 0, &[b"{}"]), (0, 1, &[b"", b"12345678", b"payload"])]);
        let records: Vec<_> = Reader::new(&bytes[..]).unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), 2);
        assert_eq!((records[0].kind, records[0].publisher, records[0].t_us), (Kind::Marker, 0, 7));
        assert_eq!(records[1].frames, [b"".to_vec(), b"12345678".to_vec(), b"payload".to_vec()]);
    }

    #[test]
    fn every_cut_is_an_error_and_none_panics() {
        let bytes = file(&[(0, 0, &[b"topic", b"12345678", b"payload"])]);
        for cut in 0..bytes.len() {
            match Reader::new(&bytes[..cut]) {
                Err(KvrecError::Magic) => assert!(cut < MAGIC.len()),
                Err(other) => panic!("cut at {cut}: {other}"),
                Ok(mut reader) => match reader.next() {
                    None => assert_eq!(cut, MAGIC.len()),
                    Some(Err(KvrecError::Truncated { record: 0 })) => assert!(reader.next().is_none()),
                    other => panic!("cut at {cut}: {other:?}"),
                },
            }
        }
    }

    #[test]
    fn a_frame_length_that_lies_is_refused() {
        let mut bytes = file(&[(0, 0, &[b"x"])]);
        let at = MAGIC.len() + HEADER_BYTES;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
        let error = Reader::new(&bytes[..]).unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, KvrecError::FrameTooLarge { record: 0, bytes: u32::MAX }));
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let error = Reader::new(&file(&[(9, 0, &[])])[..]).unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, KvrecError::UnknownKind { record: 0, kind: 9 }));
    }
}
