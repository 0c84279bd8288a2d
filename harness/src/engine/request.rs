//! Requests as a mock engine sees them, and what it tells of them.

use super::pool::Name;
use std::sync::Arc;

/// A request's number, chosen by whoever submits it.
pub type RequestId = u64;

/// What is asked of the engine.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the answer, at least 1.
    pub output_tokens: u32,
    /// Content hashes of the full blocks of prompt and answer together, as far as they are ever computed: the last token of the
    /// answer never is.
    pub contents: Arc<[u64]>,
    /// The engine's names of these blocks.
    pub names: Arc<[Name]>,
}

impl Request {
    /// A request over blocks with these contents. `None` if they are too few for its tokens, or it has no token.
    pub fn new(
        id: RequestId,
        prompt_tokens: u32,
        output_tokens: u32,
        block_size: u32,
        contents: Arc<[u64]>,
    ) -> Option<Self> {
        let computed = prompt_tokens.checked_add(output_tokens)?.checked_sub(1)?;
        let fits = prompt_tokens > 0 && output_tokens > 0 && contents.len() >= (computed / block_size) as usize;
        let names = chained(&contents);
        fits.then_some(Self { id, prompt_tokens, output_tokens, contents, names })
    }
}

/// Names of a chain's blocks: each depends on all blocks before it.
pub fn chained(contents: &[u64]) -> Arc<[Name]> {
    let name = |before: &mut u64, content: &u64| {
        *before = mix(*before ^ mix(*content));
        Some(*before)
    };
    contents.iter().scan(0x6b76_6174_6c61_7300, name).collect()
}

/// Finaliser of a 64-bit hash (SplitMix64).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What becomes visible at the end of a pass, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The request has so many tokens of its answer by now.
    Token {
        /// The request.
        id: RequestId,
        /// Tokens so far.
        tokens: u32,
    },
    /// The request has ended.
    Ended {
        /// The request.
        id: RequestId,
        /// Tokens of its prompt that were found cached when it was first admitted.
        cached_tokens: u32,
    },
    /// Blocks of a request were cached, one copy more of each.
    Stored {
        /// The request.
        id: RequestId,
        /// Number of the first of them in the request.
        from: u32,
        /// The block before it.
        parent: Option<Name>,
        /// Their names.
        names: Vec<Name>,
    },
    /// Blocks were evicted, one copy of each.
    Removed {
        /// Their names.
        names: Vec<Name>,
    },
    /// Everything was evicted.
    Cleared,
}
