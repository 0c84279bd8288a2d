//! One holder's part of a run changes, under the run's LOCK.

use super::image::Drafts;
use super::tree;
use super::tree::edit::{self, Blocks};
use super::{Place, Seat, bit_of, by_cut, by_slot, entry_of, of_slot_key, page_bit, page_of};
use crate::error::IndexError;
use crate::fault::{Fault, injected};
use crate::layout::{CROWD, Entry, Fields, HEADER_SLOTS, Header, INLINE, half};
use crate::shard::Shard;
use crate::sync::{AtomicU64, Ordering};
use crate::version::{Locked, reuse_fence};

/// A set form with so few holders goes back inline (well below eight, so that it does not flap).
const INLINE_AGAIN: u32 = 4;
/// A crowd with so few keys and no page becomes one block again.
const CROWD_NO_MORE: u32 = 12;
/// So many full holders of one page, among the keys next to one by slot, are worth a page.
pub(super) const WORTH_A_PAGE: usize = 12;

/// Replaces one 32-bit half of a word. Under LOCK; Release pairs with the reader's version check.
#[inline]
pub(super) fn store_half(words: &[AtomicU64], i: usize, value: u32) {
    let shift = i % 2 * 32;
    let word = words[i / 2].load(Ordering::Relaxed);
    let word = word & !(0xffff_ffff << shift) | u64::from(value) << shift;
    words[i / 2].store(word, Ordering::Release);
}

fn flip(word: &AtomicU64, bit: u64) {
    word.store(word.load(Ordering::Relaxed) ^ bit, Ordering::Release);
}

impl Shard {
    /// Sets a holder's cutoff (0 takes it out) under LOCK. Fails only when no holder block is left; nothing has changed then.
    /// Taking a holder out needs none.
    pub(crate) fn set_cut(
        &self,
        drafts: &mut Drafts,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
    ) -> Result<(), IndexError> {
        debug_assert!(entry.cut <= f.len);
        if f.set_form() {
            return self.change(drafts, lock, header, f, entry);
        }
        let words = header.holder_words();
        match entry_of(words, entry.slot) {
            Some((i, _)) => store_half(words, i, entry.pack()),
            None if entry.cut == 0 => {}
            None => match (0..INLINE).find(|&i| half(words, i) == 0) {
                Some(i) => store_half(words, i, entry.pack()),
                None => return self.rewrite(drafts, lock, header, f, entry),
            },
        }
        Ok(())
    }

    /// The same for a holder of which is known where it stands, so that nothing is looked for where that tells enough.
    #[inline]
    pub(crate) fn set_cut_at(
        &self,
        drafts: &mut Drafts,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
        seat: Seat,
    ) -> Result<(), IndexError> {
        debug_assert!(entry.cut <= f.len);
        if let Seat::Entry(i) = seat {
            if injected(Fault::EntryMoved) && entry.cut == 0 {
                let (words, last) = (header.holder_words(), INLINE - 1);
                store_half(words, i.into(), half(words, last));
                store_half(words, last, 0);
                return Ok(());
            }
            store_half(header.holder_words(), i.into(), entry.pack());
            return Ok(());
        }
        if !f.set_form() || f.flags & CROWD != 0 || !self.change_set(lock, header, f, entry, seat) {
            return self.set_cut(drafts, lock, header, f, entry);
        }
        if entry.cut == 0 && f.holders <= INLINE_AGAIN {
            self.tidy(drafts, lock, header, f);
        }
        Ok(())
    }

    /// A change of a set form that is bits and at most one block of keys, and stays so; false when it would not. Nothing has
    /// changed then.
    fn change_set(&self, lock: &mut Locked<'_>, header: Header<'_>, f: &mut Fields, entry: Entry, seat: Seat) -> bool {
        let bit = entry.cut == f.len && entry.slot < HEADER_SLOTS && !entry.private;
        let new = (entry.cut > 0 && !bit).then(|| by_cut(entry));
        let old = if let Seat::Key(i) = seat { Some(i) } else { None };
        if let (Some(i), Some(key)) = (old, new)
            && edit::shift_key(&self.arena, f.ext, i.into(), key)
        {
            return true;
        }
        let keys = tree::leaf_len(&self.arena, f.ext);
        let left = keys + usize::from(new.is_some()) - usize::from(old.is_some());
        if (old.is_some() || new.is_some()) && (keys == 0 || left == 0 || left > tree::KEYS) {
            return false;
        }
        let flips = bit != (seat == Seat::Bit);
        f.holders = f.holders + u32::from(entry.cut > 0) - u32::from(seat != Seat::Nowhere);
        let flip_bit = || flip(&header.holder_words()[entry.slot as usize / 64], bit_of(entry.slot));
        if old.is_none() && new.is_none() {
            if flips {
                flip_bit();
                header.store_size(f);
            }
            return true;
        }
        lock.window(|| {
            if flips {
                flip_bit();
            }
            edit::change_leaf(&self.arena, f.ext, old, new);
            header.store_size(f);
        });
        true
    }

    fn change(
        &self,
        drafts: &mut Drafts,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
    ) -> Result<(), IndexError> {
        let old = self.place(header, f, entry.slot);
        let new = self.place_for(header, f, entry);
        match (&old, &new) {
            (Place::Nowhere, Place::Nowhere) => return Ok(()),
            (Place::Bit(_, a), Place::Bit(_, b)) if a == b => return Ok(()),
            (Place::Key(a), Place::Key(b)) if a == b => return Ok(()),
            (Place::Nowhere, Place::Bit(word, _)) | (Place::Bit(word, _), Place::Nowhere) => {
                flip(word, bit_of(entry.slot));
                f.holders = if entry.cut == 0 { f.holders - 1 } else { f.holders + 1 };
                header.store_size(f);
            }
            _ => self.change_keys(drafts, lock, header, f, entry, (&old, &new))?,
        }
        match (old, new) {
            (_, Place::Nowhere) => self.tidy(drafts, lock, header, f),
            (Place::Bit(..), _) => self.drop_empty_pages(lock, header, f),
            (_, Place::Key(_)) if entry.cut == f.len && f.flags & CROWD != 0 => self.open_page(lock, header, f, entry),
            _ => {}
        }
        Ok(())
    }

    /// Where an entry would stand in a set form: a full holder is a bit where there is a page for it.
    fn place_for<'a>(&'a self, header: Header<'a>, f: &Fields, entry: Entry) -> Place<'a> {
        if entry.cut == 0 {
            return Place::Nowhere;
        }
        if entry.cut < f.len {
            return Place::Key(entry);
        }
        if entry.slot < HEADER_SLOTS && !entry.private {
            return Place::Bit(&header.holder_words()[entry.slot as usize / 64], false);
        }
        let wanted = page_of(entry.slot, entry.private);
        let page = self.pages(f).find(|p| p.key == wanted);
        page.map_or(Place::Key(entry), |p| Place::Bit(&p.words[page_bit(entry.slot).0], entry.private))
    }

    /// A change in which keys come, go or move: in one odd window.
    fn change_keys(
        &self,
        drafts: &mut Drafts,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
        (old, new): (&Place<'_>, &Place<'_>),
    ) -> Result<(), IndexError> {
        let crowd = f.flags & CROWD != 0;
        let (mut cuts, mut slots) = self.roots(f);
        let exchange = !crowd && matches!((old, new), (Place::Key(_), Place::Key(_)));
        let mut spare = Blocks::none();
        if matches!(new, Place::Key(_)) && !exchange {
            if !crowd && self.keys(f) == tree::KEYS {
                return self.rewrite(drafts, lock, header, f, entry);
            }
            let mut needed = edit::blocks_needed(&self.arena, cuts, by_cut(entry));
            if crowd {
                needed += edit::blocks_needed(&self.arena, slots, by_slot(entry));
            }
            self.take_blocks(&mut spare, needed)?;
        }
        let mut freed = Blocks::none();
        let (held, holds) = (!matches!(old, Place::Nowhere), !matches!(new, Place::Nowhere));
        f.holders = f.holders + u32::from(holds) - u32::from(held);
        lock.window(|| {
            // What comes first: the blocks it needs were counted in the trees as they are.
            match new {
                Place::Key(key) if exchange => {
                    if let Place::Key(was) = old {
                        edit::exchange(&self.arena, cuts, by_cut(*was), by_cut(*key));
                    }
                }
                Place::Key(key) => {
                    cuts = edit::insert(&self.arena, cuts, by_cut(*key), &mut spare);
                    if crowd {
                        slots = edit::insert(&self.arena, slots, by_slot(*key), &mut spare);
                    }
                }
                Place::Bit(word, _) => flip(word, bit_of(entry.slot)),
                Place::Nowhere => {}
            }
            match old {
                Place::Key(key) if !exchange => {
                    cuts = edit::remove(&self.arena, cuts, by_cut(*key), &mut freed);
                    if crowd {
                        slots = edit::remove(&self.arena, slots, by_slot(*key), &mut freed);
                    }
                }
                Place::Bit(word, _) => flip(word, bit_of(entry.slot)),
                Place::Key(_) | Place::Nowhere => {}
            }
            if crowd {
                self.arena.block(f.ext).set_roots(cuts, slots);
            } else {
                f.ext = cuts;
            }
            header.store(f);
        });
        self.give_blocks(&mut spare);
        self.give_blocks(&mut freed);
        Ok(())
    }

    fn take_blocks(&self, spare: &mut Blocks, count: usize) -> Result<(), IndexError> {
        if count == 0 {
            return Ok(());
        }
        let mut alloc = self.alloc.lock();
        for _ in 0..count {
            match alloc.take_ext() {
                Ok(id) => spare.push(id),
                Err(full) => {
                    while let Some(id) = spare.pop() {
                        alloc.give_ext(id);
                    }
                    return Err(full);
                }
            }
        }
        drop(alloc);
        reuse_fence();
        Ok(())
    }

    /// Only after the window closed: a reader inside it must not see the blocks change under an even version.
    fn give_blocks(&self, blocks: &mut Blocks) {
        if blocks.is_empty() {
            return;
        }
        let mut alloc = self.alloc.lock();
        while let Some(id) = blocks.pop() {
            alloc.give_ext(id);
        }
    }

    /// After a holder went: a smaller form where that pays. A larger one than needed stays where no block is left for it.
    fn tidy(&self, drafts: &mut Drafts, lock: &mut Locked<'_>, header: Header<'_>, f: &mut Fields) {
        self.drop_empty_pages(lock, header, f);
        let small = f.flags & CROWD != 0
            && self.pages(f).next().is_none()
            && f.holders <= 256 + CROWD_NO_MORE
            && self.keys(f) <= CROWD_NO_MORE as usize;
        if f.holders <= INLINE_AGAIN || small {
            let after = *f;
            let _ = self.replace_same(drafts, lock, header, f, after);
        }
    }

    /// Keys of a run in set form; for a crowd it stops counting when they are many.
    fn keys(&self, f: &Fields) -> usize {
        let mut count = 0;
        self.each_key_back(f, |_| {
            count += 1;
            count <= 2 * tree::KEYS
        });
        count
    }

    fn drop_empty_pages(&self, lock: &mut Locked<'_>, header: Header<'_>, f: &mut Fields) {
        let empty = |words: &[AtomicU64]| words.iter().all(|w| w.load(Ordering::Relaxed) == 0);
        while let Some(page) = self.pages(f).find(|p| empty(p.words)) {
            let before = self.pages(f).find(|p| p.next == page.id).map(|p| p.id);
            lock.window(|| match before {
                Some(id) => self.arena.block(id).set_next_page(page.next),
                None => self.arena.block(f.ext).set_first_page(page.next),
            });
            header.store_size(f);
            self.alloc.lock().give_ext(page.id);
        }
    }

    /// After a full holder became a key of a crowd: with enough neighbours like it, all of them become bits of a page.
    fn open_page(&self, lock: &mut Locked<'_>, header: Header<'_>, f: &mut Fields, entry: Entry) {
        let wanted = page_of(entry.slot, entry.private);
        let mut near = [entry; 2 * WORTH_A_PAGE];
        let mut count = 0;
        // From a page's first slot on would be a walk over all its holders; from somewhat below this one is as good.
        let mut at = entry.slot.saturating_sub(2 * WORTH_A_PAGE as u32) << 11;
        while count < near.len() {
            let Some(key) = tree::at_least(&self.arena, self.roots(f).1, at) else { break };
            let other = of_slot_key(key);
            if other.slot > entry.slot + 2 * WORTH_A_PAGE as u32 {
                break;
            }
            if other.cut == f.len && page_of(other.slot, other.private) == wanted {
                near[count] = other;
                count += 1;
            }
            at = key + 1;
        }
        let mut spare = Blocks::none();
        if count < WORTH_A_PAGE || self.take_blocks(&mut spare, 1).is_err() {
            return;
        }
        let Some(id) = spare.pop() else { return };
        let root = self.arena.block(f.ext);
        let page = self.arena.block(id);
        page.set_page(wanted, root.first_page());
        lock.window(|| root.set_first_page(id));
        for &full in &near[..count] {
            let mut freed = Blocks::none();
            lock.window(|| {
                let (cuts, slots) = root.roots();
                let cuts = edit::remove(&self.arena, cuts, by_cut(full), &mut freed);
                let slots = edit::remove(&self.arena, slots, by_slot(full), &mut freed);
                root.set_roots(cuts, slots);
                flip(&page.page_bits()[page_bit(full.slot).0], bit_of(full.slot));
            });
            self.give_blocks(&mut freed);
        }
        header.store_size(f);
    }
}
