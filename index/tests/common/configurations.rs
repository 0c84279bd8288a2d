//! The table of index configurations over which every suite runs. The rare paths live at small sizes.

use kvatlas_index::IndexConfig;

/// One row: an index and how many ranks share it.
#[derive(Clone, Debug)]
pub struct Configuration {
    pub name: &'static str,
    pub ranks: usize,
    pub lanes: u32,
    pub shards: u32,
    pub run_blocks_max: u32,
    /// Tables so small that the histories run into them; a `*Full` error is an expected answer there.
    pub tiny: bool,
}

const fn row(name: &'static str, ranks: usize, lanes: u32, shards: u32, run_blocks_max: u32) -> Configuration {
    Configuration { name, ranks, lanes, shards, run_blocks_max, tiny: false }
}

/// Every row. More than 8, 64 and 256 holders of one run need 12, 200 and 320 ranks.
pub const CONFIGURATIONS: &[Configuration] = &[
    row("one_lane", 12, 1, 1, 512),
    row("two_lanes", 6, 2, 1, 512),
    row("eight_lanes", 12, 8, 1, 512),
    row("two_shards", 8, 2, 2, 512),
    row("runs_of_1", 5, 1, 1, 1),
    row("runs_of_3", 6, 2, 1, 3),
    row("runs_of_8", 12, 8, 2, 8),
    row("ranks_200", 200, 2, 1, 512),
    row("ranks_320", 320, 8, 1, 8),
    Configuration { name: "tiny", ranks: 10, lanes: 2, shards: 1, run_blocks_max: 8, tiny: true },
];

impl Configuration {
    /// The row of this name.
    pub fn named(name: &str) -> Self {
        CONFIGURATIONS.iter().find(|c| c.name == name).expect("a configuration of the table").clone()
    }

    /// The settings. The key is fixed, so that a history is the same one every time.
    pub fn index(&self) -> IndexConfig {
        IndexConfig {
            shards: self.shards,
            lanes_per_shard: self.lanes,
            ranks_max: 1024.max(self.ranks as u32),
            blocks_max: if self.tiny { 4096 } else { 1 << 21 },
            runs_max: if self.tiny { 256 } else { 1 << 19 },
            exts_max: if self.tiny { 64 } else { 1 << 16 },
            orphans_max_per_rank: 24,
            private_names_max_per_lane: 1 << 24,
            names_max_per_holder: if self.tiny { 600 } else { 1 << 20 },
            run_blocks_max: self.run_blocks_max,
            hash_key: Some([0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210]),
            ..IndexConfig::default()
        }
    }
}
