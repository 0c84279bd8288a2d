//! A set of slots: one bit each, in words of 64 ranks, tier by tier. Work on it is bounded by the words in use.

use crate::layout::{rank_of, tier_of};
use crate::read::found::{Found, word_number};
use crate::types::Tier;

/// The set.
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
    pub fn fit(&mut self, rank_words: usize) {
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

    pub fn clear(&mut self) {
        self.words[self.low..self.high].fill(0);
        (self.low, self.high) = (0, 0);
    }

    /// Empties the set and looks at the words of another one only.
    pub fn clear_as(&mut self, other: &SlotSet) {
        self.clear();
        (self.low, self.high) = (other.low, other.high);
    }

    /// Adds a slot; whether it was not there, and has a place.
    #[inline]
    pub fn add(&mut self, slot: u32) -> bool {
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
    pub fn mark(&mut self, slot: u32) {
        let inside = self.place(slot).filter(|i| (self.low..self.high).contains(i));
        if let Some(word) = inside.and_then(|i| self.words.get_mut(i)) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Takes a slot out; whether it was there.
    #[inline]
    pub fn take(&mut self, slot: u32) -> bool {
        let Some(word) = self.place(slot).and_then(|i| self.words.get_mut(i)) else { return false };
        let had = *word;
        *word &= !(1 << (slot % 64));
        *word != had
    }

    /// Adds full holders, 64 ranks of one tier a word; `first` is the first one's slot.
    #[inline]
    pub fn add_words(&mut self, first: u32, from: impl ExactSizeIterator<Item = u64>) {
        let Some(start) = self.place(first) else { return };
        let end = ((tier_of(first) as usize + 1) << self.shift).min(start + from.len());
        let Some(to) = self.words.get_mut(start..end) else { return };
        let mut any = 0;
        for (to, from) in to.iter_mut().zip(from) {
            *to |= from;
            any |= *to;
        }
        if any != 0 {
            self.touch(start, end);
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words[self.low..self.high].iter().all(|&w| w == 0)
    }

    /// Whether everyone is in `other`, too.
    #[inline]
    pub fn is_within(&self, other: &SlotSet) -> bool {
        let words = self.low..self.high;
        self.words[words.clone()].iter().zip(&other.words[words]).all(|(word, other)| word & !other == 0)
    }

    /// Keeps who is in `other`, too; the rest ends at this depth.
    #[inline]
    pub fn keep(&mut self, other: &SlotSet, depth: u32, found: &mut Found) {
        for (number, range) in self.stretches() {
            let (words, others) = (&mut self.words[range.clone()], &other.words[range]);
            let gone = |(word, other): (&u64, &u64)| word & !other;
            found.add_words(depth, number, words.iter().zip(others).map(gone));
            words.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
        }
    }

    /// Everyone ends at this depth.
    #[inline]
    pub fn end(&self, depth: u32, found: &mut Found) {
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
    use super::SlotSet;
    use crate::layout::slot_of;
    use crate::read::found::Found;
    use crate::types::Tier;

    /// A set of slots keeps to the words in use, whatever tier they are of.
    #[test]
    fn a_set_equals_a_set() {
        let (mut all, mut some) = (SlotSet::default(), SlotSet::default());
        all.fit(3);
        some.fit(3);
        let slots: Vec<u32> = Tier::ALL.into_iter().flat_map(|t| [0, 63, 64, 191].map(|r| slot_of(r, t))).collect();
        assert!(slots.iter().all(|&s| all.add(s)) && !all.add(slots[3]));
        assert!(!all.add(slot_of(256, Tier::Device)), "a rank beyond the words has no place");
        let kept: Vec<u32> = slots.iter().copied().step_by(3).collect();
        some.clear_as(&all);
        kept.iter().for_each(|&s| assert!(some.add(s)));
        let (mut gone, mut left) = (Found::default(), Found::default());
        all.keep(&some, 1, &mut gone);
        all.end(1, &mut left);
        let slots_of = |f: Found| f.parts.iter().flat_map(|p| f.slots_of(p)).collect::<Vec<_>>();
        let (gone, left) = (slots_of(gone), slots_of(left));
        assert_eq!(left, kept);
        assert!(slots.iter().all(|s| kept.contains(s) != gone.contains(s)));
        assert!(all.take(kept[1]) && !all.take(kept[1]) && all.take(kept[2]));
        all.clear();
        assert!(all.is_empty() && all.words.iter().all(|&w| w == 0));
    }
}
