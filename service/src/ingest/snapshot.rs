//! A rank's state, told by its engine: which dialects there are, and what was told so far.
//!
//! The replay of an engine is bounded, so it cannot bring a rank back whose beginning went out of it. Some engines also tell
//! their state. How they are asked is the dialect's ([`super::subscriber`] has one source for each); what comes is the same:
//! payloads of ordinary batches which, applied to an empty rank, make the state, and the sequence of the live batch that follows it.
//!
//! | dialect | asked | told |
//! |---|---|---|
//! | `vllm:replay` | `snapshot` in the place of the sequence at the replay endpoint (vLLM pull request 50134, a proposal) | replies whose sequence is the one that comes next, and the end marker |

use bytes::Bytes;
use std::str::FromStr;

/// How an engine tells its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotDialect {
    /// `vllm:replay`.
    VllmReplay,
}

/// A dialect that is not known.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is none of: vllm:replay")]
pub struct SnapshotDialectError {
    text: String,
}

impl FromStr for SnapshotDialect {
    type Err = SnapshotDialectError;

    fn from_str(text: &str) -> Result<Self, SnapshotDialectError> {
        match text {
            "vllm:replay" => Ok(Self::VllmReplay),
            // At most 64 characters of it: the text is anybody's.
            _ => Err(SnapshotDialectError { text: text.chars().take(64).collect() }),
        }
    }
}

impl SnapshotDialect {
    /// The setting that names it.
    pub const fn setting(self) -> &'static str {
        match self {
            Self::VllmReplay => "vllm:replay",
        }
    }
}

/// What was told of a state so far.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) request: u64,
    /// Sequence of the live batch that follows the state; `None` before the first part.
    pub(super) next: Option<u64>,
    pub(super) payloads: Vec<Bytes>,
    bytes: usize,
}

/// A part that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Misfit {
    /// Of another state than the parts before.
    OtherSequence,
    /// More than is taken.
    TooLarge,
}

impl Misfit {
    /// The reason in the counters.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Misfit::OtherSequence => "snapshot_other_sequence",
            Misfit::TooLarge => "snapshot_too_large",
        }
    }
}

impl Staged {
    pub(super) fn new(request: u64) -> Self {
        Self { request, next: None, payloads: Vec::new(), bytes: 0 }
    }

    pub(super) fn put(&mut self, next: u64, payload: Bytes, bytes_max: usize) -> Result<(), Misfit> {
        if *self.next.get_or_insert(next) != next {
            return Err(Misfit::OtherSequence);
        }
        self.bytes = self.bytes.saturating_add(payload.len());
        if self.bytes > bytes_max {
            return Err(Misfit::TooLarge);
        }
        self.payloads.push(payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_are_named_and_others_refused() {
        assert_eq!(SnapshotDialect::VllmReplay.setting().parse(), Ok(SnapshotDialect::VllmReplay));
        let error = "x".repeat(1000).parse::<SnapshotDialect>().unwrap_err().to_string();
        assert!(error.ends_with("none of: vllm:replay") && error.len() < 100, "{error}");
    }

    #[test]
    fn parts_belong_to_one_state_and_are_bounded() {
        let mut staged = Staged::new(1);
        assert_eq!(staged.put(7, Bytes::from_static(b"123456"), 10), Ok(()));
        assert_eq!(staged.put(8, Bytes::new(), 10), Err(Misfit::OtherSequence));
        assert_eq!(staged.put(7, Bytes::from_static(b"12345"), 10), Err(Misfit::TooLarge));
    }
}
