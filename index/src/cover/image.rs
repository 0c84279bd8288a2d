//! A run's whole coverage built anew, beside the old one, and put in its place in one short odd window.

use super::change::WORTH_A_PAGE;
use super::tree;
use super::{bit_of, by_cut, by_slot, page_bit, page_of};
use crate::error::IndexError;
use crate::layout::{CROWD, Entry, Fields, HEADER_SLOTS, Header, INLINE, PAGE_WORDS, SET_FORM};
use crate::shard::Shard;
use crate::sync::Ordering;
use crate::version::{Locked, reuse_fence};

/// A coverage in encoded form; its holder blocks are not published yet.
struct Image {
    flags: u8,
    holders: u32,
    ext: u32,
    words: [u64; PAGE_WORDS],
}

/// What goes where in a set form.
#[derive(Default)]
struct Plan {
    words: [u64; PAGE_WORDS],
    /// By cutoff.
    keys: Vec<Entry>,
    /// Full holders that become bits of pages, page by page.
    pages: Vec<(u32, Vec<Entry>)>,
    holders: u32,
}

impl Plan {
    fn of(holders: impl Iterator<Item = Entry>, len: u32) -> Plan {
        let mut plan = Plan::default();
        let mut full: Vec<(u32, Entry)> = Vec::new();
        for entry in holders {
            plan.holders += 1;
            if entry.cut < len {
                plan.keys.push(entry);
            } else if entry.slot < HEADER_SLOTS && !entry.private {
                plan.words[entry.slot as usize / 64] |= bit_of(entry.slot);
            } else {
                full.push((page_of(entry.slot, entry.private), entry));
            }
        }
        full.sort_unstable_by_key(|&(page, entry)| (page, entry.slot));
        if plan.keys.len() + full.len() <= tree::KEYS {
            plan.keys.extend(full.drain(..).map(|f| f.1));
        }
        for of_page in full.chunk_by(|a, b| a.0 == b.0) {
            let entries = of_page.iter().map(|f| f.1);
            if of_page.len() < WORTH_A_PAGE {
                plan.keys.extend(entries);
            } else {
                plan.pages.push((of_page[0].0, entries.collect()));
            }
        }
        plan.keys.sort_unstable_by_key(|&entry| by_cut(entry));
        plan
    }

    fn crowd(&self) -> bool {
        self.keys.len() > tree::KEYS || !self.pages.is_empty()
    }

    fn blocks(&self) -> usize {
        match (self.crowd(), self.keys.len()) {
            (false, 0) => 0,
            (false, _) => 1,
            (true, keys) => 1 + 2 * tree::blocks_built(keys) + self.pages.len(),
        }
    }
}

impl Shard {
    /// Rewrites the whole coverage with one holder changed.
    pub(super) fn rewrite(
        &self,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
    ) -> Result<(), IndexError> {
        let mut holders = Vec::with_capacity(f.holders as usize + INLINE + 1);
        self.each_holder(header, f, |e| {
            if e.slot != entry.slot {
                holders.push(e);
            }
        });
        holders.push(entry);
        let after = *f;
        self.replace(lock, header, f, after, &holders)
    }

    /// Rewrites the coverage as it is, in the form that fits it, for these fields.
    pub(super) fn replace_same(
        &self,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        after: Fields,
    ) -> Result<(), IndexError> {
        let mut holders = Vec::with_capacity(f.holders as usize);
        self.each_holder(header, f, |e| holders.push(e));
        self.replace(lock, header, f, after, &holders)
    }

    /// Replaces fields and coverage of a run in one odd window. `after` says the new fields; form, count and holder blocks
    /// are worked out here. Fails only when there are not enough holder blocks for the new ones; nothing has changed then.
    pub(crate) fn replace(
        &self,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        after: Fields,
        holders: &[Entry],
    ) -> Result<(), IndexError> {
        let image = self.build(after.len, holders)?;
        let before = *f;
        let mut fields = after;
        let mut old = Vec::new();
        self.each_block(&before, &mut |id| old.push(id));
        lock.window(|| install(header, &mut fields, &image));
        *f = fields;
        if !old.is_empty() {
            // Only after the window closed: a reader inside it must not see them change under an even version.
            let mut alloc = self.alloc.lock();
            old.into_iter().for_each(|id| alloc.give_ext(id));
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
        let image = self.build(fields.len, holders)?;
        install(header, fields, &image);
        Ok(())
    }

    fn build(&self, len: u32, holders: &[Entry]) -> Result<Image, IndexError> {
        let holders = || holders.iter().copied().filter(|e| e.cut > 0);
        if holders().count() <= INLINE {
            let mut words = [0; PAGE_WORDS];
            for (i, entry) in holders().enumerate() {
                words[i / 2] |= u64::from(entry.pack()) << (i % 2 * 32);
            }
            return Ok(Image { flags: 0, holders: 0, ext: 0, words });
        }
        let plan = Plan::of(holders(), len);
        let mut ids = self.blocks_for(plan.blocks())?;
        let mut take = || ids.pop().expect("as many blocks as the plan needs");
        let arena = &self.arena;
        let keys: Vec<u32> = plan.keys.iter().map(|&entry| by_cut(entry)).collect();
        let cuts =
            if plan.crowd() { tree::build(arena, &keys, &mut take) } else { tree::single(arena, &keys, &mut take) };
        let image = |flags, ext| Image { flags, holders: plan.holders, ext, words: plan.words };
        if !plan.crowd() {
            return Ok(image(SET_FORM, cuts));
        }
        let mut keys: Vec<u32> = plan.keys.iter().map(|&entry| by_slot(entry)).collect();
        keys.sort_unstable();
        let slots = tree::build(arena, &keys, &mut take);
        let mut first_page = 0;
        for (key, entries) in &plan.pages {
            let id = take();
            let page = arena.block(id);
            page.set_page(*key, first_page);
            for entry in entries {
                let word = &page.page_bits()[page_bit(entry.slot).0];
                word.store(word.load(Ordering::Relaxed) | bit_of(entry.slot), Ordering::Relaxed);
            }
            first_page = id;
        }
        let id = take();
        arena.block(id).set_roots(cuts, slots);
        arena.block(id).set_first_page(first_page);
        Ok(image(SET_FORM | CROWD, id))
    }

    /// So many blocks, or none.
    fn blocks_for(&self, count: usize) -> Result<Vec<u32>, IndexError> {
        let mut ids = Vec::with_capacity(count);
        if count == 0 {
            return Ok(ids);
        }
        let mut alloc = self.alloc.lock();
        while ids.len() < count {
            match alloc.take_ext() {
                Ok(id) => ids.push(id),
                Err(full) => {
                    ids.into_iter().for_each(|id| alloc.give_ext(id));
                    return Err(full);
                }
            }
        }
        drop(alloc);
        reuse_fence();
        Ok(ids)
    }
}

fn install(header: Header<'_>, fields: &mut Fields, image: &Image) {
    fields.flags = fields.flags & !(SET_FORM | CROWD) | image.flags;
    fields.holders = image.holders;
    fields.ext = image.ext;
    header.holder_words().iter().zip(image.words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    header.store(fields);
}
