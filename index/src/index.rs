//! The index as a whole: its shards, and what they amount to.

use crate::alloc::GRANULE;
use crate::config::IndexConfig;
use crate::error::ConfigError;
use crate::lane::Lane;
use crate::place::ShardPlacement;
use crate::read::Reader;
use crate::shard::{LaneFigures, Shard};
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// An index: shards with lanes. Shared by `Arc`; any thread may call it.
pub struct Index {
    pub(crate) config: IndexConfig,
    pub(crate) shards: Vec<Shard>,
}

/// Sizes and counts of an index. Read while lanes work, each figure is of some recent moment.
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
    /// Bytes in use: blocks, runs, holder blocks, child links, the lanes' name maps and parked blocks; free lists left out.
    pub bytes_live: u64,
    /// Bytes on free lists, kept for reuse.
    pub bytes_free: u64,
    /// Splits of runs so far.
    pub splits: u64,
    /// Turns that lanes waited for a run's LOCK so far.
    pub lock_waits: u64,
}

/// Bytes of a granule over all regions: contents, names, owner, child bits.
const GRANULE_BYTES: u64 = GRANULE as u64 * 16 + 4 + 1;
const RUN_BYTES: u64 = 64;
const EXT_BYTES: u64 = 128;

impl Index {
    /// Makes an index and its lanes, in order: `lanes[shard * lanes_per_shard + lane]`. Each lane goes to one thread. Reserves
    /// address space for every region at its limit; memory is used as it is touched.
    pub fn new(config: IndexConfig) -> Result<(Arc<Index>, Vec<Lane>), ConfigError> {
        config.check()?;
        let shards = (0..config.shards).map(|shard| Shard::new(&config, shard)).collect::<Result<Vec<_>, _>>()?;
        let index = Arc::new(Index { config, shards });
        let lanes = (0..index.config.shards)
            .flat_map(|shard| (0..index.config.lanes_per_shard).map(move |lane| (shard, lane)))
            .map(|(shard, lane)| Lane::new(index.clone(), shard, lane))
            .collect();
        Ok((index, lanes))
    }

    /// The settings in force.
    pub fn config(&self) -> &IndexConfig {
        &self.config
    }

    /// Where each shard's memory was asked to lie and what the system made of it, in order.
    pub fn placements(&self) -> impl ExactSizeIterator<Item = &ShardPlacement> {
        self.shards.iter().map(|shard| &shard.placement)
    }

    /// A reader. One for each thread that looks up; making one allocates, using it does not.
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader::new(self.clone())
    }

    /// Sizes and counts, in constant time. Blocks only for the moment that a free list is being changed.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for shard in &self.shards {
            let usage = shard.alloc.lock().usage();
            let sum = |figure: fn(&LaneFigures) -> &AtomicU64| {
                shard.figures.iter().fold(0u64, |sum, f| sum.wrapping_add(figure(f).load(Ordering::Relaxed)))
            };
            stats.held += sum(|f| &f.held);
            stats.blocks += sum(|f| &f.blocks);
            stats.runs += usage.runs_live;
            stats.parked += sum(|f| &f.parked);
            stats.ranks += u64::from(shard.slots.open());
            stats.splits += sum(|f| &f.splits);
            stats.lock_waits += sum(|f| &f.lock_waits);
            stats.bytes_live += usage.granules_live * GRANULE_BYTES
                + usage.runs_live * RUN_BYTES
                + usage.exts_live * EXT_BYTES
                + shard.edge.bytes()
                + shard.kids.bytes()
                + sum(|f| &f.map_bytes);
            stats.bytes_free += (usage.granules_known - usage.granules_live) * GRANULE_BYTES
                + (usage.runs_known - usage.runs_live) * RUN_BYTES
                + (usage.exts_known - usage.exts_live) * EXT_BYTES;
        }
        stats
    }
}
