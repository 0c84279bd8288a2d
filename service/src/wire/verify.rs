//! Recomputes the names of a store the engine's own way, so that a wrong seed, algorithm or page size shows as a rate.
//!
//! A first block can be recomputed from the event alone. A later one needs the whole digest of its parent, of which the wire
//! mostly has 64 bits; so digests that were recomputed are remembered, under a bound. Which stores to check is the caller's
//! choice; a sample of chains, rather than of stores, is `check` on some stores without a parent and on every store for which
//! [`Verifier::knows_parent`] says yes.

use super::engine::{
    Digest, HashExtra, SglangFormat, SglangScheme, Unhashable, VllmScheme, mapped_name, namespace_seed, page_digest,
    salt_prior,
};
use super::event::Stored;
use super::extras::Extra;
use super::hashes::WireHash;
use super::remembered::RememberedDigests;
use kvatlas_index::EngineHash;
use smallvec::SmallVec;

/// How a worker's engine names its blocks, as registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HashScheme {
    /// vLLM.
    Vllm(VllmScheme),
    /// SGLang 0.5.6 or later.
    Sglang(SglangScheme),
}

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every full block has the name that was computed.
    Match,
    /// A block has another one: the registration does not describe this engine.
    Mismatch {
        /// The first such block of the event.
        block: usize,
    },
    /// The event does not carry enough to say.
    Unverifiable(Unverifiable),
}

impl Verdict {
    /// The label in metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Verdict::Match => "match",
            Verdict::Mismatch { .. } => "mismatch",
            Verdict::Unverifiable(_) => "unverifiable",
        }
    }
}

/// Why a store cannot be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unverifiable {
    /// A placeholder, or a block that is partly filled.
    #[error("no full block with tokens")]
    NoBlocks,
    /// Blocks were skipped, so it is not known which tokens a hash covers.
    #[error("hashes and tokens do not line up")]
    Misaligned,
    /// Neither the wire nor the memory has the parent's whole digest.
    #[error("the parent's whole digest is not known")]
    ParentUnknown,
    /// A random seed.
    #[error("the engine's hash seed is not known")]
    SeedUnknown,
    /// The wire does not say what went into the hash: SGLang's LoRA load ids, and any extra key in its dynamo format; the name of an
    /// adapter before vLLM 0.14.
    #[error("the engine's namespace key is not known")]
    NamespaceUnknown,
    /// The hash covers tokens after the block.
    #[error("the hash covers later tokens")]
    Lookahead,
    /// An extra key of a form that this version does not know.
    #[error("an extra key of unknown form")]
    UnknownExtra,
    /// The algorithm needs something that is not on the wire.
    #[error(transparent)]
    Unhashable(#[from] Unhashable),
}

/// Checks the stores of one publisher. Not for several threads at once; never blocks.
#[derive(Debug)]
pub struct Verifier {
    scheme: HashScheme,
    none_hash: Option<Digest>,
    known: RememberedDigests,
    words: Vec<u32>,
    buffer: Vec<u8>,
}

impl Verifier {
    /// Remembers at most `digests_max` digests, of about 50 bytes each.
    pub fn new(scheme: HashScheme, digests_max: usize) -> Self {
        let none_hash = match &scheme {
            HashScheme::Vllm(vllm) => vllm.none_hash(),
            HashScheme::Sglang(_) => None,
        };
        Self { scheme, none_hash, known: RememberedDigests::new(digests_max), words: Vec::new(), buffer: Vec::new() }
    }

    /// Whether a store with a parent can be checked.
    pub fn knows_parent(&self, stored: &Stored<'_>) -> bool {
        stored.parent_digest.is_some() || stored.parent.is_some_and(|name| self.known.contains(name))
    }

    /// Forgets every digest: the publisher was restarted, perhaps with another seed.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// Recomputes the names of the store's full blocks. Costs one hash of the engine's a block.
    pub fn check(&mut self, stored: &Stored<'_>) -> Verdict {
        match self.first_difference(stored) {
            Ok(None) => Verdict::Match,
            Ok(Some(block)) => Verdict::Mismatch { block },
            Err(why) => Verdict::Unverifiable(why),
        }
    }

    fn first_difference(&mut self, stored: &Stored<'_>) -> Result<Option<usize>, Unverifiable> {
        let block_size = usize::try_from(stored.block_size).map_err(|_| Unverifiable::NoBlocks)?;
        let blocks = stored.tokens.units().checked_div(block_size).unwrap_or(0);
        if blocks == 0 {
            return Err(Unverifiable::NoBlocks);
        }
        let whole = blocks * block_size == stored.tokens.units();
        if stored.hashes.len() != blocks && (whole || stored.hashes.len() != blocks + 1) {
            return Err(Unverifiable::Misaligned);
        }
        match self.scheme.clone() {
            HashScheme::Vllm(scheme) => self.vllm_difference(&scheme, stored, blocks, block_size),
            HashScheme::Sglang(scheme) => self.sglang_difference(scheme, stored, blocks, block_size),
        }
    }

    /// The whole digest of the block before the first.
    fn parent(&mut self, stored: &Stored<'_>) -> Result<Option<Digest>, Unverifiable> {
        let Some(name) = stored.parent else { return Ok(None) };
        let from_wire = stored.parent_digest.and_then(Digest::from_slice);
        from_wire.or_else(|| self.known.get(name)).map(Some).ok_or(Unverifiable::ParentUnknown)
    }

    fn vllm_difference(
        &mut self,
        scheme: &VllmScheme,
        stored: &Stored<'_>,
        blocks: usize,
        block_size: usize,
    ) -> Result<Option<usize>, Unverifiable> {
        if stored.has_lookahead {
            return Err(Unverifiable::Lookahead);
        }
        let mut parent = self.parent(stored)?.or(self.none_hash).ok_or(Unverifiable::SeedUnknown)?;
        let mut tokens = stored.tokens.iter();
        let mut entries = stored.extra_keys.iter();
        for (block, hash) in stored.hashes.wire().take(blocks).enumerate() {
            self.words.clear();
            self.words.extend(tokens.by_ref().take(block_size));
            let first_block = block == 0 && stored.parent.is_none();
            let mut extras: SmallVec<[HashExtra<'_>; 4]> = SmallVec::new();
            if let Some(entry) = entries.next() {
                for extra in entry.items(stored.lora_name.unwrap_or(""), first_block) {
                    extras.push(hash_extra(extra)?);
                }
            } else if let Some(name) = stored.lora_name {
                // Versions without extra keys on the wire, which had no path in the hash either.
                extras.push(HashExtra::Lora { name, path: None });
            } else if stored.has_unnamed_adapter() {
                return Err(Unverifiable::NamespaceUnknown);
            }
            let digest = scheme.block(&parent, &self.words, &extras, &mut self.buffer)?;
            let same = match hash {
                WireHash::Int(bits) => bits == digest.tail(),
                WireHash::Digest(bytes) => bytes == digest.as_slice(),
            };
            if !same {
                return Ok(Some(block));
            }
            self.known.put(hash.name(), digest);
            parent = digest;
        }
        Ok(None)
    }

    fn sglang_difference(
        &mut self,
        scheme: SglangScheme,
        stored: &Stored<'_>,
        blocks: usize,
        block_size: usize,
    ) -> Result<Option<usize>, Unverifiable> {
        if stored.lora_name.is_some() {
            return Err(Unverifiable::NamespaceUnknown);
        }
        let dynamo = scheme.format == SglangFormat::Dynamo;
        let map = if dynamo { namespace_seed(None, stored.cache_salt) } else { None };
        let mut prior = self.parent(stored)?.or_else(|| stored.cache_salt.map(salt_prior));
        let bigram = stored.tokens.is_bigram();
        let mut tokens = stored.tokens.iter();
        let mut before = if bigram { tokens.next() } else { None };
        for (block, name) in stored.hashes.iter().take(blocks).enumerate() {
            self.words.clear();
            for token in tokens.by_ref().take(block_size) {
                self.words.extend(before);
                self.words.push(token);
                before = bigram.then_some(token);
            }
            let digest = page_digest(prior.as_ref(), &self.words);
            let want = map.as_ref().map_or(digest.head(), |seed| mapped_name(seed, digest.head()));
            if name != EngineHash(want) {
                // In the dynamo format a request's extra key maps names and is nowhere on the wire.
                return if dynamo { Err(Unverifiable::NamespaceUnknown) } else { Ok(Some(block)) };
            }
            self.known.put(name, digest);
            prior = Some(digest);
        }
        Ok(None)
    }
}

fn hash_extra(extra: Extra<'_>) -> Result<HashExtra<'_>, Unverifiable> {
    Ok(match extra {
        Extra::Lora(name) => HashExtra::Lora { name, path: None },
        Extra::Salt(salt) => HashExtra::Salt(salt),
        Extra::Item { identifier, offset } => HashExtra::Item { identifier, offset },
        Extra::Embeds(digest) => HashExtra::Embeds(digest),
        Extra::Opaque(_) => return Err(Unverifiable::UnknownExtra),
    })
}
