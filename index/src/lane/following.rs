//! A removal of one name that follows the holder's last one: an engine that frees block by block, tails first, sends each as
//! an event of its own. The place is known, so it is a look at the run, a cutoff and, where the map has the name for nobody
//! else, one entry of it. Canonical names go down along the run, private ones along their granules.

use crate::alloc::GRANULE;
use crate::error::IndexError;
use crate::lane::merge::Seams;
use crate::lane::names::{Hint, HolderNames};
use crate::lane::survey::Survey;
use crate::lane::work::{HeldRun, Work};
use crate::layout::{Entry, ROOT};
use crate::sync::Ordering;

/// Names between the one removed and the one whose line of the map is asked for: a miss takes as long as some events.
const AHEAD: u32 = 3;

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
        let me = self.me();
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
