//! A reader's own copy of the slot table's names, so that naming a holder is one load.
//!
//! The copy is right for the count of changes under which it was made. A lookup may use it when it found that count before
//! its walk and finds it still there after it: an entry of a rank is stored after the count rose for that rank, and a slot
//! is given away after its last entries went (slots.rs). Otherwise it asks the slot table, holder by holder.

use crate::layout::{rank_of, tier_of};
use crate::read::levels::RankTier;
use crate::slots::{RankSlots, WORD_RANKS};
use crate::sync::{Ordering, fence};
use crate::types::{RankKey, Tier};

/// No rank, or none that may be named.
const NOBODY: u64 = u64::MAX;

/// The copy of one shard's names.
#[derive(Default)]
pub(crate) struct Names {
    keys: Vec<u64>,
    /// The count that the keys belong to.
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
        let end = slots.words() as u32 * WORD_RANKS;
        self.keys.clear();
        self.keys.extend((0..end).map(|slot| slots.name(slot, count).map_or(NOBODY, |key| u64::from(key.0))));
        self.copied_at = count;
    }

    /// Ends a lookup's walk: the names as of `count`, from the copy if it may be used.
    #[inline]
    pub fn finish<'a>(&'a self, slots: &'a RankSlots, count: u64) -> Naming<'a> {
        // Acquire fence: pairs with the fence(Release) of `RankSlots::mask` and the Release stores of entries: the entries
        // were read above, the names and the count follow.
        fence(Ordering::Acquire);
        let copied = self.copied_at == count && slots.unchanged(count);
        Naming { slots, count, copied: copied.then_some(&self.keys) }
    }
}

/// Names holders of one lookup.
#[derive(Clone, Copy)]
pub(crate) struct Naming<'a> {
    slots: &'a RankSlots,
    count: u64,
    copied: Option<&'a [u64]>,
}

impl Naming<'_> {
    /// Whether the reader's copy was of no use.
    pub fn is_slow(&self) -> bool {
        self.copied.is_none()
    }

    /// Names all slots out of the copy, in order. False, with nothing added, where one cannot be named so.
    #[inline]
    pub fn all(&self, slots: &[u32], out: &mut Vec<RankTier>) -> bool {
        let Some(keys) = self.copied else { return false };
        let (start, mut nobody) = (out.len(), false);
        out.extend(slots.iter().map(|&slot| {
            let key = keys.get(rank_of(slot) as usize).copied().unwrap_or(NOBODY);
            nobody |= key == NOBODY;
            RankTier { rank: RankKey(key as u32), tier: Tier::ALL[tier_of(slot) as usize % Tier::COUNT] }
        }));
        if nobody {
            out.truncate(start);
        }
        !nobody
    }

    /// The rank of a slot; `None` where it is masked or has changed hands.
    #[inline]
    pub fn rank(&self, slot: u32) -> Option<RankKey> {
        let rank = rank_of(slot);
        match self.copied {
            Some(keys) => keys.get(rank as usize).filter(|&&key| key != NOBODY).map(|&key| RankKey(key as u32)),
            None => self.slots.name(rank, self.count),
        }
    }
}
