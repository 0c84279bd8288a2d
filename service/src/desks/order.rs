//! What a selection asks and answers in the service's own words, and why it may be refused.

use super::receipt::Receipt;
use crate::ingest::Trust;
use crate::lookup::{LookupError, Prompt, RankChoice};
use crate::routing::{Branch, PolicyName, Refusal};
use kvatlas_index::Tier;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// A request to be placed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Order {
    /// The model.
    pub model: String,
    /// The routing group; empty for the default one.
    pub routing_group: String,
    /// The prompt; `None`: nothing is known of it.
    pub prompt: Option<Prompt>,
    /// Tokens of the prompt, where it does not tell itself.
    pub prompt_tokens: Option<u32>,
    /// Most output tokens.
    pub max_output_tokens: Option<u32>,
    /// Only these workers or ranks; empty for all.
    pub candidates: Vec<RankChoice>,
    /// The policy; `None`: the configured one.
    pub policy: Option<PolicyName>,
    /// Whether a receipt is wanted.
    pub explain: bool,
    /// Whether to choose without booking.
    pub dry_run: bool,
}

impl Order {
    /// Tokens of the prompt, as far as it tells: with content hashes alone those of its full blocks.
    pub(super) fn tokens(&self, block_size: u32) -> Result<Option<u64>, LookupError> {
        let said = self.prompt_tokens.map(u64::from);
        match &self.prompt {
            None => Ok(said),
            Some(Prompt::Tokens { ids, .. }) => Ok(Some(ids.len() as u64)),
            Some(Prompt::ContentHashes(hashes)) => {
                let full = hashes.len() as u64 * u64::from(block_size);
                match said {
                    Some(tokens) if tokens < full => {
                        let reason = format!("{tokens}, but the content hashes stand for {full} tokens");
                        Err(LookupError::Invalid { field: "prompt_tokens", reason })
                    }
                    Some(tokens) => Ok(Some(tokens)),
                    None => Ok((full > 0).then_some(full)),
                }
            }
        }
    }

    /// Token ids that mean the same in every request: not those of an adapter, a salt or with items.
    pub(super) fn plain_token_ids(&self) -> &[u32] {
        match &self.prompt {
            Some(Prompt::Tokens { ids, namespace }) if namespace.is_base() => ids,
            _ => &[],
        }
    }
}

/// What the matches of a decision are worth.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Evidence {
    /// The index, from the engines' events.
    Index,
    /// A guess from requests routed before.
    Approximate,
    /// Nothing: chosen by load alone.
    LoadOnly,
    /// The index, and for some blocks a guess from requests just dispatched.
    Predicted,
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Number of the reservation; 0: nothing was booked.
    pub reservation: u64,
    /// The worker's id.
    pub worker: Arc<str>,
    /// Data-parallel rank.
    pub rank: u32,
    /// Number of the worker's registration.
    pub generation: u64,
    /// Leading blocks of the rank by tier, each tier with all nearer ones, where it reaches further than these.
    pub matched: SmallVec<[(Tier, u32); Tier::COUNT]>,
    /// Tokens that are expected to be found cached.
    pub predicted_cached_tokens: u64,
    /// Seconds until the request's turn, where the policy expects something.
    pub predicted_wait: Option<f64>,
    /// By which way the decision was made.
    pub branch: Branch,
    /// A second reason, where the policy has one.
    pub detail: Option<&'static str>,
    /// The policy that decided.
    pub policy: PolicyName,
    /// What the matches are worth.
    pub evidence: Evidence,
    /// How far the events of the rank can be believed.
    pub trust: Trust,
    /// Full blocks of the prompt.
    pub query_blocks: u32,
    /// Candidates that were named and are not registered for the model and group.
    pub candidates_unknown: u32,
    /// How long the request was held.
    pub held: Duration,
    /// The receipt, if one was wanted.
    pub receipt: Option<Box<Receipt>>,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RouteError {
    /// Unknown model or group, or a prompt beyond its limits.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// More candidates than may be named.
    #[error("candidates: {len} entries, at most {limit} (limit routing.bookings.candidates_max)")]
    Candidates {
        /// How many were named.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// No candidate is ready.
    #[error("no worker in question is ready")]
    NoneReady,
    /// Every candidate is overloaded, and shedding is on.
    #[error("every worker is overloaded, and requests are shed (routing.overload.shed): try again")]
    AllOverloaded,
    /// The policy's cap admits nobody.
    #[error("no worker is below its cap (routing.load.max_waiting_requests): try again")]
    AllCapped,
    /// More models and routing groups than can be numbered.
    #[error("{limit} models and routing groups have desks: no room for another")]
    DesksFull {
        /// The limit.
        limit: usize,
    },
    /// No such reservation was ever made by this run, or its model is gone.
    #[error("reservation {reservation}: unknown, or long over")]
    UnknownReservation {
        /// Its number.
        reservation: u64,
    },
}

impl From<Refusal> for RouteError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoneReady => Self::NoneReady,
            Refusal::AllOverloaded => Self::AllOverloaded,
            Refusal::AllCapped => Self::AllCapped,
        }
    }
}
