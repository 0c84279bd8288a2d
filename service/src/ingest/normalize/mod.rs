//! Events to index operations, for one rank. Pure: no clock, no socket, no index.
//!
//! What comes out is what every engine and version means alike: blocks in a tier under a parent, names adopted by another
//! tier, copies gone, tiers cleared. Everything that is not this rank's own dense block of its main group is left out and
//! counted by its reason. What had to be left out although it may have changed what the rank holds is *lost content*, and
//! the rank is not exact until the engine's next clear.
//!
//! Bounded: it remembers a few words about each KV-cache group, and nothing about blocks.
//!
//! Report mode `full` announces reused blocks once more, which looks like another copy. With the worker's setting the rule
//! is: a store without a parent announces (a held name keeps its count), any other adds copies. A reused prefix always
//! begins at position 0, and vLLM takes a request that starts together with another of the same prefix for a reuse, too. A
//! real second copy of a first block would still be undercounted, so answers about such ranks are marked.

mod groups;
#[cfg(test)]
mod tests;
mod tier;

pub(crate) use groups::is_full_kind;
pub use tier::tier_of;

use super::counters::Counters;
use super::hash_check::HashCheck;
use super::spec::{IngestLimits, WorkerSpec};
use crate::ops::Op;
use crate::seed::Learned;
use crate::wire::{
    Batch, Cleared, ContentHasher, Event, HashMode, Namespace, Prompt, Removed, SkipReason, StoreContentError, Stored,
    store_namespace,
};
use groups::{Groups, Reading};
use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};
use xxhash_rust::xxh3::xxh3_64;

/// What a batch means for the standing of the rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effect {
    /// The batch cleared all tiers.
    pub cleared: bool,
    /// Content was lost after the last such clear: why.
    pub lost: Option<&'static str>,
}

/// Turns the events of one rank into operations.
pub struct Normalizer {
    block_size: u32,
    report_mode_full: bool,
    hasher: ContentHasher,
    groups: Groups,
    groups_max: usize,
    /// An event with the registered block size was seen in this life.
    size_agrees: bool,
    misfit: Option<Misfit>,
    hash_check: Option<HashCheck>,
    counters: Counters,
}

/// The events do not fit the registration.
struct Misfit {
    words: String,
    /// A partly filled block would look the same: a whole block of the right size proves it was one.
    perhaps_partial: bool,
}

impl Normalizer {
    /// For a rank of this worker.
    pub fn new(spec: &WorkerSpec, limits: &IngestLimits) -> Self {
        let mode = if spec.bigram { HashMode::Bigram } else { HashMode::Plain };
        Self {
            block_size: spec.block_size.max(1),
            report_mode_full: spec.report_mode_full,
            hasher: ContentHasher::new(mode, spec.block_size.max(1) as usize),
            groups: Groups::new(limits.groups_max),
            groups_max: limits.groups_max,
            size_agrees: false,
            misfit: None,
            hash_check: HashCheck::new(spec),
            counters: Counters::default(),
        }
    }

    /// Appends what a batch does, in order.
    pub fn normalize(&mut self, batch: &Batch<'_>, out: &mut Vec<Op>) -> Effect {
        let mut effect = Effect::default();
        let start = out.len();
        self.count_skipped(batch, &mut effect);
        // Kinds first: a hybrid model announces its window group before its full group, in one batch.
        let mut stores = 0;
        for event in &batch.events {
            if let Event::Stored(stored) = event {
                stores += 1;
                if self.groups.learn(stored.group, stored.kind) {
                    self.counters.bump("main_group_changes");
                    out.push(Op::Clear { tier: None });
                }
            }
        }
        // As a rule one operation a store, and one for removals that come in a row before them.
        out.reserve(stores + usize::from(stores < batch.events.len()));
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.stored(stored, out, &mut effect),
                Event::Removed(removed) => self.removed(removed, out, start),
                Event::Cleared(cleared) => self.cleared(cleared, out, &mut effect),
            }
        }
        effect
    }

    /// A new life of the publisher: what was learned about the one before is void.
    pub fn reset(&mut self) {
        self.groups = Groups::new(self.groups_max);
        self.size_agrees = false;
        self.misfit = None;
        if let Some(check) = &mut self.hash_check {
            check.reset();
        }
    }

    /// What the events said about the publisher so far.
    pub fn learned(&self) -> Learned {
        let upper_bound = self.upper_bound().is_some();
        Learned { main_group: self.groups.main(), size_agrees: self.size_agrees, upper_bound }
    }

    /// Goes on from what was learned elsewhere of this life of the publisher. Answers that are upper bounds are no part of it.
    pub fn restore(&mut self, learned: Learned) {
        self.reset();
        self.groups = Groups::with_main(self.groups_max, learned.main_group);
        self.size_agrees = learned.size_agrees;
    }

    /// How the events do not fit the registration, if they do not.
    pub fn misconfigured(&self) -> Option<&str> {
        self.misfit.as_ref().map(|m| m.words.as_str())
    }

    /// Why answers about the rank may be off although every event was applied.
    pub fn upper_bound(&self) -> Option<&'static str> {
        let mode = self.report_mode_full.then_some("report mode full: reused blocks are announced like new ones");
        self.groups.upper_bound().or(mode)
    }

    /// Counts by reason.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn count_skipped(&mut self, batch: &Batch<'_>, effect: &mut Effect) {
        for skip in &batch.skipped {
            self.counters.add(skip_label(skip.reason), skip.count);
            // A type of event that nobody knows says nothing about blocks; anything else may have been about some.
            if skip.reason != SkipReason::UnknownTag {
                effect.lost = Some("an event could not be read");
            }
        }
    }

    fn stored(&mut self, stored: &Stored<'_>, out: &mut Vec<Op>, effect: &mut Effect) {
        let Some(tier) = self.own_tier(stored.medium, stored.locality, stored.ownership) else { return };
        let reading = self.groups.reading(stored.group);
        if !self.is_read(reading) {
            return;
        }
        if stored.tokens.is_empty() {
            self.placeholder(tier, stored, out);
            return;
        }
        let mut contents = Vec::with_capacity(stored.hashes.len());
        match self.hasher.store(stored, &mut contents) {
            Ok(found) => {
                self.fits(effect);
                self.counters.add("partial_blocks", u64::from(found.partial_tail));
                if let Some(check) = &mut self.hash_check {
                    check.see(stored, &mut self.counters);
                }
                let mut names = Vec::with_capacity(found.blocks);
                stored.hashes.append_to(found.blocks, &mut names);
                self.store(tier, stored, names, contents, out);
            }
            Err(StoreContentError::NoTokens) => self.placeholder(tier, stored, out),
            Err(StoreContentError::BlockSize { event: 0, .. }) => {
                self.counters.bump("zero_block_size");
                effect.lost = Some("a store says that its blocks have no tokens");
            }
            Err(StoreContentError::BlockSize { event, .. }) => self.wrong_size(event, stored, out),
            Err(StoreContentError::Mode { bigram }) => {
                let words = match bigram {
                    true => "its pages are pairs of tokens (bigram), the registration says plain tokens",
                    false => "its pages are plain tokens, the registration says pairs (bigram)",
                };
                self.misfits(words.to_string(), false, out);
            }
            Err(StoreContentError::Misaligned { hashes, blocks }) => {
                if reading == Reading::TailAligned && hashes <= blocks {
                    self.fits(effect);
                    self.tail_aligned(tier, stored, blocks, out, effect);
                } else {
                    self.counters.bump("misaligned");
                    effect.lost = Some("a store's names and tokens do not line up");
                }
            }
        }
    }

    fn store(
        &mut self,
        tier: Tier,
        stored: &Stored<'_>,
        names: Vec<EngineHash>,
        contents: Vec<ContentHash>,
        out: &mut Vec<Op>,
    ) {
        if self.misfit.is_some() {
            self.counters.bump("misconfigured_dropped");
            return;
        }
        if names.is_empty() {
            return;
        }
        let reused = stored.origin.is_some_and(|origin| origin.eq_ignore_ascii_case("REUSED"));
        let announced = reused || (self.report_mode_full && stored.parent.is_none());
        let kind = if announced { StoreKind::Announce } else { StoreKind::Copy };
        out.push(Op::Store { tier, parent: stored.parent, names, contents, kind });
    }

    /// Names without tokens, from an offload connector.
    fn placeholder(&mut self, tier: Tier, stored: &Stored<'_>, out: &mut Vec<Op>) {
        if stored.hashes.is_empty() {
            return;
        }
        if self.misfit.is_some() {
            self.counters.bump("misconfigured_dropped");
            return;
        }
        self.counters.bump("placeholders");
        out.push(Op::Adopt { tier, names: stored.hashes.to_vec() });
    }

    /// A store of a window group that skipped its first blocks: the names belong to the last ones. The skipped positions are
    /// stored under names of our own and taken away again, which leaves holes of the right content.
    fn tail_aligned(&mut self, tier: Tier, stored: &Stored<'_>, blocks: usize, out: &mut Vec<Op>, effect: &mut Effect) {
        self.counters.bump("window_stores");
        if stored.hashes.is_empty() {
            return;
        }
        if !stored.extra_keys.all_nil() {
            // The keys go with the names, so the skipped blocks' own keys are not known.
            self.counters.bump("misaligned");
            effect.lost = Some("a window group skipped blocks whose extra keys are not known");
            return;
        }
        let namespace = if stored.parent.is_none() { store_namespace(stored) } else { Namespace::NONE };
        let mut contents = Vec::with_capacity(blocks);
        let tokens = stored.tokens.to_vec();
        self.hasher.prompt(&Prompt { tokens: &tokens, namespace, items: &[] }, &mut contents);
        contents.truncate(blocks);
        let skipped = contents.len().saturating_sub(stored.hashes.len());
        let mut before = stored.parent.map_or(namespace.0, |p| p.0);
        let mut names: Vec<EngineHash> = Vec::with_capacity(contents.len());
        for content in &contents[..skipped] {
            let words = [before.to_le_bytes(), content.0.to_le_bytes()].concat();
            before = xxh3_64(&words);
            names.push(EngineHash(before));
        }
        let holes = names.clone();
        names.extend(stored.hashes.iter());
        self.store(tier, stored, names, contents, out);
        if self.misfit.is_none() && !holes.is_empty() {
            out.push(Op::Remove { tier, names: holes });
        }
    }

    /// Operations of the batch begin at `start`.
    fn removed(&mut self, removed: &Removed<'_>, out: &mut Vec<Op>, start: usize) {
        let Some(tier) = self.own_tier(removed.medium, removed.locality, removed.ownership) else { return };
        let reading = self.groups.reading(removed.group);
        if !self.is_read(reading) || removed.hashes.is_empty() {
            return;
        }
        if self.misfit.is_some() {
            self.counters.bump("misconfigured_dropped");
            return;
        }
        match &removed.remaining_copy_counts {
            Some(left) if left.len() == removed.hashes.len() => {
                let counted = removed.hashes.iter().zip(left);
                out.extend(counted.map(|(name, &left)| Op::SetCopies { tier, name, left }));
            }
            // Engines name one block an event, many events in a row: what follows a removal from the same tier joins it.
            _ => match out[start..].last_mut() {
                Some(Op::Remove { tier: before, names }) if *before == tier => {
                    removed.hashes.append_to(usize::MAX, names);
                }
                _ => out.push(Op::Remove { tier, names: removed.hashes.to_vec() }),
            },
        }
    }

    fn cleared(&mut self, cleared: &Cleared<'_>, out: &mut Vec<Op>, effect: &mut Effect) {
        if cleared.medium.is_none() {
            out.push(Op::Clear { tier: None });
            *effect = Effect { cleared: true, lost: None };
            return;
        }
        match tier_of(cleared.medium) {
            Some(tier) => out.push(Op::Clear { tier: Some(tier) }),
            None => self.counters.bump("unknown_medium"),
        }
    }

    /// The tier, if the event is about this rank's own blocks.
    fn own_tier(&mut self, medium: Option<&str>, locality: Option<&str>, ownership: Option<&str>) -> Option<Tier> {
        if locality.is_some_and(|l| !l.eq_ignore_ascii_case("LOCAL")) {
            self.counters.bump("not_local");
            return None;
        }
        if ownership.is_some() {
            self.counters.bump("not_engine_owned");
            return None;
        }
        let tier = tier_of(medium);
        if tier.is_none() {
            self.counters.bump("unknown_medium");
        }
        tier
    }

    fn is_read(&mut self, reading: Reading) -> bool {
        match reading {
            Reading::Dense | Reading::TailAligned => return true,
            Reading::LeftOut => self.counters.bump("other_group"),
            Reading::Unlearned => self.counters.bump("unlearned_group"),
        }
        false
    }

    fn fits(&mut self, effect: &mut Effect) {
        self.size_agrees = true;
        if self.misfit.as_ref().is_some_and(|m| m.perhaps_partial) {
            self.misfit = None;
            effect.lost = Some("events were left out until the block size was known to fit");
        }
    }

    fn wrong_size(&mut self, event: u64, stored: &Stored<'_>, out: &mut Vec<Op>) {
        let perhaps_partial = event < u64::from(self.block_size) && stored.hashes.len() == 1;
        if perhaps_partial && self.size_agrees {
            self.counters.bump("partial_blocks");
            return;
        }
        self.counters.bump("wrong_block_size");
        let words = format!("its blocks have {event} tokens, the registration says {}", self.block_size);
        self.misfits(words, perhaps_partial, out);
    }

    /// From here on nothing of the rank counts.
    fn misfits(&mut self, words: String, perhaps_partial: bool, out: &mut Vec<Op>) {
        self.counters.bump("misconfigured_dropped");
        match &mut self.misfit {
            Some(known) if known.perhaps_partial && !perhaps_partial => *known = Misfit { words, perhaps_partial },
            Some(_) => {}
            None => {
                self.misfit = Some(Misfit { words, perhaps_partial });
                out.push(Op::Clear { tier: None });
            }
        }
    }
}

fn skip_label(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::NotAnEvent => "decode_skipped_not_an_event",
        SkipReason::UnknownTag => "decode_skipped_unknown_tag",
        SkipReason::MissingField => "decode_skipped_missing_field",
        SkipReason::BadField => "decode_skipped_bad_field",
        SkipReason::TokenOutOfRange => "decode_skipped_token_out_of_range",
        SkipReason::BrokenBigrams => "decode_skipped_broken_bigrams",
        SkipReason::OverLimit => "decode_skipped_over_limit",
    }
}
