//! `verify`: recordings of real engines through the real decoder, cursor, normalizer and index, against the engines' truth.
//!
//! At every checkpoint every live set is compared with its copies, and every probe prompt in every column. Where an engine's
//! answer is something else than prefix residency, the rule that makes the difference is computed (module `residency`) and
//! listed ([`Rule`]); nothing is skipped.

mod apply;
mod checker;
mod fold;
mod player;
mod report;
mod residency;
mod sglang_names;

pub use player::PlayError;
pub use report::{Report, Rule};

use crate::recording::{Live, Recording, RecordingError};
use crate::sidecar::{Engine, Meta};
use kvatlas_service::ingest;
use player::Player;
use std::path::Path;

/// Why a file could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The recording or its truth cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The recording cannot be played.
    #[error("{name}: {source}")]
    Play {
        /// The recording.
        name: String,
        /// Why.
        source: PlayError,
    },
}

/// What goes wrong between the publisher and the product while a recording is played.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Every so many live messages one is lost, unless the replay could not deliver it either or nothing follows it in its
    /// life; 0 for none.
    pub lose_every: usize,
    /// Every so many live messages one arrives twice; 0 for none.
    pub repeat_every: usize,
    /// The connection breaks and is made again when the publisher's process is replaced.
    pub reconnects: bool,
}

impl Faults {
    /// How often a message arrives.
    fn deliveries(&self, number: usize, live: &Live, recording: &Recording) -> usize {
        let nth = |every: usize| every > 0 && number % every == every - 1;
        let key = (live.publisher, live.incarnation);
        let repairable = recording.replays.get(&key).is_some_and(|r| r.payload(live.sequence).is_some());
        let later = |l: &Live| (l.publisher, l.incarnation) == key && l.sequence > live.sequence;
        if nth(self.lose_every) && repairable && recording.live.iter().any(later) {
            0
        } else if nth(self.repeat_every) {
            2
        } else {
            1
        }
    }
}

/// What an operator would set for the recorded worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Settings {
    report_mode_full: bool,
}

impl Settings {
    fn of(recording: &Recording) -> Self {
        Self { report_mode_full: recording.truth.description.contains("kv_cache_report_mode=full") }
    }

    fn worker(&self, meta: &Meta, rank: u8) -> ingest::WorkerSpec {
        let endpoint = ingest::RankEndpoint {
            rank: rank.into(),
            events: "tcp://recording:0".to_owned(),
            replay: Some("tcp://recording:1".to_owned()),
        };
        ingest::WorkerSpec {
            id: "recorded".to_owned(),
            model: "recorded".to_owned(),
            routing_group: String::new(),
            block_size: meta.block_size,
            engine: match meta.engine {
                Engine::Vllm => ingest::Engine::Vllm,
                Engine::Sglang => ingest::Engine::Sglang,
            },
            ranks: vec![endpoint],
            topic: String::new(),
            report_mode_full: self.report_mode_full,
            bigram: false,
            hash_check_every: 0,
            hash_seed: None,
            hash_scheme: ingest::HashChoice::default(),
            snapshots: None,
        }
    }
}

/// Verifies one file.
pub fn verify(path: &Path) -> Result<Report, VerifyError> {
    verify_with(&Recording::load(path)?, Faults::default())
}

/// Verifies a recording while things go wrong on the way. The result has to be the same.
pub fn verify_with(recording: &Recording, faults: Faults) -> Result<Report, VerifyError> {
    let play = Player::new(recording, Settings::of(recording), faults).and_then(Player::play);
    play.map_err(|source| VerifyError::Play { name: recording.name.clone(), source })
}
