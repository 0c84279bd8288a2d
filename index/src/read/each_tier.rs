//! Survivors where each tier counts by itself: up to eight by name, more as a set.

use crate::cover::of_cut_key;
use crate::layout::{Entry, INLINE, rank_of, slot_of, tier_of};
use crate::read::found::Found;
use crate::read::walk::{Stretch, Survivors};
use crate::sync::{AtomicU64, Ordering};
use crate::types::Tier;

/// Bits of a slot in a packed partial holder: cutoff, then slot, so that they sort by cutoff.
const SLOT_BITS: u32 = 21;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// The survivors of a walk, and the memory to tell them; reused.
pub(crate) struct EachTier {
    few: [u32; INLINE],
    few_len: usize,
    /// Whether the survivors are in the set, not among the few.
    many: bool,
    alive: SlotSet,
    /// Who has all matched blocks of the run at hand.
    covering: SlotSet,
    /// Who has only a part of them, packed.
    partial: Vec<u32>,
    /// The answer.
    pub found: Found,
}

impl EachTier {
    pub fn new() -> Self {
        Self {
            few: [0; INLINE],
            few_len: 0,
            many: false,
            alive: SlotSet::default(),
            covering: SlotSet::default(),
            partial: Vec::with_capacity(64),
            found: Found::default(),
        }
    }

    /// Sizes the sets for so many words of 64 ranks. Allocates when that is more than ever before.
    #[inline]
    pub fn fit(&mut self, rank_words: usize) {
        self.alive.fit(rank_words);
        self.covering.fit(rank_words);
    }

    /// The first run's holders, from entries in its header.
    #[inline]
    fn first_few(&mut self, s: &Stretch<'_>) {
        let mut seen = 0u64;
        for entry in entries(s) {
            // An entry that went and came back at another place meanwhile is read twice: the first one counts.
            let bit = 1 << (entry.slot % 64);
            if seen & bit != 0 && self.knows(entry.slot) {
                continue;
            }
            seen |= bit;
            self.sort_in(entry, s.matched);
        }
        self.place_partial(s.depth);
    }

    fn knows(&self, slot: u32) -> bool {
        self.few[..self.few_len].contains(&slot) || self.partial.iter().any(|p| p & SLOT_MASK == slot)
    }

    /// A holder with at least one block of the run: among the few, or partial.
    #[inline]
    fn sort_in(&mut self, entry: Entry, matched: u32) {
        if entry.cut >= matched {
            self.few[self.few_len % INLINE] = entry.slot;
            self.few_len += 1;
        } else {
            self.partial.push(entry.cut << SLOT_BITS | entry.slot);
        }
    }

    /// Puts the partial holders where they end, nearest first.
    #[inline]
    fn place_partial(&mut self, depth: u32) {
        if self.partial.is_empty() {
            return;
        }
        self.partial.sort_unstable();
        self.found.extend(depth, self.partial.iter().map(|p| (p >> SLOT_BITS, p & SLOT_MASK)));
        self.partial.clear();
    }

    #[inline]
    fn next_few(&mut self, s: &Stretch<'_>) {
        let alive = self.few;
        let count = std::mem::take(&mut self.few_len);
        let inline = !s.fields.set_form();
        let words: [u64; INLINE / 2] = if inline { words(s) } else { [0; INLINE / 2] };
        for &slot in &alive[..count] {
            let cut = if inline { cut_among(&words, slot) } else { s.shard.cut(s.header, s.fields, slot).0 };
            if cut == 0 {
                self.found.push(s.depth, slot);
            } else {
                self.sort_in(Entry { slot, cut, private: false }, s.matched);
            }
        }
        self.place_partial(s.depth);
    }

    /// The first run's holders, as a set. The keys come by cutoff, so partial holders come in the order of the answer.
    fn first_many(&mut self, s: &Stretch<'_>) {
        self.many = true;
        let Self { alive, found, .. } = self;
        add_full(s, alive);
        s.shard.each_keys(s.fields, |keys| {
            let partial = keys.partition_point(|&key| of_cut_key(key).cut < s.matched);
            let (partial, whole) = keys.split_at(partial);
            found.extend(0, partial.iter().map(|&key| of_cut_key(key)).map(|e| (e.cut, e.slot)));
            for &key in whole {
                alive.add(of_cut_key(key).slot);
            }
        });
    }

    fn next_many(&mut self, s: &Stretch<'_>) {
        let Self { alive, covering, partial, found, .. } = self;
        covering.clear_as(alive);
        add_full(s, covering);
        // Each survivor counts once, also where a rumour names one twice: it is taken out of the set as it is met.
        s.shard.each_keys(s.fields, |keys| {
            for entry in keys.iter().map(|&key| of_cut_key(key)) {
                if entry.cut >= s.matched {
                    covering.mark(entry.slot);
                } else if alive.take(entry.slot) {
                    partial.push(entry.cut << SLOT_BITS | entry.slot);
                }
            }
        });
        alive.keep(covering, |slot| found.push(s.depth, slot));
        // The keys came by cutoff, so they are in order.
        found.extend(s.depth, partial.iter().map(|p| (p >> SLOT_BITS, p & SLOT_MASK)));
        partial.clear();
    }

    /// A run with up to eight holders after one with many: whoever survives it is one of the few.
    fn many_to_few(&mut self, s: &Stretch<'_>) {
        self.many = false;
        for entry in entries(s) {
            if self.alive.take(entry.slot) {
                self.sort_in(entry, s.matched);
            }
        }
        let Self { alive, found, .. } = self;
        alive.drain(|slot| found.push(s.depth, slot));
        self.place_partial(s.depth);
    }
}

impl Survivors for EachTier {
    #[inline]
    fn begin(&mut self) {
        self.few_len = 0;
        if self.many {
            self.many = false;
            self.alive.clear();
        }
        self.partial.clear();
        self.found.clear();
    }

    #[inline]
    fn enter(&mut self, s: &Stretch<'_>) {
        match (s.depth == 0, self.many, s.fields.set_form()) {
            (true, _, false) => self.first_few(s),
            (true, _, true) => self.first_many(s),
            (false, false, _) => self.next_few(s),
            (false, true, false) => self.many_to_few(s),
            (false, true, true) => self.next_many(s),
        }
    }

    #[inline]
    fn none_left(&self) -> bool {
        if self.many { self.alive.is_empty() } else { self.few_len == 0 }
    }

    #[inline]
    fn finish(&mut self, depth: u32) {
        let Self { few, few_len, alive, found, .. } = self;
        if self.many {
            alive.each(|slot| found.push(depth, slot));
        } else if *few_len > 0 {
            found.level(depth);
            found.slots.extend_from_slice(&few[..*few_len]);
        }
    }

    #[inline]
    fn ended(&self) -> usize {
        self.found.slots.len()
    }

    fn cut_off(&mut self, ended: usize, depth: u32) {
        self.found.clamp(ended, depth);
    }
}

#[inline]
fn words(s: &Stretch<'_>) -> [u64; INLINE / 2] {
    let words = s.header.holder_words();
    std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
}

/// The entries of a run in inline form.
#[inline]
fn entries(s: &Stretch<'_>) -> impl Iterator<Item = Entry> {
    words(s)
        .into_iter()
        .flat_map(|word| [word as u32, (word >> 32) as u32])
        .filter(|&word| word != 0)
        .map(Entry::unpack)
}

/// A holder's cutoff among the entries of an inline form; 0 when it has none. An entry that went and came back at another
/// place is read once, where it is met first.
#[inline]
fn cut_among(words: &[u64; INLINE / 2], slot: u32) -> u32 {
    for &word in words {
        for half in [word as u32, (word >> 32) as u32] {
            let entry = Entry::unpack(half);
            if entry.slot == slot && entry.cut != 0 {
                return entry.cut;
            }
        }
    }
    0
}

/// Adds the full holders of a run in set form that are bits.
fn add_full(s: &Stretch<'_>, all: &mut SlotSet) {
    all.add_words(0, s.header.holder_words());
    for page in s.shard.pages(s.fields) {
        all.add_words(page.first_slot(), page.words);
    }
}

/// A set of slots: one bit each, in words of 64 ranks, tier by tier. Work on it is bounded by the words in use.
#[derive(Default)]
pub(crate) struct SlotSet {
    words: Vec<u64>,
    /// Words of a tier, as a power of two.
    shift: u32,
    /// Words that may be other than zero.
    low: usize,
    high: usize,
}

impl SlotSet {
    fn fit(&mut self, rank_words: usize) {
        if rank_words > 1 << self.shift || self.words.is_empty() {
            self.shift = rank_words.next_power_of_two().trailing_zeros();
            self.words.clear();
            self.words.resize(Tier::COUNT << self.shift, 0);
            (self.low, self.high) = (0, 0);
        }
    }

    /// Place of a slot's word. A rank beyond the words is a rumour, or came after this lookup began: it has none.
    #[inline]
    fn place(&self, slot: u32) -> Option<usize> {
        let word = (rank_of(slot) / 64) as usize;
        (word < 1 << self.shift).then(|| ((tier_of(slot) as usize) << self.shift) + word)
    }

    #[inline]
    fn touch(&mut self, from: usize, to: usize) {
        if self.low == self.high {
            (self.low, self.high) = (from, to);
        } else {
            (self.low, self.high) = (self.low.min(from), self.high.max(to));
        }
    }

    fn clear(&mut self) {
        self.words[self.low..self.high].fill(0);
        (self.low, self.high) = (0, 0);
    }

    /// Empties the set and looks at the words of another one only.
    fn clear_as(&mut self, other: &SlotSet) {
        self.clear();
        (self.low, self.high) = (other.low, other.high);
    }

    /// Adds a slot; whether it was not there, and has a place.
    #[inline]
    fn add(&mut self, slot: u32) -> bool {
        let Some(i) = self.place(slot) else { return false };
        let Some(word) = self.words.get_mut(i) else { return false };
        let had = *word;
        *word |= 1 << (slot % 64);
        if had == 0 {
            self.touch(i, i + 1);
        }
        had >> (slot % 64) & 1 == 0
    }

    /// Adds a slot if it lies among the words that are looked at.
    #[inline]
    fn mark(&mut self, slot: u32) {
        let inside = self.place(slot).filter(|i| (self.low..self.high).contains(i));
        if let Some(word) = inside.and_then(|i| self.words.get_mut(i)) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Takes a slot out; whether it was there.
    #[inline]
    fn take(&mut self, slot: u32) -> bool {
        let Some(word) = self.place(slot).and_then(|i| self.words.get_mut(i)) else { return false };
        let had = *word;
        *word &= !(1 << (slot % 64));
        *word != had
    }

    /// Adds full holders, 64 ranks of one tier a word; `first` is the first one's slot.
    #[inline]
    fn add_words(&mut self, first: u32, from: &[AtomicU64]) {
        let Some(start) = self.place(first) else { return };
        let end = ((tier_of(first) as usize + 1) << self.shift).min(start + from.len());
        let Some(to) = self.words.get_mut(start..end) else { return };
        let mut any = 0;
        for (to, from) in to.iter_mut().zip(from) {
            *to |= from.load(Ordering::Relaxed);
            any |= *to;
        }
        if any != 0 {
            self.touch(start, end);
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.words[self.low..self.high].iter().all(|&w| w == 0)
    }

    /// Keeps who is in `other`, too; `gone` gets the rest.
    fn keep(&mut self, other: &SlotSet, mut gone: impl FnMut(u32)) {
        for i in self.low..self.high {
            let (had, keep) = (self.words[i], other.words[i]);
            each_bit(first_slot(self.shift, i), had & !keep, &mut gone);
            self.words[i] = had & keep;
        }
    }

    fn each(&self, mut see: impl FnMut(u32)) {
        for i in self.low..self.high {
            each_bit(first_slot(self.shift, i), self.words[i], &mut see);
        }
    }

    fn drain(&mut self, see: impl FnMut(u32)) {
        self.each(see);
        self.clear();
    }
}

/// The slot of a word's first bit.
#[inline]
fn first_slot(shift: u32, word: usize) -> u32 {
    let rank = (word & ((1 << shift) - 1)) as u32 * 64;
    Tier::from_index(word >> shift).map_or(rank, |tier| slot_of(rank, tier))
}

#[inline]
fn each_bit(first: u32, mut bits: u64, mut see: impl FnMut(u32)) {
    while bits != 0 {
        see(first + bits.trailing_zeros());
        bits &= bits - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{EachTier, SLOT_BITS};
    use crate::layout::slot_of;
    use crate::read::walk::Survivors;
    use crate::types::Tier;

    /// A set of slots keeps to the words in use, whatever tier they are of.
    #[test]
    fn a_set_equals_a_set() {
        let mut survivors = EachTier::new();
        survivors.fit(3);
        let slots: Vec<u32> = Tier::ALL.into_iter().flat_map(|t| [0, 63, 64, 191].map(|r| slot_of(r, t))).collect();
        let (all, some) = (&mut survivors.alive, &mut survivors.covering);
        assert!(slots.iter().all(|&s| all.add(s)) && !all.add(slots[3]));
        assert!(!all.add(slot_of(256, Tier::Device)), "a rank beyond the words has no place");
        let kept: Vec<u32> = slots.iter().copied().step_by(3).collect();
        some.clear_as(all);
        kept.iter().for_each(|&s| assert!(some.add(s)));
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        all.keep(some, |s| gone.push(s));
        all.each(|s| left.push(s));
        assert_eq!(left, kept);
        assert!(slots.iter().all(|s| kept.contains(s) != gone.contains(s)));
        assert!(all.take(kept[1]) && !all.take(kept[1]) && all.take(kept[2]));
        all.clear();
        assert!(all.is_empty() && all.words.iter().all(|&w| w == 0));
    }

    /// Partial holders come out by depth, and a cut off answer has them all at its depth.
    #[test]
    fn partial_holders_end_by_depth() {
        let mut survivors = EachTier::new();
        survivors.fit(1);
        survivors.partial.extend([(5, 3), (6, 1), (7, 3)].map(|(slot, cut)| cut << SLOT_BITS | slot));
        survivors.place_partial(10);
        let by_depth = |s: &EachTier| s.found.iter().map(|(d, slots)| (d, slots.to_vec())).collect::<Vec<_>>();
        assert_eq!(by_depth(&survivors), [(11, vec![6]), (13, vec![5, 7])]);
        assert_eq!(survivors.ended(), 3);
        survivors.cut_off(1, 12);
        assert_eq!(by_depth(&survivors), [(11, vec![6]), (12, vec![5, 7])]);
        survivors.cut_off(0, 10);
        assert_eq!(by_depth(&survivors), [(10, vec![6, 5, 7])]);
    }
}
