//! vLLM's block hashes.
//!
//! ```text
//! NONE_HASH = H(seed text)
//! hash[i]   = H((hash[i - 1] or NONE_HASH, (tokens of block i), None or (extras of block i)))
//! H(x)      = digest(serialise(x))
//! ```

use super::digest::Digest;
use super::serialise::{Cbor, Pickle, Writer};
use sha2::{Digest as _, Sha256};

/// How a block becomes bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serialisation {
    /// Python pickle, protocol 5.
    Pickle,
    /// Canonical CBOR.
    Cbor,
}

/// How bytes become a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VllmDigest {
    /// SHA-256.
    Sha256,
    /// XXH3-128.
    Xxh3,
}

/// What the first block's parent is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VllmSeed {
    /// `PYTHONHASHSEED` as set in the engine's environment.
    Text(String),
    /// Not set, vLLM 0.29 or later with a SHA-256 algorithm: a constant of the engine.
    EngineDefault,
    /// `NONE_HASH` itself, read from the engine.
    NoneHash(Digest),
    /// Random for each process: first blocks cannot be recomputed.
    Random,
}

/// The seed text of [`VllmSeed::EngineDefault`].
const DEFAULT_SEED: &str = "vllm-none-hash";

/// How extra keys enter the hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExtraForm {
    /// vLLM 0.18 and before: every part as it is, items by their identifier alone.
    Bare,
    /// vLLM 0.19 to 0.30: items as `(identifier, offset)`.
    Pairs,
    /// vLLM 0.31 and later: every part with a tag.
    #[default]
    Tagged,
}

/// One part of a block's extras.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HashExtra<'a> {
    /// LoRA adapter; the path is hashed from vLLM 0.31 on and never on the wire.
    Lora {
        /// Its name.
        name: &'a str,
        /// Where it was loaded from.
        path: Option<&'a str>,
    },
    /// Multimodal item.
    Item {
        /// Its identifier.
        identifier: &'a str,
        /// Its first token relative to the block's first.
        offset: Option<i64>,
    },
    /// Cache salt.
    Salt(&'a str),
    /// Digest of prompt embeddings.
    Embeds(&'a [u8]),
}

/// Why a block's hash cannot be recomputed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unhashable {
    /// The adapter's path is part of the hash and not on the wire.
    #[error("the path of the LoRA adapter is not known")]
    LoraPath,
    /// The item's offset is part of the hash and not on the wire.
    #[error("the offset of a multimodal item is not known")]
    ItemOffset,
    /// Pickle writes one object twice in another way than two equal ones, and which it was is not known.
    #[error("one identifier twice in a pickled block")]
    RepeatedIdentifier,
    /// Pickle splits long blocks into frames.
    #[error("a pickled block of more than one frame")]
    LongPickle,
}

/// One engine's way to hash blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VllmScheme {
    /// Block to bytes.
    pub serialisation: Serialisation,
    /// Bytes to digest.
    pub digest: VllmDigest,
    /// The first block's parent.
    pub seed: VllmSeed,
    /// How extra keys are hashed.
    pub extra_form: ExtraForm,
}

impl VllmScheme {
    /// The scheme of a `prefix_caching_hash_algo`, or nothing if there is no such name.
    pub fn named(algorithm: &str, seed: VllmSeed, extra_form: ExtraForm) -> Option<Self> {
        let (serialisation, digest) = match algorithm {
            "sha256" => (Serialisation::Pickle, VllmDigest::Sha256),
            "sha256_cbor" => (Serialisation::Cbor, VllmDigest::Sha256),
            "xxhash" => (Serialisation::Pickle, VllmDigest::Xxh3),
            "xxhash_cbor" => (Serialisation::Cbor, VllmDigest::Xxh3),
            _ => return None,
        };
        Some(Self { serialisation, digest, seed, extra_form })
    }

    /// The first block's parent; nothing if it cannot be known (a random seed, which without `PYTHONHASHSEED` the xxhash
    /// algorithms always have). Allocates.
    pub fn none_hash(&self) -> Option<Digest> {
        let text = match &self.seed {
            VllmSeed::Text(text) => text.as_str(),
            VllmSeed::EngineDefault if self.digest == VllmDigest::Sha256 => DEFAULT_SEED,
            VllmSeed::NoneHash(digest) => return Some(*digest),
            VllmSeed::EngineDefault | VllmSeed::Random => return None,
        };
        let mut buffer = Vec::new();
        match self.serialisation {
            Serialisation::Cbor => Cbor(&mut buffer).text(text),
            Serialisation::Pickle => {
                let mut pickle = Pickle::begin(&mut buffer);
                pickle.text(text);
                pickle.end();
            }
        }
        Some(self.digest_of(&buffer))
    }

    /// The digest of one block. `buffer` is overwritten.
    pub fn block(
        &self,
        parent: &Digest,
        tokens: &[u32],
        extras: &[HashExtra<'_>],
        buffer: &mut Vec<u8>,
    ) -> Result<Digest, Unhashable> {
        self.serialise_block(parent, tokens, extras, buffer)?;
        Ok(self.digest_of(buffer))
    }

    /// The bytes that are hashed, into `buffer`.
    fn serialise_block(
        &self,
        parent: &Digest,
        tokens: &[u32],
        extras: &[HashExtra<'_>],
        buffer: &mut Vec<u8>,
    ) -> Result<(), Unhashable> {
        match self.serialisation {
            Serialisation::Cbor => {
                buffer.clear();
                self.write_block(&mut Cbor(buffer), parent, tokens, extras)
            }
            Serialisation::Pickle => {
                if repeats_identifier(extras) {
                    return Err(Unhashable::RepeatedIdentifier);
                }
                let mut pickle = Pickle::begin(buffer);
                self.write_block(&mut pickle, parent, tokens, extras)?;
                if pickle.end() { Ok(()) } else { Err(Unhashable::LongPickle) }
            }
        }
    }

    fn write_block(
        &self,
        out: &mut impl Writer,
        parent: &Digest,
        tokens: &[u32],
        extras: &[HashExtra<'_>],
    ) -> Result<(), Unhashable> {
        out.open(3);
        out.bytes(parent.as_slice());
        out.open(tokens.len());
        tokens.iter().for_each(|t| out.int(i64::from(*t)));
        out.close(tokens.len());
        if extras.is_empty() {
            out.nil();
        } else {
            out.open(extras.len());
            extras.iter().try_for_each(|extra| self.write_extra(out, *extra))?;
            out.close(extras.len());
        }
        out.close(3);
        Ok(())
    }

    fn write_extra(&self, out: &mut impl Writer, extra: HashExtra<'_>) -> Result<(), Unhashable> {
        let tagged = self.extra_form == ExtraForm::Tagged;
        match extra {
            HashExtra::Lora { name, path } if tagged => {
                let path = path.ok_or(Unhashable::LoraPath)?;
                out.open(3);
                out.shared_text("lora");
                out.text(name);
                out.text(path);
                out.close(3);
            }
            HashExtra::Lora { name, .. } => out.text(name),
            HashExtra::Item { identifier, .. } if self.extra_form == ExtraForm::Bare => out.text(identifier),
            HashExtra::Item { identifier, offset } => {
                let offset = offset.ok_or(Unhashable::ItemOffset)?;
                let len = if tagged { 3 } else { 2 };
                out.open(len);
                if tagged {
                    out.shared_text("mm");
                }
                out.text(identifier);
                out.int(offset);
                out.close(len);
            }
            HashExtra::Salt(salt) if tagged => {
                out.open(2);
                out.shared_text("cache_salt");
                out.text(salt);
                out.close(2);
            }
            HashExtra::Salt(salt) => out.text(salt),
            HashExtra::Embeds(digest) if tagged => {
                out.open(2);
                out.shared_text("prompt_embeds");
                out.bytes(digest);
                out.close(2);
            }
            HashExtra::Embeds(digest) => out.bytes(digest),
        }
        Ok(())
    }

    fn digest_of(&self, bytes: &[u8]) -> Digest {
        match self.digest {
            VllmDigest::Sha256 => Digest::sha256(Sha256::digest(bytes).into()),
            VllmDigest::Xxh3 => Digest::xxh3_128(xxhash_rust::xxh3::xxh3_128(bytes)),
        }
    }
}

fn repeats_identifier(extras: &[HashExtra<'_>]) -> bool {
    let mut identifiers: Vec<&str> = extras
        .iter()
        .filter_map(|e| if let HashExtra::Item { identifier, .. } = e { Some(*identifier) } else { None })
        .collect();
    identifiers.sort_unstable();
    identifiers.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn bytes(hex: &Value) -> Vec<u8> {
        let hex = hex.as_str().unwrap();
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    fn extras(keys: &Value) -> Vec<HashExtra<'_>> {
        keys.as_array().map_or(&[][..], |a| a).iter().map(extra).collect()
    }

    fn extra(part: &Value) -> HashExtra<'_> {
        let text = |i: usize| part[i].as_str().unwrap();
        match text(0) {
            "lora" => HashExtra::Lora { name: text(1), path: Some(text(2)) },
            "mm" => HashExtra::Item { identifier: text(1), offset: part[2].as_i64() },
            "cache_salt" => HashExtra::Salt(text(1)),
            other => panic!("{other}"),
        }
    }

    /// Vectors made by vLLM's own functions: serialised first block, digest and 64-bit name of every block.
    #[test]
    fn vectors_of_the_engine() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpora/vectors/vllm.json");
        let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let vectors = file["vectors"].as_array().unwrap();
        assert_eq!(vectors.len(), 90);
        let mut buffer = Vec::new();
        for v in vectors {
            let case = format!("{} {} {}", v["algo"], v["pythonhashseed"], v["case"]);
            let seed = v["pythonhashseed"].as_str().map_or(VllmSeed::EngineDefault, |s| VllmSeed::Text(s.into()));
            let scheme = VllmScheme::named(v["algo"].as_str().unwrap(), seed, ExtraForm::Tagged).unwrap();
            let mut parent = scheme.none_hash().unwrap();
            assert_eq!(parent.as_slice(), bytes(&v["none_hash"]), "{case}");
            let tokens: Vec<u32> = serde_json::from_value(v["tokens"].clone()).unwrap();
            let block_size = v["block_size"].as_u64().unwrap() as usize;
            for (i, (block, want)) in tokens.chunks_exact(block_size).zip(v["hashes"].as_array().unwrap()).enumerate() {
                let extras = extras(&v["hash_extra_keys"][i]);
                scheme.serialise_block(&parent, block, &extras, &mut buffer).unwrap();
                if i == 0 {
                    assert_eq!(buffer, bytes(&v["first_block_serialized"]), "{case}");
                }
                parent = scheme.block(&parent, block, &extras, &mut buffer).unwrap();
                assert_eq!(parent.as_slice(), bytes(&want["bytes"]), "{case} block {i}");
                assert_eq!(format!("{:016x}", parent.tail()), want["u64_hex"].as_str().unwrap(), "{case} block {i}");
            }
        }
    }

    #[test]
    fn what_cannot_be_recomputed_says_why() {
        let scheme = |algorithm, form| VllmScheme::named(algorithm, VllmSeed::EngineDefault, form).unwrap();
        let parent = Digest::sha256([7; 32]);
        let block = |s: &VllmScheme, extras: &[HashExtra<'_>], n: usize| {
            s.block(&parent, &vec![u32::MAX; n], extras, &mut Vec::new()).map(|_| ())
        };
        let lora = [HashExtra::Lora { name: "a", path: None }];
        let item = HashExtra::Item { identifier: "i", offset: None };
        let tagged = scheme("sha256", ExtraForm::Tagged);
        assert_eq!(block(&tagged, &lora, 1), Err(Unhashable::LoraPath));
        assert_eq!(block(&tagged, &[item], 1), Err(Unhashable::ItemOffset));
        assert_eq!(block(&tagged, &[item, item], 1), Err(Unhashable::RepeatedIdentifier));
        assert_eq!(block(&tagged, &[], 10_000), Err(Unhashable::LongPickle));
        assert_eq!(block(&scheme("sha256", ExtraForm::Bare), &[item], 1), Ok(()));
        assert_eq!(block(&scheme("sha256_cbor", ExtraForm::Pairs), &lora, 10_000), Ok(()));
        let random = VllmScheme::named("xxhash", VllmSeed::EngineDefault, ExtraForm::Tagged).unwrap();
        assert_eq!(random.none_hash(), None);
        assert_eq!(VllmScheme::named("builtin", VllmSeed::Random, ExtraForm::Bare), None);
    }
}
