//! Content hashes: what lookups and stores agree on, whatever an engine calls its blocks.
//!
//! Definition, for a block of `B` units at position `i`:
//!
//! 1. The block's words. [`HashMode::Plain`]: raw tokens `i*B .. (i+1)*B`. [`HashMode::Bigram`]: the unit `j` is the pair
//!    `(t_j, t_j+1)`, so the block covers `B + 1` raw tokens, `i*B ..= (i+1)*B`; the words are those, each once. The last
//!    word of a block is the first of the next. A bigram block equals no plain block.
//! 2. `h = XXH3-64(words as little-endian u32, seed)`, with `seed = 1337`, for the first block `1337 ^ namespace`
//!    ([`super::namespace`]).
//! 3. Everything else the block depends on is folded in: multimodal items first (those without an offset before the
//!    others, then by offset, then by hash of their
//!    identifier), then prompt embeddings, then parts nobody knows, in their order:
//!    `h = XXH3-64(h as LE u64 || kind u8 || XXH3-64(bytes, 1337) as LE u64 || offset as LE i64, 1337)`.
//!    Kinds: 1 item with an offset, 2 item without one (offset 0), 3 embeddings (0), 4 unknown (0). `bytes` is the
//!    identifier, the digest, the raw msgpack. An item's offset is its first token relative to the block's first, negative in
//!    later blocks; it is folded into each block that it overlaps.
//!
//! A block without any of that hashes as in other indexes of the field: XXH3-64, seed 1337, over its tokens.

use super::event::Stored;
use super::extras::{Entry, Extra};
use super::namespace::{Namespace, store_namespace};
use kvatlas_index::ContentHash;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of every content hash.
pub const CONTENT_SEED: u64 = 1337;

/// How a worker's tree cuts tokens into units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum HashMode {
    /// A unit is a token.
    #[default]
    Plain,
    /// A unit is a pair of neighbouring tokens (SGLang with EAGLE): `n` tokens make `n - 1` units.
    Bigram,
}

impl HashMode {
    /// Raw tokens that a block of so many units covers.
    pub const fn block_tokens(self, block_size: usize) -> usize {
        match self {
            HashMode::Plain => block_size,
            HashMode::Bigram => block_size + 1,
        }
    }

    /// Full blocks in so many raw tokens.
    pub const fn full_blocks(self, tokens: usize, block_size: usize) -> usize {
        match self {
            HashMode::Plain => tokens / block_size,
            HashMode::Bigram => tokens.saturating_sub(1) / block_size,
        }
    }
}

/// A multimodal item of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultimodalItem<'a> {
    /// What the engine calls it.
    pub identifier: &'a str,
    /// First placeholder token, from the start of the prompt.
    pub offset: usize,
    /// Placeholder tokens; an item of none overlaps no block.
    pub len: usize,
    /// Whether the worker's events carry offsets. `false` only for vLLM 0.17 and 0.18.
    pub at_offset: bool,
}

/// What a lookup asks about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prompt<'a> {
    /// Raw token ids.
    pub tokens: &'a [u32],
    /// LoRA name and salt.
    pub namespace: Namespace,
    /// Multimodal items, in any order.
    pub items: &'a [MultimodalItem<'a>],
}

/// Why a store has no contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreContentError {
    /// A placeholder: names without tokens. They can be adopted, not placed.
    #[error("the store has no tokens")]
    NoTokens,
    /// The block size is not the registered one. A smaller one with a single hash is a partly filled block.
    #[error("the store's block size is {event}, the worker is registered with {registered}")]
    BlockSize {
        /// As the event says.
        event: u64,
        /// As registered.
        registered: usize,
    },
    /// Pairs where tokens were registered, or the other way round.
    #[error("the store's tokens are {}", if *.bigram { "bigrams, the worker is registered as plain" } else { "plain, the worker is registered as bigram" })]
    Mode {
        /// Whether the event has pairs.
        bigram: bool,
    },
    /// Hashes and tokens do not line up: blocks were skipped (window groups), so a hash's place is not known.
    #[error("{hashes} hashes for {blocks} full blocks of tokens")]
    Misaligned {
        /// Names in the event.
        hashes: usize,
        /// Full blocks in its tokens.
        blocks: usize,
    },
}

/// What [`ContentHasher::store`] computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreContents {
    /// Full blocks: the first so many names have a content.
    pub blocks: usize,
    /// Whether one more name stands for a partly filled block after them.
    pub partial_tail: bool,
}

/// Computes content hashes. Keeps a buffer of one block; otherwise stateless.
#[derive(Clone, Debug)]
pub struct ContentHasher {
    mode: HashMode,
    block_size: usize,
    words: Vec<u8>,
}

impl ContentHasher {
    /// For blocks of `block_size` units.
    ///
    /// # Panics
    /// If `block_size` is 0; a registration with such a size is refused long before.
    pub fn new(mode: HashMode, block_size: usize) -> Self {
        assert!(block_size > 0, "a block has at least one unit");
        Self { mode, block_size, words: Vec::new() }
    }

    /// Appends the content hashes of the prompt's full blocks to `out` and returns how many.
    /// Allocates only where a buffer must grow, and for the order of the items.
    pub fn prompt(&mut self, prompt: &Prompt<'_>, out: &mut Vec<ContentHash>) -> usize {
        let blocks = self.mode.full_blocks(prompt.tokens.len(), self.block_size);
        let start = out.len();
        let mut seed = CONTENT_SEED ^ prompt.namespace.0;
        for block in 0..blocks {
            let from = block * self.block_size;
            let words = &prompt.tokens[from..from + self.mode.block_tokens(self.block_size)];
            self.words.clear();
            append(&mut self.words, words.len(), words.iter().copied());
            out.push(ContentHash(xxh3_64_with_seed(&self.words, seed)));
            seed = CONTENT_SEED;
        }
        self.fold_prompt_items(prompt.items, &mut out[start..]);
        blocks
    }

    /// Folds each item into each block that it overlaps, in the order of the definition.
    fn fold_prompt_items(&self, items: &[MultimodalItem<'_>], blocks: &mut [ContentHash]) {
        let mut sorted: SmallVec<[(usize, u64, &MultimodalItem<'_>); 8]> = items
            .iter()
            .filter(|i| i.len > 0)
            .map(|i| (if i.at_offset { i.offset } else { 0 }, digest(i.identifier.as_bytes()), i))
            .collect();
        // Items without an offset count as at 0 on the other side too, hence the key; the kind breaks the tie there.
        sorted.sort_by_key(|(offset, id, i)| (i.at_offset, *offset, *id));
        for (_, id, item) in sorted {
            let last_block = item.offset.saturating_add(item.len - 1) / self.block_size;
            for (block, hash) in
                blocks.iter_mut().enumerate().take(last_block.saturating_add(1)).skip(item.offset / self.block_size)
            {
                let part = if item.at_offset {
                    Part { kind: ITEM_AT_OFFSET, offset: item.offset as i64 - (block * self.block_size) as i64, id }
                } else {
                    Part { kind: BARE_ITEM, offset: 0, id }
                };
                hash.0 = part.fold(hash.0);
            }
        }
    }

    /// Appends the content hashes of the store's full blocks to `out`. On an error `out` is as it was.
    /// Token ids are hashed from the message; allocates only where a buffer must grow.
    pub fn store(
        &mut self,
        stored: &Stored<'_>,
        out: &mut Vec<ContentHash>,
    ) -> Result<StoreContents, StoreContentError> {
        let contents = self.check(stored)?;
        let start = out.len();
        let mut seed = CONTENT_SEED;
        if stored.parent.is_none() {
            seed ^= store_namespace(stored).0;
        }
        out.reserve(contents.blocks);
        match stored.tokens.words() {
            Some(words) => self.hash_words(words, contents.blocks, seed, out),
            None => self.read_and_hash(stored, contents.blocks, seed, out),
        }
        if !stored.extra_keys.all_nil() {
            fold_store_extras(stored, &mut out[start..]);
        }
        Ok(contents)
    }

    /// Hashes the blocks that the decoder wrote down, the first with `seed`. The sizes that engines are run with have a
    /// length known here.
    fn hash_words(&self, words: &[u8], blocks: usize, seed: u64, out: &mut Vec<ContentHash>) {
        match self.block_size {
            1 => hash_blocks::<4>(words, blocks, seed, out),
            8 => hash_blocks::<32>(words, blocks, seed, out),
            16 => hash_blocks::<64>(words, blocks, seed, out),
            32 => hash_blocks::<128>(words, blocks, seed, out),
            _ => {
                let mut seed = seed;
                for block in words.chunks_exact(4 * self.block_size).take(blocks) {
                    out.push(ContentHash(xxh3_64_with_seed(block, seed)));
                    seed = CONTENT_SEED;
                }
            }
        }
    }

    /// Hashes token ids out of the message, where the decoder did not write them down.
    fn read_and_hash(&mut self, stored: &Stored<'_>, blocks: usize, mut seed: u64, out: &mut Vec<ContentHash>) {
        let mut tokens = stored.tokens.iter();
        self.words.clear();
        if self.mode == HashMode::Bigram {
            append(&mut self.words, 1, tokens.by_ref());
        }
        for _ in 0..blocks {
            append(&mut self.words, self.block_size, tokens.by_ref());
            out.push(ContentHash(xxh3_64_with_seed(&self.words, seed)));
            seed = CONTENT_SEED;
            // A bigram block begins with the word that the block before ended with.
            let keep = if self.mode == HashMode::Bigram { 4 } else { 0 };
            let end = self.words.len();
            self.words.copy_within(end - keep.., 0);
            self.words.truncate(keep);
        }
    }

    fn check(&self, stored: &Stored<'_>) -> Result<StoreContents, StoreContentError> {
        if stored.tokens.is_empty() {
            return Err(StoreContentError::NoTokens);
        }
        if stored.block_size != self.block_size as u64 {
            return Err(StoreContentError::BlockSize { event: stored.block_size, registered: self.block_size });
        }
        let bigram = stored.tokens.is_bigram();
        if bigram != (self.mode == HashMode::Bigram) {
            return Err(StoreContentError::Mode { bigram });
        }
        let blocks = stored.tokens.units() / self.block_size;
        let hashes = stored.hashes.len();
        let partial_tail = hashes == blocks + 1 && !stored.tokens.units().is_multiple_of(self.block_size);
        if hashes != blocks && !partial_tail {
            return Err(StoreContentError::Misaligned { hashes, blocks });
        }
        Ok(StoreContents { blocks, partial_tail })
    }
}

/// Hashes the first `count` blocks of `BYTES` bytes, the very first with `seed`. With length and seed constant all but the
/// multiplications of XXH3's short forms is computed by the compiler, and neighbouring blocks overlap in the processor.
fn hash_blocks<const BYTES: usize>(words: &[u8], count: usize, seed: u64, out: &mut Vec<ContentHash>) {
    let (blocks, _) = words.as_chunks::<BYTES>();
    let blocks = &blocks[..count.min(blocks.len())];
    let start = out.len();
    out.extend(blocks.iter().map(|block| ContentHash(xxh3_64_with_seed(block, CONTENT_SEED))));
    if seed != CONTENT_SEED
        && let (Some(block), Some(hash)) = (blocks.first(), out.get_mut(start))
    {
        hash.0 = xxh3_64_with_seed(block, seed);
    }
}

/// Appends `count` tokens as little-endian words. In one stretch, so that the compiler copies rather than pushes.
fn append(words: &mut Vec<u8>, count: usize, tokens: impl Iterator<Item = u32>) {
    let start = words.len();
    words.resize(start + 4 * count, 0);
    for (word, token) in words[start..].chunks_exact_mut(4).zip(tokens) {
        word.copy_from_slice(&token.to_le_bytes());
    }
}

/// Folds each block's extra keys into its hash.
fn fold_store_extras(stored: &Stored<'_>, blocks: &mut [ContentHash]) {
    let lora = stored.lora_name.unwrap_or("");
    for (i, (hash, entry)) in blocks.iter_mut().zip(stored.extra_keys.iter()).enumerate() {
        hash.0 = fold_entry(hash.0, entry, lora, i == 0 && stored.parent.is_none());
    }
}

fn fold_entry(hash: u64, entry: Entry<'_>, lora: &str, first_block: bool) -> u64 {
    let mut parts: SmallVec<[Part; 8]> = entry.items(lora, first_block).filter_map(Part::of).collect();
    // Stable: parts that are no items keep their order. The key is the prompt side's, see `fold_prompt_items`.
    parts.sort_by_key(|p| match p.kind {
        BARE_ITEM => (0, 0, p.id),
        ITEM_AT_OFFSET => (1, p.offset, p.id),
        kind => (kind, 0, 0),
    });
    parts.iter().fold(hash, |h, part| part.fold(h))
}

const ITEM_AT_OFFSET: u8 = 1;
const BARE_ITEM: u8 = 2;
const EMBEDS: u8 = 3;
const UNKNOWN: u8 = 4;

/// One thing that is folded into a block's hash.
#[derive(Clone, Copy)]
struct Part {
    kind: u8,
    offset: i64,
    id: u64,
}

impl Part {
    /// What an extra key adds to the block itself; LoRA and salt are in the namespace.
    fn of(extra: Extra<'_>) -> Option<Part> {
        Some(match extra {
            Extra::Lora(_) | Extra::Salt(_) => return None,
            Extra::Item { identifier, offset: Some(offset) } => {
                Part { kind: ITEM_AT_OFFSET, offset, id: digest(identifier.as_bytes()) }
            }
            Extra::Item { identifier, offset: None } => {
                Part { kind: BARE_ITEM, offset: 0, id: digest(identifier.as_bytes()) }
            }
            Extra::Embeds(bytes) => Part { kind: EMBEDS, offset: 0, id: digest(bytes) },
            Extra::Opaque(raw) => Part { kind: UNKNOWN, offset: 0, id: digest(raw) },
        })
    }

    fn fold(self, hash: u64) -> u64 {
        let mut bytes = [0; 25];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        bytes[8] = self.kind;
        bytes[9..17].copy_from_slice(&self.id.to_le_bytes());
        bytes[17..].copy_from_slice(&self.offset.to_le_bytes());
        xxh3_64_with_seed(&bytes, CONTENT_SEED)
    }
}

fn digest(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, CONTENT_SEED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::testing::{Value, batch, stored_map};
    use crate::wire::{DecodeLimits, Event, TokenRoom, decode_batch, decode_batch_in};

    const A: [u32; 4] = [1, 2, 3, 4];
    /// Computed with another implementation of XXH3 (the C library through Python), from the definition above.
    const HASH_A: u64 = 0xcb38_e4d7_fb2d_ca5c;
    const HASH_B: u64 = 0xe8d3_ec39_b907_b74c;
    const IMAGE_TOKENS: [u32; 4] = [151_655; 4];

    fn prompt(mode: HashMode, prompt: &Prompt<'_>) -> Vec<u64> {
        let mut out = Vec::new();
        let n = ContentHasher::new(mode, 4).prompt(prompt, &mut out);
        assert_eq!(n, out.len());
        out.iter().map(|c| c.0).collect()
    }

    fn plain(tokens: &[u32]) -> Vec<u64> {
        prompt(HashMode::Plain, &Prompt { tokens, ..Prompt::default() })
    }

    fn store(mode: HashMode, changes: Vec<(&'static str, Value)>) -> Result<(Vec<u64>, bool), StoreContentError> {
        let bytes = batch(vec![stored_map(changes)]);
        let decoded = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
        let Event::Stored(stored) = &decoded.events[0] else { panic!("{decoded:?}") };
        let mut out = Vec::new();
        let contents = ContentHasher::new(mode, 4).store(stored, &mut out)?;
        assert_eq!(contents.blocks, out.len());
        Ok((out.iter().map(|c| c.0).collect(), contents.partial_tail))
    }

    fn item<'a>(identifier: &'a str, offset: usize, len: usize) -> MultimodalItem<'a> {
        MultimodalItem { identifier, offset, len, at_offset: true }
    }

    /// Every block size up to one beyond the constant ones, with the tokens written down and without.
    #[test]
    fn blocks_of_every_size_hash_the_same_written_down_and_read_again() {
        for block_size in 1..=33usize {
            for (blocks, salt) in [(1, ""), (5, ""), (1, "s"), (4, "s")] {
                let tokens: Vec<u32> =
                    (0..(block_size * blocks) as u32).map(|t| t.wrapping_mul(0x9E37_79B1) >> (t % 29)).collect();
                let bytes = batch(vec![stored_map(vec![
                    ("block_hashes", Value::Array((0..blocks as i128).map(Value::Int).collect())),
                    ("token_ids", Value::Array(tokens.iter().map(|&t| Value::Int(i128::from(t))).collect())),
                    ("block_size", Value::Int(block_size as i128)),
                    ("parent_block_hash", Value::Nil),
                    ("cache_salt", Value::Text(salt)),
                ])]);
                let namespace = Namespace::new(None, Some(salt));
                let mut want = Vec::new();
                for (i, block) in tokens.chunks_exact(block_size).enumerate() {
                    let words: Vec<u8> = block.iter().flat_map(|t| t.to_le_bytes()).collect();
                    let seed = if i == 0 { CONTENT_SEED ^ namespace.0 } else { CONTENT_SEED };
                    want.push(ContentHash(xxh3_64_with_seed(&words, seed)));
                }
                let mut room = TokenRoom::default();
                let limits = DecodeLimits::default();
                let written = decode_batch_in(&bytes, &limits, &mut room).unwrap();
                for decoded in [&written, &decode_batch(&bytes, &limits).unwrap()] {
                    let Event::Stored(stored) = &decoded.events[0] else { panic!("{decoded:?}") };
                    let mut out = Vec::new();
                    ContentHasher::new(HashMode::Plain, block_size).store(stored, &mut out).unwrap();
                    assert_eq!(out, want, "{block_size} tokens, {blocks} blocks, salt {salt:?}");
                }
            }
        }
    }

    #[test]
    fn vectors() {
        assert_eq!(plain(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), [HASH_A, HASH_B]);
        let bigram = prompt(HashMode::Bigram, &Prompt { tokens: &[1, 2, 3, 4, 5, 6, 7, 8, 9], ..Prompt::default() });
        assert_eq!(bigram, [0x1a92_ffa9_004c_0851, 0x1ac5_5a72_d618_06e3]);
        for (lora, salt, value, first) in [
            (Some("sql"), None, 0x527c_463c_b3b4_eec8, 0xcbcc_5230_31ce_cfda),
            (None, Some("t1"), 0xcd76_edcb_336e_d8c8, 0x0f44_efb3_c9e6_d2a6),
            (Some("sql"), Some("t1"), 0x0350_02a6_8cd9_8464, 0xd790_d5f3_7a8d_08cf_u64),
        ] {
            let namespace = Namespace::new(lora, salt);
            assert_eq!(namespace.0, value);
            let p = Prompt { tokens: &[1, 2, 3, 4, 5, 6, 7, 8], namespace, items: &[] };
            assert_eq!(prompt(HashMode::Plain, &p), [first, HASH_B]);
        }
        let image = |items: &[MultimodalItem<'_>]| {
            prompt(HashMode::Plain, &Prompt { tokens: &IMAGE_TOKENS, items, ..Prompt::default() })[0]
        };
        assert_eq!(image(&[]), 0x33fa_5f89_6aa2_584f);
        assert_eq!(image(&[item("imgX", 0, 4)]), 0x8718_6836_9a67_abe9);
        assert_eq!(image(&[MultimodalItem { at_offset: false, ..item("imgX", 2, 1) }]), 0x0072_aea9_d05b_4e4b);
        assert_eq!(image(&[item("img-b", 3, 6), item("img-a", 1, 2)]), 0xf445_d5f4_b455_9e14);
        let words: Vec<u32> = (0..200).collect();
        let mut out = Vec::new();
        ContentHasher::new(HashMode::Plain, 200).prompt(&Prompt { tokens: &words, ..Prompt::default() }, &mut out);
        assert_eq!(out, [ContentHash(0x4414_7452_a9df_aa4c)]);
    }

    #[test]
    fn a_store_hashes_as_the_prompt_does() {
        assert_eq!(store(HashMode::Plain, vec![]), Ok((vec![HASH_A], false)));
        let two = vec![
            ("block_hashes", [10, 11].into()),
            ("token_ids", [[1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 8], [8, 9]].into()),
        ];
        let want = prompt(HashMode::Bigram, &Prompt { tokens: &[1, 2, 3, 4, 5, 6, 7, 8, 9], ..Prompt::default() });
        assert_eq!(store(HashMode::Bigram, two), Ok((want, false)));
    }

    #[test]
    fn the_first_block_alone_carries_the_namespace() {
        let of = |lora, salt| {
            let p = Prompt { tokens: &A, namespace: Namespace::new(lora, salt), items: &[] };
            Ok((prompt(HashMode::Plain, &p), false))
        };
        let sql = ("lora_name", Value::from("sql"));
        let keys = |parts: Value| ("extra_keys", Value::Array(vec![parts]));
        assert_eq!(store(HashMode::Plain, vec![sql.clone(), keys(["sql"].into())]), of(Some("sql"), None));
        assert_eq!(store(HashMode::Plain, vec![sql.clone()]), of(Some("sql"), None));
        assert_eq!(store(HashMode::Plain, vec![keys(["t1"].into())]), of(None, Some("t1")));
        assert_eq!(store(HashMode::Plain, vec![("cache_salt", "t1".into())]), of(None, Some("t1")));
        let both = keys(["sql", "t1"].into());
        assert_eq!(store(HashMode::Plain, vec![sql.clone(), both]), of(Some("sql"), Some("t1")));
        let child = ("parent_block_hash", Value::from(9));
        assert_eq!(store(HashMode::Plain, vec![sql, keys(["sql"].into()), child.clone()]), of(None, None));
        assert_eq!(store(HashMode::Plain, vec![("cache_salt", "t1".into()), child]), of(None, None));
    }

    #[test]
    fn an_item_is_folded_into_every_block_that_it_overlaps() {
        // Image at tokens 2..=6 of three blocks, and one that begins where the second block ends.
        let tokens: Vec<u32> = (1..=12).collect();
        let items = [item("img-hash-1", 2, 5), item("b", 7, 2)];
        let want = prompt(HashMode::Plain, &Prompt { tokens: &tokens, items: &items, ..Prompt::default() });
        let part = |id: &'static str, offset: i128| Value::Array(vec![id.into(), offset.into()]);
        let keys = Value::Array(vec![
            Value::Array(vec![part("img-hash-1", 2)]),
            Value::Array(vec![part("img-hash-1", -2), part("b", 3)]),
            Value::Array(vec![part("b", -1)]),
        ]);
        let changes = |keys| {
            vec![
                ("block_hashes", Value::from([1, 2, 3])),
                ("token_ids", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12].into()),
                ("extra_keys", keys),
            ]
        };
        assert_eq!(store(HashMode::Plain, changes(keys)), Ok((want.clone(), false)));
        assert_ne!(want, plain(&tokens));
        let elsewhere = [item("img-hash-1", 3, 5), item("b", 7, 2)];
        let moved = prompt(HashMode::Plain, &Prompt { tokens: &tokens, items: &elsewhere, ..Prompt::default() });
        assert!(want.iter().zip(&moved).take(2).all(|(a, b)| a != b));
        let far = [item("far", usize::MAX, usize::MAX), item("none", 0, 0)];
        let untouched = prompt(HashMode::Plain, &Prompt { tokens: &tokens, items: &far, ..Prompt::default() });
        assert_eq!(untouched, plain(&tokens));
    }

    #[test]
    fn embeddings_and_unknown_parts_set_blocks_apart() {
        let with =
            |part: Value| store(HashMode::Plain, vec![("extra_keys", Value::Array(vec![Value::Array(vec![part])]))]);
        assert_eq!(with(Value::Bytes(vec![7, 8])), Ok((vec![0x256f_e14e_c814_59f9], false)));
        let unknown = with(Value::Float(1.0)).unwrap().0;
        assert_ne!(unknown, [HASH_A]);
        assert_ne!(unknown, with(Value::Float(2.0)).unwrap().0);
    }

    #[test]
    fn stores_that_do_not_fit_are_told_apart() {
        let tokens = |n: usize| ("token_ids", Value::Array(vec![Value::Int(1); n]));
        let hashes = |n: usize| ("block_hashes", Value::Array((0..n).map(|i| Value::Int(i as i128)).collect()));
        let plain = |changes| store(HashMode::Plain, changes);
        assert_eq!(plain(vec![tokens(10), hashes(3)]).map(|(c, tail)| (c.len(), tail)), Ok((2, true)));
        assert_eq!(plain(vec![tokens(10), hashes(2)]).map(|(c, tail)| (c.len(), tail)), Ok((2, false)));
        let misaligned = |hashes, blocks| Err(StoreContentError::Misaligned { hashes, blocks });
        assert_eq!(plain(vec![tokens(8), hashes(3)]), misaligned(3, 2));
        assert_eq!(plain(vec![tokens(8), hashes(0)]), misaligned(0, 2));
        assert_eq!(plain(vec![tokens(0), hashes(2)]), Err(StoreContentError::NoTokens));
        let wrong = StoreContentError::BlockSize { event: 8, registered: 4 };
        assert_eq!(plain(vec![("block_size", 8.into())]), Err(wrong));
        assert_eq!(store(HashMode::Bigram, vec![]), Err(StoreContentError::Mode { bigram: false }));
    }
}
