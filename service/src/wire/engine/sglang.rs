//! SGLang's page hashes, since 0.5.6.
//!
//! ```text
//! digest[0] = SHA-256(prior? || words of page 0 as little-endian u32)      prior: only of a salted request
//! digest[i] = SHA-256(digest[i - 1] || words of page i)
//! name      = first 8 bytes of the digest, big-endian
//! ```
//!
//! The words of a bigram page are both tokens of each pair. Names may be mapped into a namespace on the way out; the chain
//! itself goes on over the digests. (Tokens beyond 32 bits, which SGLang hashes in another way, do not pass the decoder.)

use super::digest::Digest;
use sha2::{Digest as _, Sha256};

/// Which names the engine sends for requests of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SglangFormat {
    /// Names are mapped for LoRA requests only.
    #[default]
    Default,
    /// Names are mapped wherever an extra key or a salt is set.
    Dynamo,
}

/// One engine's way to name pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SglangScheme {
    /// Which names are mapped.
    pub format: SglangFormat,
}

/// The digest of one page after `prior`. `words` are its tokens, or both tokens of each of its pairs.
pub fn page_digest(prior: Option<&Digest>, words: &[u32]) -> Digest {
    let mut hasher = Sha256::new();
    if let Some(prior) = prior {
        hasher.update(prior.as_slice());
    }
    words.iter().for_each(|w| hasher.update(w.to_le_bytes()));
    Digest::sha256(hasher.finalize().into())
}

/// What stands before the first page of a salted request.
pub fn salt_prior(salt: &str) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update(b"sglang-cache-salt-v1\0");
    hasher.update(salt.as_bytes());
    Digest::sha256(hasher.finalize().into())
}

/// The seed with which the names of a namespace are mapped; nothing where neither part is set.
pub fn namespace_seed(extra_key: Option<&str>, cache_salt: Option<&str>) -> Option<Digest> {
    if extra_key.is_none() && cache_salt.is_none() {
        return None;
    }
    let mut hasher = Sha256::new();
    hasher.update(b"sglang-kv-event-namespace-v1");
    for part in [extra_key, cache_salt] {
        match part {
            None => hasher.update([0]),
            Some(text) => {
                hasher.update([1]);
                hasher.update((text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
    }
    Some(Digest::sha256(hasher.finalize().into()))
}

/// A page's name inside a namespace.
pub fn mapped_name(seed: &Digest, name: u64) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(seed.as_slice());
    hasher.update(name.to_be_bytes());
    Digest::sha256(hasher.finalize().into()).head()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn vectors() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpora/vectors/sglang.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn digest(hex: &Value) -> Option<Digest> {
        let hex = hex.as_str()?;
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        Digest::from_slice(&bytes)
    }

    /// Vectors made by SGLang's own functions.
    #[test]
    fn chain_vectors_of_the_engine() {
        let file = vectors();
        let cases = file["chain"].as_array().unwrap();
        assert!(cases.len() >= 7);
        for v in cases {
            let tokens: Vec<u32> = serde_json::from_value(v["tokens"].clone()).unwrap();
            let words: Vec<u32> = match v["bigram"].as_bool() {
                Some(true) => tokens.windows(2).flatten().copied().collect(),
                _ => tokens,
            };
            let width = if v["bigram"] == true { 2 } else { 1 } * v["page_size"].as_u64().unwrap() as usize;
            let mut prior = digest(&v["prior_hash"]);
            let names = v["int64"].as_array().unwrap();
            assert_eq!(words.len() / width, names.len());
            for ((page, want), name) in words.chunks_exact(width).zip(v["sha256"].as_array().unwrap()).zip(names) {
                let got = page_digest(prior.as_ref(), page);
                assert_eq!(Some(got), digest(want), "{}", v["case"]);
                assert_eq!(got.head().cast_signed().to_string(), name.as_str().unwrap(), "{}", v["case"]);
                prior = Some(got);
            }
        }
    }

    #[test]
    fn namespace_vectors_of_the_engine() {
        let file = vectors();
        let cases = file["namespace"].as_array().unwrap();
        assert!(cases.len() >= 6);
        for v in cases {
            let seed = namespace_seed(v["extra_key"].as_str(), v["cache_salt"].as_str());
            assert_eq!(seed, digest(&v["seed"]));
            let mapped = |name: i64| match &seed {
                None => name.to_string(),
                Some(seed) => mapped_name(seed, name.cast_unsigned()).cast_signed().to_string(),
            };
            assert_eq!(mapped(1), v["of_hash_1"].as_str().unwrap());
            assert_eq!(mapped(-2), v["of_hash_minus_2"].as_str().unwrap());
        }
    }
}
