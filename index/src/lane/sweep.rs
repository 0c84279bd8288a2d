//! Sweeps over every run of the shard for one holder: clearing it, and listing its names for tests and dumps.

use crate::lane::merge::Seams;
use crate::lane::names::{HolderNames, LaneNames};
use crate::lane::work::Work;
use crate::layout::Entry;
use crate::shard::{Shard, Sight};
use crate::sync::Ordering;
use crate::types::EngineHash;

impl<'a> Work<'a> {
    /// Drops everything the holder has; how many blocks. Never needs memory.
    pub fn clear(&mut self) -> u64 {
        let (slot, me) = (self.slot(), &mut self.holders[self.tier.index()]);
        self.canonical.clear_private(&self.shard.arena, slot, me);
        let had = me.held;
        let key = *me.copies.hasher();
        me.forget(key);
        me.held = had;
        // A split by another lane may move what is held behind the sweep; then something is left, and it goes round again.
        while self.me().held > 0 {
            let end = self.shard.alloc.lock().runs_end();
            for run in 1..end {
                self.clear_run(run);
                if self.me().held == 0 {
                    break;
                }
            }
        }
        had
    }

    fn clear_run(&mut self, run: u32) {
        let slot = self.slot();
        while let Some((sight, cut)) = cut_of(self.shard, slot, run) {
            if cut == 0 {
                return;
            }
            let Some(mut held) = self.lock_at(&sight) else { continue };
            let survey = self.survey(&held);
            let (cut, private) = (survey.cut, survey.private);
            let lowered = self.lower(&mut held, survey, Entry { slot, cut: 0, private });
            debug_assert!(lowered.is_ok(), "taking a holder out needs no memory");
            self.me().held -= u64::from(cut);
            self.counts.held -= u64::from(cut);
            let seams = Seams::of(&held);
            self.trim(held, survey.others);
            self.merge_at(seams);
            return;
        }
    }
}

/// A holder's cutoff in a run, judged by the version; `None` for a dead run.
fn cut_of(shard: &Shard, slot: u32, run: u32) -> Option<(Sight, u32)> {
    if shard.header(run).version().is_dead() {
        return None;
    }
    loop {
        let sight = shard.sight(run, u32::MAX).ok()?;
        let header = shard.header(run);
        let (cut, _) = shard.cut(header, &sight.fields, slot);
        if header.version().confirm(sight.seen) {
            return Some((sight, cut));
        }
    }
}

/// A holder's names with their copies, sorted.
pub(crate) fn names_of(shard: &Shard, slot: u32, holder: &HolderNames, lane: &LaneNames) -> Vec<(EngineHash, u64)> {
    let mut names: Vec<u64> = lane.private_of(slot).map(|(name, _)| name).collect();
    let end = shard.alloc.lock().runs_end();
    for run in 1..end {
        canonical_names_of(shard, slot, run, &mut names);
    }
    names.sort_unstable();
    names.into_iter().map(|n| (EngineHash(n), 1 + holder.copies.get(&n).copied().unwrap_or(0))).collect()
}

fn canonical_names_of(shard: &Shard, slot: u32, run: u32, names: &mut Vec<u64>) {
    let header = shard.header(run);
    let had = names.len();
    while let Some((sight, _)) = cut_of(shard, slot, run) {
        let (cut, private) = shard.cut(header, &sight.fields, slot);
        if !private {
            let words = shard.arena.names(sight.fields.base, cut);
            names.extend(words.iter().map(|w| w.load(Ordering::Relaxed)));
        }
        if header.version().confirm(sight.seen) {
            return;
        }
        names.truncate(had);
    }
}
