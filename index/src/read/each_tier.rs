//! Survivors where each tier counts by itself: up to eight by name; those that have bits in a header as such bits, while
//! nobody else is among them; any others as a set.

use crate::cover::{by_cut, of_cut_key};
use crate::layout::{Entry, HEADER_SLOTS, INLINE, PAGE_WORDS};
use crate::read::found::Found;
use crate::read::slot_set::SlotSet;
use crate::read::walk::{Stretch, Survivors};
use crate::sync::Ordering;

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

#[cfg(test)]
mod tests {
    use super::EachTier;
    use crate::cover::by_cut;
    use crate::layout::Entry;
    use crate::read::found::Found;
    use crate::read::walk::Survivors;

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
