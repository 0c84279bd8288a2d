//! Removals: names go, and with a position's last name the position. A stretch of canonical names goes in one cutoff.

use crate::alloc::GRANULE;
use crate::compare::{common, common_backwards};
use crate::cover::NO_KEY;
use crate::error::IndexError;
use crate::lane::merge::Seams;
use crate::lane::names::{ALIASES_AT_ONCE, Hint};
use crate::lane::parking::Parking;
use crate::lane::survey::Survey;
use crate::lane::work::{HeldRun, NamedAt, Work};
use crate::layout::Entry;
use crate::prefetch::read_soon;
use crate::types::{EngineHash, Removed};

impl<'a> Work<'a> {
    /// Takes one copy of each name away.
    pub fn remove(&mut self, parking: &mut Parking, names: &[EngineHash], did: &mut Removed) -> Result<(), IndexError> {
        let me = &self.holders[self.tier.index()];
        if me.private_len > 0 {
            self.canonical.expect_private(me);
            self.expect_names(names);
        }
        let mut i = 0;
        while i < names.len() {
            let name = names[i].0;
            i += 1;
            if !parking.is_empty() && parking.take_name(self.tier, name) {
                did.parked += 1;
                continue;
            }
            if self.me().take_copy(name) {
                did.copies += 1;
                continue;
            }
            let me = &self.holders[self.tier.index()];
            if let Some(alias) = self.canonical.alias_of(&self.shard.arena, self.slot(), me, name) {
                let following = if parking.is_empty() { &names[i..] } else { &[] };
                let more = self.remove_private_stretch(alias, name, following)?;
                i += more as usize;
                did.removed += 1 + u64::from(more);
                continue;
            }
            match self.remove_stretch(name, &names[i..], parking.is_empty())? {
                0 => did.unknown += 1,
                gone => {
                    i += gone as usize - 1;
                    did.removed += u64::from(gone);
                }
            }
        }
        Ok(())
    }

    /// Forgets a name altogether.
    pub fn forget(&mut self, name: u64, at: NamedAt) -> Result<(), IndexError> {
        if at.private {
            self.remove_private(name);
        }
        self.leave(Some(at))
    }

    /// Drops the position that the holder has under a canonical name, together with neighbours that bear the following names:
    /// downwards first (engines free tails first), else upwards. How many went; 0 when the holder does not have the name.
    /// `many` allows for neighbours.
    fn remove_stretch(&mut self, name: u64, following: &[EngineHash], many: bool) -> Result<u32, IndexError> {
        let Some((held, survey, offset)) = self.lock_named(name) else { return Ok(0) };
        let position = held.f.base + offset;
        self.expect_stretch(&held, &survey, offset, following.len() as u32);
        if !many || !self.me().usual(position, name) {
            drop(held);
            self.forget(name, NamedAt { position, private: false })?;
            return Ok(1);
        }
        let (low, high) = self.stretch(held.f.base, offset, survey.cut, following);
        // Read before the blocks go: the position below may go with them.
        let below = if low > 0 { held.f.base + low - 1 } else { held.f.parent };
        let me = &mut self.holders[self.tier.index()];
        me.below = Hint { name: self.shard.arena.name(below), position: below };
        (me.below_run, me.below_key) = (if low > 0 { held.run } else { 0 }, NO_KEY);
        self.drop_range(held, survey, low, high)?;
        Ok(high - low + 1)
    }

    /// Asks for the lines that a removal of so many names more will read, each of which depends on none of the others.
    fn expect_stretch(&self, held: &HeldRun<'a>, survey: &Survey, offset: u32, following: u32) {
        let (arena, f) = (&self.shard.arena, &held.f);
        let low = offset.saturating_sub(following);
        for at in (low..offset).step_by(GRANULE as usize) {
            arena.names(f.base + at, 1).iter().for_each(read_soon);
        }
        if low > 0 || following == offset {
            return;
        }
        // It goes on in the parent's run; this one is unlinked if nobody else has any of it.
        read_soon(arena.owner(f.parent / GRANULE));
        arena.names(f.parent, 1).iter().for_each(read_soon);
        if survey.others == 0 {
            arena.contents(f.base, 1).iter().for_each(read_soon);
        }
    }

    /// LOCK of the run in which the holder has a canonical name, and the offset there. Below the last removal stands the next
    /// name, in an event as from event to event; only where that is not so the map is asked.
    fn lock_named(&mut self, name: u64) -> Option<(HeldRun<'a>, Survey, u32)> {
        let shard = self.shard;
        let Hint { name: expected, position } = self.me().below;
        if expected == name
            && let Some((sight, offset)) = shard.locate_once(position)
            && let Some(held) = self.lock_at(&sight)
            && shard.arena.name(position) == name
        {
            let survey = self.survey(&held);
            if offset < survey.cut && !survey.private {
                return Some((held, survey, offset));
            }
        }
        if self.me().held == 0 {
            return None;
        }
        let position = self.canonical.find(&shard.arena, name)?;
        let (held, offset) = self.lock_cover(position);
        let survey = self.survey(&held);
        (offset < survey.cut && !survey.private).then_some((held, survey, offset))
    }

    /// Drops a position held under a private name, together with those stored before it under the following names. How many of
    /// these went along.
    fn remove_private_stretch(&mut self, alias: u32, name: u64, following: &[EngineHash]) -> Result<u32, IndexError> {
        let (shard, slot, position) = (self.shard, self.slot(), self.canonical.position(alias));
        if !self.me().usual(position, name) {
            return self.forget(name, NamedAt { position, private: true }).map(|()| 0);
        }
        let me = &mut self.holders[self.tier.index()];
        let (aliases, count) = self.canonical.aliases_down(slot, me, alias, following);
        // From here on the positions matter, not the names.
        let mut stretches = [(0, 0); ALIASES_AT_ONCE];
        let mut last = 0;
        for &alias in &aliases[..count] {
            let position = self.canonical.position(alias);
            let (top, below) = stretches[last];
            if below > 0 && top == position + below {
                stretches[last].1 += 1;
                continue;
            }
            last += usize::from(below > 0);
            stretches[last] = (position, 1);
            shard.expect_owner(position);
        }
        self.canonical.remove_aliases(&shard.arena, slot, me, &aliases[..count]);
        for &(top, count) in &stretches[..=last] {
            self.drop_down(top, count)?;
        }
        Ok(count as u32 - 1)
    }

    /// Drops `count` positions from `top` downwards, which the holder has under private names and which may lie in several runs.
    fn drop_down(&mut self, mut top: u32, mut count: u32) -> Result<(), IndexError> {
        while count > 0 {
            let (held, offset) = self.lock_cover(top);
            let more = offset.min(count - 1);
            let survey = self.survey(&held);
            self.me().below_alias_run = if more < offset { held.run } else { 0 };
            self.drop_range(held, survey, offset - more, offset)?;
            top -= more + 1;
            count -= more + 1;
        }
        Ok(())
    }

    /// How far the neighbours of an offset bear the following names, and nothing is unusual about them.
    fn stretch(&self, base: u32, offset: u32, cut: u32, following: &[EngineHash]) -> (u32, u32) {
        let arena = &self.shard.arena;
        let me = &self.holders[self.tier.index()];
        let most = following.len().min(offset as usize);
        let below = arena.names(base + offset - most as u32, most as u32);
        let mut count = common_backwards(&following[..most], below);
        let usual = |at: u32, i: u32| me.usual(at, following[i as usize].0);
        if !me.is_plain() {
            count = (0..count).take_while(|&i| usual(base + offset - 1 - i, i)).count() as u32;
        }
        if count > 0 {
            return (offset - count, offset);
        }
        let above = arena.names(base + offset + 1, cut.saturating_sub(offset + 1));
        let mut count = common(following, above);
        if !me.is_plain() {
            count = (0..count).take_while(|&i| usual(base + offset + 1 + i, i)).count() as u32;
        }
        (offset, offset + count)
    }

    /// A name left its old position (its map entry is gone already): the position keeps its other names, or goes.
    pub fn leave(&mut self, old: Option<NamedAt>) -> Result<(), IndexError> {
        let Some(NamedAt { position, private }) = old else { return Ok(()) };
        let (mut held, offset) = self.lock_cover(position);
        if !self.me().twins.contains_key(&position) {
            let survey = self.survey(&held);
            return self.drop_range(held, survey, offset, offset);
        }
        if !private {
            // The canonical name goes and private ones stay: the position becomes private, as a run of its own.
            if offset > 0 {
                held = self.split(held, offset)?.1;
            }
            let mut survey = self.survey(&held);
            if survey.cut > 1 {
                held = self.split(held, 1)?.0;
                survey = self.survey(&held);
            }
            self.lower(&mut held, survey, Entry { slot: self.slot(), cut: 1, private: true })?;
        }
        self.me().take_twin(position);
        Ok(())
    }

    /// The holder no longer has offsets `low..=high` of a run. What it has above them stays: the run is split there.
    fn drop_range(&mut self, mut held: HeldRun<'a>, mut survey: Survey, low: u32, high: u32) -> Result<(), IndexError> {
        debug_assert!(high < survey.cut, "a dropped block is held");
        let cut = high + 1 < survey.cut;
        if cut {
            held = self.split(held, high + 1)?.0;
            survey = self.survey(&held);
        }
        let mut seams = Seams::touched(&held, survey.cut, low);
        if cut {
            // It is there because of what the holder keeps.
            seams.behind = 0;
        }
        self.lower(&mut held, survey, Entry { slot: self.slot(), cut: low, private: survey.private })?;
        let count = u64::from(high - low + 1);
        self.me().held -= count;
        self.counts.held -= count;
        self.trim(held, survey.others.max(low));
        self.merge_at(seams);
        Ok(())
    }

    /// Replaces a holder's entry by a lesser one, and takes names out of the canonical map that no rank of this lane holds
    /// canonically any more.
    pub fn lower(&mut self, held: &mut HeldRun<'a>, survey: Survey, entry: Entry) -> Result<(), IndexError> {
        self.set_cut(held, entry, survey.seat)?;
        let (before, after) = (survey.mapped(), survey.mapped_with(entry.cut, entry.private));
        if after < before {
            // ENG is read under LOCK: another lane could trim and reuse the positions after it.
            self.canonical.remove_stretch(&self.shard.arena, held.f.base + after, before - after);
        }
        Ok(())
    }
}
