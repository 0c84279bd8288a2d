//! Coverage: which holders have how much of a run.
//!
//! Up to eight holders stand in the header as entries with explicit cutoffs (*inline form*, the only one that may be
//! appended to). More are a set of full holders, 256 slots a page, plus partial entries (*set form*, layout.rs). Reads are
//! plain loads: the caller holds LOCK, or judges them by the version. Changes happen under LOCK only; one word at a time
//! with a Release store, or as a whole inside an odd window (rule R1).

use crate::error::IndexError;
use crate::layout::{Block, Entry, Fields, Header, INLINE, PAGE_SLOTS, PAGE_WORDS, PARTS, SET_FORM};
use crate::shard::Shard;
use crate::sync::{AtomicU64, Ordering};
use crate::version::{Locked, reuse_fence};

/// No page: the block carries partial entries only.
const NO_PAGE: u32 = u32::MAX;
/// A set form with so few holders goes back inline (well below eight, so that it does not flap).
const INLINE_AGAIN: u32 = 4;

/// Word and bit of a slot inside its page.
#[inline]
fn bit_of(slot: u32) -> (usize, u64) {
    ((slot % PAGE_SLOTS / 64) as usize, 1 << (slot % 64))
}

#[inline]
fn has(words: &[AtomicU64], slot: u32) -> bool {
    let (word, bit) = bit_of(slot);
    words[word].load(Ordering::Relaxed) & bit != 0
}

/// Replaces one 32-bit half of a word. Under LOCK; Release pairs with the reader's version check.
#[inline]
fn store_half(words: &[AtomicU64], i: usize, value: u32) {
    let shift = i % 2 * 32;
    let word = words[i / 2].load(Ordering::Relaxed);
    let word = word & !(0xffff_ffff << shift) | u64::from(value) << shift;
    words[i / 2].store(word, Ordering::Release);
}

#[inline]
fn half(words: &[AtomicU64], i: usize) -> u32 {
    (words[i / 2].load(Ordering::Relaxed) >> (i % 2 * 32)) as u32
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

/// The first empty one among packed entries.
#[inline]
fn free_entry(words: &[AtomicU64]) -> Option<usize> {
    (0..2 * words.len()).find(|&i| half(words, i) == 0)
}

/// Where a slot stands in a set form.
struct Standing<'a> {
    full: bool,
    private: bool,
    /// The words with the slot's full bit, when they exist.
    page: Option<&'a [AtomicU64]>,
    part: Option<(Block<'a>, usize)>,
    free_part: Option<(Block<'a>, usize)>,
}

impl Shard {
    /// The holder blocks of a run. Bounded even when the links are rumours.
    #[inline]
    pub(crate) fn blocks(&self, first: u32) -> impl Iterator<Item = (u32, Block<'_>)> {
        let mut id = first;
        let mut left = self.chain_max;
        std::iter::from_fn(move || {
            if id == 0 || left == 0 {
                return None;
            }
            left -= 1;
            let block = self.arena.block(id);
            let this = id;
            id = block.head().1;
            Some((this, block))
        })
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
        let at = self.standing(header, f, slot);
        if at.full {
            return (f.len, at.private);
        }
        match at.part {
            Some((block, i)) => {
                let entry = Entry::unpack(half(block.parts(), i));
                (entry.cut, entry.private)
            }
            None => (0, false),
        }
    }

    fn standing<'a>(&'a self, header: Header<'a>, f: &Fields, slot: u32) -> Standing<'a> {
        let page = slot / PAGE_SLOTS;
        let mut at = Standing { full: false, private: false, page: None, part: None, free_part: None };
        if page == 0 {
            at.page = Some(header.holder_words());
        }
        for (_, block) in self.blocks(f.ext) {
            if block.head().0 == page {
                at.private = has(block.private(), slot);
                at.page = at.page.or(Some(block.full()));
            }
            if at.free_part.is_none() {
                at.free_part = free_entry(block.parts()).map(|i| (block, i));
            }
            if at.part.is_none() {
                at.part = entry_of(block.parts(), slot).map(|(i, _)| (block, i));
            }
        }
        at.full = at.page.is_some_and(|words| has(words, slot));
        at
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
        let mut private0 = None;
        for (_, block) in self.blocks(f.ext) {
            let page = block.head().0;
            if page == 0 {
                private0 = Some(block.private());
            } else if page != NO_PAGE {
                each_bit(page, block.full(), |slot| {
                    see(Entry { slot, cut: f.len, private: has(block.private(), slot) });
                });
            }
            block.entries().filter(|e| e.cut > 0).for_each(&mut see);
        }
        each_bit(0, header.holder_words(), |slot| {
            see(Entry { slot, cut: f.len, private: private0.is_some_and(|words| has(words, slot)) });
        });
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

    /// Sets a holder's cutoff (0 takes it out) under LOCK. Fails only when a holder is added or moves and no holder block
    /// is left; nothing has changed then.
    pub(crate) fn set_cut(
        &self,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
    ) -> Result<(), IndexError> {
        debug_assert!(entry.cut <= f.len);
        if !f.set_form() {
            let words = header.holder_words();
            match entry_of(words, entry.slot) {
                Some((i, _)) => store_half(words, i, entry.pack()),
                None if entry.cut == 0 => {}
                None => match free_entry(words) {
                    Some(i) => store_half(words, i, entry.pack()),
                    None => return self.rewrite(lock, header, f, entry),
                },
            }
            return Ok(());
        }
        if self.set_one_word(header, f, entry) {
            return Ok(());
        }
        self.rewrite(lock, header, f, entry)
    }

    /// The changes of a set form that touch a single holder word; false when it takes more than that.
    fn set_one_word(&self, header: Header<'_>, f: &mut Fields, entry: Entry) -> bool {
        let at = self.standing(header, f, entry.slot);
        let (word, bit) = bit_of(entry.slot);
        let full_after = entry.cut == f.len;
        let held_before = at.full || at.part.is_some();
        let goes = held_before && entry.cut == 0;
        let few = goes && f.holders.saturating_sub(1) <= INLINE_AGAIN;
        match (at.full, at.part, entry.cut) {
            _ if few || goes && self.sparse(f) => return false,
            (false, None, 0) => return true,
            (true, None, _) if full_after && at.private == entry.private => return true,
            (true, None, 0) if !at.private => {
                let words = at.page.expect("a full bit has a page");
                words[word].store(words[word].load(Ordering::Relaxed) & !bit, Ordering::Release);
                f.holders -= 1;
            }
            (false, None, _) if full_after && !entry.private && at.page.is_some() => {
                let words = at.page.expect("checked");
                words[word].store(words[word].load(Ordering::Relaxed) | bit, Ordering::Release);
                f.holders += 1;
            }
            (false, None, _) if !full_after && at.free_part.is_some() => {
                let (block, i) = at.free_part.expect("checked");
                store_half(block.parts(), i, entry.pack());
                f.holders += 1;
            }
            (false, Some((block, i)), _) if !full_after => {
                store_half(block.parts(), i, entry.pack());
                f.holders -= u32::from(entry.cut == 0);
            }
            _ => return false,
        }
        header.store_size(f);
        true
    }

    /// Whether a set form has clearly more holder blocks than its holders need: a crowd came and went, one word at a time.
    fn sparse(&self, f: &Fields) -> bool {
        let (mut blocks, mut pages, mut parts) = (0, 0, 0);
        for (_, block) in self.blocks(f.ext) {
            let used = |words: &[AtomicU64]| words.iter().any(|w| w.load(Ordering::Relaxed) != 0);
            blocks += 1;
            pages += usize::from(used(block.full()) || used(block.private()));
            parts += block.entries().filter(|e| e.cut > 0).count();
        }
        let needed = pages.max(parts.div_ceil(PARTS));
        blocks > needed + needed / 4 + 1
    }

    /// Rewrites the whole coverage with one holder changed.
    fn rewrite(
        &self,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
    ) -> Result<(), IndexError> {
        let mut holders = Vec::with_capacity(f.holders as usize + 1);
        self.each_holder(header, f, |e| {
            if e.slot != entry.slot {
                holders.push(e);
            }
        });
        if entry.cut > 0 {
            holders.push(entry);
        }
        let after = *f;
        self.replace(lock, header, f, after, &holders)
    }

    /// Replaces fields and coverage of a run in one odd window. `after` says the new fields; form, count and holder blocks
    /// are worked out here. Fails only when more holder blocks are needed than there are; nothing has changed then.
    pub(crate) fn replace(
        &self,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        after: Fields,
        holders: &[Entry],
    ) -> Result<(), IndexError> {
        let mut image = Image::of(holders, after.len, |_| true);
        let mut ids: Vec<u32> = self.blocks(f.ext).map(|(id, _)| id).collect();
        if self.more_blocks(&mut ids, image.blocks.len()).is_err() {
            // None left for new pages: only who is full by a bit already stays so, others get entries. This takes no more
            // blocks than there are unless a holder is added.
            let full_now = |slot| f.set_form() && self.standing(header, f, slot).full;
            image = Image::of(holders, after.len, full_now);
            self.more_blocks(&mut ids, image.blocks.len())?;
        }
        let surplus = ids.split_off(image.blocks.len());
        let mut fields = after;
        lock.window(|| self.install(header, &mut fields, &image, &ids));
        *f = fields;
        if !surplus.is_empty() {
            // Only after the window closed: a reader inside it must not see them change under an even version.
            let mut alloc = self.alloc.lock();
            surplus.into_iter().for_each(|id| alloc.give_ext(id));
        }
        Ok(())
    }

    /// Writes fields and coverage of a run that is not published yet.
    pub(crate) fn install_new(
        &self,
        header: Header<'_>,
        fields: &mut Fields,
        holders: &[Entry],
    ) -> Result<(), IndexError> {
        let image = Image::of(holders, fields.len, |_| true);
        let mut ids = Vec::new();
        self.more_blocks(&mut ids, image.blocks.len())?;
        self.install(header, fields, &image, &ids);
        Ok(())
    }

    /// Takes holder blocks until there are `count`; gives all new ones back when that fails.
    fn more_blocks(&self, ids: &mut Vec<u32>, count: usize) -> Result<(), IndexError> {
        if ids.len() >= count {
            return Ok(());
        }
        let had = ids.len();
        let mut alloc = self.alloc.lock();
        while ids.len() < count {
            match alloc.take_ext() {
                Ok(id) => ids.push(id),
                Err(full) => {
                    ids.drain(had..).for_each(|id| alloc.give_ext(id));
                    return Err(full);
                }
            }
        }
        drop(alloc);
        reuse_fence();
        Ok(())
    }

    fn install(&self, header: Header<'_>, fields: &mut Fields, image: &Image, ids: &[u32]) {
        fields.flags = if image.set_form { fields.flags | SET_FORM } else { fields.flags & !SET_FORM };
        fields.holders = image.holders;
        fields.ext = ids.first().copied().unwrap_or(0);
        for (i, block) in image.blocks.iter().enumerate() {
            let at = self.arena.block(ids[i]);
            at.set_head(block.page, ids.get(i + 1).copied().unwrap_or(0));
            let store = |to: &[AtomicU64], from: &[u64]| {
                to.iter().zip(from).for_each(|(to, &word)| to.store(word, Ordering::Relaxed));
            };
            store(at.full(), &block.full);
            store(at.private(), &block.private);
            store(at.parts(), &block.parts);
        }
        header.holder_words().iter().zip(image.words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        header.store(fields);
    }
}

/// Calls `see` for each set bit of a page.
#[inline]
pub(crate) fn each_bit(page: u32, words: &[AtomicU64], mut see: impl FnMut(u32)) {
    for (i, word) in words.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            see(page * PAGE_SLOTS + i as u32 * 64 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
}

/// A coverage encoded, before it is stored.
struct Image {
    set_form: bool,
    holders: u32,
    words: [u64; PAGE_WORDS],
    blocks: Vec<BlockImage>,
}

struct BlockImage {
    page: u32,
    full: [u64; PAGE_WORDS],
    private: [u64; PAGE_WORDS],
    parts: [u64; PARTS / 2],
    used: usize,
}

impl BlockImage {
    fn new(page: u32) -> Self {
        Self { page, full: [0; PAGE_WORDS], private: [0; PAGE_WORDS], parts: [0; PARTS / 2], used: 0 }
    }
}

impl Image {
    /// `by_bit` says of a full holder's slot whether it may be a bit, for which its page needs a block, or stays an entry.
    fn of(holders: &[Entry], len: u32, by_bit: impl Fn(u32) -> bool) -> Image {
        let holders = holders.iter().copied().filter(|e| e.cut > 0);
        let count = holders.clone().count();
        let mut image =
            Image { set_form: count > INLINE, holders: count as u32, words: [0; PAGE_WORDS], blocks: Vec::new() };
        if !image.set_form {
            for (i, entry) in holders.enumerate() {
                image.words[i / 2] |= u64::from(entry.pack()) << (i % 2 * 32);
            }
            return image;
        }
        let (full, part): (Vec<Entry>, Vec<Entry>) = holders.partition(|e| e.cut == len && by_bit(e.slot));
        full.into_iter().for_each(|entry| image.add_full(entry));
        part.into_iter().for_each(|entry| image.add_part(entry));
        image
    }

    fn add_full(&mut self, entry: Entry) {
        let (word, bit) = bit_of(entry.slot);
        let page = entry.slot / PAGE_SLOTS;
        if page == 0 {
            self.words[word] |= bit;
            if !entry.private {
                return;
            }
        }
        let i = match self.blocks.iter().position(|b| b.page == page) {
            Some(i) => i,
            None => {
                self.blocks.push(BlockImage::new(page));
                self.blocks.len() - 1
            }
        };
        if page != 0 {
            self.blocks[i].full[word] |= bit;
        }
        if entry.private {
            self.blocks[i].private[word] |= bit;
        }
    }

    fn add_part(&mut self, entry: Entry) {
        let i = match self.blocks.iter().position(|b| b.used < PARTS) {
            Some(i) => i,
            None => {
                self.blocks.push(BlockImage::new(NO_PAGE));
                self.blocks.len() - 1
            }
        };
        let block = &mut self.blocks[i];
        block.parts[block.used / 2] |= u64::from(entry.pack()) << (block.used % 2 * 32);
        block.used += 1;
    }
}
