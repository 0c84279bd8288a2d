//! Hash schemes as operators write them.
//!
//! ```text
//! sglang                         default format
//! sglang:dynamo                  names mapped wherever an extra key or a salt is set
//! vllm:sha256                    algorithm; seed as vLLM 0.29 and later has it without PYTHONHASHSEED
//! vllm:sha256_cbor:seed=42       PYTHONHASHSEED
//! vllm:sha256:none-hash=066b1e.. NONE_HASH itself, in hex
//! vllm:xxhash:random             vLLM up to 0.28, or an xxhash algorithm, without PYTHONHASHSEED
//! vllm:sha256:extras=pairs       how extra keys are hashed: bare (up to 0.18), pairs (0.19 to 0.30), tagged (later)
//! ```

use super::engine::{Digest, ExtraForm, SglangFormat, SglangScheme, VllmScheme, VllmSeed};
use super::verify::HashScheme;
use core::str::FromStr;

/// A text that is no hash scheme.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{part:?} is no part of a hash scheme such as sglang, sglang:dynamo, vllm:sha256 or vllm:sha256_cbor:seed=42")]
pub struct SchemeError {
    /// What was not understood.
    pub part: String,
}

fn refuse<T>(part: &str) -> Result<T, SchemeError> {
    Err(SchemeError { part: part.to_owned() })
}

impl FromStr for HashScheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, SchemeError> {
        let (engine, rest) = text.split_once(':').unwrap_or((text, ""));
        match (engine, rest) {
            ("sglang", "" | "default") => Ok(HashScheme::Sglang(SglangScheme { format: SglangFormat::Default })),
            ("sglang", "dynamo") => Ok(HashScheme::Sglang(SglangScheme { format: SglangFormat::Dynamo })),
            ("vllm", _) => parse_vllm(rest).map(HashScheme::Vllm),
            _ => refuse(text),
        }
    }
}

fn parse_vllm(text: &str) -> Result<VllmScheme, SchemeError> {
    let mut parts = text.split(':');
    let algorithm = parts.next().unwrap_or("");
    let Some(mut scheme) = VllmScheme::named(algorithm, VllmSeed::EngineDefault, ExtraForm::Tagged) else {
        return refuse(algorithm);
    };
    for part in parts {
        match part.split_once('=').unwrap_or((part, "")) {
            ("seed", seed) => scheme.seed = VllmSeed::Text(seed.to_owned()),
            ("none-hash", hex) => match parse_digest(hex) {
                Some(digest) => scheme.seed = VllmSeed::NoneHash(digest),
                None => return refuse(part),
            },
            ("random", "") => scheme.seed = VllmSeed::Random,
            ("extras", "bare") => scheme.extra_form = ExtraForm::Bare,
            ("extras", "pairs") => scheme.extra_form = ExtraForm::Pairs,
            ("extras", "tagged") => scheme.extra_form = ExtraForm::Tagged,
            _ => return refuse(part),
        }
    }
    Ok(scheme)
}

fn parse_digest(hex: &str) -> Option<Digest> {
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|d| d.len().is_multiple_of(2))?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    Digest::from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::engine::{Serialisation, VllmDigest};

    #[test]
    fn schemes_as_written() {
        let vllm = |text: &str| match text.parse() {
            Ok(HashScheme::Vllm(s)) => s,
            other => panic!("{other:?}"),
        };
        let s = vllm("vllm:sha256");
        assert_eq!((s.serialisation, s.digest), (Serialisation::Pickle, VllmDigest::Sha256));
        assert_eq!((s.seed, s.extra_form), (VllmSeed::EngineDefault, ExtraForm::Tagged));
        let s = vllm("vllm:xxhash_cbor:seed=42:extras=pairs");
        assert_eq!((s.serialisation, s.digest), (Serialisation::Cbor, VllmDigest::Xxh3));
        assert_eq!((s.seed, s.extra_form), (VllmSeed::Text("42".into()), ExtraForm::Pairs));
        let s = vllm("vllm:xxhash:none-hash=0001020304050607f8f9fAfBfcfdfeff");
        let VllmSeed::NoneHash(digest) = s.seed else { panic!("{s:?}") };
        assert_eq!((digest.head(), digest.tail()), (0x0001_0203_0405_0607, 0xf8f9_fafb_fcfd_feff));
        assert_eq!(vllm("vllm:sha256:random").none_hash(), None);
        let dynamo = HashScheme::Sglang(SglangScheme { format: SglangFormat::Dynamo });
        assert_eq!("sglang:dynamo".parse(), Ok(dynamo));
    }

    #[test]
    fn what_is_no_scheme_is_named() {
        for (text, part) in [
            ("", ""),
            ("trt", "trt"),
            ("sglang:v2", "sglang:v2"),
            ("vllm", ""),
            ("vllm:builtin", "builtin"),
            ("vllm:sha256:none-hash=12", "none-hash=12"),
            ("vllm:sha256:none-hash=xy", "none-hash=xy"),
            ("vllm:sha256:extras=new", "extras=new"),
        ] {
            assert_eq!(text.parse::<HashScheme>(), Err(SchemeError { part: part.into() }), "{text}");
        }
    }
}
