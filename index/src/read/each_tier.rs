//! Survivors where each tier counts by itself: up to eight by name; those that have bits in a header as such bits, while
//! nobody else is among them; any others as a set.

use crate::cover::{by_cut, of_cut_key};
use crate::layout::{Entry, HEADER_SLOTS, INLINE, PAGE_WORDS, rank_of, tier_of};
use crate::read::found::{Found, word_number};
use crate::read::walk::{Stretch, Survivors};
use crate::sync::Ordering;
use crate::types::Tier;

/// How the survivors are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Few,
    Header,
    Many,
}

/// The survivors of a walk, and the memory to tell them; reused.
pub(crate) struct EachTier {
    form: Form,
    few_len: usize,
    few: [u32; INLINE],
    /// Those that have bits in a header.
    bits: [u64; PAGE_WORDS],
    /// Who has only a part of the run at hand, as keys that sort by cutoff.
    partial: Vec<u32>,
    many: SlotSet,
    /// Who has all matched blocks of the run at hand.
    covering: SlotSet,
}

impl EachTier {
    pub fn new() -> Self {
        Self {
            form: Form::Few,
            few_len: 0,
            few: [0; INLINE],
            bits: [0; PAGE_WORDS],
            partial: Vec::with_capacity(64),
            many: SlotSet::default(),
            covering: SlotSet::default(),
        }
    }

    /// The first run's holders, from entries in its header.
    fn first_few(&mut self, s: &Stretch<'_>, found: &mut Found) {
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
        self.place_partial(s.depth, found);
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
    fn place_partial(&mut self, depth: u32, found: &mut Found) {
        if self.partial.is_empty() {
            return;
        }
        self.partial.sort_unstable();
        found.extend(depth, &self.partial);
        self.partial.clear();
    }

    fn next_few(&mut self, s: &Stretch<'_>, found: &mut Found) {
        let alive = self.few;
        let count = std::mem::take(&mut self.few_len);
        let inline = !s.fields.set_form();
        let words: [u64; INLINE / 2] = if inline { words(s) } else { [0; INLINE / 2] };
        for &slot in &alive[..count] {
            let cut = if inline { cut_among(&words, slot) } else { s.shard.cut(s.header, s.fields, slot).0 };
            if cut == 0 {
                found.push(s.depth, slot);
            } else {
                self.sort_in(Entry { slot, cut, private: false }, s.matched);
            }
        }
        self.place_partial(s.depth, found);
    }

    /// The first run's holders, from bits in its header.
    #[inline]
    fn first_header(&mut self, s: &Stretch<'_>, found: &mut Found) -> bool {
        let there = words(s);
        (self.form, self.bits) = (Form::Header, there);
        if s.fields.ext != 0 { self.first_beyond(s, found) } else { any(&there) }
    }

    /// The first run's holders that are not in its header. The keys come by cutoff, so partial holders come in the order of
    /// the answer.
    #[inline(never)]
    fn first_beyond(&mut self, s: &Stretch<'_>, found: &mut Found) -> bool {
        for page in s.shard.pages(s.fields) {
            // No further than there are ranks: the rest is another line.
            let words = || page.words.iter().take(s.shard.slots.rank_words()).map(|word| word.load(Ordering::Relaxed));
            let mut beyond = words().skip(PAGE_WORDS);
            if self.form == Form::Header && page.first_slot() == 0 && beyond.all(|word| word == 0) {
                self.bits.iter_mut().zip(words()).for_each(|(bits, word)| *bits |= word);
                continue;
            }
            self.grow(s);
            self.many.add_words(page.first_slot(), page.words.iter().map(|word| word.load(Ordering::Relaxed)));
        }
        s.shard.each_keys(s.fields, |keys| {
            // Where many end inside a run, most of them do.
            let all = keys.last().is_some_and(|&key| of_cut_key(key).cut < s.matched);
            let partial = if all { keys.len() } else { keys.partition_point(|&key| of_cut_key(key).cut < s.matched) };
            let (partial, whole) = keys.split_at(partial);
            found.extend(0, partial);
            for &key in whole {
                let slot = of_cut_key(key).slot;
                if self.form == Form::Header && !add_bit(&mut self.bits, slot) {
                    self.grow(s);
                }
                if self.form == Form::Many {
                    self.many.add(slot);
                }
            }
        });
        if self.form == Form::Header { any(&self.bits) } else { !self.many.is_empty() }
    }

    /// From now on any slot may be among the survivors.
    #[cold]
    fn grow(&mut self, s: &Stretch<'_>) {
        if self.form == Form::Header {
            self.form = Form::Many;
            // Allocates when there are more ranks than ever before.
            let rank_words = s.shard.slots.rank_words();
            self.many.fit(rank_words);
            self.covering.fit(rank_words);
            self.many.clear();
            self.many.add_words(0, self.bits.into_iter());
        }
    }

    /// A run in set form after one whose survivors have bits in a header.
    #[inline]
    fn next_header(&mut self, s: &Stretch<'_>, found: &mut Found) -> bool {
        let there = words(s);
        let gone: [u64; PAGE_WORDS] = std::array::from_fn(|i| self.bits[i] & !there[i]);
        if !any(&gone) {
            return true;
        }
        if s.fields.ext != 0 {
            return self.next_beyond(s, gone, found);
        }
        let left = std::array::from_fn(|i| self.bits[i] & there[i]);
        self.bits = left;
        found.add_header(s.depth, gone);
        any(&left)
    }

    /// Looks for those survivors of whom the run's header has no bit.
    #[inline(never)]
    fn next_beyond(&mut self, s: &Stretch<'_>, mut gone: [u64; PAGE_WORDS], found: &mut Found) -> bool {
        for page in s.shard.pages(s.fields).filter(|page| page.first_slot() == 0) {
            gone.iter_mut().zip(page.words).for_each(|(gone, word)| *gone &= !word.load(Ordering::Relaxed));
        }
        let Self { bits, partial, .. } = self;
        s.shard.each_keys(s.fields, |keys| {
            for &key in keys {
                let entry = of_cut_key(key);
                // Each survivor counts once, also where a rumour names one twice.
                if take_bit(&mut gone, entry.slot) && entry.cut < s.matched {
                    take_bit(bits, entry.slot);
                    partial.push(key);
                }
            }
        });
        bits.iter_mut().zip(gone).for_each(|(bits, gone)| *bits &= !gone);
        found.add_header(s.depth, gone);
        // The keys came by cutoff, so they are in order.
        found.extend(s.depth, partial);
        partial.clear();
        any(bits)
    }

    /// A run with up to eight holders after one with more: whoever survives it is one of the few.
    #[inline(never)]
    fn header_to_few(&mut self, s: &Stretch<'_>, found: &mut Found) {
        self.form = Form::Few;
        for entry in entries(s) {
            if take_bit(&mut self.bits, entry.slot) {
                self.sort_in(entry, s.matched);
            }
        }
        found.add_header(s.depth, self.bits);
        self.place_partial(s.depth, found);
    }

    #[cold]
    fn next_many(&mut self, s: &Stretch<'_>, found: &mut Found) -> bool {
        let Self { many, covering, partial, .. } = self;
        covering.clear_as(many);
        add_full(s, covering);
        if many.is_within(covering) {
            // Everyone has all of it: no need to look at the others.
            return true;
        }
        // Each survivor counts once, also where a rumour names one twice: it is taken out of the set as it is met.
        s.shard.each_keys(s.fields, |keys| {
            for &key in keys {
                let entry = of_cut_key(key);
                if entry.cut >= s.matched {
                    covering.mark(entry.slot);
                } else if many.take(entry.slot) {
                    partial.push(key);
                }
            }
        });
        many.keep(covering, s.depth, found);
        // The keys came by cutoff, so they are in order.
        found.extend(s.depth, partial);
        partial.clear();
        !many.is_empty()
    }

    /// A run with up to eight holders after one with more: whoever survives it is one of the few.
    #[cold]
    fn many_to_few(&mut self, s: &Stretch<'_>, found: &mut Found) {
        self.form = Form::Few;
        for entry in entries(s) {
            if self.many.take(entry.slot) {
                self.sort_in(entry, s.matched);
            }
        }
        self.many.end(s.depth, found);
        self.place_partial(s.depth, found);
    }

    #[cold]
    fn end_many(&self, depth: u32, found: &mut Found) {
        self.many.end(depth, found);
    }
}

impl Survivors for EachTier {
    #[inline(always)]
    fn begin(&mut self) {
        (self.form, self.few_len) = (Form::Few, 0);
        self.partial.clear();
    }

    #[inline(always)]
    fn enter(&mut self, s: &Stretch<'_>, found: &mut Found) -> bool {
        match (self.form, s.fields.set_form()) {
            (Form::Few, true) if s.depth == 0 => return self.first_header(s, found),
            (Form::Few, false) if s.depth == 0 => self.first_few(s, found),
            (Form::Few, _) => self.next_few(s, found),
            (Form::Header, true) => return self.next_header(s, found),
            (Form::Header, false) => self.header_to_few(s, found),
            (Form::Many, true) => return self.next_many(s, found),
            (Form::Many, false) => self.many_to_few(s, found),
        }
        self.few_len > 0
    }

    #[inline(always)]
    fn finish(&mut self, depth: u32, found: &mut Found) {
        match self.form {
            Form::Few => found.push_all(depth, &self.few[..self.few_len]),
            Form::Header => found.add_header(depth, self.bits),
            Form::Many => self.end_many(depth, found),
        }
    }

    #[inline(always)]
    fn ended(&self, found: &Found) -> usize {
        found.parts.len()
    }

    fn cut_off(&mut self, ended: usize, depth: u32, found: &mut Found) {
        found.clamp(ended, depth);
    }
}

#[inline]
fn any(bits: &[u64; PAGE_WORDS]) -> bool {
    bits.iter().fold(0, |any, word| any | word) != 0
}

/// Sets the bit of a slot, if a header has one of it.
#[inline]
fn add_bit(bits: &mut [u64; PAGE_WORDS], slot: u32) -> bool {
    let Some(word) = bits.get_mut(slot as usize / 64) else { return false };
    *word |= 1 << (slot % 64);
    true
}

/// Clears the bit of a slot; whether it was set.
#[inline]
fn take_bit(bits: &mut [u64; PAGE_WORDS], slot: u32) -> bool {
    let Some(word) = bits.get_mut(slot as usize / 64) else { return false };
    let had = *word;
    *word &= !(1 << (slot % 64));
    *word != had
}
const _: () = assert!(HEADER_SLOTS as usize == 64 * PAGE_WORDS && INLINE == 2 * PAGE_WORDS);

#[inline]
fn words(s: &Stretch<'_>) -> [u64; PAGE_WORDS] {
    s.header.holder_words().each_ref().map(|word| word.load(Ordering::Relaxed))
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
    all.add_words(0, words(s).into_iter());
    for page in s.shard.pages(s.fields) {
        all.add_words(page.first_slot(), page.words.iter().map(|word| word.load(Ordering::Relaxed)));
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
    fn add_words(&mut self, first: u32, from: impl ExactSizeIterator<Item = u64>) {
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
        survivors.many.fit(3);
        survivors.covering.fit(3);
        let slots: Vec<u32> = Tier::ALL.into_iter().flat_map(|t| [0, 63, 64, 191].map(|r| slot_of(r, t))).collect();
        let (all, some) = (&mut survivors.many, &mut survivors.covering);
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
        let (mut survivors, mut found) = (EachTier::new(), Found::default());
        let ends = [(5, 3), (6, 1), (7, 3)];
        survivors.partial.extend(ends.map(|(slot, cut)| by_cut(Entry { slot, cut, private: false })));
        survivors.place_partial(10, &mut found);
        let by_depth =
            |f: &Found| f.parts.iter().map(|p| (p.depth, f.slots_of(p).collect())).collect::<Vec<(u32, Vec<u32>)>>();
        assert_eq!(by_depth(&found), [(11, vec![6]), (13, vec![5, 7])]);
        assert_eq!(survivors.ended(&found), 2);
        survivors.cut_off(1, 12, &mut found);
        assert_eq!(by_depth(&found), [(11, vec![6]), (12, vec![5, 7])]);
        survivors.cut_off(0, 10, &mut found);
        assert_eq!(by_depth(&found), [(10, vec![6]), (10, vec![5, 7])]);
    }
}
