//! The way of a lookup from question to answer.

use super::answer::{Answer, Row};
use super::items::ItemLimits;
use super::question::{LookupError, NamespaceText, Prompt, Question, RankChoice};
use crate::fleet::{Brief, Fleet, FleetView, Group, RankEntry};
use crate::lanes::LaneHandle;
use crate::wire::ContentHasher;
use kvatlas_index::{ContentHash, HolderDepth, Index, Levels, LookupOptions, Outcome, RankFilter, Reader};
use std::sync::{Arc, Mutex, PoisonError};

/// Limits of one lookup. Reaching one is [`LookupError::TooLong`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupLimits {
    /// Tokens of a prompt.
    pub tokens_max: usize,
    /// Content hashes of a prompt.
    pub blocks_max: usize,
    /// Entries of the holder filter.
    pub holders_max: usize,
    /// Multimodal items of a prompt.
    pub items: ItemLimits,
}

impl Default for LookupLimits {
    fn default() -> Self {
        Self { tokens_max: 2 << 20, blocks_max: 1 << 20, holders_max: 8192, items: ItemLimits::default() }
    }
}

/// Answers lookups. Shared by `Arc`; any thread may call it, and none waits for a writer.
pub struct LookupEngine {
    index: Arc<Index>,
    fleet: Arc<Fleet>,
    limits: LookupLimits,
    /// Readers that are not in use. There are never more than lookups at once, and those are bounded by the threads.
    pool: Mutex<Vec<Scratch>>,
}

/// A reader and the buffers that go with it, so that a lookup allocates little more than its answer.
pub(super) struct Scratch {
    pub(super) reader: Reader,
    pub(super) contents: Vec<ContentHash>,
    found: Vec<HolderDepth>,
    pub(super) levels: Levels,
}

impl LookupEngine {
    /// Answers from this index about this fleet.
    pub fn new(index: Arc<Index>, fleet: Arc<Fleet>, limits: LookupLimits) -> Self {
        Self { index, fleet, limits, pool: Mutex::new(Vec::new()) }
    }

    /// The index.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Answers one lookup. Runs on the calling thread to its end; takes time in proportion to the prompt and the answer.
    pub fn lookup(&self, question: &Question) -> Result<Answer, LookupError> {
        let view = self.fleet.view();
        let group = view.group(&question.model, &question.routing_group)?.clone();
        self.check(question)?;
        self.check_items(&group, &question.prompt)?;
        let chosen = choose(&view, &group, &question.holders)?;
        self.with_scratch(|scratch| {
            let tail_tokens = hash_prompt(&group, &question.prompt, &mut scratch.contents);
            let filter = chosen.as_ref().map(|ranks| ranks.iter().map(|r| r.key).collect::<RankFilter>());
            let filter = filter.as_ref().unwrap_or(&group.filter);
            let options = LookupOptions { filter: Some(filter), residency: question.residency };
            scratch.found.clear();
            let outcome = scratch.reader.lookup(&scratch.contents, &options, &mut scratch.found);
            let mut rows = join(&view, question, &scratch.found);
            let rows_total = rows.len();
            if question.max_holders > 0 {
                rows.truncate(question.max_holders);
            }
            let (query_blocks, busy) = (scratch.contents.len(), outcome == Outcome::Busy);
            Ok(Answer {
                view: view.clone(),
                group: group.clone(),
                query_blocks,
                tail_tokens,
                rows,
                rows_total,
                busy,
                chosen,
                vetoed_included: question.include_vetoed,
            })
        })
    }

    /// Checks every list of a question against its limit.
    pub fn check(&self, question: &Question) -> Result<(), LookupError> {
        let limits = &self.limits;
        let list = |field, len, setting, limit| {
            if len <= limit { Ok(()) } else { Err(LookupError::TooLong { field, len, setting, limit }) }
        };
        list("holders", question.holders.len(), "limits.lookup_holders_max", limits.holders_max)?;
        self.check_prompt(&question.prompt)
    }

    /// Checks a prompt's length against its limit.
    pub(super) fn check_prompt(&self, prompt: &Prompt) -> Result<(), LookupError> {
        let limits = &self.limits;
        let (field, len, setting, limit) = match prompt {
            Prompt::ContentHashes(hashes) => {
                ("content_hashes", hashes.len(), "limits.lookup_blocks_max", limits.blocks_max)
            }
            Prompt::Tokens { ids, .. } => ("token_ids", ids.len(), "limits.lookup_tokens_max", limits.tokens_max),
        };
        if len <= limit { Ok(()) } else { Err(LookupError::TooLong { field, len, setting, limit }) }
    }

    /// Checks the multimodal items of a prompt, which cost more the more of it they overlap.
    pub(super) fn check_items(&self, group: &Group, prompt: &Prompt) -> Result<(), LookupError> {
        let Prompt::Tokens { ids, namespace } = prompt else { return Ok(()) };
        let blocks = group.mode.full_blocks(ids.len(), group.block_size as usize);
        self.limits.items.check(namespace, blocks, group.block_size, 0).map(drop)
    }

    /// Lends a reader out of the pool for one synchronous call.
    pub(super) fn with_scratch<T>(&self, use_it: impl FnOnce(&mut Scratch) -> T) -> T {
        let pooled = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = pooled.unwrap_or_else(|| Scratch {
            reader: self.index.reader(),
            contents: Vec::new(),
            found: Vec::new(),
            levels: Levels::new(),
        });
        let result = use_it(&mut scratch);
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result
    }

    pub(super) fn lanes(&self) -> &[LaneHandle] {
        self.fleet.lanes()
    }

    pub(super) fn view(&self) -> Arc<FleetView> {
        self.fleet.view()
    }
}

/// The content hashes of a prompt's full blocks into `out`; returns the tokens after them.
pub(super) fn hash_prompt(group: &Group, prompt: &Prompt, out: &mut Vec<ContentHash>) -> usize {
    out.clear();
    match prompt {
        Prompt::ContentHashes(hashes) => {
            out.extend(hashes.iter().map(|h| ContentHash(*h)));
            0
        }
        Prompt::Tokens { ids, namespace } => {
            hash_tokens(group, ids, namespace, out);
            ids.len() - (out.len() * group.block_size as usize).min(ids.len())
        }
    }
}

/// The content hashes of so many tokens' full blocks, appended to `out`.
pub(super) fn hash_tokens(group: &Group, ids: &[u32], namespace: &NamespaceText, out: &mut Vec<ContentHash>) {
    namespace.hash(ContentHasher::new(group.mode, group.block_size as usize), ids, true, out);
}

/// The ranks that a filter names, by worker and number; `None` without a filter.
fn choose(view: &FleetView, group: &Group, holders: &[RankChoice]) -> Result<Option<Vec<Arc<RankEntry>>>, LookupError> {
    if holders.is_empty() {
        return Ok(None);
    }
    let mut chosen = Vec::new();
    for RankChoice { worker, rank } in holders {
        let before = chosen.len();
        match rank {
            Some(rank) => chosen.push(view.rank(worker, *rank)?.clone()),
            None => chosen.extend(view.worker(worker)?.ranks.iter().cloned()),
        }
        // A worker of another model or group is as unknown to this question as one that does not exist.
        if chosen[before..].iter().any(|r| !group.filter.contains(r.key)) {
            return Err(crate::fleet::FleetError::UnknownWorker { worker: worker.clone() }.into());
        }
    }
    chosen.sort_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
    chosen.dedup_by_key(|r| r.key);
    Ok(Some(chosen))
}

fn join(view: &FleetView, question: &Question, found: &[HolderDepth]) -> Vec<Row> {
    let wanted = found.iter().filter(|h| question.tiers.contains(h.tier));
    let mut rows: Vec<Row> = wanted
        .filter_map(|h| {
            let Brief { trust, upper_bound, vetoed } = view.by_key(h.rank)?.status.brief();
            let row = Row { key: h.rank, tier: h.tier, blocks: h.blocks, trust, upper_bound, vetoed };
            (question.include_vetoed || !vetoed).then_some(row)
        })
        .collect();
    let place = |row: &Row| view.by_key(row.key).map(|r| (&r.worker, r.rank, row.tier));
    rows.sort_unstable_by(|a, b| b.blocks.cmp(&a.blocks).then_with(|| place(a).cmp(&place(b))));
    rows
}
