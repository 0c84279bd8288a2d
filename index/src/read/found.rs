//! What a walk found in one shard: sets of holder slots by depth, in the order in which the walk met them. Depths rise along
//! a walk, so nothing is sorted but the few holders that end inside one run.
//!
//! A set is a list of slots, or words with a bit for each: whoever ends together with many others is neither listed nor
//! named before somebody asks.

use crate::cover::of_cut_key;
use crate::layout::{PAGE_WORDS, RANKS_END};

/// Numbers of words of one tier.
const TIER_WORDS: u32 = RANKS_END / 64;
/// So many words or fewer are kept as they are, however few bits they have.
const WORDS_SHORT: usize = 4;

/// How a part of a level is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// A list of slots.
    Slots,
    /// Bits of slots, the first word's number being `first`.
    Words { first: u32 },
    /// Holders with their names, which are not kept here.
    Named,
}

/// Some of those who end at a depth. Never empty; several may have one depth, side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Blocks.
    pub depth: u32,
    /// Where it stands in the memory of its form.
    pub start: u32,
    pub end: u32,
    pub form: Form,
    /// Whose slots they are.
    pub shard: u32,
}

impl Part {
    #[inline]
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The number of the word that has a slot's bit, of a rank word of a tier.
#[inline]
pub(crate) fn word_number(tier: usize, rank_word: usize) -> u32 {
    tier as u32 * TIER_WORDS + rank_word as u32
}

/// Which 64 ranks a word of bits is about.
#[inline]
pub(crate) fn rank_word(number: u32) -> usize {
    (number % TIER_WORDS) as usize
}

/// Slots by depth, shallowest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub parts: Vec<Part>,
    pub slots: Vec<u32>,
    pub words: Vec<u64>,
}

impl Found {
    #[inline]
    pub fn clear(&mut self) {
        self.parts.clear();
        self.slots.clear();
        self.words.clear();
    }

    /// Adds a slot at a depth not less than the last one.
    #[inline]
    pub fn push(&mut self, depth: u32, slot: u32) {
        self.push_all(depth, &[slot]);
    }

    /// Adds slots at a depth not less than the last one.
    #[inline]
    pub fn push_all(&mut self, depth: u32, slots: &[u32]) {
        let start = self.slots.len() as u32;
        let end = start + slots.len() as u32;
        self.slots.extend_from_slice(slots);
        match self.parts.last_mut() {
            Some(last) if last.depth == depth && last.form == Form::Slots => last.end = end,
            _ if end > start => self.parts.push(Part { depth, start, end, form: Form::Slots, shard: 0 }),
            _ => {}
        }
    }

    /// Adds holders that end in one run, as keys that sort by cutoff; `depth` is before the run.
    #[inline]
    pub fn extend(&mut self, depth: u32, keys: &[u32]) {
        let mut start = self.slots.len() as u32;
        self.slots.extend(keys.iter().map(|&key| of_cut_key(key).slot));
        let mut rest = keys;
        while let (Some(&first), Some(&last)) = (rest.first(), rest.last()) {
            let cut = of_cut_key(first).cut;
            // Some keys are of one depth more often than not.
            let same = match of_cut_key(last).cut == cut {
                true => rest.len(),
                false => rest.iter().take_while(|&&key| of_cut_key(key).cut == cut).count(),
            };
            let (depth, end) = (depth + cut, start + same as u32);
            match self.parts.last_mut() {
                Some(last) if last.depth == depth && last.form == Form::Slots => last.end = end,
                _ => self.parts.push(Part { depth, start, end, form: Form::Slots, shard: 0 }),
            }
            (start, rest) = (end, &rest[same..]);
        }
    }

    /// Adds slots that have bits in a header, at a depth not less than the last one. All words are kept: to see which of so few
    /// are empty costs more than they do.
    #[inline]
    pub fn add_header(&mut self, depth: u32, words: [u64; PAGE_WORDS]) {
        if words.iter().fold(0, |any, word| any | word) == 0 {
            return;
        }
        let start = self.words.len() as u32;
        self.words.extend_from_slice(&words);
        let end = start + PAGE_WORDS as u32;
        self.parts.push(Part { depth, start, end, form: Form::Words { first: 0 }, shard: 0 });
    }

    /// Adds the slots of some words, at a depth not less than the last one; the first word's number is `first`.
    #[inline]
    pub fn add_words(&mut self, depth: u32, first: u32, words: impl ExactSizeIterator<Item = u64>) {
        let start = self.words.len();
        let (mut from, mut bits) = (first, 0);
        for word in words {
            if word == 0 && bits == 0 {
                from += 1;
                continue;
            }
            bits += word.count_ones();
            self.words.push(word);
        }
        if bits == 0 {
            return;
        }
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        let len = self.words.len() - start;
        if len > WORDS_SHORT && (bits as usize) < len {
            for i in 0..len {
                let word = self.words[start + i];
                each_bit((from + i as u32) * 64, word, |slot| self.push(depth, slot));
            }
            self.words.truncate(start);
            return;
        }
        let form = Form::Words { first: from };
        self.parts.push(Part { depth, start: start as u32, end: self.words.len() as u32, form, shard: 0 });
    }

    /// Puts what was found from the part at `mark` on at this depth, which is at most any of theirs.
    pub fn clamp(&mut self, mark: usize, depth: u32) {
        self.parts[mark..].iter_mut().for_each(|part| part.depth = depth);
    }

    /// Keeps the slots that `keep` says yes to; of a word of bits it says all at once.
    pub fn retain(&mut self, keep_slot: impl Fn(u32) -> bool, keep_word: impl Fn(usize) -> u64) {
        let Self { parts, slots, words } = self;
        parts.retain_mut(|part| match part.form {
            Form::Slots => {
                let mut end = part.start;
                for i in part.range() {
                    if keep_slot(slots[i]) {
                        slots[end as usize] = slots[i];
                        end += 1;
                    }
                }
                part.end = end;
                part.end > part.start
            }
            Form::Words { first } => {
                let mut any = 0;
                for (number, word) in (first..).zip(&mut words[part.range()]) {
                    *word &= keep_word(rank_word(number));
                    any |= *word;
                }
                any != 0
            }
            Form::Named => true,
        });
    }

    /// Appends what another shard found; its depths are in order, the whole is not.
    pub fn append(&mut self, other: &Found, shard: u32) {
        let (slots, words) = (self.slots.len() as u32, self.words.len() as u32);
        self.parts.extend(other.parts.iter().map(|&part| {
            let moved = if part.form == Form::Slots { slots } else { words };
            Part { start: part.start + moved, end: part.end + moved, shard, ..part }
        }));
        self.slots.extend_from_slice(&other.slots);
        self.words.extend_from_slice(&other.words);
    }

    /// Holders of a part.
    #[inline]
    pub fn count(&self, part: &Part) -> usize {
        match part.form {
            Form::Words { .. } => self.words[part.range()].iter().map(|w| w.count_ones() as usize).sum(),
            Form::Slots | Form::Named => part.range().len(),
        }
    }

    /// Calls `see` with every slot of a part.
    #[inline]
    pub fn each_slot(&self, part: &Part, mut see: impl FnMut(u32)) {
        match part.form {
            Form::Slots => self.slots[part.range()].iter().for_each(|&slot| see(slot)),
            Form::Words { first } => {
                for (number, &word) in (first..).zip(&self.words[part.range()]) {
                    each_bit(number * 64, word, &mut see);
                }
            }
            Form::Named => {}
        }
    }

    /// The slots of a part, one by one.
    #[inline]
    pub fn slots_of(&self, part: &Part) -> SlotsOf<'_> {
        match part.form {
            Form::Slots => SlotsOf { slots: self.slots[part.range()].iter(), ..SlotsOf::default() },
            Form::Words { first } => {
                SlotsOf { words: self.words[part.range()].iter(), next: first, ..SlotsOf::default() }
            }
            Form::Named => SlotsOf::default(),
        }
    }
}

/// See [`Found::slots_of`].
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotsOf<'a> {
    slots: std::slice::Iter<'a, u32>,
    words: std::slice::Iter<'a, u64>,
    /// Number of the next word.
    next: u32,
    /// What is left of the one before.
    bits: u64,
}

impl Iterator for SlotsOf<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if let Some(&slot) = self.slots.next() {
            return Some(slot);
        }
        while self.bits == 0 {
            self.bits = *self.words.next()?;
            self.next += 1;
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some((self.next - 1) * 64 + bit)
    }
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
    use super::{Form, Found, word_number};
    use crate::cover::by_cut;
    use crate::layout::{Entry, slot_of};
    use crate::types::Tier;

    fn all(found: &Found) -> Vec<(u32, Vec<u32>)> {
        for part in &found.parts {
            let mut seen = Vec::new();
            found.each_slot(part, |slot| seen.push(slot));
            assert_eq!(seen, found.slots_of(part).collect::<Vec<_>>());
        }
        found.parts.iter().map(|part| (part.depth, found.slots_of(part).collect())).collect()
    }

    #[test]
    fn words_are_kept_trimmed_and_far_scattered_bits_become_a_list() {
        let mut found = Found::default();
        let first = word_number(Tier::Host.index(), 3);
        found.add_words(2, first, [0, 0b101, 0, 1 << 63, 0].into_iter());
        found.add_words(4, first, [0, 0].into_iter());
        found.add_words(5, 0, [1, 0, 0, 0, 0, 0, 2].into_iter());
        let host = |rank| slot_of(rank, Tier::Host);
        assert_eq!(all(&found), [(2, vec![host(256), host(258), host(447)]), (5, vec![0, 385])]);
        assert_eq!((found.parts[0].form, found.words.len()), (Form::Words { first: first + 1 }, 3));
        assert_eq!(found.parts[1].form, Form::Slots);
    }

    #[test]
    fn whoever_may_not_be_named_is_taken_out() {
        let mut found = Found::default();
        found.push_all(1, &[7]);
        found.push_all(2, &[9, 7, 8]);
        found.add_words(3, 0, [1 << 7].into_iter());
        found.add_words(3, 1, [3, 1].into_iter());
        found.retain(|slot| slot != 7, |word| if word == 0 { !(1 << 7) } else { !2 });
        assert_eq!(all(&found), [(2, vec![9, 8]), (3, vec![64, 128])]);
    }

    #[test]
    fn two_shards_are_put_together() {
        let (mut found, mut other) = (Found::default(), Found::default());
        found.push(1, 7);
        other.add_words(2, 0, [6].into_iter());
        let key = |(cut, slot)| by_cut(Entry { slot, cut, private: false });
        other.extend(2, &[(1, 5), (1, 6), (4, 7)].map(key));
        found.append(&other, 1);
        found.append(&other, 2);
        let once = [(2, vec![1, 2]), (3, vec![5, 6]), (6, vec![7])];
        assert_eq!(all(&found), [&[(1, vec![7])], &once[..], &once[..]].concat());
        assert!(found.parts.iter().map(|p| p.shard).eq([0, 1, 1, 1, 2, 2, 2]));
    }
}
