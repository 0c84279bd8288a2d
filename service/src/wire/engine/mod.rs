//! The engines' own block hashes, recomputed: what [`super::Verifier`] compares a publisher's names with.

mod digest;
mod serialise;
mod sglang;
mod vllm;

pub use digest::Digest;
pub use sglang::{SglangFormat, SglangScheme, mapped_name, namespace_seed, page_digest, salt_prior};
pub use vllm::{ExtraForm, HashExtra, Serialisation, Unhashable, VllmDigest, VllmScheme, VllmSeed};
