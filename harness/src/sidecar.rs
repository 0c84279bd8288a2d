//! Reader of the truth beside a recording: what the engine itself said it held, and what it answered to the probe prompts.
//!
//! The `.json` sidecar has, for each incarnation (one life of the engine process) and each publisher, the probes and the
//! checkpoints. A checkpoint was taken while the engine was idle and describes the state after batch `published - 1`.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Largest sidecar the reader accepts, in bytes.
pub const SIDECAR_BYTES_MAX: u64 = 256 << 20;

/// Why a sidecar cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is over [`SIDECAR_BYTES_MAX`].
    #[error("{path} has {bytes} bytes, the limit is {SIDECAR_BYTES_MAX}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is not a sidecar.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A live set has a name that is not a hash in hex.
    #[error("{path}: {hash:?} is not a block hash in hex")]
    Hash {
        /// The file.
        path: PathBuf,
        /// The name.
        hash: String,
    },
    /// A live set has a key that is not `MEDIUM/group`.
    #[error("{path}: {key:?} is not a medium and a group")]
    LiveKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
}

/// The engine that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// A KV-cache group of a vLLM engine.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Group {
    /// Its number on the wire.
    pub group: u32,
    /// The engine's name of its kind.
    pub spec: String,
    /// Tokens a block.
    pub block_size: u32,
    /// Tokens of the window, for a sliding window.
    pub sliding_window: Option<u32>,
}

/// Facts of the engine.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Meta {
    /// Which engine.
    pub engine: Engine,
    /// Its version.
    pub version: String,
    /// Tokens a block.
    pub block_size: u32,
    /// The KV-cache groups; empty for SGLang, which has one.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// SGLang's format of event hashes.
    pub format: Option<String>,
    /// Whether hashes are integers on the wire, not bytes.
    #[serde(default = "default_true")]
    pub int_hashes: bool,
}

fn default_true() -> bool {
    true
}

/// A prompt that the engine was asked about at checkpoints.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Probe {
    /// Its number.
    pub id: u64,
    /// How it was made from what ran.
    pub kind: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its LoRA adapter.
    pub lora: Option<String>,
    /// Its cache salt.
    pub salt: Option<String>,
}

/// The table of live blocks, by medium and group, then by name: how many copies. Digests are reduced to their low 64 bits.
pub type LiveSets = BTreeMap<(String, u32), BTreeMap<u64, u64>>;

/// What the engine said at one idle moment.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Checkpoint {
    /// The wave of the workload after which it was taken.
    pub wave: u64,
    /// What is special about it.
    pub note: Option<String>,
    /// Batches published so far.
    pub published: u64,
    /// Events that the engine holds back until its next batch.
    #[serde(default)]
    pub unpublished_events: u64,
    #[serde(rename = "live")]
    live_raw: BTreeMap<String, BTreeMap<String, u64>>,
    /// The live blocks.
    #[serde(skip)]
    pub live: LiveSets,
    /// Rows of answers in tokens, beginning with the probe's id.
    pub probes: Vec<Vec<u64>>,
}

/// The truth of one publisher in one incarnation.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct RankTruth {
    /// Facts of the engine.
    pub meta: Meta,
    /// The probes.
    pub probes: Vec<Probe>,
    /// The checkpoints, in order of time.
    pub checkpoints: Vec<Checkpoint>,
}

/// One life of the engine process.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Incarnation {
    /// Its number, from 0.
    pub incarnation: u32,
    /// The truth of each publisher.
    pub ranks: Vec<RankTruth>,
}

/// A sidecar.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Sidecar {
    /// What the stream exercises.
    pub description: String,
    /// The lives, in order of time.
    pub incarnations: Vec<Incarnation>,
}

impl Sidecar {
    /// Reads and checks a sidecar.
    pub fn load(path: &Path) -> Result<Self, SidecarError> {
        let io = |source| SidecarError::Io { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > SIDECAR_BYTES_MAX {
            return Err(SidecarError::TooLarge { path: path.to_owned(), bytes });
        }
        let text = std::fs::read(path).map_err(io)?;
        let mut sidecar: Sidecar =
            serde_json::from_slice(&text).map_err(|source| SidecarError::Json { path: path.to_owned(), source })?;
        let ranks = sidecar.incarnations.iter_mut().flat_map(|i| &mut i.ranks);
        for checkpoint in ranks.flat_map(|r| &mut r.checkpoints) {
            checkpoint.live = live_sets(path, std::mem::take(&mut checkpoint.live_raw))?;
        }
        Ok(sidecar)
    }
}

fn live_sets(path: &Path, raw: BTreeMap<String, BTreeMap<String, u64>>) -> Result<LiveSets, SidecarError> {
    let mut live = LiveSets::new();
    for (key, names) in raw.into_iter().filter(|(_, names)| !names.is_empty()) {
        let parsed = key.split_once('/').and_then(|(medium, group)| Some((medium.to_owned(), group.parse().ok()?)));
        let place = parsed.ok_or_else(|| SidecarError::LiveKey { path: path.to_owned(), key: key.clone() })?;
        let set = live.entry(place).or_default();
        for (hash, copies) in names {
            let name = name_of(&hash).ok_or_else(|| SidecarError::Hash { path: path.to_owned(), hash })?;
            *set.entry(name).or_insert(0) += copies;
        }
    }
    Ok(live)
}

/// The low 64 bits of a hash in hex, which is how the service reads both forms of the wire.
fn name_of(hex: &str) -> Option<u64> {
    if hex.len() < 16 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(&hex[hex.len() - 16..], 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_hash_come_to_the_low_64_bits() {
        assert_eq!(name_of("00000000000000ff"), Some(255));
        assert_eq!(
            name_of("f77cf67bfcb0aca65db8fecee891c01b9d405dca29ad2f823b0faf55db8166d1"),
            Some(0x3b0f_af55_db81_66d1)
        );
        assert_eq!(name_of("ff"), None);
        assert_eq!(name_of("zz00000000000000"), None);
        assert_eq!(name_of("ü000000000000000"), None);
    }

    #[test]
    fn live_keys_are_a_medium_and_a_group() {
        let path = Path::new("x.json");
        let raw = |key: &str| BTreeMap::from([(key.to_owned(), BTreeMap::from([("00000000000000ff".to_owned(), 2)]))]);
        let live = live_sets(path, raw("CPU_PINNED/3")).unwrap();
        assert_eq!(live, BTreeMap::from([(("CPU_PINNED".to_owned(), 3), BTreeMap::from([(255, 2)]))]));
        assert!(matches!(live_sets(path, raw("GPU")), Err(SidecarError::LiveKey { .. })));
        assert!(matches!(live_sets(path, raw("GPU/x")), Err(SidecarError::LiveKey { .. })));
    }
}
