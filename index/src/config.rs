//! Settings of an index, checked once.

use crate::error::ConfigError;
use crate::place::{HugePages, NodePolicy};

/// Settings of an [`crate::Index`]. Every limit is named here; reaching one is a typed error and never an abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Complete indexes, one for each memory node. A rank belongs to one of them.
    pub shards: u32,
    /// Single-writer lanes of each shard. A rank belongs to one of them.
    pub lanes_per_shard: u32,
    /// Ranks open at once in a shard.
    pub ranks_max: u32,
    /// Distinct blocks of a shard.
    pub blocks_max: u32,
    /// Runs of a shard.
    pub runs_max: u32,
    /// Holder blocks of a shard (128 bytes each; only runs with more than eight holders use them).
    pub exts_max: u32,
    /// Orphan blocks parked for a rank until their parent arrives.
    pub orphans_max_per_rank: u32,
    /// Names (distinct engine hashes) of a holder.
    pub names_max_per_holder: u64,
    /// Private names of a lane: names that differ from the ones under which the same blocks were stored first. The limit is
    /// where all of them stand in long stretches; a name that stands alone takes the room of eight.
    pub private_names_max_per_lane: u32,
    /// Blocks of one run, at most 512. Small values are for tests: they force splits and long walks.
    pub run_blocks_max: u32,
    /// Memory node of each shard's regions, by the system's number, `None` for any; shards beyond the list ask for none. What
    /// came of it: [`crate::Index::placements`].
    pub memory_nodes: Vec<Option<u32>>,
    /// How strictly regions belong to their node.
    pub node_policy: NodePolicy,
    /// Which pages the regions ask for.
    pub huge_pages: HugePages,
    /// Key of the hash tables, so that crafted hashes cannot degrade them. `None` draws one from the system.
    pub hash_key: Option<[u64; 2]>,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            shards: 1,
            lanes_per_shard: 1,
            ranks_max: 4096,
            blocks_max: 1 << 27,
            runs_max: 1 << 24,
            exts_max: 1 << 22,
            orphans_max_per_rank: 4096,
            names_max_per_holder: 1 << 26,
            private_names_max_per_lane: 1 << 27,
            run_blocks_max: 512,
            memory_nodes: Vec::new(),
            node_policy: NodePolicy::Prefer,
            huge_pages: HugePages::Off,
            hash_key: None,
        }
    }
}

impl IndexConfig {
    /// Checks every setting against its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let range = |field, value: u64, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { field, value, min, max }) }
        };
        range("shards", self.shards.into(), 1, 64)?;
        range("lanes_per_shard", self.lanes_per_shard.into(), 1, 64)?;
        range("ranks_max", self.ranks_max.into(), 1, 1 << 18)?;
        range("blocks_max", self.blocks_max.into(), 512, 1 << 29)?;
        range("runs_max", self.runs_max.into(), 64, 1 << 26)?;
        range("exts_max", self.exts_max.into(), 64, 1 << 26)?;
        range("orphans_max_per_rank", self.orphans_max_per_rank.into(), 0, 1 << 24)?;
        range("names_max_per_holder", self.names_max_per_holder, 1, 1 << 32)?;
        range("private_names_max_per_lane", self.private_names_max_per_lane.into(), 64, 1 << 30)?;
        range("run_blocks_max", self.run_blocks_max.into(), 1, 512)
    }
}
