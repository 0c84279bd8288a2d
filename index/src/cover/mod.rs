//! Coverage: which holders have how much of a run.
//!
//! Up to eight holders stand in the header as entries with explicit cutoffs (*inline form*, the only one that may be
//! appended to). More are in *set form*: full holders among the first 256 ranks' device tier are bits in the header, all
//! others are keys that sort by cutoff. Up to 30 keys are one holder block. More are a *crowd*: a tree of keys by cutoff,
//! which readers walk so that holders of one depth come together; a tree of the same by slot, in which writers find one
//! holder; and pages of bits for full holders where many stand side by side. One holder changes in a few lines of each.
//!
//! Reads are plain loads: the caller holds LOCK, or judges them by the version. Changes happen under LOCK only; one word at
//! a time with a Release store, or as a whole inside an odd window (rule R1).

mod change;
pub(crate) mod image;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use crate::layout::{
    Block, CROWD, Entry, Fields, HEADER_SLOTS, Header, INLINE, PAGE_RANKS, RANKS_END, half, rank_of, slot_of, tier_of,
};
use crate::prefetch::read_soon;
use crate::shard::Shard;
use crate::sync::{AtomicU64, Ordering};
use crate::types::Tier;

/// A key that sorts by cutoff: cutoff : 10 | slot : 21 | private : 1.
#[inline]
pub(crate) fn by_cut(entry: Entry) -> u32 {
    entry.cut << 22 | entry.slot << 1 | u32::from(entry.private)
}
/// The entry of a key that sorts by cutoff.
#[inline]
pub(crate) fn of_cut_key(key: u32) -> Entry {
    Entry { cut: key >> 22, slot: key >> 1 & 0x1f_ffff, private: key & 1 == 1 }
}
/// A key that sorts by slot: slot : 21 | cutoff : 10 | private : 1.
#[inline]
fn by_slot(entry: Entry) -> u32 {
    entry.slot << 11 | entry.cut << 1 | u32::from(entry.private)
}
#[inline]
fn of_slot_key(key: u32) -> Entry {
    Entry { slot: key >> 11, cut: key >> 1 & 0x3ff, private: key & 1 == 1 }
}

/// A slot's entry among packed ones, and which it is. Most words are empty or nearly so, and looked at once.
#[inline]
fn entry_of(words: &[AtomicU64], slot: u32) -> Option<(usize, Entry)> {
    for (i, word) in words.iter().enumerate() {
        let word = word.load(Ordering::Relaxed);
        if word == 0 {
            continue;
        }
        let [first, second] = [Entry::unpack(word as u32), Entry::unpack((word >> 32) as u32)];
        if first.slot == slot && first.cut != 0 {
            return Some((2 * i, first));
        }
        if second.slot == slot && second.cut != 0 {
            return Some((2 * i + 1, second));
        }
    }
    None
}

/// Which page of bits a full holder belongs to: private : 1 | tier : 2 | number among the tier's.
#[inline]
fn page_of(slot: u32, private: bool) -> u32 {
    u32::from(private) << 31 | tier_of(slot) << 20 | (rank_of(slot) / PAGE_RANKS)
}

/// A page of bits of a crowd.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    id: u32,
    key: u32,
    next: u32,
    pub words: &'a [AtomicU64],
}

impl Page<'_> {
    /// The slot of the page's first bit.
    #[inline]
    pub fn first_slot(&self) -> u32 {
        let rank = (self.key & 0xf_ffff) * PAGE_RANKS % RANKS_END;
        Tier::from_index((self.key >> 20 & 3) as usize).map_or(rank, |tier| slot_of(rank, tier))
    }
    /// Whether its holders are full under private names.
    pub fn private(&self) -> bool {
        self.key >> 31 == 1
    }
}

/// No key of a leaf.
pub(crate) const NO_KEY: u8 = u8::MAX;

/// Where a holder's part of a run is written, as found under LOCK: good until the coverage changes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Seat {
    /// It has none.
    #[default]
    Nowhere,
    /// This entry of the header.
    Entry(u8),
    /// A bit of the header.
    Bit,
    /// This key of the one holder block.
    Key(u8),
    /// Somewhere in a crowd.
    Crowd,
}

/// Where a holder of a set form stands.
enum Place<'a> {
    Nowhere,
    /// The word of its bit, and whether it is full under private names.
    Bit(&'a AtomicU64, bool),
    Key(Entry),
}

/// The bit of a slot in a page's words.
#[inline]
fn page_bit(slot: u32) -> (usize, u64) {
    let in_page = rank_of(slot) % PAGE_RANKS;
    ((in_page / 64) as usize, 1 << (in_page % 64))
}

/// The bit of a slot in the word of [`Place::Bit`]; pages begin at a multiple of 64 ranks.
#[inline]
fn bit_of(slot: u32) -> u64 {
    1 << (slot % 64)
}

#[inline]
fn is_set(word: &AtomicU64, bit: u64) -> bool {
    word.load(Ordering::Relaxed) & bit != 0
}

impl Shard {
    /// The root of the keys by cutoff, and of those by slot, which only a crowd has.
    #[inline]
    fn roots(&self, f: &Fields) -> (u32, u32) {
        if f.flags & CROWD == 0 { (f.ext, 0) } else { self.arena.block(f.ext).roots() }
    }

    /// Asks for the first holder block of a run in set form, to be read soon.
    #[inline]
    pub(crate) fn expect_holders(&self, f: &Fields) {
        if f.ext != 0 {
            let block = self.arena.block(f.ext).words();
            read_soon(&block[0]);
            read_soon(&block[8]);
        }
    }

    /// The pages of bits of a run in set form. Bounded even when the links are rumours.
    #[inline]
    pub(crate) fn pages(&self, f: &Fields) -> impl Iterator<Item = Page<'_>> {
        let mut id = if f.flags & CROWD == 0 { 0 } else { self.arena.block(f.ext).first_page() };
        let mut left = self.blocks_walked_max;
        std::iter::from_fn(move || {
            if id == 0 || left == 0 {
                return None;
            }
            left -= 1;
            let block: Block<'_> = self.arena.block(id);
            let (key, next) = block.page_head();
            let page = Page { id, key, next, words: block.page_bits() };
            id = next;
            Some(page)
        })
    }

    /// Calls `see` with the keys by cutoff of a run in set form, ascending, some at a time.
    #[inline]
    pub(crate) fn each_keys(&self, f: &Fields, mut see: impl FnMut(&[u32])) {
        tree::each_leaf(&self.arena, self.roots(f).0, self.blocks_walked_max, &mut see);
    }

    /// Calls `see` with the holders of a run in set form that are no bits, the furthest first, until it says false.
    #[inline]
    pub(crate) fn each_key_back(&self, f: &Fields, mut see: impl FnMut(Entry) -> bool) {
        let _ = tree::each_back(&self.arena, self.roots(f).0, self.blocks_walked_max, &mut |key| see(of_cut_key(key)));
    }

    /// Cutoff and kind of name of a slot in a run; cutoff 0 when it holds nothing.
    #[inline]
    pub(crate) fn cut(&self, header: Header<'_>, f: &Fields, slot: u32) -> (u32, bool) {
        if !f.set_form() {
            return match entry_of(header.holder_words(), slot) {
                Some((_, entry)) => (entry.cut, entry.private),
                None => (0, false),
            };
        }
        match self.place(header, f, slot) {
            Place::Nowhere => (0, false),
            Place::Bit(_, private) => (f.len, private),
            Place::Key(entry) => (entry.cut, entry.private),
        }
    }

    fn place<'a>(&'a self, header: Header<'a>, f: &Fields, slot: u32) -> Place<'a> {
        if slot < HEADER_SLOTS {
            let word = &header.holder_words()[slot as usize / 64];
            if is_set(word, bit_of(slot)) {
                return Place::Bit(word, false);
            }
        }
        if f.flags & CROWD == 0 {
            return tree::seat_of(&self.arena, f.ext, slot).map_or(Place::Nowhere, |(_, entry)| Place::Key(entry));
        }
        let wanted = page_of(slot, false);
        for page in self.pages(f).filter(|p| p.key & !(1 << 31) == wanted) {
            let (word, bit) = page_bit(slot);
            if is_set(&page.words[word], bit) {
                return Place::Bit(&page.words[word], page.private());
            }
        }
        match tree::at_least(&self.arena, self.roots(f).1, slot << 11).map(of_slot_key) {
            Some(entry) if entry.slot == slot => Place::Key(entry),
            _ => Place::Nowhere,
        }
    }

    /// Which key of the one holder block of a run in set form is a holder's, or [`NO_KEY`].
    #[inline]
    pub(crate) fn key_of(&self, f: &Fields, slot: u32) -> u8 {
        tree::seat_of(&self.arena, f.ext, slot).map_or(NO_KEY, |seat| seat.0)
    }

    /// Calls `see` for every holder.
    #[inline]
    pub(crate) fn each_holder(&self, header: Header<'_>, f: &Fields, mut see: impl FnMut(Entry)) {
        if !f.set_form() {
            for i in 0..INLINE {
                let entry = Entry::unpack(half(header.holder_words(), i));
                if entry.cut != 0 {
                    see(entry);
                }
            }
            return;
        }
        let cut = f.len;
        each_bit(0, header.holder_words(), |slot| see(Entry { slot, cut, private: false }));
        for page in self.pages(f) {
            let (first, private) = (page.first_slot(), page.private());
            each_bit(first, page.words, |slot| see(Entry { slot, cut, private }));
        }
        self.each_keys(f, |keys| keys.iter().for_each(|&key| see(of_cut_key(key))));
    }

    /// Longest prefix of the run held by anyone, and by holders of `mine` under canonical names.
    pub(crate) fn reach(&self, header: Header<'_>, f: &Fields, mine: impl Fn(u32) -> bool) -> (u32, u32) {
        let (mut any, mut canonical) = (0, 0);
        self.each_holder(header, f, |e| {
            any = any.max(e.cut);
            if !e.private && mine(e.slot) {
                canonical = canonical.max(e.cut);
            }
        });
        (any, canonical)
    }

    /// Longest prefix of the run held by anyone. A few lines, however many hold it.
    pub(crate) fn furthest(&self, header: Header<'_>, f: &Fields) -> u32 {
        if !f.set_form() {
            return self.reach(header, f, |_| false).0;
        }
        let any = |words: &[AtomicU64]| words.iter().any(|w| w.load(Ordering::Relaxed) != 0);
        if any(header.holder_words()) || self.pages(f).any(|p| any(p.words)) {
            return f.len;
        }
        let mut furthest = 0;
        self.each_key_back(f, |entry| {
            furthest = entry.cut;
            false
        });
        furthest
    }

    /// How many hold anything of a run.
    pub(crate) fn count_holders(&self, header: Header<'_>, f: &Fields) -> u32 {
        if f.set_form() {
            return f.holders;
        }
        (0..INLINE).filter(|&i| half(header.holder_words(), i) != 0).count() as u32
    }

    /// How many hold a run to its end, counted as far as about `most`. A few lines, however many they are.
    pub(crate) fn count_full(&self, header: Header<'_>, f: &Fields, most: u32) -> u32 {
        if !f.set_form() {
            let full = |i| Entry::unpack(half(header.holder_words(), i)).cut == f.len;
            return (0..INLINE).filter(|&i| full(i)).count() as u32;
        }
        let bits = |words: &[AtomicU64]| words.iter().map(|w| w.load(Ordering::Relaxed).count_ones()).sum::<u32>();
        let mut full = bits(header.holder_words());
        for page in self.pages(f) {
            if full >= most {
                break;
            }
            full += bits(page.words);
        }
        self.each_key_back(f, |entry| {
            full += u32::from(entry.cut == f.len);
            full < most && entry.cut == f.len
        });
        full
    }

    /// Calls `see` with every holder block of a run. Under LOCK, or where nobody changes it.
    pub(crate) fn each_block(&self, f: &Fields, see: &mut impl FnMut(u32)) {
        if !f.set_form() || f.ext == 0 {
            return;
        }
        let (cuts, slots) = self.roots(f);
        tree::each_block(&self.arena, cuts, see);
        tree::each_block(&self.arena, slots, see);
        self.pages(f).for_each(|p| see(p.id));
        if f.flags & CROWD != 0 {
            see(f.ext);
        }
    }

    /// Checks what a set form promises (I9): both trees tell the same, in order; no page is empty.
    pub(crate) fn check_set(&self, header: Header<'_>, f: &Fields) -> Result<(), String> {
        if !f.set_form() {
            return Ok(());
        }
        let (cuts, slots) = self.roots(f);
        let keys = |root| {
            let mut keys = Vec::new();
            tree::each_leaf(&self.arena, root, u32::MAX, &mut |some| keys.extend_from_slice(some));
            keys
        };
        let (cuts, slots) = (keys(cuts), keys(slots));
        if !cuts.is_sorted_by(|a, b| a < b) || !slots.is_sorted_by(|a, b| a < b) {
            return Err("I9: keys out of order".into());
        }
        if f.flags & CROWD == 0 {
            return if cuts.len() <= tree::KEYS { Ok(()) } else { Err("I9: more keys than a block has".into()) };
        }
        let mut again: Vec<u32> = cuts.iter().map(|&key| by_slot(of_cut_key(key))).collect();
        again.sort_unstable();
        if again != slots {
            return Err(format!("I9: {} keys by cutoff and {} by slot differ", cuts.len(), slots.len()));
        }
        if self.pages(f).any(|p| p.words.iter().all(|w| w.load(Ordering::Relaxed) == 0)) {
            return Err("I9: an empty page of full holders".into());
        }
        match self.furthest(header, f) == self.reach(header, f, |_| false).0 {
            true => Ok(()),
            false => Err("I9: the furthest holder is another".into()),
        }
    }
}

/// Calls `see` for each set bit of some words, the first of which is `first`'s.
#[inline]
fn each_bit(first: u32, words: &[AtomicU64], mut see: impl FnMut(u32)) {
    for (i, word) in words.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            see(first + i as u32 * 64 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
}
