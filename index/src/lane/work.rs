//! One operation of one rank at work: what it may touch, how it finds names, and how it takes a run's LOCK.

use crate::alloc::Stock;
use crate::cover::image::Drafts;
use crate::fault::{Fault, injected};
use crate::lane::names::{Hint, HolderNames, LaneNames};
use crate::lane::store::After;
use crate::layout::{Entry, Fields, Header, ROOT, slot_of};
use crate::shard::{Shard, Sight};
use crate::types::{EngineHash, Tier};
use crate::version::Locked;
use std::collections::VecDeque;

/// Names of an event whose lines of the map are asked for at its beginning.
const NAMES_EXPECTED: usize = 64;

/// Counters of a lane, published after every operation.
#[derive(Default)]
pub(crate) struct Counts {
    pub held: u64,
    pub blocks: u64,
    pub splits: u64,
    pub merges: u64,
    pub lock_waits: u64,
    /// LOCKs of runs taken.
    pub locks: u64,
    /// Runs opened by stores.
    pub opened: u64,
    /// Blocks written to the arena.
    pub written: u64,
}

/// Memory that operations use again and again, so that none of them asks for any once it is large enough.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Holders of the two halves of a run.
    pub halves: [Vec<Entry>; 2],
    /// Coverages that are being built.
    pub drafts: Drafts,
    /// Names that arrived, and for which parked blocks may wait.
    pub arrived: VecDeque<u64>,
}

/// An operation at work on one holder.
pub(crate) struct Work<'a> {
    pub shard: &'a Shard,
    pub lane: u32,
    pub canonical: &'a mut LaneNames,
    pub holders: &'a mut [HolderNames; Tier::COUNT],
    /// Which rank slots are this lane's, a bit each.
    pub mine: &'a [u64],
    pub rank_slot: u32,
    pub tier: Tier,
    pub counts: &'a mut Counts,
    pub stock: &'a mut Stock,
    pub scratch: &'a mut Scratch,
    pub names_max: u64,
}

/// A run whose LOCK this lane has.
pub(crate) struct HeldRun<'a> {
    pub run: u32,
    pub header: Header<'a>,
    pub f: Fields,
    pub lock: Locked<'a>,
}

/// A position that a holder has under its canonical name, and the run around it at some version.
#[derive(Clone, Copy)]
pub(crate) struct Standing {
    pub sight: Sight,
    /// The position, counted from the run's first.
    pub offset: u32,
}

impl Standing {
    /// The position.
    #[inline]
    pub fn position(&self) -> u32 {
        self.sight.fields.base + self.offset
    }
}

/// Where a name of a holder stands.
#[derive(Clone, Copy)]
pub(crate) struct NamedAt {
    pub position: u32,
    /// By a private name, not as the canonical name of the position.
    pub private: bool,
}

impl Shard {
    /// LOCK of a run, if it is still as it was seen (rule R3). Its fields are read again.
    #[inline]
    pub(crate) fn lock_at(&self, sight: &Sight, counts: &mut Counts) -> Option<HeldRun<'_>> {
        let header = self.header(sight.run);
        let lock = header.version().lock_at(sight.seen, &mut counts.lock_waits)?;
        counts.locks += 1;
        let f = if injected(Fault::FieldsFromBefore) { sight.fields } else { header.load() };
        Some(HeldRun { run: sight.run, header, f, lock })
    }
}

impl<'a> Work<'a> {
    /// The slot of this operation's holder.
    #[inline]
    pub fn slot(&self) -> u32 {
        slot_of(self.rank_slot, self.tier)
    }

    /// The names of this operation's holder.
    #[inline]
    pub fn me(&mut self) -> &mut HolderNames {
        &mut self.holders[self.tier.index()]
    }

    /// LOCK of a run, if it is still as it was seen (rule R3). Its fields are read again.
    #[inline]
    pub fn lock_at(&mut self, sight: &Sight) -> Option<HeldRun<'a>> {
        self.shard.lock_at(sight, self.counts)
    }

    /// LOCK of the run that covers a live position, and the offset inside.
    pub fn lock_cover(&mut self, position: u32) -> (HeldRun<'a>, u32) {
        debug_assert!(position != ROOT);
        loop {
            let (sight, offset) = self.shard.locate(position);
            if let Some(held) = self.lock_at(&sight) {
                return (held, offset);
            }
        }
    }

    /// Where this operation's holder has a private name.
    #[inline]
    pub fn private(&self, name: u64) -> Option<u32> {
        self.canonical.private(&self.shard.arena, self.slot(), &self.holders[self.tier.index()], name)
    }

    /// Gives this operation's holder a private name, or moves it.
    pub fn set_private(&mut self, name: u64, position: u32) {
        let (slot, me) = (self.slot(), &mut self.holders[self.tier.index()]);
        self.canonical.set_private(&self.shard.arena, slot, me, name, position);
    }

    /// Takes a private name from this operation's holder.
    pub fn remove_private(&mut self, name: u64) {
        let (slot, me) = (self.slot(), &mut self.holders[self.tier.index()]);
        self.canonical.remove_private(&self.shard.arena, slot, me, name);
    }

    /// Names up to the first that this operation's holder has privately.
    pub fn not_private(&mut self, names: &[EngineHash]) -> usize {
        let (slot, me) = (self.slot(), &self.holders[self.tier.index()]);
        self.canonical.not_private(&self.shard.arena, slot, me, names)
    }

    /// Asks for the map's lines of names that are likely to get a slot: where a holder has names of its own, a new one is new
    /// to the map, too. The lines arrive while the place of the blocks is looked for.
    #[inline]
    pub fn expect_names(&mut self, names: &[EngineHash]) {
        if self.holders[self.tier.index()].private_len > 0 {
            self.canonical.expect_all(&self.shard.arena, &names[..names.len().min(NAMES_EXPECTED)]);
        }
    }

    /// Where a name stands in a tier of this rank.
    pub fn resolve_in(&self, tier: Tier, name: u64) -> Option<NamedAt> {
        let slot = slot_of(self.rank_slot, tier);
        resolve_in(self.shard, self.canonical, &self.holders[tier.index()], slot, name)
    }

    /// Where a name stands in this operation's tier.
    #[inline]
    pub fn resolve(&self, name: u64) -> Option<NamedAt> {
        self.resolve_in(self.tier, name)
    }

    /// Where a name stands in its own tier, else in the nearest other one of the rank. It is expected where the last store
    /// ended: a decoding request grows block by block.
    pub fn parent(&self, name: u64) -> Option<After> {
        let me = &self.holders[self.tier.index()];
        if let Some(at) = self.expected(me.latest, name) {
            return Some(at.into());
        }
        if let Some(position) = self.private(name) {
            return Some(After::position(position));
        }
        if let Some(at) = self.standing(name) {
            return Some(at.into());
        }
        let others = Tier::ALL.into_iter().filter(|&t| t != self.tier);
        others.into_iter().find_map(|t| self.resolve_in(t, name)).map(|at| After::position(at.position))
    }

    /// Where a name stands in its own tier, else in the nearest other one of the rank.
    pub fn resolve_any(&self, name: u64) -> Option<NamedAt> {
        self.resolve(name).or_else(|| Tier::ALL.into_iter().find_map(|t| self.resolve_in(t, name)))
    }

    /// Where this operation's holder has a name canonically, by the lane's map.
    pub fn standing(&self, name: u64) -> Option<Standing> {
        if self.holders[self.tier.index()].held == 0 {
            return None;
        }
        let position = self.canonical.find(&self.shard.arena, name)?;
        stands_at(self.shard, self.slot(), position)
    }

    /// The same without the map, if the name is the one hinted at. Nothing of the hint is believed.
    #[inline]
    pub fn expected(&self, hint: Hint, name: u64) -> Option<Standing> {
        if hint.name != name || hint.position == ROOT {
            return None;
        }
        let there = stands_in(self.shard, self.slot(), self.shard.locate_once(hint.position)?)??;
        // What the holder has stays while its lane is here, and so does the name.
        (self.shard.arena.name(hint.position) == name).then_some(there)
    }
}

/// Where a name of a holder of this lane stands.
pub(crate) fn resolve_in(
    shard: &Shard,
    canonical: &LaneNames,
    names: &HolderNames,
    slot: u32,
    name: u64,
) -> Option<NamedAt> {
    if names.held == 0 {
        return None;
    }
    if let Some(position) = canonical.private(&shard.arena, slot, names, name) {
        return Some(NamedAt { position, private: true });
    }
    let position = canonical.find(&shard.arena, name)?;
    stands_at(shard, slot, position).map(|_| NamedAt { position, private: false })
}

/// Whether a holder of this lane has a mapped position under its canonical name.
#[inline]
pub(crate) fn stands_at(shard: &Shard, slot: u32, position: u32) -> Option<Standing> {
    loop {
        if let Some(answer) = stands_in(shard, slot, shard.locate(position)) {
            return answer;
        }
    }
}

/// The same for a run as it was seen; `None` where the run changed meanwhile.
#[inline]
fn stands_in(shard: &Shard, slot: u32, (sight, offset): (Sight, u32)) -> Option<Option<Standing>> {
    let header = shard.header(sight.run);
    let (cut, private) = shard.cut(header, &sight.fields, slot);
    let same = header.version().confirm(sight.seen);
    same.then(|| (offset < cut && !private).then_some(Standing { sight, offset }))
}
