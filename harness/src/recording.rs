//! A recording with its truth, in the form a player needs: what arrived live, in order, and what the replay endpoint of each
//! life of each publisher had to offer.

use crate::kvrec::{Kind, KvrecError, Reader, Record};
use crate::sidecar::{RankTruth, Sidecar, SidecarError};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

/// Sequence of the marker that ends a replay.
pub const END_SEQUENCE: u64 = u64::MAX;

/// Why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file could not be opened.
    #[error("{path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The container is broken.
    #[error("{path}: {source}")]
    Container {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KvrecError,
    },
    /// The truth is missing or broken.
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
    /// A record that the recorder cannot have written.
    #[error("{path}: record {record}: {what}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Number of the record, from 0.
        record: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A message of the live stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Live {
    /// The publisher.
    pub publisher: u8,
    /// Which life of the publisher sent it, from 0. The player uses it to answer replays; the code under test never sees it.
    pub incarnation: u32,
    /// Microseconds from the opening of the recording to the receipt.
    pub t_us: u64,
    /// Its sequence.
    pub sequence: u64,
    /// Topic, sequence, payload.
    pub frames: Vec<Vec<u8>>,
}

/// What the replay endpoint of one life of a publisher had to offer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replay {
    replies: BTreeMap<u64, Vec<Vec<u8>>>,
    end: Vec<Vec<u8>>,
}

impl Replay {
    /// The replies to a request from `start`, given that nothing after `newest` was published yet; the end marker comes last.
    pub fn answer(&self, start: u64, newest: Option<u64>) -> impl Iterator<Item = &Vec<Vec<u8>>> {
        let known = newest.filter(|&newest| start <= newest).map(|newest| self.replies.range(start..=newest));
        known.into_iter().flatten().map(|(_, frames)| frames).chain(std::iter::once(&self.end))
    }

    /// Every batch that the endpoint had.
    pub fn payloads(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.replies.iter().filter_map(|(sequence, frames)| Some((*sequence, frames.last()?.as_slice())))
    }

    /// The payload of a batch, if the endpoint had it.
    pub fn payload(&self, sequence: u64) -> Option<&[u8]> {
        self.replies.get(&sequence)?.last().map(Vec::as_slice)
    }
}

/// A recording with its truth.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// The file's name without directory and ending.
    pub name: String,
    /// Live messages of all publishers in order of receipt.
    pub live: Vec<Live>,
    /// By publisher and incarnation.
    pub replays: BTreeMap<(u8, u32), Replay>,
    /// What the engine said.
    pub truth: Sidecar,
}

#[derive(Deserialize)]
struct Marker {
    marker: String,
}

impl Recording {
    /// Reads `path` and the `.json` beside it.
    pub fn load(path: &Path) -> Result<Self, RecordingError> {
        let file = File::open(path).map_err(|source| RecordingError::Open { path: path.to_owned(), source })?;
        let container = |source| RecordingError::Container { path: path.to_owned(), source };
        let reader = Reader::new(BufReader::new(file)).map_err(container)?;
        let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let truth = Sidecar::load(&path.with_extension("json"))?;
        let mut recording = Self { name, live: Vec::new(), replays: BTreeMap::new(), truth };
        let mut lives: BTreeMap<u8, u32> = BTreeMap::new();
        for (i, record) in reader.enumerate() {
            let record = record.map_err(container)?;
            let take = recording.take(record, &mut lives);
            take.map_err(|what| RecordingError::Record { path: path.to_owned(), record: i, what })?;
        }
        Ok(recording)
    }

    /// Files one record. A publisher's life ends with its `stop` marker; the `start` marker is written only when the engine is
    /// ready, which is after its first messages.
    fn take(&mut self, record: Record, lives: &mut BTreeMap<u8, u32>) -> Result<(), &'static str> {
        let publisher = record.publisher;
        let incarnation = *lives.entry(publisher).or_insert(0);
        if usize::from(publisher) >= self.publishers() && !matches!(record.kind, Kind::Marker) {
            return Err("a publisher of which the truth says nothing");
        }
        match record.kind {
            Kind::Marker => {
                let json = record.frames.first().ok_or("a marker without a frame")?;
                let marker: Marker = serde_json::from_slice(json).map_err(|_| "a marker that is not JSON")?;
                if marker.marker == "stop" {
                    lives.insert(publisher, incarnation + 1);
                }
            }
            Kind::Live => {
                let [_, sequence, _] = &record.frames[..] else { return Err("a live message without three frames") };
                let sequence = sequence_of(sequence)?;
                self.live.push(Live { publisher, incarnation, t_us: record.t_us, sequence, frames: record.frames });
            }
            Kind::Replay => {
                let [.., sequence, _] = &record.frames[..] else { return Err("a reply without a sequence") };
                let sequence = sequence_of(sequence)?;
                let replay = self.replays.entry((publisher, incarnation)).or_default();
                if sequence == END_SEQUENCE {
                    replay.end = record.frames;
                } else {
                    replay.replies.insert(sequence, record.frames);
                }
            }
        }
        Ok(())
    }

    /// The truth of one life of a publisher.
    pub fn rank_truth(&self, publisher: u8, life: usize) -> Option<&RankTruth> {
        self.truth.incarnations.get(life)?.ranks.get(usize::from(publisher))
    }

    /// Number of publishers.
    pub fn publishers(&self) -> usize {
        self.truth.incarnations.iter().map(|i| i.ranks.len()).max().unwrap_or(0)
    }
}

fn sequence_of(frame: &[u8]) -> Result<u64, &'static str> {
    Ok(u64::from_be_bytes(frame.try_into().map_err(|_| "a sequence that is not eight bytes")?))
}
