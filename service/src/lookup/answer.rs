//! What a lookup answers.

use crate::fleet::{Brief, FleetView, Group, RankEntry};
use crate::ingest::Trust;
use kvatlas_index::{RankKey, Tier};
use std::sync::Arc;

/// One holder of the prompt's leading blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The rank's number in the answer's view.
    pub key: RankKey,
    /// The tier.
    pub tier: Tier,
    /// Leading blocks held, at least 1.
    pub blocks: u32,
    /// How far the row can be believed.
    pub trust: Trust,
    /// Whether the figure may be too high.
    pub upper_bound: bool,
    /// Whether the worker was vetoed; only where vetoed ones were asked for.
    pub vetoed: bool,
}

/// The holders of a prompt's leading blocks.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The fleet that the answer speaks of.
    pub view: Arc<FleetView>,
    /// The ranks of the model and routing group in that fleet.
    pub group: Arc<Group>,
    /// Full blocks of the prompt.
    pub query_blocks: usize,
    /// Tokens after the last full block.
    pub tail_tokens: usize,
    /// The rows, longest first, then by worker, rank and tier.
    pub rows: Vec<Row>,
    /// Rows before the cut.
    pub rows_total: usize,
    /// Writers kept changing the path: figures may be too low.
    pub busy: bool,
    /// The ranks that were asked for; `None` for all of the group.
    pub chosen: Option<Vec<Arc<RankEntry>>>,
    /// Whether rows of vetoed workers are in the answer.
    pub vetoed_included: bool,
}

/// Ranks of an answer, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RankCounts {
    /// Ranks that are not exact.
    pub not_exact: usize,
    /// Ranks whose worker is vetoed.
    pub vetoed: usize,
}

impl Answer {
    /// The ranks that the answer is about, by worker and number.
    pub fn ranks(&self) -> &[Arc<RankEntry>] {
        self.chosen.as_deref().unwrap_or(&self.group.ranks)
    }

    /// Of these, the ranks that an answer says something about, by what it says.
    pub fn rank_counts(&self) -> RankCounts {
        self.ranks().iter().fold(RankCounts::default(), |counts, rank| {
            let Brief { trust, vetoed, .. } = rank.status.brief();
            let not_exact = counts.not_exact + usize::from(trust != Trust::Exact);
            RankCounts { not_exact, vetoed: counts.vetoed + usize::from(vetoed) }
        })
    }

    /// A row's rank. `None`: its registration ended while the answer was made.
    pub fn rank(&self, row: &Row) -> Option<&Arc<RankEntry>> {
        self.view.by_key(row.key)
    }

    /// A row's blocks in tokens.
    pub fn tokens(&self, row: &Row) -> u64 {
        u64::from(row.blocks) * u64::from(self.group.block_size)
    }
}
