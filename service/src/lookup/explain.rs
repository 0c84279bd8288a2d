//! Why a worker matched as far as it did.

use super::engine::{LookupEngine, hash_prompt, hash_tokens};
use super::question::{LookupError, NamespaceText, Prompt, Question};
use super::{Answer, TierSet};
use crate::fleet::{FleetError, Group, RankEntry, Veto};
use crate::ingest::Trust;
use kvatlas_index::{ContentHash, LookupOptions, Residency, Tier, WalkStep};
use std::sync::Arc;

/// A precondition that does not hold, or a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FindingKind {
    /// No worker is registered for the model and routing group.
    UnknownModel,
    /// A worker or rank that was asked for is not registered.
    UnknownWorker,
    /// A rank's events do not fit its registration.
    BlockSizeMismatch,
    /// The prompt is not known in its namespace, but in another one.
    NamespaceMiss,
    /// The prompt has no full block.
    PromptTooShort,
    /// Nobody holds the prompt's first block.
    FirstBlockUnknown,
    /// The question is malformed.
    Invalid,
}

/// A finding with its words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The kind.
    pub kind: FindingKind,
    /// For a person.
    pub message: String,
}

/// Why a match ends where it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// All of it is held.
    WholePrompt,
    /// Nobody has the next block.
    ContentUnknown,
    /// Others hold the next block, this one does not.
    NotHeld,
    /// It holds later blocks, but not this one.
    Hole,
    /// Its worker is vetoed: a lookup leaves it out, whatever it holds.
    Vetoed(Veto),
    /// Nothing of the rank was ever seen, or it cannot be believed: its trust says why.
    Trust(Trust),
}

/// One rank and tier, explained.
#[derive(Clone, Debug)]
pub struct Why {
    /// The rank.
    pub rank: Arc<RankEntry>,
    /// The tier.
    pub tier: Tier,
    /// Leading blocks held.
    pub matched_blocks: u32,
    /// Why it ends there.
    pub stop: Stop,
    /// For a person.
    pub message: String,
    /// The walk.
    pub steps: Vec<WalkStep>,
}

/// The whole explanation.
#[derive(Clone, Debug, Default)]
pub struct Explained {
    /// Tokens in a block; 0 when the model is unknown.
    pub block_size: u32,
    /// Full blocks of the prompt.
    pub query_blocks: usize,
    /// Tokens after the last full block.
    pub tail_tokens: usize,
    /// What concerns the question as a whole.
    pub findings: Vec<Finding>,
    /// Rank by rank, longest first.
    pub ranks: Vec<Why>,
    /// Whether ranks were left out.
    pub truncated: bool,
}

impl LookupEngine {
    /// Explains a lookup, for at most so many rows. What a lookup would refuse is a finding here.
    pub fn explain(&self, question: &Question, rows_max: usize) -> Explained {
        // Tiers are looked at one by one, each by itself: a cumulative depth has no single holder to walk.
        let (residency, include_vetoed) = (Residency::PerTier, true);
        let plain = Question { residency, max_holders: 0, include_vetoed, ..question.clone() };
        let answer = match self.lookup(&plain) {
            Ok(answer) => answer,
            Err(error) => return self.refused(question, &error),
        };
        let mut explained = Explained {
            block_size: answer.group.block_size,
            query_blocks: answer.query_blocks,
            tail_tokens: answer.tail_tokens,
            ..Explained::default()
        };
        self.explain_ranks(&plain, &answer, rows_max, &mut explained);
        explained.findings = self.findings(&plain, &answer, &explained.ranks);
        explained
    }

    fn refused(&self, question: &Question, error: &LookupError) -> Explained {
        let kind = match error {
            LookupError::Fleet(FleetError::UnknownModel { .. } | FleetError::UnknownGroup { .. }) => {
                FindingKind::UnknownModel
            }
            LookupError::Fleet(FleetError::UnknownWorker { .. } | FleetError::UnknownRank { .. }) => {
                FindingKind::UnknownWorker
            }
            _ => FindingKind::Invalid,
        };
        let mut message = error.to_string();
        let view = self.view();
        if kind == FindingKind::UnknownModel {
            let mut known: Vec<_> = view.models().collect();
            known.sort_unstable();
            known.truncate(16);
            message = format!("{message}; known models: {known:?}");
        }
        let block_size = view.group(&question.model, &question.routing_group).map_or(0, |g| g.block_size);
        Explained { block_size, findings: vec![Finding { kind, message }], ..Explained::default() }
    }

    fn explain_ranks(&self, question: &Question, answer: &Answer, rows_max: usize, out: &mut Explained) {
        let mut places = places(question.tiers, answer);
        out.truncated = places.len() > rows_max;
        places.truncate(rows_max);
        self.with_scratch(|scratch| {
            hash_prompt(&answer.group, &question.prompt, &mut scratch.contents);
            for (rank, tier, blocks) in places {
                let mut steps = Vec::new();
                // A walk that writers kept interrupting is right as far as it goes.
                let _ = scratch.reader.walk(&scratch.contents, rank.key, tier, &mut steps);
                let deepest = answer.rows.iter().map(|r| r.blocks).max().unwrap_or(0);
                let stop = stop(&rank, blocks, answer.query_blocks as u32, deepest, &steps);
                let message = message(&rank, tier, blocks, stop);
                out.ranks.push(Why { rank, tier, matched_blocks: blocks, stop, message, steps });
            }
        });
    }

    fn findings(&self, question: &Question, answer: &Answer, ranks: &[Why]) -> Vec<Finding> {
        let mut findings = Vec::new();
        if answer.query_blocks == 0 {
            let message =
                format!("the prompt has no full block of {} tokens: nothing can match", answer.group.block_size);
            findings.push(Finding { kind: FindingKind::PromptTooShort, message });
        }
        for why in ranks.iter().filter(|w| w.rank.status.brief().trust == Trust::Misconfigured) {
            let detail = why.rank.status.full().detail.clone().unwrap_or_default();
            let message = format!("worker {} rank {}: {detail}", why.rank.worker, why.rank.rank);
            findings.push(Finding { kind: FindingKind::BlockSizeMismatch, message });
        }
        if answer.query_blocks > 0 && answer.rows.is_empty() {
            findings.extend(self.other_namespace(question, &answer.group));
            let message = match &question.prompt {
                Prompt::Tokens { namespace, .. } if namespace.is_base() => {
                    "nobody holds the first block in the base namespace; if requests carry a LoRA adapter, a cache salt or \
                     multimodal items, name them"
                }
                Prompt::Tokens { .. } => "nobody holds the first block in this namespace",
                Prompt::ContentHashes(_) => {
                    "nobody holds the first block: check block size, seed 1337 and namespace of the content hashes, or send \
                     token ids"
                }
            };
            findings.push(Finding { kind: FindingKind::FirstBlockUnknown, message: message.into() });
        }
        findings
    }

    /// Whether the prompt's first block is known when parts of its namespace are left out.
    fn other_namespace(&self, question: &Question, group: &Group) -> Option<Finding> {
        let Prompt::Tokens { ids, namespace } = &question.prompt else { return None };
        let without_items = NamespaceText { items: Vec::new(), ..namespace.clone() };
        let tries = [
            ("without its multimodal items", without_items.clone()),
            ("without its cache salt", NamespaceText { cache_salt: String::new(), ..namespace.clone() }),
            ("without its LoRA adapter", NamespaceText { lora_name: String::new(), ..namespace.clone() }),
            ("with its LoRA adapter only", NamespaceText { cache_salt: String::new(), ..without_items }),
            ("in the base namespace", NamespaceText::default()),
        ];
        let first = &ids[..ids.len().min(group.mode.block_tokens(group.block_size as usize))];
        let hit = tries.iter().filter(|(_, other)| other != namespace).find(|(_, other)| {
            let mut contents: Vec<ContentHash> = Vec::new();
            hash_tokens(group, first, other, &mut contents);
            let options = LookupOptions { filter: Some(&group.filter), residency: Residency::PerTier };
            let mut found = Vec::new();
            let _ = self.with_scratch(|s| s.reader.lookup(&contents, &options, &mut found));
            !found.is_empty()
        })?;
        let message = format!("the prompt is not known as asked, but it is {}", hit.0);
        Some(Finding { kind: FindingKind::NamespaceMiss, message })
    }
}

/// Rank, tier and depth of every line of the explanation: what matched, and the nearest wanted tier of each rank that did not.
fn places(tiers: TierSet, answer: &Answer) -> Vec<(Arc<RankEntry>, Tier, u32)> {
    let mut places: Vec<_> =
        answer.rows.iter().filter_map(|row| Some((answer.rank(row)?.clone(), row.tier, row.blocks))).collect();
    let nearest = Tier::ALL.into_iter().find(|t| tiers.contains(*t)).unwrap_or(Tier::Device);
    let silent = answer.ranks().iter().filter(|rank| answer.rows.iter().all(|row| row.key != rank.key));
    places.extend(silent.map(|rank| (rank.clone(), nearest, 0)));
    places
}

fn stop(rank: &RankEntry, blocks: u32, query_blocks: u32, deepest: u32, steps: &[WalkStep]) -> Stop {
    if let Some((veto, _)) = rank.veto.get() {
        return Stop::Vetoed(veto);
    }
    if blocks >= query_blocks {
        return Stop::WholePrompt;
    }
    let trust = rank.status.brief().trust;
    if matches!(trust, Trust::NeverSeen | Trust::Misconfigured | Trust::Bootstrapping | Trust::Degraded) {
        return Stop::Trust(trust);
    }
    if steps.iter().any(|s| s.from > blocks && s.held > 0) {
        return Stop::Hole;
    }
    let known = steps.iter().map(|s| s.from + s.matched).max().unwrap_or(0).max(deepest);
    match trust {
        _ if blocks >= known => Stop::ContentUnknown,
        Trust::Partial => Stop::Trust(trust),
        _ => Stop::NotHeld,
    }
}

fn message(rank: &RankEntry, tier: Tier, blocks: u32, stop: Stop) -> String {
    let detail = rank.status.full().detail.clone().unwrap_or_default();
    match stop {
        Stop::Vetoed(Veto::Unreachable) => "left out of answers: the worker cannot be reached".into(),
        Stop::Vetoed(Veto::Wedged) => "left out of answers: the worker takes requests and does nothing".into(),
        Stop::WholePrompt => "every full block of the prompt is held".into(),
        Stop::ContentUnknown => format!("block {blocks} is not known from any worker"),
        Stop::NotHeld => format!("block {blocks} is held elsewhere, but not in this worker's {tier:?} tier"),
        Stop::Hole => format!("hole: later blocks are held, but block {blocks} is not (evicted or moved)"),
        Stop::Trust(Trust::NeverSeen) => "no event of this rank was ever seen: check its endpoint".into(),
        Stop::Trust(Trust::Bootstrapping) => "the rank's first state is being fetched".into(),
        Stop::Trust(Trust::Misconfigured) => format!("nothing of this rank is credited: {detail}"),
        Stop::Trust(Trust::Degraded) => {
            format!("events of this rank were lost, so block {blocks} may be there: {detail}")
        }
        Stop::Trust(_) => {
            format!("what the rank held before its first event is unknown, so block {blocks} may be there")
        }
    }
}
