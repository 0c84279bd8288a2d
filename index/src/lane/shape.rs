//! Structure: cutting a run in two, and giving back what nobody holds and nothing hangs off.
//!
//! Positions never move: a split makes a header for the second half and leaves contents, names, maps and children where
//! they are. LOCKs are taken from child to parent only.

use crate::alloc::GRANULE;
use crate::error::IndexError;
use crate::fault::{Fault, injected};
use crate::kids::Kids;
use crate::lane::work::{HeldRun, Work};
use crate::layout::{Entry, Fields, ROOT};
use crate::version::reuse_fence;

impl<'a> Work<'a> {
    /// Cuts a run in two at `at`. Both halves come back locked. Nothing has changed when it fails.
    pub fn split(&mut self, held: HeldRun<'a>, at: u32) -> Result<(HeldRun<'a>, HeldRun<'a>), IndexError> {
        debug_assert!(0 < at && at < held.f.len);
        let mut halves = std::mem::take(&mut self.scratch.halves);
        let [first, second] = &mut halves;
        first.clear();
        second.clear();
        self.shard.each_holder(held.header, &held.f, |e| {
            first.push(Entry { cut: e.cut.min(at), ..e });
            if e.cut > at {
                second.push(Entry { cut: e.cut - at, ..e });
            }
        });
        let done = self.split_between(held, at, first, second);
        self.scratch.halves = halves;
        done
    }

    /// The same with the holders of both halves given.
    fn split_between(
        &mut self,
        mut held: HeldRun<'a>,
        at: u32,
        first: &[Entry],
        second: &[Entry],
    ) -> Result<(HeldRun<'a>, HeldRun<'a>), IndexError> {
        let shard = self.shard;
        let run = self.stock.take_run(&shard.alloc)?;
        reuse_fence();
        let old = held.f;
        let (base, len, cap) = (old.base + at, old.len - at, old.cap - at);
        let mut f = Fields { base, parent: base - 1, next: old.next, ext: 0, len, cap, holders: 0, flags: 0 };
        let header = shard.header(run);
        let late = injected(Fault::SuffixFilledLate);
        if !late && let Err(full) = shard.install_new(&mut self.scratch.drafts, header, &mut f, second) {
            self.stock.give_run(&shard.alloc, run);
            return Err(full);
        }
        let born = header.version().revive();
        let mut suffix = HeldRun { run, header, f, lock: born };
        let after = Fields { len: at, cap: at, next: run, ..old };
        if let Err(full) =
            shard.replace(&mut self.scratch.drafts, &mut held.lock, held.header, &mut held.f, after, first)
        {
            suffix.lock.kill();
            self.give_back(suffix);
            return Err(full);
        }
        if late {
            shard.install_new(&mut self.scratch.drafts, header, &mut suffix.f, second)?;
        }
        shard.kids.add(&shard.arena, base - 1);
        // Until a new owner is seen, `next` of the first half leads here.
        shard.own(run, base, cap);
        self.counts.splits += 1;
        Ok((held, suffix))
    }

    /// Gives back the id and the holder blocks of a run that was killed or never linked.
    pub fn give_back(&mut self, dead: HeldRun<'a>) {
        let (shard, run, f) = (self.shard, dead.run, dead.f);
        drop(dead);
        // The id is still this lane's, and with it the blocks: each is given away after what it leads to.
        shard.each_block(&f, &mut |id| shard.alloc.lock().give_ext(id));
        self.stock.give_run(&shard.alloc, run);
    }

    /// Gives back the end of a run that nobody holds and nothing hangs off; the run itself, and then the ends of its
    /// parents, when nothing is left. `reach` is the longest prefix that anybody holds. Holders and children are read under
    /// LOCK (rule R4).
    pub fn trim(&mut self, mut held: HeldRun<'a>, mut reach: u32) {
        let shard = self.shard;
        loop {
            let f = held.f;
            let keep = Kids::last(&shard.arena, f.base + reach, f.end()) - f.base;
            if keep == f.len {
                return;
            }
            if injected(Fault::TrimmedLater) {
                drop(held);
                held = self.lock_cover(f.base).0;
            }
            if keep > 0 {
                self.shorten(held, keep);
                return;
            }
            let early = (injected(Fault::ReachFromBefore) && f.parent != ROOT).then(|| {
                let (sight, _) = shard.locate(f.parent);
                shard.furthest(shard.header(sight.run), &sight.fields)
            });
            match self.unlink(held) {
                Some(parent) => {
                    reach = early.unwrap_or_else(|| shard.furthest(parent.header, &parent.f));
                    held = parent;
                }
                None => return,
            }
        }
    }

    /// Cuts the unused end off a run.
    fn shorten(&mut self, mut held: HeldRun<'a>, keep: u32) {
        let old = held.f;
        let kept_end = (old.base + keep).next_multiple_of(GRANULE);
        let after = Fields { len: keep, cap: kept_end - old.base, ..old };
        // Nobody reaches the end, so no holder is a bit; who ends at the new end is full from now on, as a key.
        held.lock.window(|| held.header.store(&after));
        held.f = after;
        drop(held);
        self.counts.blocks = self.counts.blocks.wrapping_sub(u64::from(old.len - keep));
        self.give_granules(kept_end, old.base + old.cap);
    }

    /// Gives back the granules between two positions that are their bounds.
    pub fn give_granules(&mut self, from: u32, to: u32) {
        if from < to {
            self.stock.give_granules(&self.shard.alloc, from / GRANULE, (to - from) / GRANULE);
        }
    }

    /// Takes an empty run out of the structure. Its parent's run comes back locked, to be trimmed next.
    fn unlink(&mut self, mut held: HeldRun<'a>) -> Option<HeldRun<'a>> {
        let shard = self.shard;
        let f = held.f;
        let kept_end = f.base.next_multiple_of(GRANULE);
        let mut parent = (f.parent != ROOT).then(|| self.lock_cover(f.parent).0);
        let mut linked = true;
        if let Some(p) = parent.as_mut().filter(|p| p.f.next == held.run) {
            linked = false;
            p.f.next = 0;
            p.f.cap += kept_end - f.base;
            p.header.store_links(&p.f);
            p.header.store_size(&p.f);
        }
        // Link and count go in one section under the parent's LOCK.
        let late = [Fault::LinkClearedLate, Fault::KidClearedLate].map(injected);
        if late[0] {
            parent = None;
        }
        if linked {
            let hash = shard.edge_hash(f.parent, shard.arena.content(f.base));
            let there = shard.edge.remove(self.lane, hash, held.run);
            debug_assert!(there, "a run that is no successor has a child link");
        }
        if late[1] {
            parent = None;
        }
        shard.kids.remove(&shard.arena, f.parent);
        if late.contains(&true) && f.parent != ROOT {
            parent = Some(self.lock_cover(f.parent).0);
        }
        held.lock.kill();
        self.give_back(held);
        self.counts.blocks = self.counts.blocks.wrapping_sub(u64::from(f.len));
        self.give_granules(kept_end, f.base + f.cap);
        if linked {
            shard.edge.advance(&|r, g| shard.rehash(r, g));
        }
        parent
    }
}
