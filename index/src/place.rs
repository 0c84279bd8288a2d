//! Where the memory of a shard should lie, and what the system made of each wish.
//!
//! A wish is spoken for every region of a shard after its address range is reserved and before a word of it is touched: pages
//! that exist already would stay where they are. Nothing here decides which node a shard belongs to; the caller knows the
//! machine. A wish that the system refuses costs nothing but itself: the index works on ordinary pages of any node, and
//! [`ShardPlacement`] says so.

#[cfg(not(loom))]
use crate::pages::Enrolled;
use std::fmt;
use std::time::Duration;

/// How strictly a shard's memory belongs to its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NodePolicy {
    /// On the node while it has free memory, elsewhere afterwards.
    #[default]
    Prefer,
    /// On the node only: when it is full the system reclaims or kills, as for any process out of memory.
    Bind,
}

/// Larger pages for a shard's regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// No wish: what the system does by itself stays.
    #[default]
    Off,
    /// The system may back stretches with huge pages as they are touched (`MADV_HUGEPAGE`). Sparse use costs more memory.
    Transparent,
    /// Ordinary pages at first touch; stretches of which every page is in use become huge ones when [`crate::Index::tend_pages`] is
    /// called (`MADV_COLLAPSE`, Linux 6.1). Costs no memory and no time in a lane, and follows no setting of the system.
    Collapse,
    /// Pages of the reserved pool (`MAP_HUGETLB`), for the whole region and from the start, so that none can be missing
    /// later. A region for which the pool is too small asks for transparent ones.
    Explicit,
}

impl HugePages {
    /// Time between two calls of [`crate::Index::tend_pages`], unless somebody knows better.
    pub const TENDED_EVERY: Duration = Duration::from_millis(100);
    /// Stretches that one call collapses at most, unless somebody knows better: some milliseconds of a thread in the background.
    pub const COLLAPSES_MAX: u32 = 4;
}

/// What the system made of a wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Granted {
    /// Nothing was asked for.
    #[default]
    NotAsked,
    /// Every region has it.
    Yes,
    /// So many regions do not have it.
    Refused {
        /// Regions without it.
        regions: u32,
        /// The system's error number for the first of them; 0 where it gave none.
        errno: i32,
    },
}

impl Granted {
    /// Whether something was asked for that the system did not give.
    pub fn is_refused(self) -> bool {
        matches!(self, Granted::Refused { .. })
    }

    #[cfg(not(loom))]
    fn add(&mut self, answer: Result<(), i32>) {
        *self = match (*self, answer) {
            (Granted::NotAsked, Ok(())) => Granted::Yes,
            (kept, Ok(())) => kept,
            (Granted::Refused { regions, errno }, Err(_)) => Granted::Refused { regions: regions + 1, errno },
            (_, Err(errno)) => Granted::Refused { regions: 1, errno },
        };
    }
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Granted::NotAsked => f.write_str("not asked for"),
            Granted::Yes => f.write_str("granted"),
            Granted::Refused { regions, errno: 0 } => write!(f, "refused for {regions} regions"),
            Granted::Refused { regions, errno } => {
                write!(f, "refused for {regions} regions: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

/// Where a shard's memory was asked to lie, and what came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShardPlacement {
    /// The memory node, by the system's number; `None` for any.
    pub node: Option<u32>,
    /// How strictly.
    pub policy: NodePolicy,
    /// Whether the regions belong to the node.
    pub memory: Granted,
    /// Which pages were asked for.
    pub huge_pages_asked: HugePages,
    /// Whether the regions may have them. Granted transparent pages are the system's promise to try, not a fact; what became of
    /// those that are collapsed is in [`PageFigures`].
    pub huge_pages: Granted,
    /// Regions whose pages come from the reserved pool.
    pub regions_explicit: u32,
}

/// What [`crate::Index::tend_pages`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PagesTended {
    /// Stretches of 2 MiB made a huge page each.
    pub collapsed: u32,
    /// Stretches that could be and were not, as the budget was used up or a refusal is being waited out.
    pub waiting: u32,
    /// Stretches that the system refused.
    pub refused: u32,
}

/// Huge pages of a shard that [`crate::Index::tend_pages`] made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageFigures {
    /// Stretches of 2 MiB that are a huge page each now, where the system did not split it by itself.
    pub huge: u64,
    /// Stretches that could be, at the last scan.
    pub waiting: u64,
    /// Collapses so far.
    pub collapsed: u64,
    /// Refusals so far.
    pub refused: u64,
    /// The system's error number for the last attempt; 0 where it succeeded or there was none.
    pub errno: i32,
}

/// The wishes of one shard, and the answers so far.
#[derive(Default)]
pub(crate) struct Site {
    pub report: ShardPlacement,
    /// Where mappings are enrolled whose pages are to be collapsed.
    #[cfg(not(loom))]
    pub pages: std::sync::Arc<crate::pages::Pages>,
}

impl Site {
    pub fn new(node: Option<u32>, policy: NodePolicy, huge_pages: HugePages) -> Self {
        let report = ShardPlacement { node, policy, huge_pages_asked: huge_pages, ..ShardPlacement::default() };
        Self { report, ..Self::default() }
    }
}

#[cfg(not(loom))]
impl Site {
    /// Whether a region should be made of the pool's pages.
    pub fn wants_explicit(&self) -> bool {
        self.report.huge_pages_asked == HugePages::Explicit
    }

    /// Notes that a region is made of the pool's pages.
    pub fn explicit_granted(&mut self) {
        self.report.regions_explicit += 1;
        self.report.huge_pages.add(Ok(()));
    }

    /// Notes that the pool was too small for a region.
    pub fn explicit_refused(&mut self, error: &std::io::Error) {
        self.report.huge_pages.add(Err(error.raw_os_error().unwrap_or(0)));
    }

    /// Speaks the wishes for a region that was reserved and not touched. The answer is dropped before the mapping is.
    pub fn settle(&mut self, map: &memmap2::MmapMut, explicit: bool) -> Enrolled {
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        if let Some(node) = self.report.node {
            self.report.memory.add(crate::bind::bind(map, node, self.report.policy).map_err(errno));
        }
        match self.report.huge_pages_asked {
            HugePages::Transparent => self.report.huge_pages.add(advise_huge(map).map_err(errno)),
            // A region that was refused the pool's pages is counted as refused already, whatever comes of this.
            HugePages::Explicit if !explicit => drop(advise_huge(map)),
            HugePages::Collapse => {
                self.report.huge_pages.add(if cfg!(target_os = "linux") { Ok(()) } else { Err(0) });
                return self.pages.enroll(map.as_ptr() as usize, map.len());
            }
            HugePages::Off | HugePages::Explicit => {}
        }
        Enrolled::default()
    }
}

#[cfg(all(not(loom), target_os = "linux"))]
fn advise_huge(map: &memmap2::MmapMut) -> std::io::Result<()> {
    map.advise(memmap2::Advice::HugePage)
}

#[cfg(all(not(loom), not(target_os = "linux")))]
fn advise_huge(_map: &memmap2::MmapMut) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, not(loom), target_os = "linux"))]
mod tests {
    use super::*;
    use crate::{Index, IndexConfig};

    fn small() -> IndexConfig {
        IndexConfig { blocks_max: 1 << 16, runs_max: 1 << 14, exts_max: 1 << 10, ..IndexConfig::default() }
    }

    /// Lines of this process's mappings that have a policy.
    fn policies(policy: &str) -> usize {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        maps.lines().filter(|line| line.split(' ').nth(1) == Some(policy)).count()
    }

    #[test]
    fn answers_add_up() {
        let mut granted = Granted::default();
        granted.add(Ok(()));
        assert_eq!(granted, Granted::Yes);
        granted.add(Err(22));
        granted.add(Ok(()));
        granted.add(Err(1));
        assert_eq!(granted, Granted::Refused { regions: 2, errno: 22 });
        assert!(granted.is_refused() && granted.to_string().contains("Invalid argument"), "{granted}");
    }

    #[test]
    fn nothing_is_asked_for_unless_somebody_does() {
        let (index, _lanes) = Index::new(small()).unwrap();
        assert_eq!(index.placements().copied().collect::<Vec<_>>(), [ShardPlacement::default()]);
    }

    /// Node 0 is there on every Linux machine with memory nodes; a kernel without them refuses, and says so.
    #[test]
    fn a_node_that_is_there_is_granted_and_one_that_is_not_is_refused() {
        const MISSING: u32 = 60;
        let nodes = vec![Some(0), Some(MISSING), None];
        let before = policies("bind:0");
        let config = IndexConfig { shards: 3, memory_nodes: nodes, node_policy: NodePolicy::Bind, ..small() };
        let (index, mut lanes) = Index::new(config).unwrap();
        let placements: Vec<_> = index.placements().copied().collect();
        assert!(placements[1].memory.is_refused(), "{placements:?}");
        assert_eq!((placements[1].node, placements[2].node), (Some(MISSING), None));
        assert_eq!(placements[2].memory, Granted::NotAsked);
        if std::path::Path::new("/sys/devices/system/node/node0").exists() {
            assert_eq!(placements[0].memory, Granted::Yes);
            assert!(policies("bind:0") > before, "the kernel's own account has the policy");
        }
        // A refused wish costs nothing but itself.
        let rank = lanes[1].open_rank(crate::RankKey(5)).unwrap();
        let at = crate::Holder { rank, tier: crate::Tier::Device };
        let (names, contents) = ([crate::EngineHash(1)], [crate::ContentHash(2)]);
        lanes[1]
            .store(at, &crate::Store { parent: None, names: &names, contents: &contents, kind: crate::StoreKind::Copy })
            .unwrap();
        let mut found = Vec::new();
        let _ = index.reader().lookup(&contents, &crate::LookupOptions::default(), &mut found);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_node_beyond_what_can_be_named_is_refused_too() {
        let config = IndexConfig { memory_nodes: vec![Some(u32::MAX)], ..small() };
        let (index, _lanes) = Index::new(config).unwrap();
        assert!(index.placements().all(|p| p.memory.is_refused()));
    }

    #[test]
    fn tables_of_a_lane_are_placed_as_the_regions_of_its_shard() {
        let refused = |lanes_per_shard| {
            let config = IndexConfig { memory_nodes: vec![Some(u32::MAX)], lanes_per_shard, ..small() };
            let (index, _lanes) = Index::new(config).unwrap();
            match index.placements().next().unwrap().memory {
                Granted::Refused { regions, .. } => regions,
                other => panic!("{other:?}"),
            }
        };
        // The lane map, private names, and their granules.
        assert_eq!(refused(3), refused(1) + 2 * 3);
    }

    #[test]
    fn huge_pages_are_granted_or_refused_and_the_index_works_either_way() {
        for huge_pages in [HugePages::Transparent, HugePages::Explicit] {
            let (index, mut lanes) = Index::new(IndexConfig { huge_pages, ..small() }).unwrap();
            let placement = *index.placements().next().unwrap();
            assert_ne!(placement.huge_pages, Granted::NotAsked);
            let explicit = placement.regions_explicit > 0;
            assert!(huge_pages == HugePages::Explicit || !explicit);
            let rank = lanes[0].open_rank(crate::RankKey(0)).unwrap();
            let at = crate::Holder { rank, tier: crate::Tier::Device };
            let names: Vec<_> = (0..5000).map(crate::EngineHash).collect();
            let contents: Vec<_> = (0..5000).map(|c| crate::ContentHash(c + 1)).collect();
            let store = crate::Store { parent: None, names: &names, contents: &contents, kind: crate::StoreKind::Copy };
            lanes[0].store(at, &store).unwrap();
            let mut found = Vec::new();
            let _ = index.reader().lookup(&contents, &crate::LookupOptions::default(), &mut found);
            assert_eq!(found[0].blocks, 5000);
            lanes[0].close_rank(rank).unwrap();
            assert_eq!(index.stats().held, 0);
        }
    }
}
