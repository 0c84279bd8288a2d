//! What came of the wishes for memory, in one form for log, status and metrics.

use super::machine::Machine;
use super::pin::Pinned;
use kvatlas_index::{Granted, HugePages, Index, PageFigures, ShardPlacement};

/// One shard's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardReport {
    /// The shard's number.
    pub shard: u32,
    /// The memory node that was asked for; `None` for any.
    pub node: Option<u32>,
    /// Whether its regions belong to the node.
    pub memory: Granted,
    /// Whether its regions may have huge pages.
    pub huge_pages: Granted,
    /// What became of huge pages since the start, where memory in use is made into them.
    pub pages: PageFigures,
    /// All of it in words.
    pub detail: String,
}

/// Every shard's memory.
pub fn shard_reports(index: &Index, machine: &Machine) -> Vec<ShardReport> {
    let never = machine.transparent_huge_pages.as_deref() == Some("never");
    let report = |(shard, (placement, pages)): (usize, (&ShardPlacement, PageFigures))| {
        let asked = placement.huge_pages_asked;
        let mut detail = format!("memory {}, huge pages {}", placement.memory, placement.huge_pages);
        if never && matches!(asked, HugePages::Transparent | HugePages::Explicit) {
            detail += "; the system's setting of transparent huge pages is never";
        }
        if asked == HugePages::Explicit {
            detail += &format!("; {} regions of the reserved pool", placement.regions_explicit);
        }
        if asked == HugePages::Collapse {
            detail += &format!("; {} made, {} to be made, {} refusals", pages.huge, pages.waiting, pages.refused);
        }
        if pages.errno != 0 {
            detail += &format!(", the last attempt: {}", std::io::Error::from_raw_os_error(pages.errno));
        }
        let huge_pages = match placement.huge_pages {
            // A system that is set to never says yes to the advice and does nothing.
            Granted::Yes if never && asked == HugePages::Transparent => Granted::Refused { regions: 0, errno: 0 },
            Granted::Yes if pages.errno != 0 => Granted::Refused { regions: 0, errno: pages.errno },
            other => other,
        };
        let (node, memory) = (placement.node, placement.memory);
        ShardReport { shard: shard as u32, node, memory, huge_pages, pages, detail }
    };
    index.placements().zip(index.page_figures()).enumerate().map(report).collect()
}

/// Tells the log what was asked for and what came of it, refusals as warnings.
pub fn log_placement(machine: &Machine, shards: &[ShardReport], lanes: impl IntoIterator<Item = Pinned>) {
    let nodes: Vec<u32> = machine.usable_nodes().map(|n| n.id).collect();
    tracing::info!(source = machine.source, ?nodes, cores = machine.cores.len(), "the machine");
    for ShardReport { shard, node, memory, huge_pages, detail, .. } in shards {
        if memory.is_refused() || huge_pages.is_refused() {
            tracing::warn!(shard, node, %detail, "a shard's memory is not as asked for: it lies where it is first touched");
        } else {
            tracing::info!(shard, node, %detail, "a shard's memory");
        }
    }
    for (lane, pinned) in lanes.into_iter().enumerate() {
        match pinned {
            Pinned::NotAsked => {}
            Pinned::Yes(spot) => tracing::info!(lane, core = spot.core, node = spot.node, "a lane is pinned"),
            Pinned::Refused(spot) => {
                tracing::warn!(lane, core = spot.core, "a lane could not be pinned: it runs anywhere")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_index::IndexConfig;

    #[test]
    fn advice_that_the_system_ignores_is_shown_as_refused() {
        let config = IndexConfig { huge_pages: HugePages::Transparent, blocks_max: 1 << 12, ..IndexConfig::default() };
        let (index, _lanes) = Index::new(config).unwrap();
        let report = |setting: &str| {
            let machine = Machine { transparent_huge_pages: Some(setting.into()), ..Machine::default() };
            shard_reports(&index, &machine).remove(0)
        };
        assert_eq!(report("madvise").huge_pages, index.placements().next().unwrap().huge_pages);
        let never = report("never");
        assert!(never.huge_pages.is_refused() && never.detail.contains("never"), "{never:?}");
    }
}
