//! Rank slots of a shard: whose holdings a slot's entries are, and when that may be believed.
//!
//! A lane gets slots in words of sixteen ranks, so that "is this holder mine" is a word index. A slot is used again after its
//! last rank was masked and swept. Each use has a *stamp* from a counter of the shard, which rises whenever a slot is given
//! or masked: a lookup reads the counter first, and names a slot only if it is unmasked and its stamp is not above that, so
//! no answer names a rank from entries of the slot's earlier or later life. A reader that finds the counter where it was
//! when it last copied the names, before and after its walk, may use its copy instead (read/names.rs).

use crate::error::IndexError;
use crate::fault::{Fault, injected};
use crate::layout::RANKS_END;
use crate::sync::{AtomicU64, Mutex, Ordering, fence};
use crate::types::RankKey;

/// Ranks of a word.
pub(crate) const WORD_RANKS: u32 = if cfg!(loom) { 2 } else { 16 };
/// Slots that a lane may have masked and not yet swept.
pub(crate) const RETIRED_MAX: u32 = if cfg!(loom) { 0 } else { 256 };
const MASKED: u64 = 1;

struct State {
    words: u32,
    /// Words that a lane gave back.
    spare: Vec<u32>,
    open: u32,
}

/// The slot table.
pub(crate) struct RankSlots {
    /// stamp << 1 | masked. 1 = never given.
    stamps: Box<[AtomicU64]>,
    keys: Box<[AtomicU64]>,
    /// Changes so far, the latest stamp among them.
    given: AtomicU64,
    words_end: AtomicU64,
    state: Mutex<State>,
    ranks_max: u32,
}

impl RankSlots {
    pub fn new(ranks_max: u32, lanes: u32) -> Self {
        // At worst each open rank, and each slot that is not swept yet, is alone on its word, and each lane keeps one empty
        // word.
        let ranks = ((ranks_max + lanes * (1 + RETIRED_MAX)) * WORD_RANKS).min(RANKS_END);
        Self {
            stamps: (0..ranks).map(|_| AtomicU64::new(MASKED)).collect(),
            keys: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            given: AtomicU64::new(0),
            words_end: AtomicU64::new(0),
            state: Mutex::new(State { words: 0, spare: Vec::new(), open: 0 }),
            ranks_max,
        }
    }

    /// Rank slots that could ever be given.
    pub fn capacity(&self) -> u32 {
        self.stamps.len() as u32
    }

    /// Words of ranks in use: bounds what a lookup has to look at.
    #[inline]
    pub fn words(&self) -> usize {
        // Acquire: pairs with the Release in `take_word`; entries of a word are only stored after it is counted.
        self.words_end.load(Ordering::Acquire) as usize
    }

    /// Words of 64 ranks in use.
    #[inline]
    pub fn rank_words(&self) -> usize {
        self.words().div_ceil(64 / WORD_RANKS as usize)
    }

    /// Counts one more open rank.
    pub fn open_one(&self) -> Result<(), IndexError> {
        let mut state = self.state.lock();
        if state.open >= self.ranks_max {
            return Err(IndexError::RanksFull { limit: self.ranks_max });
        }
        state.open += 1;
        Ok(())
    }

    /// Counts one open rank less.
    pub fn close_one(&self) {
        self.state.lock().open -= 1;
    }

    /// A word of slots for a lane, if there is one left.
    pub fn take_word(&self) -> Option<u32> {
        let mut state = self.state.lock();
        if let Some(word) = state.spare.pop() {
            return Some(word);
        }
        let word = state.words;
        if (word + 1) * WORD_RANKS > self.capacity() {
            return None;
        }
        state.words += 1;
        // Release: pairs with the Acquire in `words`.
        self.words_end.store(u64::from(state.words), Ordering::Release);
        Some(word)
    }

    /// Takes back a word whose ranks are all masked and swept: ranks that move between lanes must not use up the words.
    pub fn give_back(&self, word: u32) {
        self.state.lock().spare.push(word);
    }

    /// Open ranks.
    pub fn open(&self) -> u32 {
        self.state.lock().open
    }

    /// Gives a slot to a rank, after the sweep of its last one. The lane's entries for it come later, with Release stores.
    pub fn give(&self, slot: u32, key: RankKey) {
        let _one_at_a_time = self.state.lock();
        let stamp = self.given.load(Ordering::Relaxed) + 1;
        self.keys[slot as usize].store(u64::from(key.0), Ordering::Relaxed);
        // Release, both: pair with `count` and `name`. The stamp is there before the count covers it.
        self.stamps[slot as usize].store(stamp << 1, Ordering::Release);
        self.given.store(stamp, Ordering::Release);
    }

    /// Hides a slot from every answer from now on.
    pub fn mask(&self, slot: u32) {
        let _one_at_a_time = self.state.lock();
        let word = self.stamps[slot as usize].load(Ordering::Relaxed);
        self.stamps[slot as usize].store(word | MASKED, Ordering::Relaxed);
        // Release: pairs with `count`. Whoever reads this count sees the mask.
        self.given.store(self.given.load(Ordering::Relaxed) + 1, Ordering::Release);
        // Release fence: pairs with the Acquire fence of a lookup before it names: if it saw an entry stored after this, it
        // sees the mask or a later stamp, and the count raised.
        if !injected(Fault::MaskUnfenced) {
            fence(Ordering::Release);
        }
    }

    /// What a lookup reads before anything else.
    #[inline]
    pub fn count(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    /// Whether no slot was given or masked since `count`, as far as a lookup's reads of entries can tell. After the last of
    /// them, and after a fence(Acquire).
    #[inline]
    pub fn unchanged(&self, count: u64) -> bool {
        self.given.load(Ordering::Relaxed) == count
    }

    /// Whose slot it is, if entries read since `count` can be told to be that rank's. After the lookup's last read of an
    /// entry, and after a fence(Acquire).
    #[inline]
    pub fn name(&self, slot: u32, count: u64) -> Option<RankKey> {
        let stamp = self.stamps.get(slot as usize)?;
        let word = stamp.load(Ordering::Relaxed);
        if word & MASKED != 0 || word >> 1 > count && !injected(Fault::StampNotCompared) {
            return None;
        }
        let key = self.keys[slot as usize].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (stamp.load(Ordering::Relaxed) == word).then_some(RankKey(key as u32))
    }

    /// Whether any rank ever had the slot: entries of it may still be about. As [`RankSlots::name`].
    pub fn was_given(&self, slot: u32) -> bool {
        self.stamps.get(slot as usize).is_some_and(|stamp| stamp.load(Ordering::Relaxed) != MASKED)
    }

    /// The slot of an open rank, by a walk over all.
    pub fn find(&self, key: RankKey) -> Option<u32> {
        let count = self.count();
        fence(Ordering::Acquire);
        (0..(self.words() as u32 * WORD_RANKS)).find(|&slot| self.name(slot, count) == Some(key))
    }
}
