//! Reads the recorded streams of `corpora/recordings`: frames as a subscriber received them, by publisher and life.

#![allow(dead_code, reason = "each test binary that includes this uses a part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a recorded message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// From the live stream.
    Live,
    /// From the replay endpoint.
    Replay,
}

/// One recorded message.
pub struct Message {
    pub kind: Kind,
    pub publisher: usize,
    pub incarnation: u64,
    pub frames: Vec<Vec<u8>>,
}

/// Every recording, sorted by name. Fails if there is none: a test over no recordings proves nothing.
pub fn paths() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpora/recordings");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "kvrec"))
        .collect();
    found.sort();
    assert!(found.len() >= 26, "only {} recordings", found.len());
    found
}

/// The messages of one recording, in order; the recorder's markers are folded into `incarnation`.
pub fn messages(path: &Path) -> Vec<Message> {
    let bytes = std::fs::read(path).unwrap();
    let mut at = bytes.strip_prefix(b"KVEREC01").expect("magic");
    let mut lives: BTreeMap<usize, u64> = BTreeMap::new();
    let mut out = Vec::new();
    while let [kind, publisher, frame_count, rest @ ..] = at {
        at = &rest[8..];
        let mut frames = Vec::new();
        for _ in 0..*frame_count {
            let (len, rest) = at.split_first_chunk::<4>().unwrap();
            let (frame, rest) = rest.split_at(u32::from_be_bytes(*len) as usize);
            frames.push(frame.to_vec());
            at = rest;
        }
        let publisher = usize::from(*publisher);
        let kind = match kind {
            0 => Kind::Live,
            1 => Kind::Replay,
            _ => {
                let marker: serde_json::Value = serde_json::from_slice(&frames[0]).unwrap();
                if marker["marker"] == "start" {
                    lives.insert(publisher, marker["incarnation"].as_u64().unwrap());
                }
                continue;
            }
        };
        let incarnation = lives.get(&publisher).copied().unwrap_or(0);
        out.push(Message { kind, publisher, incarnation, frames });
    }
    assert!(at.is_empty(), "cut off");
    out
}

/// The sidecar beside a recording.
pub fn sidecar(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap()
}
