//! Whose state a seed is.

use crate::ingest::{Engine, WorkerSpec};

/// A rank as it was registered, as far as that decides what its events mean. A registration that differs in any of it refuses the
/// seed. Endpoints are not in it: who answers there is proven by payloads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The worker's id.
    pub worker: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// The worker's model.
    pub model: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// Which engine it is.
    pub engine: Engine,
    /// Whether its pages are pairs of tokens.
    pub bigram: bool,
    /// Whether reused blocks are announced again.
    pub report_mode_full: bool,
    /// The engine's hash seed, where it is set.
    pub hash_seed: Option<String>,
    /// The hash scheme as it was written, where one is.
    pub hash_scheme: Option<String>,
}

impl Identity {
    /// A rank of this worker.
    pub fn of(spec: &WorkerSpec, rank: u32) -> Self {
        Self {
            worker: spec.id.clone(),
            rank,
            model: spec.model.clone(),
            block_size: spec.block_size,
            engine: spec.engine,
            bigram: spec.bigram,
            report_mode_full: spec.report_mode_full,
            hash_seed: spec.hash_seed.clone(),
            hash_scheme: spec.hash_scheme.setting().map(str::to_owned),
        }
    }

    /// The first field that differs.
    pub fn difference(&self, other: &Identity) -> Option<&'static str> {
        [
            ("worker", self.worker != other.worker),
            ("rank", self.rank != other.rank),
            ("model", self.model != other.model),
            ("block_size", self.block_size != other.block_size),
            ("engine", self.engine != other.engine),
            ("bigram", self.bigram != other.bigram),
            ("report_mode_full", self.report_mode_full != other.report_mode_full),
            ("hash_seed", self.hash_seed != other.hash_seed),
            ("hash_scheme", self.hash_scheme != other.hash_scheme),
        ]
        .into_iter()
        .find_map(|(field, differs)| differs.then_some(field))
    }
}
