//! What a lane learns of a run before it changes one holder of it: that holder's part, and how far everybody else reaches.
//! One pass over the coverage answers all of it, so that an event reads a run's holders once.

use crate::lane::work::{HeldRun, Work};
use crate::layout::{Entry, Fields, Header, rank_of};
use crate::shard::Shard;
use crate::slots::WORD_RANKS;
use crate::sync::{AtomicU64, Ordering};

/// One holder's part of a run, and that of all others together.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Blocks the holder has; 0 when it has none.
    pub cut: u32,
    /// Whether it has them under private names.
    pub private: bool,
    /// Longest prefix that anybody else holds.
    pub others: u32,
    /// Longest prefix that others of this lane hold under canonical names.
    pub others_mapped: u32,
}

impl Survey {
    /// Longest prefix that this lane holds canonically when the holder's part is `cut` of this kind: its names are mapped so far.
    #[inline]
    pub fn mapped_with(&self, cut: u32, private: bool) -> u32 {
        if private { self.others_mapped } else { self.others_mapped.max(cut) }
    }

    /// Longest prefix whose names are mapped now.
    #[inline]
    pub fn mapped(&self) -> u32 {
        self.mapped_with(self.cut, self.private)
    }
}

impl Work<'_> {
    /// The run's holders as this operation's holder sees them. Under LOCK.
    #[inline]
    pub fn survey(&self, held: &HeldRun<'_>) -> Survey {
        survey(self.shard, held.header, &held.f, self.slot(), self.mine)
    }
}

#[inline]
fn survey(shard: &Shard, header: Header<'_>, f: &Fields, slot: u32, mine: &[bool]) -> Survey {
    let mut all = Survey::default();
    if f.set_form() {
        survey_set(shard, header, f, slot, mine, &mut all);
        return all;
    }
    for word in header.holder_words() {
        let word = word.load(Ordering::Relaxed);
        if word == 0 {
            continue;
        }
        all.add(Entry::unpack(word as u32), slot, mine);
        all.add(Entry::unpack((word >> 32) as u32), slot, mine);
    }
    all
}

#[inline]
fn is_mine(mine: &[bool], word: usize) -> bool {
    mine.get(word).copied().unwrap_or(false)
}

/// Which of 64 ranks from this one on are the lane's: a lane owns ranks by words.
#[inline]
fn mine_of(mine: &[bool], rank: u32) -> u64 {
    const WORD: u64 = (1 << WORD_RANKS) - 1;
    let words = (0..64 / WORD_RANKS).filter(|&i| is_mine(mine, (rank / WORD_RANKS + i) as usize));
    words.fold(0, |bits, i| bits | WORD << (i * WORD_RANKS))
}

impl Survey {
    /// Counts an entry in; an empty one (cutoff 0) changes nothing.
    #[inline]
    fn add(&mut self, entry: Entry, slot: u32, mine: &[bool]) {
        if entry.cut == 0 {
            return;
        }
        if entry.slot == slot {
            (self.cut, self.private) = (entry.cut, entry.private);
            return;
        }
        self.others = self.others.max(entry.cut);
        if !entry.private && is_mine(mine, (rank_of(entry.slot) / WORD_RANKS) as usize) {
            self.others_mapped = self.others_mapped.max(entry.cut);
        }
    }

    /// Counts full holders in, 64 ranks of one tier at a time; `first` is the first one's slot.
    #[inline]
    fn add_full(&mut self, first: u32, full: &[AtomicU64], private: bool, len: u32, slot: u32, mine: &[bool]) {
        for (i, word) in full.iter().enumerate() {
            let first = first + i as u32 * 64;
            let mut bits = word.load(Ordering::Relaxed);
            if first == slot & !63 {
                bits &= !(1 << (slot % 64));
            }
            if bits != 0 {
                self.others = len;
                if !private && bits & mine_of(mine, rank_of(first)) != 0 {
                    self.others_mapped = len;
                }
            }
        }
    }
}

/// Bits first, then the furthest keys: it ends where nobody can reach further.
fn survey_set(shard: &Shard, header: Header<'_>, f: &Fields, slot: u32, mine: &[bool], all: &mut Survey) {
    (all.cut, all.private) = shard.cut(header, f, slot);
    all.add_full(0, header.holder_words(), false, f.len, slot, mine);
    for page in shard.pages(f) {
        all.add_full(page.first_slot(), page.words, page.private(), f.len, slot, mine);
    }
    let (full, mapped) = (all.others, all.others_mapped);
    if full == 0 || mapped == 0 {
        shard.each_key_back(f, |entry| {
            if entry.slot != slot {
                all.add(entry, slot, mine);
            }
            all.others == 0 || all.others_mapped == 0
        });
    }
    debug_assert!(all.others <= f.len);
}
