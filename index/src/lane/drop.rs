//! Removals: names go, and with a position's last name the position. A stretch of canonical names goes in one cutoff.

use crate::error::IndexError;
use crate::lane::parking::Parking;
use crate::lane::work::{HeldRun, NamedAt, Work};
use crate::layout::Entry;
use crate::sync::Ordering;
use crate::types::{EngineHash, Removed};

impl<'a> Work<'a> {
    /// Takes one copy of each name away.
    pub fn remove(&mut self, parking: &mut Parking, names: &[EngineHash], did: &mut Removed) -> Result<(), IndexError> {
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
            match self.resolve(name) {
                None => did.unknown += 1,
                Some(at) if !at.private && parking.is_empty() && self.me().usual(at.position, name) => {
                    let more = self.remove_stretch(at.position, &names[i..])?;
                    i += more as usize;
                    did.removed += 1 + u64::from(more);
                }
                Some(at) => {
                    self.forget(name, at)?;
                    did.removed += 1;
                }
            }
        }
        Ok(())
    }

    /// Forgets a name altogether.
    pub fn forget(&mut self, name: u64, at: NamedAt) -> Result<(), IndexError> {
        if at.private {
            self.me().private.remove(name);
        }
        self.leave(Some(at))
    }

    /// Drops a position held under its canonical name, together with neighbours that bear the following names: downwards
    /// first (engines free tails first), else upwards. How many neighbours went along.
    fn remove_stretch(&mut self, position: u32, following: &[EngineHash]) -> Result<u32, IndexError> {
        let shard = self.shard;
        loop {
            let (sight, offset) = shard.locate(position);
            let header = shard.header(sight.run);
            // Not confirmed yet, so possibly a rumour: bounded by the length, which is.
            let cut = shard.cut(header, &sight.fields, self.slot()).0.min(sight.fields.len);
            let base = sight.fields.base;
            let me = &self.holders[self.tier.index()];
            let bears = |at: u32, i: u32| {
                following.get(i as usize).is_some_and(|n| n.0 == shard.arena.name(at) && me.usual(at, n.0))
            };
            let (mut low, mut high) = (offset, offset);
            while low > 0 && bears(base + low - 1, offset - low) {
                low -= 1;
            }
            if low == offset {
                while high + 1 < cut && bears(base + high + 1, high - offset) {
                    high += 1;
                }
            }
            let Some(held) = self.lock_at(&sight) else { continue };
            self.drop_range(held, low, high)?;
            return Ok(high - low);
        }
    }

    /// A name left its old position (its map entry is gone already): the position keeps its other names, or goes.
    pub fn leave(&mut self, old: Option<NamedAt>) -> Result<(), IndexError> {
        let Some(NamedAt { position, private }) = old else { return Ok(()) };
        let (mut held, mut offset) = self.lock_cover(position);
        if !self.me().twins.contains_key(&position) {
            return self.drop_range(held, offset, offset);
        }
        if !private {
            // The canonical name goes and private ones stay: the position becomes private, as a run of its own.
            if offset > 0 {
                held = self.split(held, offset)?.1;
                offset = 0;
            }
            let (cut, _) = self.shard.cut(held.header, &held.f, self.slot());
            if cut > 1 {
                held = self.split(held, 1)?.0;
            }
            self.lower(&mut held, offset, Entry { slot: self.slot(), cut: 1, private: true })?;
        }
        self.me().take_twin(position);
        Ok(())
    }

    /// The holder no longer has offsets `low..=high` of a run. What it has above them stays: the run is split there.
    fn drop_range(&mut self, held: HeldRun<'a>, low: u32, high: u32) -> Result<(), IndexError> {
        let slot = self.slot();
        let (cut, private) = self.shard.cut(held.header, &held.f, slot);
        debug_assert!(high < cut, "a dropped block is held");
        let mut held = if high + 1 < cut { self.split(held, high + 1)?.0 } else { held };
        self.lower(&mut held, low, Entry { slot, cut: low, private })?;
        let count = u64::from(high - low + 1);
        self.me().held -= count;
        self.counts.held -= count;
        self.trim(held);
        Ok(())
    }

    /// Replaces a holder's entry by a lesser one, and takes names out of the canonical map that no rank of this lane holds
    /// canonically any more (from `low` on).
    pub fn lower(&mut self, held: &mut HeldRun<'a>, low: u32, entry: Entry) -> Result<(), IndexError> {
        let before = self.mapped(held);
        self.shard.set_cut(&mut held.lock, held.header, &mut held.f, entry)?;
        if before <= low {
            return Ok(());
        }
        // ENG is read under LOCK: another lane could trim and reuse the positions after it.
        let arena = &self.shard.arena;
        let after = self.mapped(held);
        if after < before {
            for (i, name) in arena.names(held.f.base + after, before - after).iter().enumerate() {
                self.canonical.remove(arena, name.load(Ordering::Relaxed), held.f.base + after + i as u32);
            }
        }
        Ok(())
    }
}
