//! The structural invariants, checked as a whole: for tests, while no lane applies anything. Numbers as in ARCHITECTURE.md.

use crate::alloc::GRANULE;
use crate::edge::Found;
use crate::index::Index;
use crate::kids::Kids;
use crate::lane::Lane;
use crate::layout::{Fields, ROOT, slot_of};
use crate::shard::Shard;
use crate::sync::Ordering;
use crate::types::{ContentHash, Tier};
use std::collections::HashMap;

macro_rules! ensure {
    ($ok:expr, $($why:tt)*) => {
        if !$ok {
            return Err(format!($($why)*));
        }
    };
}

impl Index {
    /// Checks I1 to I9 of every shard. Walks everything; only while no lane is at work.
    pub fn check(&self) -> Result<(), String> {
        self.shards.iter().try_for_each(|shard| shard.check())
    }
}

impl Shard {
    fn live_runs(&self) -> Vec<(u32, Fields)> {
        let end = self.alloc.lock().runs_end();
        (1..end)
            .filter(|&run| !self.header(run).version().is_dead())
            .map(|run| (run, self.header(run).load()))
            .collect()
    }

    fn check(&self) -> Result<(), String> {
        let runs = self.live_runs();
        let (mut linked, mut blocks) = (0, 0);
        let mut children: HashMap<u32, u32> = HashMap::new();
        for (run, f) in &runs {
            linked += u64::from(self.check_run(*run, f)?);
            blocks += u64::from(f.len);
            if f.parent != ROOT {
                *children.entry(f.parent).or_insert(0) += 1;
            }
        }
        ensure!(linked == self.edge.len(), "I14: {linked} linked runs, {} child links", self.edge.len());
        for (_, f) in &runs {
            for position in f.base..f.end() {
                let (want, have) =
                    (children.get(&position).copied().unwrap_or(0), self.kids.count(&self.arena, position));
                ensure!(want == have, "I6: position {position} has {want} children, counted {have}");
            }
        }
        let usage = self.usage();
        ensure!(usage.runs_live == runs.len() as u64, "{} live run ids, {} runs", usage.runs_live, runs.len());
        let mut exts = 0;
        runs.iter().for_each(|(_, f)| self.each_block(f, &mut |_| exts += 1));
        let pages: u64 =
            runs.iter().map(|(_, f)| u64::from((f.base + f.cap).div_ceil(GRANULE) - f.base.div_ceil(GRANULE))).sum();
        ensure!(usage.granules_live == pages, "{} live granules, {pages} under runs", usage.granules_live);
        ensure!(usage.exts_live == exts, "{} live holder blocks, {exts} linked", usage.exts_live);
        let counted = self.figures.iter().fold(0u64, |sum, f| sum.wrapping_add(f.blocks.load(Ordering::Relaxed)));
        ensure!(counted == blocks, "{counted} blocks counted, {blocks} in runs");
        Ok(())
    }

    /// Checks one run; whether it has a child link (is no physical successor).
    fn check_run(&self, run: u32, f: &Fields) -> Result<bool, String> {
        ensure!(f.len > 0 && f.len <= f.cap, "I8: run {run} has {} blocks of {}", f.len, f.cap);
        for position in f.base..f.end() {
            let (sight, offset) = self.locate(position);
            ensure!(sight.run == run && f.base + offset == position, "I1: {position} is found in {}", sight.run);
        }
        for granule in f.base.div_ceil(GRANULE)..(f.base + f.cap).div_ceil(GRANULE) {
            let owner = self.arena.owner(granule).load(Ordering::Relaxed);
            ensure!(owner == run, "I2: granule {granule} of run {run} is owned by {owner}");
        }
        if f.next == 0 {
            ensure!((f.base + f.cap).is_multiple_of(GRANULE), "I4: run {run} ends inside a granule");
        } else {
            let next = self.header(f.next).load();
            let ok = next.base == f.end() && next.parent == f.end() - 1 && f.cap == f.len;
            ensure!(ok, "I3: run {run} is not followed by {}", f.next);
        }
        let (reach, _) = self.reach(self.header(run), f, |_| false);
        let kid = Kids::any(&self.arena, f.end() - 1);
        ensure!(reach == f.len || kid, "I8: the end of run {run} is neither held nor a parent");
        self.check_holders(run, f)?;
        let successor = f.parent != ROOT && {
            let (parent, offset) = self.locate(f.parent);
            ensure!(offset < parent.fields.len, "I7: the parent of run {run} is outside its run");
            parent.fields.next == run
        };
        if !successor {
            let first = ContentHash(self.arena.content(f.base));
            let found = matches!(self.child(f.parent, first, 0), Found::Hit(s) if s.run == run);
            ensure!(found, "I5: run {run} is not found by its child link");
        }
        Ok(!successor)
    }

    fn check_holders(&self, run: u32, f: &Fields) -> Result<(), String> {
        let mut slots = Vec::new();
        let mut longest = 0;
        self.each_holder(self.header(run), f, |e| {
            slots.push(e.slot);
            longest = longest.max(e.cut);
        });
        ensure!(longest <= f.len, "I9: a cutoff beyond run {run}");
        ensure!(!f.set_form() || slots.len() as u32 == f.holders, "I9: run {run} counts its holders wrongly");
        slots.sort_unstable();
        let all = slots.len();
        slots.dedup();
        ensure!(slots.len() == all, "I9: a holder stands twice in run {run}");
        for &slot in &slots {
            ensure!(self.cut(self.header(run), f, slot).0 > 0, "I9: holder {slot} of run {run} is not found");
        }
        self.check_set(self.header(run), f).map_err(|why| format!("{why} in run {run}"))
    }
}

impl Lane {
    /// Checks I10 to I13 of this lane. Walks everything; only while no lane is at work.
    pub fn check(&self) -> Result<(), String> {
        let shard = self.shard_ref();
        let mut mapped = 0;
        let mut held: HashMap<u32, (u64, HashMap<u32, bool>)> = HashMap::new();
        for (run, f) in shard.live_runs() {
            let header = shard.header(run);
            let (_, canonical) = shard.reach(header, &f, |slot| self.is_mine(slot));
            for offset in 0..f.len {
                let position = f.base + offset;
                let at = self.lane_names().find(&shard.arena, shard.arena.name(position));
                ensure!(
                    (at == Some(position)) == (offset < canonical),
                    "I10/I11: position {position} of run {run}, mapped {at:?}, canonical up to {canonical}"
                );
                mapped += usize::from(offset < canonical);
            }
            shard.each_holder(header, &f, |e| {
                if self.is_mine(e.slot) {
                    let of = held.entry(e.slot).or_default();
                    of.0 += u64::from(e.cut);
                    of.1.extend((0..e.cut).map(|o| (f.base + o, e.private)));
                }
            });
        }
        ensure!(
            mapped == self.lane_names().canonical_len(),
            "I14: {mapped} mapped, {} in the map",
            self.lane_names().canonical_len()
        );
        self.lane_names().check(&shard.arena)?;
        for (slot, names) in self.holder_names() {
            let (count, positions) = held.remove(&slot).unwrap_or_default();
            ensure!(count == names.held, "holder {slot} has {count} blocks, counted {}", names.held);
            let private_len = self.lane_names().private_of(slot).count() as u64;
            ensure!(
                private_len == names.private_len,
                "I18: holder {slot} has {private_len} private names, counts {}",
                names.private_len
            );
            let mut private: HashMap<u32, u32> = HashMap::new();
            self.lane_names().private_of(slot).for_each(|(_, p)| *private.entry(p).or_insert(0) += 1);
            for (position, kind) in &positions {
                let twins = names.twins.get(position).copied().unwrap_or(0);
                let want = twins + u32::from(*kind);
                let have = private.remove(position).unwrap_or(0);
                ensure!(want == have, "I13: position {position} of holder {slot}: {want} private names, {have} there");
            }
            ensure!(private.is_empty(), "I12: private names of holder {slot} at positions it does not hold");
            ensure!(names.twins.keys().all(|p| positions.contains_key(p)), "I13: twins where nothing is held");
        }
        for (rank_slot, left, names_left) in self.retired().slots() {
            let tiers = Tier::ALL.map(|tier| slot_of(rank_slot, tier)).into_iter();
            let names: usize = tiers.clone().map(|slot| self.lane_names().private_of(slot).count()).sum();
            ensure!(names as u64 == names_left, "I17: {names} private names of slot {rank_slot}, counted {names_left}");
            let count: u64 = tiers.filter_map(|slot| held.remove(&slot)).map(|(count, _)| count).sum();
            ensure!(
                count == left && left + names_left > 0,
                "retired slot {rank_slot} has {count} blocks left, counted {left}"
            );
        }
        let names = self.holder_names().map(|(_, names)| names.private_len).sum::<u64>();
        let private = names + self.retired().slots().map(|(_, _, names)| names).sum::<u64>();
        let have = self.lane_names().private_len() as u64;
        ensure!(private == have, "I18: {have} private names, {private} of holders and retired slots");
        ensure!(held.is_empty(), "slots without a rank hold something: {:?}", held.keys());
        Ok(())
    }
}
