//! What arrives when: requests of a trace, made faster, multiplied, spread, and cut into blocks.

use super::streams::{Stream, stream};
use crate::engine::Nanos;
use kvatlas_corpora::{CHUNK_TOKENS, Trace};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// One request that arrives.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When.
    pub at: Nanos,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// Content hashes of the blocks of prompt and answer.
    pub contents: Arc<[u64]>,
    /// How many of them are full of prompt tokens.
    pub prompt_blocks: u32,
}

/// How a trace is played.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrivalSpec {
    /// Which of its requests, in order of time.
    pub rows: Range<usize>,
    /// Its times are divided by this.
    pub speed: f64,
    /// A trace whose times are rounded down to so many milliseconds: each request comes at a time drawn out of them. 0: as recorded.
    pub spread_ms: u64,
    /// So many copies of it, each with contents of its own and times up to a spread (at least a second) later.
    pub copies: u32,
    /// Tokens in a block; 512 is a multiple of it.
    pub block_size: u32,
}

/// Why a trace cannot be played so.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ArrivalError {
    /// No request is left.
    #[error("rows {from}..{to}: the trace has {len}")]
    Rows {
        /// First.
        from: usize,
        /// End.
        to: usize,
        /// Requests of the trace.
        len: usize,
    },
    /// A block does not divide a chunk of the trace.
    #[error("block_size {0}: 512 is no multiple of it")]
    BlockSize(u32),
    /// A number out of range.
    #[error("{field}: {value} is not above 0")]
    NotPositive {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: f64,
    },
}

/// The requests in order of time.
pub fn arrivals(trace: &Trace, spec: &ArrivalSpec, seed: u64) -> Result<Vec<Arrival>, ArrivalError> {
    let Range { start: from, end: to } = spec.rows.clone();
    let len = trace.requests().len();
    let rows = trace.requests().get(from..to.min(len)).filter(|rows| !rows.is_empty());
    let rows = rows.ok_or(ArrivalError::Rows { from, to, len })?;
    if spec.block_size == 0 || !CHUNK_TOKENS.is_multiple_of(spec.block_size.into()) {
        return Err(ArrivalError::BlockSize(spec.block_size));
    }
    for (field, value) in [("speed", spec.speed), ("copies", f64::from(spec.copies))] {
        if !(value > 0.0 && value.is_finite()) {
            return Err(ArrivalError::NotPositive { field, value });
        }
    }
    let mut random = stream(seed, Stream::Arrivals);
    let first = rows[0].at_ms;
    let mut all = Vec::with_capacity(rows.len() * spec.copies as usize);
    for (row, request) in rows.iter().enumerate() {
        for copy in 0..spec.copies {
            let width = if copy == 0 { spec.spread_ms } else { spec.spread_ms.max(1_000) };
            let late = if width == 0 { 0.0 } else { random.random_range(0.0..width as f64) };
            let ms = ((request.at_ms - first) as f64 + late) / spec.speed;
            let id = row as u64 * u64::from(spec.copies) + u64::from(copy);
            all.push(arrival((ms * 1e6) as Nanos, request, id, copy, spec.block_size));
        }
    }
    all.sort_by_key(|arrival| arrival.at);
    Ok(all)
}

fn arrival(at: Nanos, request: &kvatlas_corpora::Request, id: u64, copy: u32, block_size: u32) -> Arrival {
    let tokens = |count: u64| u32::try_from(count.max(1)).unwrap_or(u32::MAX / 4);
    let (prompt_tokens, output_tokens) = (tokens(request.input_tokens), tokens(request.output_tokens));
    let per_chunk = (CHUNK_TOKENS / u64::from(block_size)) as u32;
    // A chunk's number stands for everything before it as well, so two chains share blocks exactly as far as they share chunks.
    let known = request.chunks.len() as u32 * per_chunk;
    let prompt_blocks = (prompt_tokens / block_size).min(known);
    let all_blocks = (prompt_tokens + output_tokens - 1) / block_size;
    let content = |block: u32| {
        if block < prompt_blocks {
            let chunk = request.chunks[(block / per_chunk) as usize];
            hash([1 + u64::from(copy), chunk.into(), (block % per_chunk).into()])
        } else {
            hash([0, id, block.into()])
        }
    };
    Arrival { at, prompt_tokens, output_tokens, contents: (0..all_blocks).map(content).collect(), prompt_blocks }
}

fn hash(words: [u64; 3]) -> u64 {
    let bytes = words.map(u64::to_le_bytes);
    xxhash_rust::xxh3::xxh3_64(bytes.as_flattened())
}

/// Leading prompt blocks of each request that some request before it had, over all prompt blocks: no policy can reuse more.
pub fn infinite_reuse(arrivals: &[Arrival]) -> f64 {
    let (mut seen, mut known, mut all) = (std::collections::HashSet::new(), 0_u64, 0_u64);
    for arrival in arrivals {
        // Names, not contents: a block is the same only below the same blocks.
        let names = crate::engine::chained(&arrival.contents[..arrival.prompt_blocks as usize]);
        known += names.iter().take_while(|name| seen.contains(*name)).count() as u64;
        all += names.len() as u64;
        seen.extend(names.iter().copied());
    }
    known as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"
        {"timestamp": 1000, "input_length": 1300, "output_length": 10, "hash_ids": [0, 1, 2]}
        {"timestamp": 1000, "input_length": 1024, "output_length": 200, "hash_ids": [0, 3]}
        {"timestamp": 4000, "input_length": 1600, "output_length": 1, "hash_ids": [0, 1, 4, 5]}
    "#;

    fn trace() -> Trace {
        Trace::read(TRACE.trim().as_bytes()).unwrap()
    }

    fn spec() -> ArrivalSpec {
        ArrivalSpec { rows: 0..9, speed: 2.0, spread_ms: 0, copies: 1, block_size: 64 }
    }

    #[test]
    fn blocks_are_shared_as_far_as_chunks_are() {
        let all = arrivals(&trace(), &spec(), 1).unwrap();
        assert_eq!(all.iter().map(|a| a.at).collect::<Vec<_>>(), [0, 0, 1_500_000_000]);
        assert_eq!(all.iter().map(|a| a.prompt_blocks).collect::<Vec<_>>(), [20, 16, 25]);
        assert_eq!(all.iter().map(|a| a.contents.len()).collect::<Vec<_>>(), [20, 19, 25]);
        let shared = |a: &Arrival, b: &Arrival| a.contents.iter().zip(&*b.contents).take_while(|(a, b)| a == b).count();
        assert_eq!((shared(&all[0], &all[1]), shared(&all[0], &all[2])), (8, 16));
        assert!((infinite_reuse(&all) - (8.0 + 16.0) / 61.0).abs() < 1e-12);
    }

    #[test]
    fn copies_have_contents_of_their_own_and_a_seed_gives_one_order() {
        let spec = ArrivalSpec { copies: 3, spread_ms: 3_000, ..spec() };
        let all = arrivals(&trace(), &spec, 5).unwrap();
        assert_eq!(all.len(), 9);
        assert!(all.is_sorted_by_key(|a| a.at) && all.iter().all(|a| a.at < 3_000_000_000));
        let heads: std::collections::BTreeSet<u64> = all.iter().map(|a| a.contents[0]).collect();
        assert_eq!(heads.len(), 3);
        let times = |seed| arrivals(&trace(), &spec, seed).unwrap().iter().map(|a| a.at).collect::<Vec<_>>();
        assert_eq!(times(5), times(5));
        assert_ne!(times(5), times(6));
    }

    #[test]
    fn what_cannot_be_played_says_why() {
        let refused = |spec: ArrivalSpec| arrivals(&trace(), &spec, 1).unwrap_err();
        assert_eq!(refused(ArrivalSpec { rows: 3..4, ..spec() }), ArrivalError::Rows { from: 3, to: 4, len: 3 });
        assert_eq!(refused(ArrivalSpec { block_size: 100, ..spec() }), ArrivalError::BlockSize(100));
        assert_eq!(refused(ArrivalSpec { speed: 0.0, ..spec() }).to_string(), "speed: 0 is not above 0");
    }
}
