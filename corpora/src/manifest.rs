//! What a corpus is, in a form that is kept: trace, parameters, counts, and a SHA-256 over every operation.

use crate::batch::{Batch, Class, Operation, OperationKind};
use crate::parameters::Parameters;
use crate::stream::{Stream, StreamError};
use crate::synthetic::Synthetic;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Operations that are generated at a time.
const STEP: usize = 10_000;

/// Where a corpus's trace comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceSource {
    /// Made up from these settings.
    Synthetic(Synthetic),
    /// A file of the Mooncake project's FAST '25 release.
    Mooncake {
        /// The file's name.
        file: String,
    },
}

/// A corpus as it was generated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The trace.
    pub trace: TraceSource,
    /// SHA-256 of the trace.
    pub trace_sha256: String,
    /// The parameters.
    pub parameters: Parameters,
    /// Requests that were played.
    pub requests: u64,
    /// Operations of each class.
    pub operations: BTreeMap<String, u64>,
    /// Blocks that were asked for, stored and removed.
    pub blocks: u64,
    /// Times that a worker could not serve a request.
    pub refused: u64,
    /// Blocks held at the end, over all workers.
    pub resident: u64,
    /// Distinct blocks held at the end.
    pub distinct: u64,
    /// SHA-256 of all operations, see [`Fingerprint`].
    pub sha256: String,
}

impl Manifest {
    /// Plays so many requests of a corpus and notes what it was.
    pub fn generate(
        source: TraceSource,
        trace: &Trace,
        parameters: Parameters,
        requests: u64,
    ) -> Result<Self, StreamError> {
        let mut stream = Stream::new(trace, parameters.clone())?;
        let (mut batch, mut fingerprint) = (Batch::default(), Fingerprint::default());
        let mut operations: BTreeMap<String, u64> = BTreeMap::new();
        let mut blocks = 0;
        while stream.figures().requests < requests {
            batch.clear();
            while batch.operations.len() < STEP && stream.figures().requests < requests {
                stream.extend_requests(&mut batch, 1)?;
            }
            for operation in &batch.operations {
                fingerprint.add(&batch, operation);
                *operations.entry(operation.class().name().to_owned()).or_default() += 1;
                blocks += operation.blocks() as u64;
            }
        }
        let figures = stream.figures();
        Ok(Self {
            trace: source,
            trace_sha256: trace.sha256(),
            parameters,
            requests,
            operations,
            blocks,
            refused: figures.refused,
            resident: figures.resident,
            distinct: figures.distinct,
            sha256: fingerprint.finish(),
        })
    }
}

impl Class {
    /// The class in a word, for tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Class::Lookup => "lookup",
            Class::First => "first",
            Class::Join => "join",
            Class::Mixed => "mixed",
            Class::Append => "append",
            Class::Remove => "remove",
        }
    }
}

/// SHA-256 over operations: of each its time, kind, worker, parent, and its names and contents with their counts, as little-endian
/// 64-bit words.
#[derive(Clone, Default)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// Adds an operation.
    pub fn add(&mut self, batch: &Batch, operation: &Operation) {
        let (kind, parent) = match operation.kind {
            OperationKind::Lookup => (0, None),
            OperationKind::Store { parent, .. } => (1, parent),
            OperationKind::Remove => (2, None),
        };
        let (names, contents) = (batch.names(operation), batch.contents(operation));
        let parent = [u64::from(parent.is_some()), parent.map_or(0, |name| name.0)];
        let head = [operation.at_ns, kind, u64::from(operation.worker)];
        let counts = [names.len() as u64, contents.len() as u64];
        let words = head.into_iter().chain(parent).chain(counts);
        let words = words.chain(names.iter().map(|name| name.0)).chain(contents.iter().map(|content| content.0));
        words.for_each(|word| self.0.update(word.to_le_bytes()));
    }

    /// The hash so far, in hexadecimal.
    pub fn finish(self) -> String {
        hexadecimal(&self.0.finalize())
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
