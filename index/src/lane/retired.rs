//! What cleared and closed ranks held, swept out of the runs by and by.
//!
//! A retired slot is masked: no answer names it. Its entries stay in the runs, and the lane's map keeps its canonical names,
//! until the sweep meets them. One sweep goes round the shard's run headers for all retired slots together, some runs after
//! each operation of the lane and more when its thread has nothing else to do; a slot is free again when as many blocks were
//! swept as it held, so neither splits behind the sweep nor new runs can make it miss any. Private names are swept in the
//! same steps, by a round over their granules.

use crate::lane::Lane;
use crate::lane::merge::Seams;
use crate::lane::names::HolderNames;
use crate::lane::work::Work;
use crate::layout::{Entry, rank_of, tier_of};
use crate::shard::{Shard, Sight};
use crate::slots::RETIRED_MAX;
use crate::types::Tier;

/// Runs that are looked at after each operation while there is something to sweep.
pub(super) const RUNS_SWEPT_AFTER: u32 = 16;

/// What is left to sweep of a slot.
struct Left {
    slot: u32,
    blocks: u64,
    names: u64,
}

/// The slots that are masked and not swept yet.
pub(crate) struct Retired {
    slots: Vec<Left>,
    /// One bit a rank slot.
    marks: Vec<u64>,
    left: u64,
    names_left: u64,
    /// The run looked at next.
    run: u32,
    /// The granule of private names looked at next.
    granule: u32,
    /// Entries of one run, reused.
    entries: Vec<Entry>,
    /// Nobody's names: a retired holder has none.
    nameless: [HolderNames; Tier::COUNT],
}

impl Retired {
    pub fn new(key: crate::hash::HashKey) -> Self {
        Self {
            slots: Vec::new(),
            marks: Vec::new(),
            left: 0,
            names_left: 0,
            run: 1,
            granule: 1,
            entries: Vec::new(),
            nameless: std::array::from_fn(|_| HolderNames::new(key)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
    pub fn is_full(&self) -> bool {
        self.slots.len() >= RETIRED_MAX as usize
    }
    /// Blocks and private names not swept yet.
    pub fn left(&self) -> u64 {
        self.left + self.names_left
    }
    /// Rank slots with the blocks and the private names left on each.
    pub fn slots(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        self.slots.iter().map(|left| (left.slot, left.blocks, left.names))
    }

    /// One more masked slot, on which `blocks` were held, with so many private names.
    pub fn add(&mut self, slot: u32, blocks: u64, names: u64) {
        let word = slot as usize / 64;
        self.marks.resize(self.marks.len().max(word + 1), 0);
        self.marks[word] |= 1 << (slot % 64);
        self.slots.push(Left { slot, blocks, names });
        self.left += blocks;
        self.names_left += names;
    }

    /// A slot of which nothing is left, taken out.
    fn take_swept(&mut self) -> Option<u32> {
        let i = self.slots.iter().position(|left| left.blocks + left.names == 0)?;
        let slot = self.slots.swap_remove(i).slot;
        self.marks[slot as usize / 64] &= !(1 << (slot % 64));
        Some(slot)
    }

    /// So much of a holder's slot was swept; whether nothing is left of it.
    fn swept(&mut self, holder_slot: u32, blocks: u64, names: u64) -> bool {
        let slot = rank_of(holder_slot);
        let of = self.slots.iter_mut().find(|left| left.slot == slot).expect("marked slots are listed");
        of.blocks -= blocks;
        of.names -= names;
        self.left -= blocks;
        self.names_left -= names;
        of.blocks + of.names == 0
    }
}

#[inline]
fn marked(marks: &[u64], holder_slot: u32) -> bool {
    let slot = rank_of(holder_slot);
    marks.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
}

impl Lane {
    /// Sweeps what cleared ranks held out of up to `runs` runs, and the private names of as many granules; how many blocks and
    /// private names are left to sweep. The lane does some of this
    /// after each operation, so calling it is never needed for right answers: a thread calls it when it has nothing else
    /// to do, until it returns 0, so that the memory comes back. Takes some tens of nanoseconds a run.
    pub fn sweep(&mut self, runs: u32) -> u64 {
        if !self.retired.is_empty() {
            self.sweep_runs(runs);
            self.publish();
        }
        self.retired.left()
    }

    /// Sweeps everything.
    pub(super) fn sweep_all(&mut self) {
        while !self.retired.is_empty() {
            self.sweep_runs(u32::MAX);
        }
        self.publish();
    }

    /// Before an operation: when a limit comes near, what nobody holds any more must not be what reaches it.
    #[inline]
    pub(super) fn make_room(&mut self) {
        if !self.retired.is_empty() && (self.canonical.scarce() || self.shard_ref().alloc.lock().scarce()) {
            self.sweep_all();
        }
    }

    #[inline]
    pub(super) fn sweep_runs(&mut self, runs: u32) {
        if !self.retired.is_empty() {
            self.sweep_some(runs);
        }
    }

    /// Looks at up to `runs` runs, but no more than once at each.
    #[cold]
    fn sweep_some(&mut self, runs: u32) {
        let mut done = self.sweep_private(runs);
        let shard: &Shard = &self.index.shards[self.shard_number as usize];
        let end = shard.alloc.lock().runs_end();
        for _ in 0..if self.retired.left > 0 { runs.min(end) } else { 0 } {
            let run = if self.retired.run < end { self.retired.run } else { 1 };
            self.retired.run = run + 1;
            let Retired { entries, marks, nameless, .. } = &mut self.retired;
            let mut work = Work {
                shard,
                lane: self.lane,
                canonical: &mut self.canonical,
                holders: nameless,
                mine: &self.mine,
                rank_slot: 0,
                tier: Tier::Device,
                counts: &mut self.counts,
                stock: &mut self.stock,
                scratch: &mut self.scratch,
                names_max: 0,
            };
            work.sweep_run(run, marks, entries);
            while let Some(entry) = self.retired.entries.pop() {
                done |= self.retired.swept(entry.slot, entry.cut.into(), 0);
            }
            if self.retired.left == 0 {
                break;
            }
        }
        while done && let Some(slot) = self.retired.take_swept() {
            self.free_slot(slot);
        }
    }

    /// Looks at up to so many granules of private names; whether it took the last of a slot.
    fn sweep_private(&mut self, granules: u32) -> bool {
        if self.retired.names_left == 0 {
            return false;
        }
        let arena = &self.index.shards[self.shard_number as usize].arena;
        let (marks, from) = (std::mem::take(&mut self.retired.marks), self.retired.granule);
        let (canonical, retired) = (&mut self.canonical, &mut self.retired);
        let mut done = false;
        let next = canonical.sweep_private(
            arena,
            from,
            granules,
            |slot| marked(&marks, slot),
            |slot, names| {
                done |= retired.swept(slot, 0, names);
            },
        );
        (self.retired.granule, self.retired.marks) = (next, marks);
        done
    }
}

impl Work<'_> {
    /// Takes the marked holders out of a run; what they had is left in `entries`.
    fn sweep_run(&mut self, run: u32, marks: &[u64], entries: &mut Vec<Entry>) {
        while let Some(sight) = marked_holders(self.shard, run, marks, entries)
            && !entries.is_empty()
        {
            let Some(mut held) = self.lock_at(&sight) else { continue };
            entries.clear();
            self.shard.each_holder(held.header, &held.f, |e| {
                if marked(marks, e.slot) {
                    entries.push(e);
                }
            });
            let mut reach = held.f.len;
            for entry in entries.iter() {
                self.rank_slot = rank_of(entry.slot);
                self.tier = Tier::ALL[tier_of(entry.slot) as usize];
                let survey = self.survey(&held);
                let lowered = self.lower(&mut held, survey, Entry { cut: 0, ..*entry });
                debug_assert!(lowered.is_ok(), "taking a holder out needs no memory");
                reach = survey.others;
            }
            let seams = Seams::of(&held);
            self.trim(held, reach);
            self.merge_at(seams);
            return;
        }
    }
}

/// The marked holders of a run, judged by the version; `None` for a dead run, with no entries.
fn marked_holders(shard: &Shard, run: u32, marks: &[u64], entries: &mut Vec<Entry>) -> Option<Sight> {
    let header = shard.header(run);
    loop {
        entries.clear();
        if header.version().is_dead() {
            return None;
        }
        let sight = shard.sight(run, u32::MAX).ok()?;
        shard.each_holder(header, &sight.fields, |e| {
            if marked(marks, e.slot) {
                entries.push(e);
            }
        });
        if header.version().confirm(sight.seen) {
            return Some(sight);
        }
    }
}
