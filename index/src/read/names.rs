//! A reader's own copy of the slot table's names, so that naming a holder is one load.
//!
//! The copy is right for the count of changes under which it was made. A lookup may use it when it found that count before
//! its walk and finds it still there after it: an entry of a rank is stored after the count rose for that rank, and a slot
//! is given away after its last entries went (slots.rs). Otherwise it asks the slot table, holder by holder.
//!
//! Answers share the copy and name their holders when they are asked; a change makes a new copy and leaves theirs alone.

use crate::fault::{Fault, injected};
use crate::layout::{rank_of, tier_of};
use crate::read::found::{Form, Found};
use crate::read::levels::RankTier;
use crate::slots::{RankSlots, WORD_RANKS};
use crate::sync::{Ordering, fence};
use crate::types::{HolderDepth, RankKey, Tier};
use std::sync::Arc;

/// The names of one shard's slots as of one count.
#[derive(Debug, Default)]
pub(crate) struct Table {
    keys: Vec<u32>,
    /// Which ranks may be named: one bit each.
    live: Vec<u64>,
    /// Whether there may be entries of ranks that may not be named.
    hidden: bool,
}

impl Table {
    /// Copies the names as of `count`; right only while that is the count.
    fn fill(&mut self, slots: &RankSlots, count: u64) {
        let end = slots.words() as u32 * WORD_RANKS;
        self.keys.clear();
        self.live.clear();
        self.live.resize(end.div_ceil(64) as usize, 0);
        self.hidden = false;
        for slot in 0..end {
            let name = slots.name(slot, count);
            self.keys.push(name.map_or(u32::MAX, |key| key.0));
            self.live[slot as usize / 64] |= u64::from(name.is_some()) << (slot % 64);
            self.hidden |= name.is_none() && slots.was_given(slot);
        }
    }

    /// Takes those out that may not be named.
    #[inline]
    pub fn hide(&self, found: &mut Found) {
        if self.hidden {
            let live = |word: usize| self.live.get(word).copied().unwrap_or(0);
            found.retain(|slot| live(rank_of(slot) as usize / 64) >> (slot % 64) & 1 == 1, live);
        }
    }

    /// The holder at a slot that is not hidden.
    #[inline]
    pub fn holder(&self, slot: u32) -> RankTier {
        let key = self.keys.get(rank_of(slot) as usize).copied().unwrap_or(u32::MAX);
        RankTier { rank: RankKey(key), tier: tier(slot) }
    }

    /// Appends everyone found, none of whom is hidden.
    #[inline]
    pub fn pairs(&self, found: &Found, out: &mut Vec<HolderDepth>) {
        for part in &found.parts {
            let pair = |slot| {
                let RankTier { rank, tier } = self.holder(slot);
                HolderDepth { rank, tier, blocks: part.depth }
            };
            match part.form {
                Form::Slots => out.extend(found.slots[part.range()].iter().map(|&slot| pair(slot))),
                Form::Words { .. } | Form::Named => {
                    out.reserve(found.count(part));
                    found.each_slot(part, |slot| out.push(pair(slot)));
                }
            }
        }
    }
}

#[inline]
fn tier(slot: u32) -> Tier {
    Tier::ALL[tier_of(slot) as usize % Tier::COUNT]
}

/// The copy of one shard's names.
#[derive(Default)]
pub(crate) struct Names {
    table: Arc<Table>,
    /// The count that the table belongs to.
    copied_at: u64,
    /// The count that the last lookup found.
    last: u64,
}

impl Names {
    /// Begins a lookup: reads the count. Copies the names when it stood still since the last lookup, so that a storm of
    /// openings does not make every lookup copy all.
    #[inline]
    pub fn begin(&mut self, slots: &RankSlots) -> u64 {
        let count = slots.count();
        if count != self.copied_at {
            self.fall_behind(slots, count);
        }
        count
    }

    #[cold]
    fn fall_behind(&mut self, slots: &RankSlots, count: u64) {
        if count != self.last {
            self.last = count;
            return;
        }
        // An answer that still has the old table keeps it.
        if Arc::get_mut(&mut self.table).is_none() {
            self.table = Arc::default();
        }
        if let Some(table) = Arc::get_mut(&mut self.table) {
            table.fill(slots, count);
            self.copied_at = count;
        }
    }

    /// Ends a lookup's walk: the names as of `count`, from the copy if it may be used.
    #[inline]
    pub fn finish<'a>(&'a self, slots: &'a RankSlots, count: u64) -> Naming<'a> {
        // Acquire fence: pairs with the fence(Release) of `RankSlots::mask` and the Release stores of entries: the entries
        // were read above, the names and the count follow.
        fence(Ordering::Acquire);
        let unchanged = injected(Fault::CountNotCompared) || slots.unchanged(count);
        let copied = self.copied_at == count && unchanged;
        Naming { slots, count, table: copied.then_some(&self.table) }
    }
}

/// Names holders of one lookup.
#[derive(Clone, Copy)]
pub(crate) struct Naming<'a> {
    slots: &'a RankSlots,
    count: u64,
    /// The reader's copy, if it is of use.
    pub table: Option<&'a Arc<Table>>,
}

impl Naming<'_> {
    /// The holder at a slot; `None` where it is masked or has changed hands. What the table hides was taken out before.
    #[inline]
    pub fn holder(&self, slot: u32) -> Option<RankTier> {
        match self.table {
            Some(table) => Some(table.holder(slot)),
            None => self.slots.name(rank_of(slot), self.count).map(|rank| RankTier { rank, tier: tier(slot) }),
        }
    }
}
