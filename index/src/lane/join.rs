//! Joins: the rank holds a stretch of an existing run from now on, under these names.
//!
//! The common case is one sweep over names and one cutoff. Everything else (twins, foreign names, names that move) goes one
//! name at a time; where a run's kind of name does not fit, the run is split, so that a holder has one kind for each run.

use crate::compare::common;
use crate::error::IndexError;
use crate::fault::{Fault, injected};
use crate::lane::merge::Seams;
use crate::lane::store::Taken;
use crate::lane::survey::Survey;
use crate::lane::work::{HeldRun, NamedAt, Work, stands_at};
use crate::layout::{Entry, ROOT};
use crate::shard::Sight;
use crate::types::{EngineHash, StoreKind, Stored};

impl<'a> Work<'a> {
    /// Holds `names.len()` blocks of a run from `offset` on, or a part of them. `None` when the run is no longer as seen.
    pub fn join(
        &mut self,
        sight: &Sight,
        offset: u32,
        names: &[EngineHash],
        kind: StoreKind,
        did: &mut Stored,
    ) -> Result<Option<Taken>, IndexError> {
        // Before the LOCK, which is taken at this version only: names of a run's blocks stay while the version does.
        let words = self.shard.arena.names(sight.fields.base + offset, names.len() as u32);
        let same = common(names, words);
        let parent = sight.fields.parent;
        let _turned = (injected(Fault::ParentBeforeChild) && parent != ROOT).then(|| self.lock_cover(parent));
        let Some(mut held) = self.lock_at(sight) else { return Ok(None) };
        // Under names of its own, what others hold does not matter.
        let survey_of =
            |work: &Self, held: &HeldRun<'a>| if same == 0 { work.survey_own(held) } else { work.survey(held) };
        let mut survey = survey_of(self, &held);
        if offset < survey.cut {
            let there = names.len().min((survey.cut - offset) as usize);
            return self.hold_again(held, offset, survey.private, &names[..there], kind, did).map(Some);
        }
        if offset > survey.cut {
            // A hole before the stretch: cut the run there, so that what is held is a prefix of the second half.
            held = self.split(held, offset)?.1;
            survey = survey_of(self, &held);
        }
        self.hold_more(held, survey, names, same, kind, did).map(Some)
    }

    /// Names for positions that are held already: further copies, or further names (twins).
    fn hold_again(
        &mut self,
        held: HeldRun<'a>,
        offset: u32,
        private: bool,
        names: &[EngineHash],
        kind: StoreKind,
        did: &mut Stored,
    ) -> Result<Taken, IndexError> {
        let from = held.f.base + offset;
        let extra = u64::from(kind == StoreKind::Copy);
        let arena = &self.shard.arena;
        let mut count = 0;
        for name in names {
            let position = from + count;
            let canonical = !private && arena.name(position) == name.0;
            if !canonical && self.private(name.0) != Some(position) {
                break;
            }
            self.me().add_copies(name.0, extra);
            did.copies += extra;
            count += 1;
        }
        if count > 0 {
            return Ok(Taken { count, last: from + count - 1 });
        }
        let name = names[0].0;
        self.canonical.room()?;
        let old = self.resolve(name);
        if old.is_none() {
            self.room()?;
            did.stored += 1;
        } else {
            self.me().add_copies(name, extra);
            did.moved += 1;
        }
        self.set_private(name, from);
        self.me().add_twin(from);
        drop(held);
        self.leave(old)?;
        Ok(Taken { count: 1, last: from })
    }

    /// Extends the holder's prefix of a run, from its end. The first `same` names are the canonical ones there.
    fn hold_more(
        &mut self,
        mut held: HeldRun<'a>,
        survey: Survey,
        names: &[EngineHash],
        same: u32,
        kind: StoreKind,
        did: &mut Stored,
    ) -> Result<Taken, IndexError> {
        let room = self.room()?;
        let names = &names[..names.len().min(room)];
        let mut offset = survey.cut;
        if offset == 0 || !survey.private {
            let same = names.len().min(same as usize);
            let taken = self.extend_canonical(&mut held, survey, &names[..same])?;
            if taken > 0 {
                self.took(taken, did);
                let last = held.f.base + offset + taken - 1;
                let seams = Seams::touched(&held, offset, offset + taken);
                self.cut_at_stop(held, offset + taken);
                self.merge_joined(seams);
                return Ok(Taken { count: taken, last });
            }
            if offset > 0 {
                // The next name is not the canonical one here: private from a run of its own on.
                held = self.split(held, offset)?.1;
                offset = 0;
            }
        }
        let from = held.f.base + offset;
        let names = &names[..names.len().min(self.canonical.room()?)];
        let (taken, old) = self.name_privately(from, names, kind, did);
        let entry = Entry { slot: self.slot(), cut: offset + taken, private: true };
        if let Err(full) = self.shard.set_cut(&mut self.scratch.drafts, &mut held.lock, held.header, &mut held.f, entry)
        {
            self.unname(&names[..taken as usize], old);
            return Err(full);
        }
        let seams = Seams::touched(&held, offset, offset + taken);
        self.cut_at_stop(held, offset + taken);
        self.leave(old)?;
        self.merge_joined(seams);
        Ok(Taken { count: taken, last: from + taken - 1 })
    }

    /// Takes back what `name_privately` did.
    fn unname(&mut self, names: &[EngineHash], old: Option<NamedAt>) {
        names.iter().for_each(|name| self.remove_private(name.0));
        if let Some(old) = old.filter(|o| o.private) {
            self.set_private(names[0].0, old.position);
        }
        let me = self.me();
        me.held -= names.len() as u64;
        self.counts.held -= names.len() as u64;
    }

    /// Raises the cutoff as far as the names, which are the canonical ones there, are free to be used so. How far.
    fn extend_canonical(
        &mut self,
        held: &mut HeldRun<'a>,
        survey: Survey,
        names: &[EngineHash],
    ) -> Result<u32, IndexError> {
        if names.is_empty() {
            return Ok(0);
        }
        let offset = survey.cut;
        let from = held.f.base + offset;
        // What other ranks of this lane hold canonically is mapped; only an own private name can be in the way there.
        let mapped = survey.others_mapped.saturating_sub(offset).min(names.len() as u32);
        let free = self.not_private(&names[..mapped as usize]) as u32;
        let fresh = if free < mapped { 0 } else { self.map_stretch(from + free, &names[free as usize..]) };
        let taken = free + fresh;
        if taken == 0 {
            return Ok(0);
        }
        let entry = Entry { slot: self.slot(), cut: offset + taken, private: false };
        if let Err(full) = self.set_cut(held, entry, survey.seat) {
            self.canonical.remove_stretch(&self.shard.arena, from + free, fresh);
            return Err(full);
        }
        Ok(taken)
    }

    /// Gives private names to positions from `from` on, as far as the rank has none of them elsewhere; at least one: if the
    /// very first is elsewhere, it alone moves here, and its old place is returned, to be left once no LOCK is held.
    pub fn name_privately(
        &mut self,
        from: u32,
        names: &[EngineHash],
        kind: StoreKind,
        did: &mut Stored,
    ) -> (u32, Option<NamedAt>) {
        let (shard, slot) = (self.shard, self.slot());
        let me = &mut self.holders[self.tier.index()];
        let elsewhere = |position| stands_at(shard, slot, position).is_some();
        let taken = self.canonical.add_private(&shard.arena, slot, me, (names, from), elsewhere);
        if taken > 0 {
            self.took(taken, did);
            return (taken, None);
        }
        let name = names[0].0;
        let old = self.resolve(name);
        debug_assert!(old.is_some(), "only a name that the holder has is left out");
        self.set_private(name, from);
        let me = self.me();
        me.add_copies(name, u64::from(kind == StoreKind::Copy));
        me.held += 1;
        self.counts.held += 1;
        did.moved += 1;
        (1, old)
    }

    /// Names that the holder may still get; an error at the limit.
    pub fn room(&mut self) -> Result<usize, IndexError> {
        let limit = self.names_max;
        match limit.saturating_sub(self.me().count()) {
            0 => Err(IndexError::NamesFull { limit }),
            room => Ok(usize::try_from(room).unwrap_or(usize::MAX)),
        }
    }
}
