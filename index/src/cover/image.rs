//! A run's whole coverage built anew, beside the old one, and put in its place in one short odd window.

use super::change::WORTH_A_PAGE;
use super::tree;
use super::tree::build;
use super::{bit_of, by_cut, by_slot, of_cut_key, page_bit, page_of};
use crate::error::IndexError;
use crate::fault::{Fault, injected};
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

/// Memory in which a lane builds coverages: once it is large enough, building asks for none.
#[derive(Default)]
pub(crate) struct Drafts {
    /// All holders of a run that is rewritten.
    holders: Vec<Entry>,
    /// Keys by cutoff or by slot, ascending.
    keys: Vec<u32>,
    /// Full holders that become bits of pages, page by page.
    paged: Vec<(u32, Entry)>,
    /// Holder blocks for the new coverage, and those of the old one.
    new_blocks: Vec<u32>,
    old_blocks: Vec<u32>,
    /// One level of a tree.
    level: Vec<(u32, u32)>,
}

/// What goes where in a set form, but for the keys and the paged holders, which are in the drafts.
struct Plan {
    words: [u64; PAGE_WORDS],
    holders: u32,
    pages: usize,
}

impl Plan {
    fn of(holders: impl Iterator<Item = Entry>, len: u32, drafts: &mut Drafts) -> Plan {
        let mut plan = Plan { words: [0; PAGE_WORDS], holders: 0, pages: 0 };
        let Drafts { keys, paged, .. } = drafts;
        keys.clear();
        paged.clear();
        for entry in holders {
            plan.holders += 1;
            if entry.cut < len {
                keys.push(by_cut(entry));
            } else if entry.slot < HEADER_SLOTS && !entry.private {
                plan.words[entry.slot as usize / 64] |= bit_of(entry.slot);
            } else {
                paged.push((page_of(entry.slot, entry.private), entry));
            }
        }
        paged.sort_unstable_by_key(|&(page, entry)| (page, entry.slot));
        if keys.len() + paged.len() <= tree::KEYS {
            keys.extend(paged.drain(..).map(|(_, entry)| by_cut(entry)));
        }
        // Too few of one page become keys; the others move together.
        let (mut from, mut kept) = (0, 0);
        while from < paged.len() {
            let page = paged[from].0;
            let count = paged[from..].iter().take_while(|full| full.0 == page).count();
            if count < WORTH_A_PAGE {
                keys.extend(paged[from..from + count].iter().map(|&(_, entry)| by_cut(entry)));
            } else {
                paged.copy_within(from..from + count, kept);
                kept += count;
                plan.pages += 1;
            }
            from += count;
        }
        paged.truncate(kept);
        keys.sort_unstable();
        plan
    }

    fn crowd(&self, keys: usize) -> bool {
        keys > tree::KEYS || self.pages > 0
    }

    fn blocks(&self, keys: usize) -> usize {
        match (self.crowd(keys), keys) {
            (false, 0) => 0,
            (false, _) => 1,
            (true, keys) => 1 + 2 * build::blocks_built(keys) + self.pages,
        }
    }
}

impl Shard {
    /// Rewrites the whole coverage with one holder changed.
    pub(super) fn rewrite(
        &self,
        drafts: &mut Drafts,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        entry: Entry,
    ) -> Result<(), IndexError> {
        let mut holders = std::mem::take(&mut drafts.holders);
        holders.clear();
        self.each_holder(header, f, |e| {
            if e.slot != entry.slot {
                holders.push(e);
            }
        });
        holders.push(entry);
        let after = *f;
        let done = self.replace(drafts, lock, header, f, after, &holders);
        drafts.holders = holders;
        done
    }

    /// Rewrites the coverage as it is, in the form that fits it, for these fields.
    pub(super) fn replace_same(
        &self,
        drafts: &mut Drafts,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        after: Fields,
    ) -> Result<(), IndexError> {
        let mut holders = std::mem::take(&mut drafts.holders);
        holders.clear();
        self.each_holder(header, f, |e| holders.push(e));
        let done = self.replace(drafts, lock, header, f, after, &holders);
        drafts.holders = holders;
        done
    }

    /// Replaces fields and coverage of a run in one odd window. `after` says the new fields; form, count and holder blocks
    /// are worked out here. Fails only when there are not enough holder blocks for the new ones; nothing has changed then.
    pub(crate) fn replace(
        &self,
        drafts: &mut Drafts,
        lock: &mut Locked<'_>,
        header: Header<'_>,
        f: &mut Fields,
        after: Fields,
        holders: &[Entry],
    ) -> Result<(), IndexError> {
        let image = self.build(drafts, after.len, holders)?;
        let before = *f;
        let mut fields = after;
        let old = &mut drafts.old_blocks;
        old.clear();
        self.each_block(&before, &mut |id| old.push(id));
        let give_early = injected(Fault::BlocksGivenEarly);
        if give_early {
            let mut alloc = self.alloc.lock();
            old.iter().for_each(|&id| alloc.give_ext(id));
        }
        if injected(Fault::ReplacedUnwindowed) {
            install(header, &mut fields, &image);
        } else {
            lock.window(|| install(header, &mut fields, &image));
        }
        *f = fields;
        if !old.is_empty() && !give_early {
            // Only after the window closed: a reader inside it must not see them change under an even version.
            let mut alloc = self.alloc.lock();
            old.iter().for_each(|&id| alloc.give_ext(id));
        }
        Ok(())
    }

    /// Writes fields and coverage of a run that is not published yet.
    pub(crate) fn install_new(
        &self,
        drafts: &mut Drafts,
        header: Header<'_>,
        fields: &mut Fields,
        holders: &[Entry],
    ) -> Result<(), IndexError> {
        let image = self.build(drafts, fields.len, holders)?;
        install(header, fields, &image);
        Ok(())
    }

    fn build(&self, drafts: &mut Drafts, len: u32, holders: &[Entry]) -> Result<Image, IndexError> {
        let holders = || holders.iter().copied().filter(|e| e.cut > 0);
        if holders().count() <= INLINE {
            let mut words = [0; PAGE_WORDS];
            for (i, entry) in holders().enumerate() {
                words[i / 2] |= u64::from(entry.pack()) << (i % 2 * 32);
            }
            return Ok(Image { flags: 0, holders: 0, ext: 0, words });
        }
        let plan = Plan::of(holders(), len, drafts);
        let Drafts { keys, paged, new_blocks, level, .. } = drafts;
        let crowd = plan.crowd(keys.len());
        self.blocks_for(plan.blocks(keys.len()), new_blocks)?;
        let mut take = || new_blocks.pop().expect("as many blocks as the plan needs");
        let arena = &self.arena;
        let image = |flags, ext| Image { flags, holders: plan.holders, ext, words: plan.words };
        if !crowd {
            return Ok(image(SET_FORM, build::single(arena, keys, &mut take)));
        }
        let cuts = build::build(arena, keys, level, &mut take);
        keys.iter_mut().for_each(|key| *key = by_slot(of_cut_key(*key)));
        keys.sort_unstable();
        let slots = build::build(arena, keys, level, &mut take);
        let mut first_page = 0;
        for of_page in paged.chunk_by(|a, b| a.0 == b.0) {
            let id = take();
            let page = arena.block(id);
            page.set_page(of_page[0].0, first_page);
            for (_, entry) in of_page {
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

    /// Puts so many blocks into `ids`, or none.
    fn blocks_for(&self, count: usize, ids: &mut Vec<u32>) -> Result<(), IndexError> {
        ids.clear();
        if count == 0 {
            return Ok(());
        }
        let mut alloc = self.alloc.lock();
        while ids.len() < count {
            match alloc.take_ext() {
                Ok(id) => ids.push(id),
                Err(full) => {
                    ids.drain(..).for_each(|id| alloc.give_ext(id));
                    return Err(full);
                }
            }
        }
        drop(alloc);
        reuse_fence();
        Ok(())
    }
}

fn install(header: Header<'_>, fields: &mut Fields, image: &Image) {
    fields.flags = fields.flags & !(SET_FORM | CROWD) | image.flags;
    fields.holders = image.holders;
    fields.ext = image.ext;
    header.holder_words().iter().zip(image.words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    header.store(fields);
}
