//! A removal of one name that follows the holder's last one: an engine that frees block by block, tails first, sends each as
//! an event of its own. The place is known, so it is a look at the run, a cutoff and, where nobody else holds it, one name.

use crate::alloc::GRANULE;
use crate::error::IndexError;
use crate::lane::merge::Seams;
use crate::lane::names::Hint;
use crate::lane::work::{HeldRun, Work};
use crate::layout::{Entry, ROOT};
use crate::sync::Ordering;

/// Names between the one removed and the one whose line of the map is asked for: a miss takes as long as some events.
const AHEAD: u32 = 3;

impl Work<'_> {
    /// Takes a name away if it is the one expected next and the last block that the holder has of its run, with nothing unusual
    /// about the holder's names. False when not so; nothing has changed then. What was remembered is only where to look: all
    /// of it is checked under LOCK.
    #[inline]
    pub fn remove_following(&mut self, name: u64) -> Result<bool, IndexError> {
        let shard = self.shard;
        let me = &self.holders[self.tier.index()];
        let Hint { name: expected, position } = me.below;
        if expected != name || position == ROOT || !me.is_plain() {
            return Ok(false);
        }
        let run = match me.below_run {
            // Acquire: pairs with the Release of the split that moved the owner.
            0 => match shard.arena.owner(position / GRANULE).load(Ordering::Acquire) {
                0 => return Ok(false),
                run => run,
            },
            run => run,
        };
        let header = shard.header(run);
        let Ok(seen) = header.version().begin() else { return Ok(false) };
        let Some(lock) = header.version().lock_at(seen, &mut self.counts.lock_waits) else { return Ok(false) };
        self.counts.locks += 1;
        let mut held = HeldRun { run, header, f: header.load(), lock };
        let base = held.f.base;
        let offset = position.wrapping_sub(base);
        if offset >= held.f.len || shard.arena.name(position) != name {
            return Ok(false);
        }
        let survey = self.survey(&held);
        if survey.cut != offset + 1 || survey.private {
            return Ok(false);
        }
        // Read before the block goes: the run may go with it.
        let below = if offset > 0 { position - 1 } else { held.f.parent };
        let following = Hint { name: shard.arena.name(below), position: below };
        let seams = Seams::touched(&held, offset + 1, offset);
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
        me.held -= 1;
        self.counts.held -= 1;
        if survey.others <= offset {
            self.trim(held, offset);
        } else {
            drop(held);
        }
        self.merge_at(seams);
        Ok(true)
    }
}
