//! One request, as policies see it.

use kvatlas_index::ContentHash;

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Tokens of the prompt; `None`: not known (the mean prefill is taken).
    pub tokens: Option<u64>,
    /// Tokens in a block.
    pub block_size: u32,
    /// Content hashes of its full blocks. Empty where it is shorter than one block, or nothing of it is known.
    pub contents: &'a [ContentHash],
    /// Its token ids, for modes that cut them elsewhere than at blocks. Empty: not given.
    pub token_ids: &'a [u32],
    /// Number of the booking that it gets if it is dispatched.
    pub booking: u64,
}

impl Request<'_> {
    /// Full blocks.
    pub fn blocks(&self) -> u32 {
        self.contents.len() as u32
    }

    /// Tokens, or the mean where they are not known.
    pub fn tokens_or(&self, mean: f64) -> f64 {
        self.tokens.map_or(mean, |tokens| tokens as f64)
    }

    /// Tokens of so many leading blocks: never more than the prompt has.
    pub fn cached_tokens(&self, blocks: u32) -> u64 {
        let cached = u64::from(blocks) * u64::from(self.block_size);
        self.tokens.map_or(cached, |tokens| cached.min(tokens))
    }
}
