//! What cleared and closed ranks held, swept out of the runs by and by.
//!
//! A retired slot is masked: no answer names it. Its entries stay in the runs, and the lane's map keeps its canonical names,
//! until the sweep meets them. One sweep goes round the shard's run headers for all retired slots together, some runs after
//! each operation of the lane and more when its thread has nothing else to do; a slot is free again when as many blocks were
//! swept as it held, so neither splits behind the sweep nor new runs can make it miss any.

use crate::lane::Lane;
use crate::lane::names::HolderNames;
use crate::lane::work::Work;
use crate::layout::{Entry, rank_of, tier_of};
use crate::shard::{Shard, Sight};
use crate::slots::RETIRED_MAX;
use crate::types::Tier;

/// Runs that are looked at after each operation while there is something to sweep.
pub(super) const RUNS_SWEPT_AFTER: u32 = 16;

/// The slots that are masked and not swept yet.
pub(crate) struct Retired {
    /// Slots with the blocks left on each.
    slots: Vec<(u32, u64)>,
    /// One bit a rank slot.
    marks: Vec<u64>,
    left: u64,
    /// The run looked at next.
    run: u32,
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
            run: 1,
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
    /// Blocks not swept yet.
    pub fn left(&self) -> u64 {
        self.left
    }
    /// Rank slots with the blocks left on each.
    pub fn slots(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.slots.iter().copied()
    }

    /// One more masked slot, on which `blocks` were held.
    pub fn add(&mut self, slot: u32, blocks: u64) {
        let word = slot as usize / 64;
        self.marks.resize(self.marks.len().max(word + 1), 0);
        self.marks[word] |= 1 << (slot % 64);
        self.slots.push((slot, blocks));
        self.left += blocks;
    }

    /// A slot of which nothing is left, taken out.
    fn take_swept(&mut self) -> Option<u32> {
        let i = self.slots.iter().position(|s| s.1 == 0)?;
        let slot = self.slots.swap_remove(i).0;
        self.marks[slot as usize / 64] &= !(1 << (slot % 64));
        Some(slot)
    }

    fn swept(&mut self, entry: Entry) -> bool {
        let slot = rank_of(entry.slot);
        let of = self.slots.iter_mut().find(|s| s.0 == slot).expect("marked slots are listed");
        of.1 -= u64::from(entry.cut);
        self.left -= u64::from(entry.cut);
        of.1 == 0
    }
}

#[inline]
fn marked(marks: &[u64], holder_slot: u32) -> bool {
    let slot = rank_of(holder_slot);
    marks.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
}

impl Lane {
    /// Sweeps what cleared ranks held out of up to `runs` runs; how many blocks are left to sweep. The lane does some of this
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
        if !self.retired.is_empty() && self.shard_ref().alloc.lock().scarce() {
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
        let shard: &Shard = &self.index.shards[self.shard_number as usize];
        let end = shard.alloc.lock().runs_end();
        let mut done = false;
        for _ in 0..runs.min(end) {
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
                names_max: 0,
            };
            work.sweep_run(run, marks, entries);
            while let Some(entry) = self.retired.entries.pop() {
                done |= self.retired.swept(entry);
            }
            if self.retired.left == 0 {
                break;
            }
        }
        while done && let Some(slot) = self.retired.take_swept() {
            self.free_slot(slot);
        }
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
            self.trim(held, reach);
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
