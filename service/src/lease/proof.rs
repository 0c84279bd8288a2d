//! What proves that a seeded prefix is where it should be. A first frame proves nothing.

use super::settings::LeaseSettings;
use super::target::Sequences;

/// A request's own end, as its router saw it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EndProof {
    /// Whether the transport ended without an error.
    pub clean: bool,
    /// The engine's finish reason.
    pub finish_reason: String,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// Tokens of the prompt as the engine counted.
    pub prompt_tokens: u64,
    /// Tokens of the prompt as the router counted.
    pub router_prompt_tokens: u64,
    /// Tokens in a block.
    pub block_size: u32,
}

/// What the index says of the target and the prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexEvidence {
    /// Whether one rank of the target holds every block of the prefix, and is undegraded.
    pub holds: bool,
    /// Whether every rank of the target is undegraded.
    pub exact: bool,
    /// How far its events were applied when this was looked up.
    pub sequences: Sequences,
}

/// Either of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proof {
    /// A clean end with usage.
    End(EndProof),
    /// Blocks in the index.
    Index(IndexEvidence),
}

/// Why a proof does not prove it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Rejected {
    /// A commit before the dispatch was announced.
    #[error("nothing was dispatched under this lease")]
    NotDispatched,
    /// The stream was cut, cancelled or ended with an error.
    #[error("end.clean: the transport did not end cleanly")]
    NotClean,
    /// The finish reason is not in the known set.
    #[error("end.finish_reason: not one of lease.finish_reasons")]
    FinishReason,
    /// The engine said nothing.
    #[error("end.output_tokens: at least one is needed")]
    NoOutput,
    /// No usage, or a block size of 0.
    #[error("end.prompt_tokens, end.block_size: usage is needed")]
    NoUsage,
    /// Engine and router counted different prompts.
    #[error("end.prompt_tokens: further than lease.prompt_slack_blocks from the router's count")]
    PromptTokens,
    /// The index does not show the blocks.
    #[error("the index does not show the prefix's blocks on an undegraded rank of the target")]
    NotHeld,
    /// Nothing of the target was applied since the dispatch.
    #[error("the index shows nothing of the target since the dispatch")]
    NothingSince,
    /// Blocks of the prefix were removed after the proof was made.
    #[error("the target removed blocks of the prefix since")]
    Removed,
}

impl Rejected {
    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Rejected::NotDispatched => "proof_not_dispatched",
            Rejected::NotClean => "proof_not_clean",
            Rejected::FinishReason => "proof_finish_reason",
            Rejected::NoOutput => "proof_no_output",
            Rejected::NoUsage => "proof_no_usage",
            Rejected::PromptTokens => "proof_prompt_tokens",
            Rejected::NotHeld => "proof_not_held",
            Rejected::NothingSince => "proof_nothing_since",
            Rejected::Removed => "proof_removed",
        }
    }
}

impl EndProof {
    /// Whether the request ended as it should.
    pub fn check(&self, settings: &LeaseSettings) -> Result<(), Rejected> {
        let slack = u64::from(self.block_size).saturating_mul(u64::from(settings.prompt_slack_blocks));
        let wrong = [
            (!self.clean, Rejected::NotClean),
            (!settings.finish_reasons.contains(&self.finish_reason), Rejected::FinishReason),
            (self.output_tokens == 0, Rejected::NoOutput),
            (self.prompt_tokens == 0 || self.block_size == 0, Rejected::NoUsage),
            (self.prompt_tokens.abs_diff(self.router_prompt_tokens) > slack, Rejected::PromptTokens),
        ];
        wrong.into_iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, rejected)| Err(rejected))
    }
}

impl Proof {
    /// Whether it proves that the prefix is there, and how far the target's events were applied at the least when it was: where
    /// they were at the dispatch, or where the index was when it showed the blocks.
    pub(super) fn check(&self, dispatched: &Sequences, settings: &LeaseSettings) -> Result<Sequences, Rejected> {
        match self {
            Proof::End(end) => end.check(settings).map(|()| dispatched.clone()),
            Proof::Index(evidence) if !evidence.holds => Err(Rejected::NotHeld),
            Proof::Index(evidence) if !evidence.sequences.any_after(dispatched) => Err(Rejected::NothingSince),
            Proof::Index(evidence) => Ok(evidence.sequences.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> EndProof {
        EndProof {
            clean: true,
            finish_reason: "stop".into(),
            output_tokens: 1,
            prompt_tokens: 1000,
            router_prompt_tokens: 1016,
            block_size: 16,
        }
    }

    #[test]
    fn an_end_proves_only_with_every_part_of_it() {
        let settings = LeaseSettings::default();
        assert_eq!(clean().check(&settings), Ok(()));
        let cases = [
            (EndProof { clean: false, ..clean() }, Rejected::NotClean),
            (EndProof { finish_reason: "abort".into(), ..clean() }, Rejected::FinishReason),
            (EndProof { output_tokens: 0, ..clean() }, Rejected::NoOutput),
            (EndProof { prompt_tokens: 0, router_prompt_tokens: 0, ..clean() }, Rejected::NoUsage),
            (EndProof { block_size: 0, ..clean() }, Rejected::NoUsage),
            (EndProof { router_prompt_tokens: 1017, ..clean() }, Rejected::PromptTokens),
            (EndProof { router_prompt_tokens: 983, ..clean() }, Rejected::PromptTokens),
            (EndProof { prompt_tokens: u64::MAX, ..clean() }, Rejected::PromptTokens),
        ];
        for (proof, rejected) in cases {
            assert_eq!(proof.check(&settings), Err(rejected), "{proof:?}");
        }
    }

    #[test]
    fn the_index_proves_what_it_saw_after_the_dispatch() {
        let settings = LeaseSettings::default();
        let at = |n| Sequences(vec![n]);
        let proof = |holds, n| Proof::Index(IndexEvidence { holds, exact: true, sequences: at(n) });
        assert_eq!(proof(true, 6).check(&at(5), &settings), Ok(at(6)));
        assert_eq!(proof(true, 5).check(&at(5), &settings), Err(Rejected::NothingSince));
        assert_eq!(proof(false, 6).check(&at(5), &settings), Err(Rejected::NotHeld));
    }
}
