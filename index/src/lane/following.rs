//! A removal of one name that follows the holder's last one: an engine that frees block by block, tails first, sends each as
//! an event of its own. The place is known, so it is a look at the run, a cutoff and, where the map has the name for nobody
//! else, one entry of it. Canonical names go down along the run, private ones along their granules.

use crate::alloc::GRANULE;
use crate::cover::tree::edit;
use crate::cover::{NO_KEY, Seat};
use crate::error::IndexError;
use crate::lane::merge::Seams;
use crate::lane::names::{Hint, HolderNames};
use crate::lane::survey::{Survey, any_mine};
use crate::lane::work::{HeldRun, Work};
use crate::lane::{Lane, Rank};
use crate::layout::{CROWD, Entry, ROOT, SET_FORM, slot_of};
use crate::sync::Ordering;
use crate::types::Holder;

/// Names between the one removed and the one whose line of the map is asked for: a miss takes as long as some events.
const AHEAD: u32 = 3;

impl Lane {
    /// The commonest of these removals, which changes one word and nothing else: the holder is a key of a run in set form that
    /// stays between its neighbours, and some full holder of this lane keeps block, name and map. False when not so; nothing has
    /// changed then.
    #[inline]
    pub(super) fn step_down(&mut self, at: Holder, name: u64) -> bool {
        let shard = &self.index.shards[self.shard_number as usize];
        let Some(Some(rank)) = self.ranks.get_mut(at.rank.0 as usize) else { return false };
        let Rank { slot, holders, parking, changed, .. } = &mut **rank;
        let (slot, me) = (slot_of(*slot, at.tier), &mut holders[at.tier.index()]);
        let (Hint { name: expected, position }, run, i) = (me.below, me.below_run, me.below_key);
        if expected != name || i == NO_KEY || !me.is_regular() || !parking.is_empty() || !self.retired.is_empty() {
            return false;
        }
        let header = shard.header(run);
        let Ok(seen) = header.version().begin() else { return false };
        let Some(_lock) = header.version().lock_at(seen, &mut self.counts.lock_waits) else { return false };
        self.counts.locks += 1;
        let f = header.load();
        let offset = position.wrapping_sub(f.base);
        let inside = (1..f.len.saturating_sub(1)).contains(&offset) && f.flags & (SET_FORM | CROWD) == SET_FORM;
        let holder = || Entry { slot, cut: offset + 1, private: false };
        let fits = inside
            && any_mine(header.holder_words(), &self.mine)
            && edit::may_step_down(&shard.arena, f.ext, i.into(), holder())
            && shard.arena.name(position) == name;
        if !fits {
            return false;
        }
        edit::step_down(&shard.arena, f.ext, i.into());
        me.below = Hint { name: shard.arena.name(position - 1), position: position - 1 };
        me.held -= 1;
        self.counts.held -= 1;
        self.operations += 1;
        *changed = self.operations;
        true
    }
}

impl<'a> Work<'a> {
    /// Takes a name away if it is the one expected next and the last block that the holder has of its run, with nothing unusual
    /// about the holder's names. False when not so; nothing has changed then. What was remembered is only where to look: all
    /// of it is checked under LOCK.
    #[inline]
    pub fn remove_following(&mut self, name: u64) -> Result<bool, IndexError> {
        let me = &self.holders[self.tier.index()];
        if !me.is_regular() {
            return Ok(false);
        }
        if me.below.name == name && me.below.position != ROOT {
            return self.remove_below(name);
        }
        match self.canonical.expected_alias(self.slot(), me, name) {
            Some(alias) => self.remove_alias_below(alias, name),
            None => Ok(false),
        }
    }

    /// The same for a canonical name.
    #[inline]
    fn remove_below(&mut self, name: u64) -> Result<bool, IndexError> {
        let shard = self.shard;
        let HolderNames { below: Hint { position, .. }, below_run, .. } = self.holders[self.tier.index()];
        let Some((mut held, survey)) = self.last_of_run(position, below_run) else { return Ok(false) };
        if survey.private || shard.arena.name(position) != name {
            return Ok(false);
        }
        let (run, offset) = (held.run, survey.cut - 1);
        // Read before the block goes: the run may go with it.
        let below = if offset > 0 { position - 1 } else { held.f.parent };
        let following = Hint { name: shard.arena.name(below), position: below };
        let seams = Seams::touched(&held, survey.cut, offset);
        let entry = Entry { slot: self.slot(), cut: offset, private: false };
        self.set_cut(&mut held, entry, survey.seat)?;
        if survey.others_mapped <= offset {
            // ENG is read under LOCK: another lane could trim and reuse the positions after it.
            let ahead = (offset > AHEAD).then(|| shard.arena.name(position - 1 - AHEAD));
            self.canonical.remove_one(&shard.arena, name, position);
            ahead.into_iter().for_each(|name| self.canonical.expect(&shard.arena, name));
        }
        let key = match survey.seat {
            Seat::Key(i) => i,
            Seat::Bit if held.f.flags & CROWD == 0 => shard.key_of(&held.f, self.slot()),
            _ => NO_KEY,
        };
        let me = self.me();
        me.below_key = if offset > 0 { key } else { NO_KEY };
        (me.below, me.below_run) = (following, if offset > 0 { run } else { 0 });
        self.gone_from(held, survey, seams);
        Ok(true)
    }

    /// The same for a private name.
    #[inline]
    fn remove_alias_below(&mut self, alias: u32, name: u64) -> Result<bool, IndexError> {
        let (shard, slot) = (self.shard, self.slot());
        let position = self.canonical.position(alias);
        let run = self.holders[self.tier.index()].below_alias_run;
        let Some((mut held, survey)) = self.last_of_run(position, run) else { return Ok(false) };
        if !survey.private {
            return Ok(false);
        }
        let (run, offset) = (held.run, survey.cut - 1);
        let seams = Seams::touched(&held, survey.cut, offset);
        self.set_cut(&mut held, Entry { slot, cut: offset, private: true }, survey.seat)?;
        let me = &mut self.holders[self.tier.index()];
        self.canonical.remove_alias(&shard.arena, me, alias, name, AHEAD);
        me.below_alias_run = if offset > 0 { run } else { 0 };
        self.gone_from(held, survey, seams);
        Ok(true)
    }

    /// LOCK of the run that has a position, if that is the last one that the holder has of the run. The run may be known, as 0
    /// it is not; either way it is a rumour.
    #[inline]
    fn last_of_run(&mut self, position: u32, run: u32) -> Option<(HeldRun<'a>, Survey)> {
        let shard = self.shard;
        let run = match run {
            // Acquire: pairs with the Release of the split that moved the owner.
            0 => match shard.arena.owner(position / GRANULE).load(Ordering::Acquire) {
                0 => return None,
                run => run,
            },
            run => run,
        };
        let header = shard.header(run);
        let Ok(seen) = header.version().begin() else { return None };
        let lock = header.version().lock_at(seen, &mut self.counts.lock_waits)?;
        self.counts.locks += 1;
        let held = HeldRun { run, header, f: header.load(), lock };
        let offset = position.wrapping_sub(held.f.base);
        if offset >= held.f.len {
            return None;
        }
        let survey = self.survey(&held);
        (survey.cut == offset + 1).then_some((held, survey))
    }

    /// A holder's last block of a run went: what nobody else holds there goes, too, and a seam that nobody else needs.
    #[inline]
    fn gone_from(&mut self, held: HeldRun<'a>, survey: Survey, seams: Seams) {
        let offset = survey.cut - 1;
        self.me().held -= 1;
        self.counts.held -= 1;
        if survey.others <= offset {
            self.trim(held, offset);
        } else {
            drop(held);
        }
        self.merge_at(seams);
    }
}
