//! Stores: a walk along the chain that joins what is there, appends, or opens a run; every step from a position that the
//! rank holds already, so nothing under its feet can go away.

use crate::alloc::GRANULE;
use crate::compare::common;
use crate::edge::Found;
use crate::error::IndexError;
use crate::fault::{Fault, injected};
use crate::kids::Kids;
use crate::lane::names::Hint;
use crate::lane::work::{HeldRun, NamedAt, Standing, Work};
use crate::layout::{Entry, Fields, ROOT};
use crate::shard::Sight;
use crate::sync::Ordering;
use crate::types::{ContentHash, EngineHash, StoreKind, Stored};
use crate::version::reuse_fence;

/// How far a step got: blocks taken, and the position of the last one.
pub(crate) struct Taken {
    pub count: u32,
    pub last: u32,
}

/// A position that the rank holds, or the root, and where it was seen: its run at some version and the offset inside.
#[derive(Clone, Copy)]
pub(crate) struct After {
    pub position: u32,
    pub seen: Option<(Sight, u32)>,
}

impl After {
    /// The root.
    pub const ROOT: After = After::position(ROOT);

    /// A position that is yet to be located.
    pub const fn position(position: u32) -> Self {
        Self { position, seen: None }
    }
}

impl From<Standing> for After {
    fn from(at: Standing) -> Self {
        Self { position: at.position(), seen: Some((at.sight, at.offset)) }
    }
}

/// What continues a position.
enum Next {
    /// The stretch `offset..offset + matched` of a run has the contents asked for.
    Join(Sight, u32, u32),
    /// Nobody has the next content here. The run around the position as it was when this was found.
    Nothing(Option<(Sight, u32)>),
}

impl<'a> Work<'a> {
    /// Places blocks after a position that the rank holds (or the root).
    pub fn place(
        &mut self,
        after: After,
        names: &[EngineHash],
        contents: &[ContentHash],
        kind: StoreKind,
        did: &mut Stored,
    ) -> Result<(), IndexError> {
        let (mut at, mut done) = (after, 0);
        while done < names.len() {
            let (names, contents) = (&names[done..], &contents[done..]);
            let taken = match self.next(at, contents) {
                Next::Join(sight, offset, matched) => {
                    self.join(&sight, offset, &names[..matched as usize], kind, did)?
                }
                Next::Nothing(seen) => self.extend(at.position, seen, names, contents, kind, did)?,
            };
            // `None`: another lane changed the run in between; look again.
            match taken {
                Some(taken) => {
                    done += taken.count as usize;
                    at = After::position(taken.last);
                }
                None => at.seen = None,
            }
        }
        if let Some(last) = names.last() {
            self.me().latest = Hint { name: last.0, position: at.position };
        }
        Ok(())
    }

    fn next(&self, after: After, contents: &[ContentHash]) -> Next {
        let shard = self.shard;
        let (at, mut seen) = (after.position, after.seen);
        loop {
            let mut around = None;
            if at != ROOT {
                let (sight, offset) = seen.take().unwrap_or_else(|| shard.locate(at));
                around = Some((sight, offset));
                let f = &sight.fields;
                let inside = offset + 1 < f.len;
                let (sight, offset) = match (inside, f.next) {
                    (true, _) => (sight, offset + 1),
                    (false, 0) => (sight, f.len),
                    (false, next) => match shard.sight(next, u32::MAX) {
                        Ok(s) if s.fields.parent == at && s.fields.base == at + 1 => (s, 0),
                        _ => continue,
                    },
                };
                let f = &sight.fields;
                let matched = common(contents, shard.arena.contents(f.base + offset, f.len - offset));
                if !shard.header(sight.run).version().confirm(sight.seen) {
                    continue;
                }
                if matched > 0 {
                    return Next::Join(sight, offset, matched);
                }
                if !Kids::any(&shard.arena, at) {
                    // Whoever continues the position sets its bit under LOCK, where it is read again before anything is done.
                    return Next::Nothing(around);
                }
            }
            match shard.child(at, contents[0], u32::MAX) {
                Found::Miss => return Next::Nothing(around),
                Found::Busy => {}
                Found::Hit(sight) => {
                    let f = &sight.fields;
                    let matched = common(contents, shard.arena.contents(f.base, f.len));
                    if shard.header(sight.run).version().confirm(sight.seen) {
                        return Next::Join(sight, 0, matched);
                    }
                }
            }
        }
    }

    /// Appends to the run that ends at `at`, or opens a run there. `None` when somebody else continued `at` this way first.
    fn extend(
        &mut self,
        at: u32,
        seen: Option<(Sight, u32)>,
        names: &[EngineHash],
        contents: &[ContentHash],
        kind: StoreKind,
        did: &mut Stored,
    ) -> Result<Option<Taken>, IndexError> {
        let room = self.room()?;
        let names = &names[..names.len().min(room)];
        let contents = &contents[..names.len()];
        let shard = self.shard;
        let first = contents[0];
        let Some((sight, offset)) = seen else {
            let root = shard.root_lock(first.0).lock();
            if !injected(Fault::ChildNotProbed) && !matches!(shard.child(ROOT, first, u32::MAX), Found::Miss) {
                return Ok(None);
            }
            let (taken, old) = self.open(ROOT, names, contents, kind, did)?;
            drop(root);
            self.leave(old)?;
            return Ok(Some(taken));
        };
        let Some(mut held) = self.lock_at(&sight) else { return Ok(None) };
        if self.continued(&held, offset, at, first) {
            return Ok(None);
        }
        if let Some(taken) = self.append(&mut held, offset, names, contents, did)? {
            return Ok(Some(taken));
        }
        let held = Some(held).filter(|_| !injected(Fault::OpenedUnlocked));
        let (taken, old) = self.open(at, names, contents, kind, did)?;
        drop(held);
        self.leave(old)?;
        Ok(Some(taken))
    }

    /// Whether `first` follows `at` already, decided under the LOCK of the run that covers `at` (rule R4).
    fn continued(&self, held: &HeldRun<'_>, offset: u32, at: u32, first: ContentHash) -> bool {
        let (shard, f) = (self.shard, &held.f);
        // Inside the run or as its successor, what follows is the next position. A successor cannot leave while its parent's
        // LOCK is held, so its first content is stable.
        let next = !injected(Fault::NextNotProbed) && (offset + 1 < f.len || f.next != 0);
        let follows = next && shard.arena.content(at + 1) == first.0;
        let children = !injected(Fault::ChildNotProbed) && Kids::any(&shard.arena, at);
        follows || children && !matches!(shard.child(at, first, u32::MAX), Found::Miss)
    }

    /// Appends in place where the rank holds the run canonically to its end and there is room, or can be. `None` where it
    /// cannot.
    fn append(
        &mut self,
        held: &mut HeldRun<'_>,
        offset: u32,
        names: &[EngineHash],
        contents: &[ContentHash],
        did: &mut Stored,
    ) -> Result<Option<Taken>, IndexError> {
        let (shard, slot) = (self.shard, self.slot());
        if offset + 1 != held.f.len || held.f.next != 0 || held.f.set_form() {
            return Ok(None);
        }
        let survey = self.survey(held);
        let f = &mut held.f;
        if (survey.cut, survey.private) != (f.len, false) {
            return Ok(None);
        }
        // Where others hold the run to its end, it stays theirs, too: what only one of them goes on with is a run of its own.
        let grown = if survey.others < f.len { self.more_granules(f, names.len()) } else { 0 };
        let (old_end, cap) = (f.base + f.cap, f.cap + grown * GRANULE);
        let count = ((cap - f.len) as usize).min(names.len());
        if count == 0 {
            return Ok(None);
        }
        // Rule R2: an older reader may still compare what stood here before a trim.
        reuse_fence();
        self.write(f.end(), &names[..count], &contents[..count]);
        let taken = self.map_stretch(f.end(), &names[..count]);
        let new_end = old_end.max((f.end() + taken).next_multiple_of(GRANULE));
        self.give_granules(new_end, f.base + cap);
        if taken == 0 {
            return Ok(None);
        }
        self.cover(held.run, old_end / GRANULE..new_end / GRANULE);
        f.len += taken;
        f.cap = new_end - f.base;
        held.header.store_size(f);
        let entry = Entry { slot, cut: f.len, private: false };
        shard.set_cut(&mut self.scratch.drafts, &mut held.lock, held.header, f, entry)?;
        self.took(taken, did);
        self.counts.blocks = self.counts.blocks.wrapping_add(u64::from(taken));
        self.counts.written += u64::from(taken);
        Ok(Some(Taken { count: taken, last: f.end() - 1 }))
    }

    /// Granules right behind a run that have room for so many more blocks, as far as they are free and a run may have them.
    fn more_granules(&mut self, f: &Fields, blocks: usize) -> u32 {
        let allowed = self.shard.run_blocks_max.saturating_sub(f.len);
        let wanted = f.len + blocks.min(allowed as usize) as u32;
        match wanted.saturating_sub(f.cap).div_ceil(GRANULE) {
            0 => 0,
            granules => self.stock.take_from(&self.shard.alloc, (f.base + f.cap) / GRANULE, granules),
        }
    }

    /// Makes new granules a run's.
    fn cover(&self, run: u32, granules: std::ops::Range<u32>) {
        let arena = &self.shard.arena;
        for granule in granules {
            arena.kids(granule).store(0, Ordering::Relaxed);
            // Release: pairs with the Acquire in `locate`.
            arena.owner(granule).store(run, Ordering::Release);
        }
    }

    /// Stores contents and canonical names of positions that no run covers yet.
    fn write(&self, from: u32, names: &[EngineHash], contents: &[ContentHash]) {
        let count = names.len() as u32;
        let arena = &self.shard.arena;
        for (to, content) in arena.contents(from, count).iter().zip(contents) {
            to.store(content.0, Ordering::Relaxed);
        }
        for (to, name) in arena.names(from, count).iter().zip(names) {
            to.store(name.0, Ordering::Relaxed);
        }
    }

    /// Maps the canonical names of unmapped positions from `from` on, as far as the rank does not have them elsewhere and
    /// the lane does not know them elsewhere. How many were mapped.
    pub fn map_stretch(&mut self, from: u32, names: &[EngineHash]) -> u32 {
        let (slot, me) = (self.slot(), &self.holders[self.tier.index()]);
        self.canonical.insert_stretch(&self.shard.arena, slot, me, names, from)
    }

    /// Counts blocks that the holder has from now on.
    pub fn took(&mut self, count: u32, did: &mut Stored) {
        self.me().held += u64::from(count);
        self.counts.held += u64::from(count);
        did.stored += u64::from(count);
    }

    /// Opens a run at `parent`, held by this rank alone. The caller keeps others from opening the same child. Also returns
    /// where the first name stood before, when the rank has it elsewhere: to be left once no LOCK is held.
    fn open(
        &mut self,
        parent: u32,
        names: &[EngineHash],
        contents: &[ContentHash],
        kind: StoreKind,
        did: &mut Stored,
    ) -> Result<(Taken, Option<NamedAt>), IndexError> {
        let shard = self.shard;
        let want = names.len().min(shard.run_blocks_max as usize) as u32;
        let run = self.stock.take_run(&shard.alloc)?;
        let (first, granules) = match self.stock.take_granules(&shard.alloc, want.div_ceil(GRANULE)) {
            Ok(taken) => taken,
            Err(full) => {
                self.stock.give_run(&shard.alloc, run);
                return Err(full);
            }
        };
        let count = want.min(granules * GRANULE);
        let base = first * GRANULE;
        reuse_fence();
        let names = &names[..count as usize];
        self.write(base, names, &contents[..count as usize]);
        let named = self.name_new(base, names, kind, did);
        let (len, private, old) = named.inspect_err(|_| {
            self.stock.give_granules(&shard.alloc, first, granules);
            self.stock.give_run(&shard.alloc, run);
        })?;
        let kept = len.div_ceil(GRANULE);
        self.stock.give_granules(&shard.alloc, first + kept, granules - kept);
        self.cover(run, first..first + kept);
        let cap = kept * GRANULE;
        let mut f = Fields { base, parent, next: 0, ext: 0, len, cap, holders: 0, flags: 0 };
        let header = shard.header(run);
        let holder = Entry { slot: self.slot(), cut: len, private };
        shard.install_new(&mut self.scratch.drafts, header, &mut f, &[holder])?;
        let born = header.version().revive();
        let hash = shard.edge_hash(parent, contents[0].0);
        shard.edge.insert(self.lane, hash, run, first, &|r, g| shard.rehash(r, g));
        shard.kids.add(&shard.arena, parent);
        drop(born);
        self.counts.blocks = self.counts.blocks.wrapping_add(u64::from(len));
        self.counts.written += u64::from(len);
        self.counts.opened += 1;
        Ok((Taken { count: len, last: base + len - 1 }, old))
    }

    /// Names the blocks of a run that is being opened: canonically as far as that goes, else privately. Returns how many
    /// got a name, whether privately, and the old place of a name that moved here.
    fn name_new(
        &mut self,
        base: u32,
        names: &[EngineHash],
        kind: StoreKind,
        did: &mut Stored,
    ) -> Result<(u32, bool, Option<NamedAt>), IndexError> {
        let mapped = self.map_stretch(base, names);
        if mapped > 0 {
            self.took(mapped, did);
            return Ok((mapped, false, None));
        }
        let names = &names[..names.len().min(self.canonical.room()?)];
        let (taken, old) = self.name_privately(base, names, kind, did);
        Ok((taken, true, old))
    }
}
