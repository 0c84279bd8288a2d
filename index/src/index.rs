//! The index as a whole: its shards, and what they amount to.

use crate::alloc::GRANULE;
use crate::config::IndexConfig;
use crate::error::ConfigError;
use crate::lane::Lane;
use crate::lane::names::LaneNames;
use crate::place::{PageFigures, PagesTended, ShardPlacement};
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
    /// Memberships of cleared holders: in no answer and in no other count any more, not swept out of memory yet.
    pub sweeping: u64,
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
    /// Halves of runs made one again so far.
    pub merges: u64,
    /// Turns that lanes waited for a run's LOCK so far.
    pub lock_waits: u64,
    /// LOCKs of runs that lanes took so far.
    pub locks: u64,
    /// Runs opened by stores so far.
    pub opened: u64,
    /// Blocks written to the arena so far, by the first storer of each.
    pub written: u64,
}

impl Stats {
    /// Cache lines that lanes wrote so far where other threads read, estimated from the counts:
    ///
    /// - a LOCK taken: the run's header (LOCK, fields and unlock are one line);
    /// - a run opened or made by a split: header, granule owner, child bits and child link or neighbour, free lists;
    /// - a run given up: child link, child bits, free lists, on top of its LOCKs;
    /// - eight blocks written: a line of contents and one of names.
    ///
    /// Left out: holder blocks (runs with more than eight holders), growth of the child links, and statistics, which each lane
    /// writes to a line of its own. What a lane keeps to itself (name maps, parked blocks) is not shared.
    pub fn shared_lines_written(&self) -> u64 {
        let born = self.opened + self.splits;
        self.locks + born * 5 + born.saturating_sub(self.runs) * 3 + self.written / 4
    }
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
        Self::build(config)
    }

    /// The same with settings that may be smaller than any that makes sense outside of models.
    pub(crate) fn build(config: IndexConfig) -> Result<(Arc<Index>, Vec<Lane>), ConfigError> {
        let (mut shards, mut names) = (Vec::new(), Vec::new());
        for number in 0..config.shards {
            let mut shard = Shard::new(&config, number)?;
            // A lane's own tables are placed as its shard's regions are.
            let mut site = shard.site();
            for lane in 0..config.lanes_per_shard {
                names.push((number, lane, LaneNames::new(&config, shard.key, &mut site)?));
            }
            shard.placement = site.report;
            shards.push(shard);
        }
        let index = Arc::new(Index { config, shards });
        let lane = |(shard, lane, names)| Lane::new(index.clone(), shard, lane, names);
        let lanes = names.into_iter().map(lane).collect();
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

    /// Makes huge pages of stretches whose pages are all in use, at most `collapses_max` of them, where [`crate::HugePages::Collapse`]
    /// was asked for. To be called every so often from a thread of its own, never a lane's or a reader's: it looks through the
    /// regions (some microseconds for each stretch in use that is not huge), takes some hundred for each that it collapses, and
    /// allocates a list of the regions. A lane or reader that touches a stretch while it is collapsed waits for it; nobody else
    /// does. A refusal is no error: it is counted, and after each in a row twice as many calls pass before the next attempt.
    pub fn tend_pages(&self, collapses_max: u32) -> PagesTended {
        let (mut budget, mut tended) = (collapses_max, PagesTended::default());
        self.shards.iter().for_each(|shard| shard.tend_pages(&mut budget, &mut tended));
        tended
    }

    /// What became of huge pages by [`Index::tend_pages`], for each shard in order. Waits for a collapse at most.
    pub fn page_figures(&self) -> impl ExactSizeIterator<Item = PageFigures> {
        self.shards.iter().map(Shard::page_figures)
    }

    /// A reader. One for each thread that looks up; making one allocates, using it does not.
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader::new(self.clone())
    }

    /// Sizes and counts, in constant time. Blocks only for the moment that a free list is being changed.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for shard in &self.shards {
            let usage = shard.usage();
            let sum = |figure: fn(&LaneFigures) -> &AtomicU64| {
                shard.figures.iter().fold(0u64, |sum, f| sum.wrapping_add(figure(f).load(Ordering::Relaxed)))
            };
            stats.held += sum(|f| &f.held);
            stats.blocks += sum(|f| &f.blocks);
            stats.runs += usage.runs_live;
            stats.sweeping += sum(|f| &f.sweeping);
            stats.parked += sum(|f| &f.parked);
            stats.ranks += u64::from(shard.slots.open());
            stats.splits += sum(|f| &f.splits);
            stats.merges += sum(|f| &f.merges);
            stats.lock_waits += sum(|f| &f.lock_waits);
            stats.locks += sum(|f| &f.locks);
            stats.opened += sum(|f| &f.opened);
            stats.written += sum(|f| &f.written);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContentHash, EngineHash, Holder, RankKey, Store, StoreKind, Tier};

    #[test]
    fn a_further_holder_writes_one_shared_line_and_no_block() {
        let (index, mut lanes) = Index::new(IndexConfig::default()).unwrap();
        let names: Vec<_> = (1..=64).map(EngineHash).collect();
        let contents: Vec<_> = (1..=64).map(ContentHash).collect();
        let store = Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy };
        let mut after = Vec::new();
        for key in 0..2 {
            let rank = lanes[0].open_rank(RankKey(key)).unwrap();
            lanes[0].store(Holder { rank, tier: Tier::Device }, &store).unwrap();
            after.push(index.stats());
        }
        assert_eq!((after[0].opened, after[0].written), (1, 64));
        assert_eq!((after[1].opened, after[1].written, after[1].splits), (1, 64, 0));
        assert_eq!(after[1].locks, after[0].locks + 1);
        assert_eq!(after[1].shared_lines_written(), after[0].shared_lines_written() + 1);
    }
}
