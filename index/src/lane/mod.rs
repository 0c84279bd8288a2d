//! The writer of one lane: applies the events of the ranks it owns, in order, alone.

pub(crate) mod ahead;
pub(crate) mod alias;
mod drop;
pub(crate) mod export;
mod following;
mod join;
pub(crate) mod map;
mod merge;
pub(crate) mod names;
mod parking;
mod ranks;
mod retired;
mod shape;
mod stops;
mod store;
mod survey;
mod sweep;
pub(crate) mod work;

use crate::alloc::Stock;
use crate::error::IndexError;
use crate::index::Index;
use crate::lane::ahead::Guesses;
use crate::lane::names::{HolderNames, LaneNames};
use crate::lane::parking::{Parked, Parking};
use crate::lane::retired::{RUNS_SWEPT_AFTER, Retired};
use crate::lane::store::After;
use crate::lane::work::{Counts, Scratch, Work};
use crate::layout::slot_of;
use crate::shard::Shard;
use crate::sync::Ordering;
use crate::types::{ContentHash, EngineHash, Holder, RankKey, RankSlot, Removed, Store, StoreKind, Stored, Tier};
use std::sync::Arc;

/// An open rank.
struct Rank {
    key: RankKey,
    /// Where its holders' entries are now: another place after each clear.
    slot: u32,
    holders: [HolderNames; Tier::COUNT],
    parking: Parking,
    /// The lane's operation that changed it last.
    changed: u64,
    /// Bytes of its maps when they were last counted.
    bytes: u64,
}

impl Rank {
    fn map_bytes(&self) -> u64 {
        self.holders.iter().map(HolderNames::bytes).sum::<u64>() + self.parking.bytes()
    }
}

/// The writer of one lane: `Send`, owned by one thread. No method waits for a reader; a method waits for other lanes only as
/// long as one of them is inside the LOCK of a run that both touch (a bounded critical section).
///
/// # Memory
///
/// Blocks, holders, names and links stand in memory that was reserved in the beginning, and what an operation needs for itself
/// is kept by the lane for the next one. So stores, adoptions, removals, clearing and sweeping ask the heap for nothing once
/// the lane has seen their like, but in these cases:
///
/// - the shard's free lists, the ranks' numbers and the lane's scratch memory grow to a size that they did not have before;
/// - a holder has more than 28 twins, or more than 28 names with copies, or a rank more than 28 parked blocks: the maps of
///   these grow and shrink with what they hold;
/// - more than 448 positions of a sixteenth of the shard have several children: the same;
/// - the lane has so many equal private names of different ranks that their side map takes more than 256 chunks of 4 KiB.
///
/// Opening and closing a rank, exports and what is said to be for tests and dumps allocate.
pub struct Lane {
    index: Arc<Index>,
    shard_number: u32,
    lane: u32,
    canonical: LaneNames,
    /// Open ranks, by the number that their caller has (`RankSlot`).
    ranks: Vec<Option<Box<Rank>>>,
    ranks_free: Vec<u32>,
    /// Which rank slots are this lane's, a bit each.
    mine: Vec<u64>,
    /// Rank slots of those that nobody has.
    free: Vec<u32>,
    retired: Retired,
    counts: Counts,
    stock: Stock,
    scratch: Scratch,
    parked: u64,
    rank_map_bytes: u64,
    guesses: Guesses,
    /// Operations so far.
    operations: u64,
}

impl Lane {
    pub(crate) fn new(index: Arc<Index>, shard_number: u32, lane: u32, canonical: LaneNames) -> Self {
        let key = index.shards[shard_number as usize].key;
        let stock = Stock::new(&index.config);
        Self {
            index,
            shard_number,
            lane,
            canonical,
            ranks: Vec::new(),
            ranks_free: Vec::new(),
            mine: Vec::new(),
            free: Vec::new(),
            retired: Retired::new(key),
            counts: Counts::default(),
            stock,
            scratch: Scratch::default(),
            parked: 0,
            rank_map_bytes: 0,
            guesses: Guesses::default(),
            operations: 0,
        }
    }

    /// The shard this lane belongs to.
    pub fn shard(&self) -> u32 {
        self.shard_number
    }

    /// The lane's number within its shard.
    pub fn lane(&self) -> u32 {
        self.lane
    }

    /// Applies a store. A store of which any block names itself as its parent is refused whole; one whose parent no tier of
    /// the rank has is parked, block by block, up to `orphans_max_per_rank`. A `*Full` error leaves it applied in part:
    /// clear the rank.
    pub fn store(&mut self, at: Holder, store: &Store<'_>) -> Result<Stored, IndexError> {
        check(store)?;
        let mut did = Stored::default();
        self.work(at, |work, parking| {
            if store.names.is_empty() {
                return Ok(());
            }
            work.expect_names(store.names);
            let after = match store.parent {
                None => Some(After::ROOT),
                Some(parent) => work.parent(parent.0),
            };
            let Some(after) = after else {
                park(parking, at.tier, store, &mut did);
                return Ok(());
            };
            work.place(after, store.names, store.contents, store.kind, &mut did)?;
            attach(work, parking, store.names, &mut did)
        })?;
        Ok(did)
    }

    /// Applies stores that carry names only: each name is held where any tier of the rank has it, its own tier first.
    pub fn adopt(&mut self, at: Holder, names: &[EngineHash]) -> Result<Stored, IndexError> {
        let mut did = Stored::default();
        self.work(at, |work, _| {
            for &name in names {
                match work.resolve_any(name.0) {
                    Some(there) => work.adopt_at(there.position, name, &mut did)?,
                    None => did.unknown += 1,
                }
            }
            Ok(())
        })?;
        Ok(did)
    }

    /// Takes one copy of each name away. A parked block of that name goes first, the latest one. Unknown names are counted
    /// and ignored.
    pub fn remove(&mut self, at: Holder, names: &[EngineHash]) -> Result<Removed, IndexError> {
        let mut did = Removed::default();
        if let [name] = names
            && self.step_down(at, name.0)
        {
            self.publish_held();
            did.removed = 1;
            return Ok(did);
        }
        self.work(at, |work, parking| match names {
            [name] if parking.is_empty() && work.remove_following(name.0)? => {
                did.removed = 1;
                Ok(())
            }
            _ => work.remove(parking, names, &mut did),
        })?;
        Ok(did)
    }

    /// Sets how many copies of a name are left, as an engine that counts them itself says; 0 takes parked blocks of that
    /// name away, too.
    pub fn set_copies(&mut self, at: Holder, name: EngineHash, left: u64) -> Result<Removed, IndexError> {
        let mut did = Removed::default();
        self.work(at, |work, parking| {
            while left == 0 && parking.take_name(at.tier, name.0) {
                did.parked += 1;
            }
            let Some(there) = work.resolve(name.0) else {
                did.unknown = u64::from(did.parked == 0);
                return Ok(());
            };
            work.me().drop_copies(name.0);
            if left > 0 {
                work.me().add_copies(name.0, left - 1);
                did.copies = 1;
                return Ok(());
            }
            did.removed = 1;
            work.forget(name.0, there)
        })?;
        Ok(did)
    }

    /// Blocks (positions) that a holder has; 0 when its rank is not open here.
    pub fn held(&self, at: Holder) -> u64 {
        self.open(at.rank).map_or(0, |r| r.holders[at.tier.index()].held)
    }

    /// Blocks parked for a rank.
    pub fn parked(&self, rank: RankSlot) -> u64 {
        self.open(rank).map_or(0, |r| r.parking.len() as u64)
    }

    /// The names of a holder with their copies, sorted by name. For tests and dumps: walks the arena and allocates.
    pub fn names(&self, at: Holder) -> Vec<(EngineHash, u64)> {
        self.open(at.rank).map_or(Vec::new(), |rank| {
            let slot = slot_of(rank.slot, at.tier);
            sweep::names_of(self.shard_ref(), slot, &rank.holders[at.tier.index()], &self.canonical)
        })
    }

    pub(crate) fn shard_ref(&self) -> &Shard {
        &self.index.shards[self.shard_number as usize]
    }
    pub(crate) fn lane_names(&self) -> &LaneNames {
        &self.canonical
    }
    pub(crate) fn is_mine(&self, slot: u32) -> bool {
        survey::is_mine(&self.mine, slot)
    }
    /// The names of every open holder, by slot.
    pub(crate) fn holder_names(&self) -> impl Iterator<Item = (u32, &HolderNames)> {
        self.ranks.iter().flatten().flat_map(|rank| {
            rank.holders.iter().zip(Tier::ALL).map(move |(names, tier)| (slot_of(rank.slot, tier), names))
        })
    }

    pub(crate) fn retired(&self) -> &Retired {
        &self.retired
    }

    fn open(&self, rank: RankSlot) -> Result<&Rank, IndexError> {
        let rank_or_none = self.ranks.get(rank.0 as usize).and_then(|r| r.as_deref());
        rank_or_none.ok_or(IndexError::UnknownRank { slot: rank.0 })
    }

    /// Runs one operation on one holder and publishes the lane's figures after it.
    fn work(
        &mut self,
        at: Holder,
        operation: impl FnOnce(&mut Work<'_>, &mut Parking) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        self.make_room();
        let shard: &Shard = &self.index.shards[self.shard_number as usize];
        let rank = self.ranks.get_mut(at.rank.0 as usize).and_then(|r| r.as_deref_mut());
        let rank = rank.ok_or(IndexError::UnknownRank { slot: at.rank.0 })?;
        self.operations += 1;
        rank.changed = self.operations;
        let parked_before = rank.parking.len() as u64;
        let mut work = Work {
            shard,
            lane: self.lane,
            canonical: &mut self.canonical,
            holders: &mut rank.holders,
            mine: &self.mine,
            rank_slot: rank.slot,
            tier: at.tier,
            counts: &mut self.counts,
            stock: &mut self.stock,
            scratch: &mut self.scratch,
            names_max: self.index.config.names_max_per_holder,
        };
        let result = operation(&mut work, &mut rank.parking);
        self.parked = self.parked + rank.parking.len() as u64 - parked_before;
        // Most ranks have no exceptions and nothing parked: then no map of theirs has any memory, before or after.
        if rank.bytes > 0 || parked_before > 0 || !rank.parking.is_empty() || rank.holders[at.tier.index()].has_maps() {
            let bytes = rank.map_bytes();
            self.rank_map_bytes = self.rank_map_bytes + bytes - rank.bytes;
            rank.bytes = bytes;
        }
        self.sweep_runs(RUNS_SWEPT_AFTER);
        self.publish();
        result
    }

    /// Publishes what every operation changes.
    #[inline]
    fn publish_held(&self) {
        let figures = &self.shard_ref().figures[self.lane as usize];
        figures.held.store(self.counts.held, Ordering::Relaxed);
        figures.locks.store(self.counts.locks, Ordering::Relaxed);
        figures.lock_waits.store(self.counts.lock_waits, Ordering::Relaxed);
    }

    /// Publishes the lane's figures.
    fn publish(&self) {
        self.publish_held();
        let figures = &self.shard_ref().figures[self.lane as usize];
        let publish = |to: &crate::sync::AtomicU64, value| to.store(value, Ordering::Relaxed);
        publish(&figures.parked, self.parked);
        publish(&figures.map_bytes, self.rank_map_bytes + self.canonical.bytes());
        publish(&figures.splits, self.counts.splits);
        publish(&figures.merges, self.counts.merges);
        publish(&figures.opened, self.counts.opened);
        publish(&figures.written, self.counts.written);
        publish(&figures.blocks, self.counts.blocks);
        publish(&figures.runs_kept, self.stock.runs());
        publish(&figures.granules_kept, self.stock.granules());
        publish(&figures.sweeping, self.retired.left());
    }
}

/// Refuses malformed stores before anything is applied.
fn check(store: &Store<'_>) -> Result<(), IndexError> {
    let (names, contents) = (store.names.len(), store.contents.len());
    if names != contents {
        return Err(IndexError::LengthMismatch { names, contents });
    }
    if let Some(&name) = store.names.first().filter(|&&n| store.parent == Some(n)) {
        return Err(IndexError::SelfParent { name });
    }
    if !repeats(store.names) {
        return Ok(());
    }
    let same = store.names.windows(2).find(|w| w[0] == w[1]);
    same.map_or(Ok(()), |same| Err(IndexError::SelfParent { name: same[0] }))
}

/// Whether a name follows itself. Eight at a time and without a branch in between: it is asked of every block stored.
fn repeats(names: &[EngineHash]) -> bool {
    let Some(following) = names.get(1..) else { return false };
    let (eights, rest) = following.as_chunks::<8>();
    let before = names.as_chunks::<8>().0;
    let same = |(a, b): (&EngineHash, &EngineHash)| a.0 == b.0;
    eights.iter().zip(before).any(|(a, b)| a.iter().zip(b).fold(false, |any, pair| any | same(pair)))
        || rest.iter().zip(&names[following.len() - rest.len()..]).any(same)
}

/// Parks the blocks of a store one by one, each behind the name before it, as long as there is room.
fn park(parking: &mut Parking, tier: Tier, store: &Store<'_>, did: &mut Stored) {
    let parents = store.parent.into_iter().chain(store.names.iter().copied());
    for ((name, content), parent) in store.names.iter().zip(store.contents).zip(parents) {
        let block = Parked { tier, parent: parent.0, name: name.0, content: content.0, kind: store.kind };
        if parking.park(block) {
            did.orphans += 1;
        } else {
            did.orphans_dropped += 1;
        }
    }
}

/// Attaches what waited for these names, then what waited for those, first come first served.
fn attach(
    work: &mut Work<'_>,
    parking: &mut Parking,
    names: &[EngineHash],
    did: &mut Stored,
) -> Result<(), IndexError> {
    if parking.is_empty() {
        return Ok(());
    }
    let own = work.tier;
    work.scratch.arrived.clear();
    work.scratch.arrived.extend(names.iter().map(|n| n.0));
    while let Some(parent) = work.scratch.arrived.pop_front() {
        while let Some(block) = parking.take_child(parent) {
            work.tier = block.tier;
            let parent = work.resolve_any(parent).expect("a name that arrived is held");
            let (name, content) = ([EngineHash(block.name)], [ContentHash(block.content)]);
            work.place(After::position(parent.position), &name, &content, block.kind, did)?;
            did.attached += 1;
            work.scratch.arrived.push_back(block.name);
        }
    }
    work.tier = own;
    Ok(())
}

impl Work<'_> {
    /// Holds a position that some tier of the rank has, under this name.
    fn adopt_at(&mut self, position: u32, name: EngineHash, did: &mut Stored) -> Result<(), IndexError> {
        loop {
            let (sight, offset) = self.shard.locate(position);
            if self.join(&sight, offset, &[name], StoreKind::Copy, did)?.is_some() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::repeats;
    use crate::types::EngineHash;

    #[test]
    fn a_name_that_follows_itself_is_found_anywhere() {
        for len in 0..40u64 {
            let mut names: Vec<_> = (0..len).map(|i| EngineHash(i << 32 | i)).collect();
            assert!(!repeats(&names));
            for i in 1..len as usize {
                let kept = names[i];
                names[i] = names[i - 1];
                assert!(repeats(&names), "{len} names, number {i}");
                // In one half of the hash only.
                for other in [1, 1 << 63] {
                    names[i] = EngineHash(names[i - 1].0 ^ other);
                    assert!(!repeats(&names), "{len} names, number {i}");
                }
                names[i] = kept;
            }
        }
    }
}
