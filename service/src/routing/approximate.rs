//! What is known of prompts that were routed, before events say it, or where no events come: a small index of its own, fed by
//! dispatches.
//!
//! A worker is taken to hold every prefix of every prompt that was sent to it and is remembered: exact as to what was sent, a guess
//! as to what is still cached. So an answer made of it is labelled, approximate or predicted, and never counts as confirmed.
//!
//! The prompts stand in a ring, oldest first, with the names of their blocks; a prompt that leaves takes one copy of each name along,
//! and the index counts the copies. So a block is remembered as long as one prompt with it is.

use super::columns::Slot;
use super::lives::Lives;
use super::overlap::Overlap;
use super::prefix::PrefixKey;
use super::settings::ApproximateSettings;
use kvatlas_index::{
    ConfigError, ContentHash, EngineHash, Holder, Index, IndexConfig, IndexError, Lane, Levels, LookupOptions, RankKey,
    RankSlot, Reader, Store, StoreKind, Tier,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Workers of which prompts are remembered at once.
const WORKERS_MAX: u32 = 1 << 16;

/// Blocks that one call of [`Approximate::tidy`] forgets: some hundred microseconds at most.
const TIDIED_AT_ONCE: usize = 4096;

/// A prompt that was dispatched.
#[derive(Clone, Copy, Debug)]
struct Prompt {
    at: Duration,
    slot: Slot,
    /// The slot's life then: in another one its blocks are gone already.
    life: u32,
    blocks: u32,
}

/// Figures, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApproximateFigures {
    /// Prompts remembered.
    pub prompts: u64,
    /// Their blocks, each prompt by itself.
    pub blocks: u64,
    /// Prompts that were not remembered, since a limit of the index was reached.
    pub refused: u64,
}

/// The routed prompts of one model and routing group.
pub struct Approximate {
    settings: ApproximateSettings,
    key: PrefixKey,
    routed: Routed,
    ranks: Vec<Option<RankSlot>>,
    lives: Lives,
    prompts: VecDeque<Prompt>,
    /// Names of the prompts' blocks, in the same order.
    names: VecDeque<EngineHash>,
    /// Whether events should confirm what is remembered: then it is remembered for a shorter time.
    events: bool,
    scratch: Vec<EngineHash>,
    refused: u64,
}

/// The index behind it.
struct Routed {
    lane: Lane,
    reader: Reader,
    levels: Levels,
}

impl Routed {
    /// Room for the worst case: every block in a granule of its own, and as much again that is waiting to be swept. Address space
    /// only; memory is used as blocks come.
    fn new(blocks_max: u32) -> Result<Self, ConfigError> {
        let blocks = blocks_max.clamp(512, 1 << 25);
        let config = IndexConfig {
            ranks_max: WORKERS_MAX,
            blocks_max: (blocks * 16).min(1 << 29),
            runs_max: blocks * 2,
            exts_max: blocks,
            orphans_max_per_rank: 0,
            private_names_max_per_lane: 64,
            ..IndexConfig::default()
        };
        let (index, mut lanes) = Index::new(config)?;
        let reader = Arc::clone(&index).reader();
        Ok(Self { lane: lanes.remove(0), reader, levels: Levels::new() })
    }
}

impl Approximate {
    /// Nothing is remembered yet. Reserves address space in proportion to `blocks_max` and fails where the system refuses that. The
    /// seed is a secret where prompts come from strangers.
    pub fn new(settings: &ApproximateSettings, seed: u64) -> Result<Self, ConfigError> {
        Ok(Self {
            routed: Routed::new(settings.blocks_max)?,
            settings: settings.clone(),
            key: PrefixKey::new(seed),
            ranks: Vec::new(),
            lives: Lives::default(),
            prompts: VecDeque::new(),
            names: VecDeque::new(),
            events: false,
            scratch: Vec::new(),
            refused: 0,
        })
    }

    /// Takes other settings. Another bound, or being switched off, forgets everything; fails as [`Approximate::new`] does, and then
    /// keeps the settings that it had.
    pub fn configure(&mut self, settings: &ApproximateSettings) -> Result<(), ConfigError> {
        if settings.blocks_max != self.settings.blocks_max || !settings.enabled {
            self.routed = Routed::new(settings.blocks_max)?;
            self.ranks.clear();
            self.prompts.clear();
            self.names.clear();
        }
        self.settings = settings.clone();
        Ok(())
    }

    /// Remembers that a prompt was sent to a worker; of one longer than `blocks_max` its beginning. To be called when the request is
    /// on its way: some tens of nanoseconds for each block, and as much for each of an older prompt that has to go.
    pub fn record(&mut self, now: Duration, slot: Slot, contents: &[ContentHash]) {
        let blocks_max = self.settings.blocks_max as usize;
        let contents = &contents[..contents.len().min(blocks_max)];
        if !self.settings.enabled || contents.is_empty() {
            return;
        }
        // Faster than prompts come, so that those of a livelier time are gone in the end.
        self.expire(now, 4 * contents.len() + 64);
        while self.names.len() + contents.len() > blocks_max {
            self.forget_oldest();
        }
        if self.store(slot, contents).is_err() {
            // Part of it may be there: what the worker holds is not what its prompts say any more.
            self.refused += 1;
            return self.forget(slot);
        }
        let life = self.lives.of(slot);
        self.prompts.push_back(Prompt { at: now, slot, life, blocks: contents.len() as u32 });
        self.names.extend(&self.scratch);
    }

    /// Forgets what a worker was sent: it is gone, or its cache is empty. Takes no longer for much than for little.
    pub fn forget(&mut self, slot: Slot) {
        self.lives.end(slot);
        if let Some(rank) = self.ranks.get_mut(slot as usize).and_then(Option::take) {
            self.routed.lane.close_rank(rank).expect("a rank in the list is open on the only lane");
        }
    }

    /// Forgets prompts that are too old, some thousand blocks at most; whether there are more of them. To be called now and then: an
    /// answer may be made of a prompt that is too old until this was called.
    pub fn tidy(&mut self, now: Duration) -> bool {
        self.expire(now, TIDIED_AT_ONCE);
        self.prompts.front().is_some_and(|prompt| self.is_old(now, prompt))
    }

    /// When the oldest prompt will be too old.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.prompts.front().map(|prompt| prompt.at.saturating_add(self.age_max()))
    }

    /// Completes what the index said of a prompt. `events`: the index holds something of the model; then workers are credited with what
    /// was just dispatched to them, as a prediction. Otherwise everything is a guess from what was routed, and labelled so.
    ///
    /// Costs one lookup in a small index; allocates only until its buffers have grown.
    pub fn complete(&mut self, now: Duration, events: bool, contents: &[ContentHash], overlap: &mut Overlap) {
        self.events = events;
        if !self.settings.enabled {
            return;
        }
        overlap.approximate = !events;
        let fresh = self.prompts.back().is_some_and(|newest| !self.is_old(now, newest));
        if !fresh || contents.is_empty() {
            return;
        }
        let Routed { reader, levels, .. } = &mut self.routed;
        // Exact, as the only writer is this very thread.
        let _ = reader.lookup_levels(contents, &LookupOptions::default(), levels);
        let known = if events { least_known(&self.ranks, overlap) } else { 0 };
        let deeper = levels.iter().take_while(|(blocks, _)| *blocks > known);
        let pairs = deeper.flat_map(|(blocks, holders)| holders.map(move |holder| (holder.rank.0, blocks)));
        match events {
            true => overlap.predict_all(pairs),
            false => pairs.for_each(|(slot, blocks)| overlap.credit(slot, blocks)),
        }
    }

    /// Sizes and counts.
    pub fn figures(&self) -> ApproximateFigures {
        let (prompts, blocks) = (self.prompts.len() as u64, self.names.len() as u64);
        ApproximateFigures { prompts, blocks, refused: self.refused }
    }

    fn age_max(&self) -> Duration {
        if self.events { self.settings.predicted_age_max } else { self.settings.age_max }
    }

    fn is_old(&self, now: Duration, prompt: &Prompt) -> bool {
        prompt.at.saturating_add(self.age_max()) <= now
    }

    /// Stores a prompt's blocks for a worker. Their names are in the scratch memory afterwards.
    fn store(&mut self, slot: Slot, contents: &[ContentHash]) -> Result<(), IndexError> {
        let at = Holder { rank: self.rank(slot)?, tier: Tier::Device };
        let (key, mut name) = (self.key, self.key.start());
        self.scratch.clear();
        self.scratch.extend(contents.iter().map(|content| {
            name = key.next(name, *content);
            EngineHash(name)
        }));
        let store = Store { parent: None, names: &self.scratch, contents, kind: StoreKind::Copy };
        self.routed.lane.store(at, &store).map(drop)
    }

    fn rank(&mut self, slot: Slot) -> Result<RankSlot, IndexError> {
        let at = slot as usize;
        if self.ranks.len() <= at {
            self.ranks.resize(at + 1, None);
        }
        match self.ranks[at] {
            Some(rank) => Ok(rank),
            None => {
                let rank = self.routed.lane.open_rank(RankKey(slot))?;
                Ok(*self.ranks[at].insert(rank))
            }
        }
    }

    /// Forgets prompts that are too old, until so many blocks are gone.
    fn expire(&mut self, now: Duration, blocks_max: usize) {
        let kept = self.names.len().saturating_sub(blocks_max);
        while self.names.len() > kept && self.prompts.front().is_some_and(|prompt| self.is_old(now, prompt)) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(prompt) = self.prompts.pop_front() else { return };
        // From its end, as a cutoff moves most easily.
        self.scratch.clear();
        self.scratch.extend(self.names.drain(..prompt.blocks as usize));
        self.scratch.reverse();
        let rank = self.ranks.get(prompt.slot as usize).copied().flatten();
        if let Some(rank) = rank.filter(|_| prompt.life == self.lives.of(prompt.slot)) {
            let at = Holder { rank, tier: Tier::Device };
            if self.routed.lane.remove(at, &self.scratch).is_err() {
                self.forget(prompt.slot);
            }
        }
    }
}

/// Blocks that the index knows of everybody of whom something is remembered: nothing as shallow as this can raise a figure. Where a
/// fleet shares the beginning of its prompts, this spares a look at every worker.
fn least_known(ranks: &[Option<RankSlot>], overlap: &Overlap) -> u32 {
    let of_those = ranks.iter().zip(&overlap.blocks).filter(|(rank, _)| rank.is_some());
    of_those.map(|(_, blocks)| *blocks).min().unwrap_or(0)
}

#[cfg(test)]
#[path = "approximate_tests.rs"]
mod tests;
