//! Survivors where each tier counts by itself: up to eight by name, more as a set.

use crate::cover::{by_cut, of_cut_key};
use crate::layout::{Entry, INLINE, rank_of, tier_of};
use crate::read::found::{Found, word_number};
use crate::read::walk::{Stretch, Survivors};
use crate::sync::{AtomicU64, Ordering};
use crate::types::Tier;

/// The survivors of a walk, and the memory to tell them; reused.
pub(crate) struct EachTier {
    few: [u32; INLINE],
    few_len: usize,
    /// Whether the survivors are in the set, not among the few.
    many: bool,
    alive: SlotSet,
    /// Who has all matched blocks of the run at hand.
    covering: SlotSet,
    /// Who has only a part of them, as keys that sort by cutoff.
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
        self.few[..self.few_len].contains(&slot) || self.partial.iter().any(|&key| of_cut_key(key).slot == slot)
    }

    /// A holder with at least one block of the run: among the few, or partial.
    #[inline]
    fn sort_in(&mut self, entry: Entry, matched: u32) {
        if entry.cut >= matched {
            self.few[self.few_len % INLINE] = entry.slot;
            self.few_len += 1;
        } else {
            self.partial.push(by_cut(entry));
        }
    }

    /// Puts the partial holders where they end, nearest first.
    #[inline]
    fn place_partial(&mut self, depth: u32) {
        if self.partial.is_empty() {
            return;
        }
        self.partial.sort_unstable();
        self.found.extend(depth, &self.partial);
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
            // Where many end inside a run, most of them do.
            let all = keys.last().is_some_and(|&key| of_cut_key(key).cut < s.matched);
            let partial = if all { keys.len() } else { keys.partition_point(|&key| of_cut_key(key).cut < s.matched) };
            let (partial, whole) = keys.split_at(partial);
            found.extend(0, partial);
            for &key in whole {
                alive.add(of_cut_key(key).slot);
            }
        });
    }

    fn next_many(&mut self, s: &Stretch<'_>) {
        let Self { alive, covering, partial, found, .. } = self;
        covering.clear_as(alive);
        add_full(s, covering);
        if alive.is_within(covering) {
            // Everyone has all of it: no need to look at the others.
            return;
        }
        // Each survivor counts once, also where a rumour names one twice: it is taken out of the set as it is met.
        s.shard.each_keys(s.fields, |keys| {
            for &key in keys {
                let entry = of_cut_key(key);
                if entry.cut >= s.matched {
                    covering.mark(entry.slot);
                } else if alive.take(entry.slot) {
                    partial.push(key);
                }
            }
        });
        alive.keep(covering, s.depth, found);
        // The keys came by cutoff, so they are in order.
        found.extend(s.depth, partial);
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
        alive.end(s.depth, found);
        alive.clear();
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
            alive.end(depth, found);
        } else {
            found.push_all(depth, &few[..*few_len]);
        }
    }

    #[inline]
    fn ended(&self) -> usize {
        self.found.parts.len()
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

    /// Whether everyone is in `other`, too.
    #[inline]
    fn is_within(&self, other: &SlotSet) -> bool {
        let words = self.low..self.high;
        self.words[words.clone()].iter().zip(&other.words[words]).all(|(word, other)| word & !other == 0)
    }

    /// Keeps who is in `other`, too; the rest ends at this depth.
    #[inline]
    fn keep(&mut self, other: &SlotSet, depth: u32, found: &mut Found) {
        for (number, range) in self.stretches() {
            let (words, others) = (&mut self.words[range.clone()], &other.words[range]);
            let gone = |(word, other): (&u64, &u64)| word & !other;
            found.add_words(depth, number, words.iter().zip(others).map(gone));
            words.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
        }
    }

    /// Everyone ends at this depth.
    #[inline]
    fn end(&self, depth: u32, found: &mut Found) {
        for (number, range) in self.stretches() {
            found.add_words(depth, number, self.words[range].iter().copied());
        }
    }

    /// The words in use, tier by tier: the first one's number, and their places.
    #[inline]
    fn stretches(&self) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> + use<> {
        let (mut low, high, shift) = (self.low, self.high, self.shift);
        std::iter::from_fn(move || {
            (low < high).then(|| {
                let (tier, from) = (low >> shift, low);
                low = high.min((tier + 1) << shift);
                (word_number(tier, from & ((1 << shift) - 1)), from..low)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::EachTier;
    use crate::cover::by_cut;
    use crate::layout::{Entry, slot_of};
    use crate::read::found::Found;
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
        let (mut gone, mut left) = (Found::default(), Found::default());
        all.keep(some, 1, &mut gone);
        all.end(1, &mut left);
        let slots_of = |f: Found| f.parts.iter().flat_map(|p| f.slots_of(p)).collect::<Vec<_>>();
        let (gone, left) = (slots_of(gone), slots_of(left));
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
        let ends = [(5, 3), (6, 1), (7, 3)];
        survivors.partial.extend(ends.map(|(slot, cut)| by_cut(Entry { slot, cut, private: false })));
        survivors.place_partial(10);
        let by_depth = |s: &EachTier| {
            let f = &s.found;
            f.parts.iter().map(|p| (p.depth, f.slots_of(p).collect())).collect::<Vec<(u32, Vec<u32>)>>()
        };
        assert_eq!(by_depth(&survivors), [(11, vec![6]), (13, vec![5, 7])]);
        assert_eq!(survivors.ended(), 2);
        survivors.cut_off(1, 12);
        assert_eq!(by_depth(&survivors), [(11, vec![6]), (12, vec![5, 7])]);
        survivors.cut_off(0, 10);
        assert_eq!(by_depth(&survivors), [(10, vec![6]), (10, vec![5, 7])]);
    }
}
