//! Request traces: when a prompt arrived, how long it and its answer were, and which 512-token chunks it consists of.

use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;

/// Tokens of a chunk of a trace.
pub const CHUNK_TOKENS: u64 = 512;
/// Chunks of one prompt at most: 2 million tokens.
const CHUNKS_MAX: usize = 4096;
/// Requests of a trace at most.
const REQUESTS_MAX: usize = 10_000_000;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Arrival in milliseconds after the trace's beginning.
    pub at_ms: u64,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// The prompt's chunks, as numbers of the trace's chunk tree: equal numbers mean an equal prefix up to there.
    pub chunks: Vec<u32>,
}

/// A trace of requests by time of arrival.
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Trace {
    pub(crate) requests: Arc<[Request]>,
    chunks: u32,
    sha256: [u8; 32],
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace: {0}")]
    Read(#[from] std::io::Error),
    /// A line is not of the Mooncake form.
    #[error("line {line} of the trace: {reason}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// There is no request.
    #[error("the trace has no requests")]
    Empty,
}

/// A line of a trace as the Mooncake project publishes them.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

impl Trace {
    /// Reads a trace of the Mooncake form: one JSON object a line with `timestamp` (milliseconds), `input_length`,
    /// `output_length` and `hash_ids`, one for each 512 tokens of the prompt. Requests are put in order of time.
    pub fn read(input: impl BufRead) -> Result<Self, TraceError> {
        let mut tree = ChunkTree::default();
        let mut requests = Vec::new();
        let mut digest = Sha256::new();
        for (i, line) in input.lines().enumerate() {
            let line = line?;
            digest.update(line.as_bytes());
            digest.update(b"\n");
            if line.trim().is_empty() {
                continue;
            }
            let wrong = |reason: String| TraceError::Line { line: i + 1, reason };
            let line: Line = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
            if line.hash_ids.len() > CHUNKS_MAX || requests.len() >= REQUESTS_MAX {
                return Err(wrong(format!("more than {CHUNKS_MAX} chunks or {REQUESTS_MAX} requests")));
            }
            if !(0.0..1e12).contains(&line.timestamp) || line.input_length.max(line.output_length) > 1 << 32 {
                return Err(wrong("a time or a length is out of range".to_owned()));
            }
            requests.push(Request {
                at_ms: line.timestamp as u64,
                input_tokens: line.input_length,
                output_tokens: line.output_length,
                chunks: tree.path(&line.hash_ids),
            });
        }
        if requests.is_empty() {
            return Err(TraceError::Empty);
        }
        requests.sort_by_key(|request| request.at_ms);
        Ok(Self { requests: requests.into(), chunks: tree.chunks(), sha256: digest.finalize().into() })
    }

    /// A trace of requests that were made up: each a time, lengths and chunk ids as in a file.
    pub(crate) fn made_up(requests: Vec<(u64, u64, u64, Vec<u64>)>) -> Self {
        let mut tree = ChunkTree::default();
        let mut digest = Sha256::new();
        let mut made = Vec::with_capacity(requests.len());
        for (at_ms, input_tokens, output_tokens, ids) in requests {
            let words = [at_ms, input_tokens, output_tokens, ids.len() as u64];
            words.iter().chain(&ids).for_each(|word| digest.update(word.to_le_bytes()));
            made.push(Request { at_ms, input_tokens, output_tokens, chunks: tree.path(&ids) });
        }
        Self { requests: made.into(), chunks: tree.chunks(), sha256: digest.finalize().into() }
    }

    /// The requests in order of time.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Distinct chunks, counted by prefix.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// SHA-256 of the file's lines, or of the requests that were made up, in hexadecimal.
    pub fn sha256(&self) -> String {
        crate::manifest::hexadecimal(&self.sha256)
    }

    /// Milliseconds from the first arrival to the end of the trace: the last arrival and one mean gap.
    pub(crate) fn duration_ms(&self) -> u64 {
        let last = self.requests.last().map_or(0, |request| request.at_ms);
        last + last / self.requests.len() as u64 + 1
    }
}

/// Numbers of chunks by (chunk before, id), so that one id in two places is two chunks.
#[derive(Default)]
struct ChunkTree {
    numbers: HashMap<(u32, u64), u32>,
}

impl ChunkTree {
    fn path(&mut self, ids: &[u64]) -> Vec<u32> {
        let mut before = u32::MAX;
        let number = |&id| {
            let next = self.numbers.len() as u32;
            before = *self.numbers.entry((before, id)).or_insert(next);
            before
        };
        ids.iter().map(number).collect()
    }

    fn chunks(&self) -> u32 {
        self.numbers.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_published_form_are_read_and_sorted() {
        let text = "{\"timestamp\": 30, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [0, 2]}\n\
                    {\"timestamp\": 10, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [0, 1]}\n";
        let trace = Trace::read(text.as_bytes()).unwrap();
        assert_eq!(trace.requests()[0].at_ms, 10);
        assert_eq!(trace.chunks(), 3);
        assert_eq!(trace.requests()[0].chunks[0], trace.requests()[1].chunks[0]);
    }

    #[test]
    fn one_id_after_two_prefixes_is_two_chunks() {
        let mut tree = ChunkTree::default();
        assert_ne!(tree.path(&[1, 7])[1], tree.path(&[2, 7])[1]);
        assert_eq!(tree.chunks(), 4);
    }

    #[test]
    fn bad_lines_are_named() {
        let error = |text: &str| Trace::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error("{}\n").starts_with("line 1 of the trace: missing field"));
        assert_eq!(error("\n"), "the trace has no requests");
        let far = "{\"timestamp\": -1, \"input_length\": 7, \"output_length\": 5, \"hash_ids\": []}";
        assert!(error(far).contains("out of range"));
    }
}
