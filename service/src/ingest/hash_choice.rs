//! Which of the engines' hash schemes the sampled check computes, as a registration says it.

use super::spec::{Engine, WorkerSpec};
use crate::wire::HashScheme;
use crate::wire::engine::{ExtraForm, SglangScheme, VllmScheme, VllmSeed};
use core::str::FromStr;

/// Longest text that is read as a hash scheme, in bytes.
pub const HASH_SCHEME_BYTES_MAX: usize = 256;

/// One of so many stores is checked where a scheme is named and nothing is said about how many.
pub const HASH_CHECK_EVERY_DEFAULT: u32 = 16;

/// Every text that is a choice, for messages to people.
const FORMS: &str = "off, sglang, sglang:dynamo, or vllm:ALGORITHM with ALGORITHM one of sha256, sha256_cbor, xxhash, \
    xxhash_cbor, followed by any of :seed=TEXT, :none-hash=HEX, :random, :extras=bare|pairs|tagged";

/// What the sampled check computes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum HashChoice {
    /// What the registered engine does unless told otherwise; nothing for [`Engine::Auto`].
    #[default]
    EngineDefault,
    /// Nothing is checked.
    Off,
    /// A scheme that was named.
    Named {
        /// As it was written.
        text: String,
        /// What that means.
        scheme: HashScheme,
    },
}

/// A text that is no choice of a hash scheme.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HashChoiceError {
    /// Longer than any scheme.
    #[error("{bytes} bytes, at most {HASH_SCHEME_BYTES_MAX}; allowed are {FORMS}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Some part of it is not known.
    #[error("{part:?} in {text:?} is not understood; allowed are {FORMS}")]
    Unknown {
        /// The whole text.
        text: String,
        /// What was not understood.
        part: String,
    },
}

impl FromStr for HashChoice {
    type Err = HashChoiceError;

    fn from_str(text: &str) -> Result<Self, HashChoiceError> {
        match text {
            _ if text.len() > HASH_SCHEME_BYTES_MAX => Err(HashChoiceError::TooLong { bytes: text.len() }),
            "off" => Ok(Self::Off),
            _ => match text.parse() {
                Ok(scheme) => Ok(Self::Named { text: text.to_owned(), scheme }),
                Err(error) => Err(HashChoiceError::Unknown { text: text.to_owned(), part: error.part }),
            },
        }
    }
}

impl HashChoice {
    /// The choice that an optional setting makes.
    pub fn from_setting(text: Option<&str>) -> Result<Self, HashChoiceError> {
        text.map_or(Ok(Self::EngineDefault), str::parse)
    }

    /// The setting that makes this choice.
    pub fn setting(&self) -> Option<&str> {
        match self {
            Self::EngineDefault => None,
            Self::Off => Some("off"),
            Self::Named { text, .. } => Some(text),
        }
    }

    /// One of how many stores is checked (0 for none), where `asked` is what the registration says about that.
    pub fn every(&self, asked: Option<u32>) -> u32 {
        match self {
            Self::Off => 0,
            Self::EngineDefault => asked.unwrap_or(0),
            Self::Named { .. } => asked.unwrap_or(HASH_CHECK_EVERY_DEFAULT),
        }
    }

    /// What contradicts the rest of the registration, if anything does.
    pub fn contradiction(&self, engine: Engine, hash_seed: Option<&str>) -> Option<&'static str> {
        let Self::Named { scheme, .. } = self else { return None };
        match (scheme, engine) {
            (HashScheme::Vllm(_), Engine::Sglang) => Some("a scheme of vLLM, but the engine is sglang"),
            (HashScheme::Sglang(_), Engine::Vllm) => Some("a scheme of SGLang, but the engine is vllm"),
            (HashScheme::Sglang(_), _) if hash_seed.is_some() => {
                Some("SGLang's hashes have no seed, but hash_seed is set")
            }
            (HashScheme::Vllm(vllm), _) if hash_seed.is_some() && vllm.seed != VllmSeed::EngineDefault => {
                Some("says a seed, and hash_seed says one too")
            }
            _ => None,
        }
    }
}

/// The scheme that a worker's stores are checked by; none if they are not checked.
pub(super) fn scheme(spec: &WorkerSpec) -> Option<HashScheme> {
    let mut scheme = match (&spec.hash_scheme, spec.engine) {
        _ if spec.hash_check_every == 0 => return None,
        (HashChoice::Off, _) | (HashChoice::EngineDefault, Engine::Auto) => return None,
        (HashChoice::Named { scheme, .. }, _) => scheme.clone(),
        (HashChoice::EngineDefault, Engine::Sglang) => HashScheme::Sglang(SglangScheme::default()),
        (HashChoice::EngineDefault, Engine::Vllm) => {
            HashScheme::Vllm(VllmScheme::named("sha256", VllmSeed::EngineDefault, ExtraForm::default())?)
        }
    };
    if let (HashScheme::Vllm(vllm), Some(seed)) = (&mut scheme, &spec.hash_seed)
        && vllm.seed == VllmSeed::EngineDefault
    {
        vllm.seed = VllmSeed::Text(seed.clone());
    }
    Some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_written_back() {
        for text in [None, Some("off"), Some("sglang:dynamo"), Some("vllm:sha256_cbor:seed=42")] {
            let choice = HashChoice::from_setting(text).unwrap();
            assert_eq!(choice.setting(), text);
        }
        let unknown = "vllm:sha1".parse::<HashChoice>().unwrap_err().to_string();
        for word in ["\"sha1\"", "vllm:sha1", "off", "sglang:dynamo", "sha256_cbor", "seed=TEXT"] {
            assert!(unknown.contains(word), "{unknown}");
        }
        let long = format!("vllm:sha256:seed={}", "7".repeat(HASH_SCHEME_BYTES_MAX));
        assert_eq!(long.parse::<HashChoice>(), Err(HashChoiceError::TooLong { bytes: long.len() }));
    }

    #[test]
    fn a_named_scheme_is_checked_without_being_asked_twice() {
        let named: HashChoice = "vllm:sha256".parse().unwrap();
        assert_eq!([named.every(None), named.every(Some(0)), named.every(Some(3))], [HASH_CHECK_EVERY_DEFAULT, 0, 3]);
        let default = HashChoice::EngineDefault;
        assert_eq!([default.every(None), default.every(Some(3))], [0, 3]);
        assert_eq!(HashChoice::Off.every(Some(3)), 0);
    }

    #[test]
    fn contradictions_are_found() {
        let against = |text: &str, engine, seed| {
            let choice: HashChoice = text.parse().unwrap();
            choice.contradiction(engine, seed).is_some()
        };
        assert!(against("vllm:sha256", Engine::Sglang, None));
        assert!(against("sglang", Engine::Vllm, None));
        assert!(against("sglang", Engine::Auto, Some("1")));
        assert!(against("vllm:sha256:seed=1", Engine::Vllm, Some("1")));
        assert!(against("vllm:sha256:random", Engine::Vllm, Some("1")));
        assert!(!against("vllm:sha256", Engine::Vllm, Some("1")));
        assert!(!against("vllm:sha256:seed=1", Engine::Auto, None));
        assert!(!against("off", Engine::Sglang, Some("1")));
    }
}
