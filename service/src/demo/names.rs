//! What a mock engine calls its blocks: the engines' own chain hashes.
//!
//! vLLM (`sha256_cbor`): SHA-256 over canonical CBOR of `(hash before, tokens, extra keys)`, the first `hash before` being
//! the seed's; the name is the digest's last 8 bytes. SGLang: SHA-256 over the digest before and the tokens as little-endian
//! `u32`; the name is the first 8 bytes.

use super::pool::Digest;
use kvatlas_index::EngineHash;
use sha2::{Digest as _, Sha256};

/// The wire that an engine speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// vLLM from 0.24 on: events are maps.
    VllmMaps,
    /// vLLM 0.23: events are arrays.
    VllmArrays,
    /// SGLang from 0.5.20 on: events are maps, hashes are signed.
    SglangMaps,
}

impl Dialect {
    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::VllmMaps => "vllm",
            Dialect::VllmArrays => "vllm023",
            Dialect::SglangMaps => "sglang",
        }
    }
}

/// Names blocks.
pub struct Namer {
    dialect: Dialect,
    none_hash: Digest,
}

impl Namer {
    /// vLLM's seed is the constant of its newer versions, or with `random_seed` bytes of this process alone, as in its older
    /// ones: then its names compare with those of no other engine. SGLang has no seed.
    pub fn new(dialect: Dialect, random_seed: Option<u64>) -> Self {
        let none_hash = match random_seed {
            None => digest(|h| cbor_text(h, "vllm-none-hash")),
            Some(seed) => digest(|h| h.update(seed.to_le_bytes())),
        };
        Self { dialect, none_hash }
    }

    /// The wire this engine speaks.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Digests of the full blocks of `tokens`.
    pub fn chain(&self, tokens: &[u32], block_size: usize, salt: Option<&str>) -> Vec<Digest> {
        let mut before = match self.dialect {
            Dialect::VllmMaps | Dialect::VllmArrays => Some(self.none_hash),
            Dialect::SglangMaps => salt.map(|salt| {
                digest(|h| {
                    h.update(b"sglang-cache-salt-v1\0");
                    h.update(salt);
                })
            }),
        };
        let blocks = tokens.chunks_exact(block_size).enumerate();
        blocks
            .map(|(i, block)| {
                let next = match self.dialect {
                    Dialect::SglangMaps => sglang(before.as_ref(), block),
                    dialect => vllm(dialect, &before.expect("set above"), block, salt.filter(|_| i == 0)),
                };
                before = Some(next);
                next
            })
            .collect()
    }

    /// What the wire carries of a digest.
    pub fn name(&self, digest: &Digest) -> EngineHash {
        let (first, last) = (digest.first_chunk(), digest.last_chunk());
        let eight = if self.dialect == Dialect::SglangMaps { first } else { last };
        EngineHash(u64::from_be_bytes(*eight.expect("a digest has 32 bytes")))
    }
}

fn digest(feed: impl FnOnce(&mut Sha256)) -> Digest {
    let mut hasher = Sha256::new();
    feed(&mut hasher);
    hasher.finalize().into()
}

fn sglang(before: Option<&Digest>, tokens: &[u32]) -> Digest {
    digest(|h| {
        before.iter().for_each(|d| h.update(d));
        tokens.iter().for_each(|t| h.update(t.to_le_bytes()));
    })
}

/// From 0.31 on extra keys are hashed with a tag; the arrays are of an older version.
fn vllm(dialect: Dialect, before: &Digest, tokens: &[u32], salt: Option<&str>) -> Digest {
    digest(|h| {
        cbor_head(h, ARRAY, 3);
        cbor_head(h, BYTES, 32);
        h.update(before);
        cbor_head(h, ARRAY, tokens.len() as u64);
        tokens.iter().for_each(|&t| cbor_head(h, UNSIGNED, t.into()));
        let Some(salt) = salt else { return h.update([CBOR_NULL]) };
        cbor_head(h, ARRAY, 1);
        if dialect == Dialect::VllmMaps {
            cbor_head(h, ARRAY, 2);
            cbor_text(h, "cache_salt");
        }
        cbor_text(h, salt);
    })
}

const UNSIGNED: u8 = 0 << 5;
const BYTES: u8 = 2 << 5;
const TEXT: u8 = 3 << 5;
const ARRAY: u8 = 4 << 5;
const CBOR_NULL: u8 = 0xf6;

fn cbor_head(h: &mut Sha256, major: u8, value: u64) {
    match value {
        0..=23 => h.update([major | value as u8]),
        24..=0xff => h.update([major | 24, value as u8]),
        0x100..=0xffff => {
            h.update([major | 25]);
            h.update((value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            h.update([major | 26]);
            h.update((value as u32).to_be_bytes());
        }
        _ => {
            h.update([major | 27]);
            h.update(value.to_be_bytes());
        }
    }
}

fn cbor_text(h: &mut Sha256, text: &str) {
    cbor_head(h, TEXT, text.len() as u64);
    h.update(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dialect: Dialect, salt: Option<&str>) -> Vec<u64> {
        let namer = Namer::new(dialect, None);
        let tokens: Vec<u32> = (1..=12).collect();
        namer.chain(&tokens, 4, salt).iter().map(|d| namer.name(d).0).collect()
    }

    #[test]
    fn names_are_those_of_the_real_engines() {
        assert_eq!(names(Dialect::VllmMaps, None), [0x84b146b151d55111, 0xd43b57df56b58fb1, 0xe6f7a2886960a68a]);
        assert_eq!(names(Dialect::VllmMaps, Some("tenant-a"))[..2], [0x3b66b62598433cae, 0x4af0fa33435a03c4]);
        let sglang = [-3488128144981237669i64, 5674439469042975057, -1307369107475853156].map(|n| n as u64);
        assert_eq!(names(Dialect::SglangMaps, None), sglang);
    }

    #[test]
    fn a_random_seed_gives_names_of_its_own() {
        let chain = |seed| Namer::new(Dialect::VllmMaps, seed).chain(&[1; 16], 16, None);
        assert_ne!(chain(Some(1)), chain(Some(2)));
        assert_ne!(chain(Some(1)), chain(None));
    }
}
