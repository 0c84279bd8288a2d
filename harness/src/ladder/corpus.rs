//! The ladder's corpus: a schedule played on mock workers, put on a tape.

use super::campaign::amount;
use super::tape::{Tape, TapeFull};
use clap::{Args, ValueEnum};
use kvatlas_corpora::{
    Batch, Names, Operation, OperationKind, Parameters, Sharing, Stream, StreamError, Synthetic, Trace, TraceError,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Operations that are generated at a time.
const CHUNK: usize = 20_000;
/// The caches count as full at this part of their capacity: requests in flight keep some room.
const FULL: f64 = 0.97;
/// The warm part ends after this many block operations for each block of capacity, full or not.
const WARM_TURNOVERS: u64 = 12;

/// How the corpus is made.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct CorpusArguments {
    /// Schedule to replay: JSON lines of the Mooncake project (`timestamp`, `input_length`, `output_length`, `hash_ids`).
    /// Without it one is generated.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Requests of the generated schedule.
    #[arg(long, default_value_t = 12_000, value_name = "N")]
    pub requests: u32,
    /// Copies of the schedule that run at the same time, each with contents of its own. Without it, as the sharing needs.
    #[arg(long, value_name = "N")]
    pub duplicate: Option<u32>,
    /// How often as long as written every prompt and answer is.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub length_factor: u32,
    /// Tokens of a block: 1, 16, 128 or another divisor of 512.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub block_tokens: u32,
    /// Workers of the fleet. Without it 128 (16 with one-token blocks).
    #[arg(long, value_name = "N")]
    pub workers: Option<u32>,
    /// Blocks of a worker's cache. Without it 2,097,152 tokens' worth.
    #[arg(long, value_name = "N")]
    pub worker_blocks: Option<u32>,
    /// Whether workers name equal blocks alike.
    #[arg(long, default_value = "same", value_enum)]
    pub names: NamesArgument,
    /// How many workers hold a block: about 14, about 3, about 1.2.
    #[arg(long, default_value = "high", value_enum)]
    pub sharing: SharingArgument,
    /// Part of the evictions that take any block instead of the least recently used one, and so leave holes: 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub random_evictions: f64,
    /// Removal events carry one name each, as vLLM's do.
    #[arg(long)]
    pub one_name_removals: bool,
    /// Seed of contents, names, routing and evictions.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Block operations after the caches are full, in millions. A rate needs as many as fill its window.
    #[arg(long, default_value_t = 40.0, value_name = "MILLIONS")]
    pub block_ops: f64,
}

/// `--names`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamesArgument {
    /// SGLang, or vLLM with a pinned hash seed.
    Same,
    /// vLLM with random hash seeds.
    Random,
}

/// `--sharing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharingArgument {
    /// About 14 holders a block.
    High,
    /// About 3.
    Standard,
    /// About 1.2.
    Low,
}

/// Why there is no corpus.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The schedule cannot be opened.
    #[error("schedule {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The schedule cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The stream's parameters are refused, or it is exhausted.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A tape has a limit.
    #[error(transparent)]
    Full(#[from] TapeFull),
    /// A number is outside its range.
    #[error("--{field} is {value}, but must be {min} to {max}")]
    OutOfRange {
        /// The flag.
        field: &'static str,
        /// What was given.
        value: f64,
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
    },
}

/// What a corpus turned out to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorpusFacts {
    /// The parameters in force.
    pub parameters: Parameters,
    /// Where the schedule came from.
    pub schedule: String,
    /// Memberships when the warm part ended.
    pub memberships: u64,
    /// Holders of a block when the warm part ended.
    pub holders_per_block: f64,
    /// Operations of the warm part.
    pub warm_operations: u64,
    /// Operations after it.
    pub operations: u64,
    /// Block operations after it.
    pub block_ops: u64,
}

impl CorpusFacts {
    /// A line of it.
    pub fn told(&self) -> String {
        let p = &self.parameters;
        format!(
            "{} workers of {} blocks of {} tokens; {}; {:.1} holders a block, {} memberships",
            p.workers,
            p.blocks_per_worker,
            p.block_tokens,
            self.schedule,
            self.holders_per_block,
            amount(self.memberships as f64),
        )
    }
}

/// Most requests of a generated schedule: they are all in memory.
const REQUESTS_MAX: f64 = 10_000_000.0;

/// The value of a flag, if it is in its range; a NaN is in none.
pub(super) fn in_range(field: &'static str, value: f64, min: f64, max: f64) -> Result<f64, CorpusError> {
    if (min..=max).contains(&value) { Ok(value) } else { Err(CorpusError::OutOfRange { field, value, min, max }) }
}

impl CorpusArguments {
    /// The parameters of the stream.
    pub fn parameters(&self) -> Result<Parameters, CorpusError> {
        let random_evictions = in_range("random-evictions", self.random_evictions, 0.0, 1.0)?;
        in_range("block-ops", self.block_ops, 0.001, 4000.0)?;
        let sharing = match self.sharing {
            SharingArgument::High => Sharing::High,
            SharingArgument::Standard => Sharing::Standard,
            SharingArgument::Low => Sharing::Low,
        };
        let names = match self.names {
            NamesArgument::Same => Names::Same,
            NamesArgument::Random => Names::Random,
        };
        let mut p = Parameters::standard(self.block_tokens, sharing, names);
        p.seed = self.seed;
        p.workers = self.workers.unwrap_or(p.workers);
        p.blocks_per_worker = self.worker_blocks.unwrap_or(p.blocks_per_worker);
        p.length_factor = self.length_factor;
        p.copies = self.duplicate.unwrap_or(p.copies);
        p.replicas = p.replicas.min(p.workers);
        p.random_evictions_per_mille = (random_evictions * 1000.0).round() as u32;
        if self.one_name_removals {
            p.removal_names_max = 1;
        }
        Ok(p)
    }

    /// The schedule.
    pub fn schedule(&self) -> Result<(Trace, String), CorpusError> {
        match &self.trace {
            Some(path) => {
                let open = std::fs::File::open(path);
                let file = open.map_err(|source| CorpusError::Open { path: path.clone(), source })?;
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Ok((Trace::read(std::io::BufReader::new(file))?, name))
            }
            None => {
                in_range("requests", self.requests as f64, 1.0, REQUESTS_MAX)?;
                let synthetic = Synthetic { requests: self.requests, seed: self.seed, ..Synthetic::default() };
                Ok((Trace::synthetic(&synthetic), format!("generated, {} requests, seed {}", self.requests, self.seed)))
            }
        }
    }

    /// Plays the schedule onto a tape: until the caches are full, then `block_ops` more. `progress` hears how far it is,
    /// 0 to 1.
    pub fn record(&self, mut progress: impl FnMut(f64)) -> Result<(Tape, CorpusFacts), CorpusError> {
        let parameters = self.parameters()?;
        let (trace, schedule) = self.schedule()?;
        let mut stream = Stream::new(&trace, parameters.clone())?;
        let mut tape = Tape::new(parameters.workers);
        let mut batch = Batch::default();
        let capacity = parameters.capacity();
        let (mut warm_block_ops, full) = (0, (capacity as f64 * FULL) as u64);
        while stream.figures().resident < full && warm_block_ops < capacity * WARM_TURNOVERS {
            // The warm part's lookups are left out: they change nothing.
            warm_block_ops += extend(&mut stream, &mut batch, &mut tape, |o| o.kind != OperationKind::Lookup)?;
            progress((stream.figures().resident as f64 / full as f64).min(1.0) / 2.0);
        }
        tape.warm = tape.operations.len();
        let figures = stream.figures();
        let (wanted, mut block_ops) = ((self.block_ops * 1e6) as u64, 0);
        while block_ops < wanted {
            block_ops += extend(&mut stream, &mut batch, &mut tape, |_| true)?;
            progress(0.5 + (block_ops as f64 / wanted as f64).min(1.0) / 2.0);
        }
        let facts = CorpusFacts {
            parameters,
            schedule,
            memberships: figures.resident,
            holders_per_block: figures.holders_per_block(),
            warm_operations: tape.warm as u64,
            operations: (tape.operations.len() - tape.warm) as u64,
            block_ops,
        };
        Ok((tape, facts))
    }
}

/// Puts the next operations that are wanted onto the tape; returns the block operations that were played.
fn extend(
    stream: &mut Stream,
    batch: &mut Batch,
    tape: &mut Tape,
    wanted: impl Fn(&Operation) -> bool,
) -> Result<u64, CorpusError> {
    batch.clear();
    stream.extend(batch, CHUNK)?;
    let mut block_ops = 0;
    for operation in &batch.operations {
        block_ops += operation.blocks() as u64;
        if wanted(operation) {
            put(tape, batch, operation)?;
        }
    }
    Ok(block_ops)
}

/// Puts one operation onto the tape.
pub fn put(tape: &mut Tape, batch: &Batch, operation: &Operation) -> Result<(), TapeFull> {
    let (at_us, worker) = (operation.at_ns / 1000, operation.worker);
    match operation.kind {
        OperationKind::Lookup => {
            let contents = tape.put_contents(batch.contents(operation))?;
            tape.lookup(at_us, contents, operation.blocks())
        }
        OperationKind::Store { parent, .. } => {
            let contents = tape.put_contents(batch.contents(operation))?;
            tape.store((at_us, worker), parent, batch.names(operation), contents)
        }
        OperationKind::Remove => tape.remove(at_us, worker, batch.names(operation)),
    }
}
