//! What a lane learns of a run before it changes one holder of it: that holder's part, and how far everybody else reaches.
//! One pass over the coverage answers all of it, so that an event reads a run's holders once.

use crate::cover::{Seat, tree};
use crate::error::IndexError;
use crate::lane::work::{HeldRun, Work};
use crate::layout::{CROWD, Entry, Fields, HEADER_SLOTS, Header, rank_of};
use crate::shard::Shard;
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
    /// Longest prefix that others of this lane hold under canonical names; less where that does not matter, as the holder has its
    /// part under private ones.
    pub others_mapped: u32,
    /// Where the holder's part is written.
    pub seat: Seat,
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
    /// Sets the cutoff of a holder that a survey has found, or not found, at this seat.
    #[inline]
    pub fn set_cut(&mut self, held: &mut HeldRun<'_>, entry: Entry, seat: Seat) -> Result<(), IndexError> {
        let HeldRun { header, f, lock, .. } = held;
        self.shard.set_cut_at(&mut self.scratch.drafts, lock, *header, f, entry, seat)
    }

    /// The run's holders as this operation's holder sees them. Under LOCK.
    #[inline]
    pub fn survey(&self, held: &HeldRun<'_>) -> Survey {
        survey(self.shard, held.header, &held.f, self.slot(), self.mine)
    }

    /// Only how much of a run this operation's holder has, and of which kind. Under LOCK.
    #[inline]
    pub fn survey_own(&self, held: &HeldRun<'_>) -> Survey {
        let (cut, private) = self.shard.cut(held.header, &held.f, self.slot());
        Survey { cut, private, ..Survey::default() }
    }
}

#[inline]
fn survey(shard: &Shard, header: Header<'_>, f: &Fields, slot: u32, mine: &[u64]) -> Survey {
    let mut all = Survey::default();
    if f.flags & CROWD != 0 {
        survey_crowd(shard, header, f, slot, mine, &mut all);
    } else if f.set_form() {
        survey_set(shard, header, f, slot, mine, &mut all);
    } else {
        for (i, word) in header.holder_words().iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            if word != 0 {
                all.add(Entry::unpack(word as u32), Seat::Entry(2 * i as u8), slot, mine);
                all.add(Entry::unpack((word >> 32) as u32), Seat::Entry(2 * i as u8 + 1), slot, mine);
            }
        }
    }
    all
}

/// Whether the rank of a holder's slot is one of these.
#[inline]
pub(crate) fn is_mine(mine: &[u64], slot: u32) -> bool {
    let rank = rank_of(slot);
    mine_of(mine, rank) >> (rank % 64) & 1 == 1
}

/// Which of the 64 ranks around this one are the lane's.
#[inline]
fn mine_of(mine: &[u64], rank: u32) -> u64 {
    mine.get(rank as usize / 64).copied().unwrap_or(0)
}

/// Whether any full holder with a bit in a header is one of these.
#[inline]
pub(super) fn any_mine(bits: &[AtomicU64], mine: &[u64]) -> bool {
    bits.iter().zip(mine).any(|(bits, mine)| bits.load(Ordering::Relaxed) & mine != 0)
}

impl Survey {
    /// Counts an entry in; an empty one (cutoff 0) changes nothing.
    #[inline]
    fn add(&mut self, entry: Entry, seat: Seat, slot: u32, mine: &[u64]) {
        if entry.cut == 0 {
            return;
        }
        if entry.slot == slot {
            (self.cut, self.private, self.seat) = (entry.cut, entry.private, seat);
            return;
        }
        self.others = self.others.max(entry.cut);
        if !entry.private && is_mine(mine, entry.slot) {
            self.others_mapped = self.others_mapped.max(entry.cut);
        }
    }

    /// Counts full holders in, 64 ranks of one tier at a time; `first` is the first one's slot.
    #[inline]
    fn add_full(&mut self, first: u32, full: &[AtomicU64], private: bool, len: u32, slot: u32, mine: &[u64]) {
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

/// Bits first, then the holder's own key; of the others' only the furthest, and none where the bits tell all.
#[inline]
fn survey_set(shard: &Shard, header: Header<'_>, f: &Fields, slot: u32, mine: &[u64], all: &mut Survey) {
    if slot < HEADER_SLOTS && header.holder_words()[slot as usize / 64].load(Ordering::Relaxed) >> (slot % 64) & 1 == 1
    {
        (all.cut, all.seat) = (f.len, Seat::Bit);
    } else if let Some((i, own)) = tree::seat_of(&shard.arena, f.ext, slot) {
        (all.cut, all.private, all.seat) = (own.cut, own.private, Seat::Key(i));
    }
    all.add_full(0, header.holder_words(), false, f.len, slot, mine);
    // A private holder's coming or going maps no canonical name.
    let open = |all: &Survey| all.others == 0 || all.others_mapped == 0 && !all.private;
    for entry in tree::leaf(&shard.arena, f.ext).rev().filter(|entry| entry.slot != slot) {
        if !open(all) {
            break;
        }
        all.add(entry, Seat::Nowhere, slot, mine);
    }
    debug_assert!(all.others <= f.len);
}

/// Bits first, then the furthest keys: it ends where nobody can reach further.
fn survey_crowd(shard: &Shard, header: Header<'_>, f: &Fields, slot: u32, mine: &[u64], all: &mut Survey) {
    (all.cut, all.private) = shard.cut(header, f, slot);
    all.seat = Seat::Crowd;
    all.add_full(0, header.holder_words(), false, f.len, slot, mine);
    for page in shard.pages(f) {
        all.add_full(page.first_slot(), page.words, page.private(), f.len, slot, mine);
    }
    // A private holder's coming or going maps no canonical name.
    let (private, full, mapped) = (all.private, all.others, all.others_mapped);
    let open = |others, mapped| others == 0 || mapped == 0 && !private;
    if open(full, mapped) {
        shard.each_key_back(f, |entry| {
            if entry.slot != slot {
                all.add(entry, Seat::Crowd, slot, mine);
            }
            open(all.others, all.others_mapped)
        });
    }
    debug_assert!(all.others <= f.len);
}
