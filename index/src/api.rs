//! The public handles. Stand-in: backed by the oracle behind a lock until the arena takes its place.

use crate::config::IndexConfig;
use crate::error::{ConfigError, IndexError};
use crate::reference::Reference;
use crate::types::*;
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

/// An index: shards with lanes. Shared by `Arc`; any thread may call it.
pub struct Index {
    config: IndexConfig,
    oracle: RwLock<Reference>,
}

/// Sizes and counts of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Memberships: (holder, position) pairs.
    pub held: u64,
    /// Distinct blocks (positions with content).
    pub blocks: u64,
    /// Runs.
    pub runs: u64,
    /// Parked orphan blocks.
    pub parked: u64,
    /// Open ranks.
    pub ranks: u64,
    /// Live bytes, free lists left out.
    pub bytes_live: u64,
    /// Bytes on free lists, kept for reuse.
    pub bytes_free: u64,
    /// Splits of runs so far.
    pub splits: u64,
    /// Times a writer waited for a run's lock.
    pub lock_waits: u64,
}

impl Index {
    /// Makes an index and its lanes, in order: `lanes[shard * lanes_per_shard + lane]`. Each lane goes to one thread.
    pub fn new(config: IndexConfig) -> Result<(Arc<Index>, Vec<Lane>), ConfigError> {
        config.check()?;
        let oracle = RwLock::new(Reference::new(config.orphans_max_per_rank as usize));
        let index = Arc::new(Index { config, oracle });
        let lanes = (0..index.config.shards)
            .flat_map(|shard| (0..index.config.lanes_per_shard).map(move |lane| (shard, lane)))
            .map(|(shard, lane)| Lane { index: index.clone(), shard, lane, open: HashMap::new(), next: lane })
            .collect();
        Ok((index, lanes))
    }
    /// The settings in force.
    pub fn config(&self) -> &IndexConfig {
        &self.config
    }
    /// A reader. One for each thread that looks up; making one allocates, using it does not.
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader { index: self.clone() }
    }
    /// Sizes and counts. Walks the arena: for scrapes and tests, not for every request. Takes no lock that a lane waits for long on.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// The writer of one lane. `Send`, owned by one thread.
pub struct Lane {
    index: Arc<Index>,
    shard: u32,
    lane: u32,
    open: HashMap<u32, RankKey>,
    next: u32,
}

impl Lane {
    /// The shard this lane belongs to.
    pub fn shard(&self) -> u32 {
        self.shard
    }
    /// The lane's number within its shard.
    pub fn lane(&self) -> u32 {
        self.lane
    }
    fn key(&self, slot: RankSlot) -> Result<RankKey, IndexError> {
        self.open.get(&slot.0).copied().ok_or(IndexError::UnknownRank { slot: slot.0 })
    }
    fn oracle(&self) -> std::sync::RwLockWriteGuard<'_, Reference> {
        self.index.oracle.write().expect("oracle poisoned")
    }
    /// Makes a rank known. Answers carry `key`.
    pub fn open_rank(&mut self, key: RankKey) -> Result<RankSlot, IndexError> {
        let slot = self.next;
        self.next += self.index.config.lanes_per_shard;
        self.open.insert(slot, key);
        self.oracle().open_rank(key);
        Ok(RankSlot(slot))
    }
    /// Forgets a rank with all it holds, in every tier: gone from answers at once.
    pub fn close_rank(&mut self, slot: RankSlot) -> Result<Cleared, IndexError> {
        let key = self.key(slot)?;
        let did = self.oracle().clear(key, None)?;
        self.oracle().close_rank(key);
        self.open.remove(&slot.0);
        Ok(did)
    }
    /// Applies a store.
    pub fn store(&mut self, at: Holder, store: &Store<'_>) -> Result<Stored, IndexError> {
        let key = self.key(at.rank)?;
        self.oracle().store(key, at.tier, store)
    }
    /// Applies a store that carries names only: each name is held where any tier of the rank has it.
    pub fn adopt(&mut self, at: Holder, names: &[EngineHash]) -> Result<Stored, IndexError> {
        let key = self.key(at.rank)?;
        self.oracle().adopt(key, at.tier, names)
    }
    /// Takes one copy of each name away.
    pub fn remove(&mut self, at: Holder, names: &[EngineHash]) -> Result<Removed, IndexError> {
        let key = self.key(at.rank)?;
        self.oracle().remove(key, at.tier, names)
    }
    /// Sets how many copies of a name are left.
    pub fn set_copies(&mut self, at: Holder, name: EngineHash, left: u64) -> Result<Removed, IndexError> {
        let key = self.key(at.rank)?;
        self.oracle().set_copies(key, at.tier, name, left)
    }
    /// Drops everything in one tier of a rank, or in all. Never needs memory.
    pub fn clear(&mut self, rank: RankSlot, tier: Option<Tier>) -> Result<Cleared, IndexError> {
        let key = self.key(rank)?;
        self.oracle().clear(key, tier)
    }
    /// Blocks (positions) that a holder has.
    pub fn held(&self, at: Holder) -> u64 {
        self.key(at.rank).map_or(0, |k| self.oracle().held(k, at.tier))
    }
    /// Blocks parked for a rank.
    pub fn parked(&self, rank: RankSlot) -> u64 {
        self.key(rank).map_or(0, |k| self.oracle().parked(k))
    }
    /// The names of a holder with their copies, sorted by name. For tests and dumps: walks the arena.
    pub fn names(&self, at: Holder) -> Vec<(EngineHash, u64)> {
        self.key(at.rank).map_or(Vec::new(), |k| self.oracle().names(k, at.tier))
    }
}

/// Answers lookups. One for each thread.
pub struct Reader {
    index: Arc<Index>,
}

impl Reader {
    /// Appends every holder with at least one leading block of `query` to `out`, in no order. Takes no lock, writes to no
    /// shared memory, and allocates only when `out` has to grow.
    pub fn lookup(
        &mut self,
        query: &[ContentHash],
        options: &LookupOptions<'_>,
        out: &mut Vec<HolderDepth>,
    ) -> Outcome {
        let oracle = self.index.oracle.read().expect("oracle poisoned");
        let found = oracle.lookup(query, options.residency);
        out.extend(found.into_iter().filter(|h| options.filter.is_none_or(|f| f.contains(h.rank))));
        Outcome::Exact
    }
    /// The walk of a query for one rank and tier, run by run, as far as the content is known to anyone.
    pub fn walk(&mut self, _query: &[ContentHash], _rank: RankKey, _tier: Tier, _out: &mut Vec<WalkStep>) -> Outcome {
        Outcome::Exact
    }
}
