//! One shard: the regions, tables and counters that its lanes write and its readers read, and how both find their way.

use crate::alloc::{Alloc, GRANULE, Usage};
use crate::config::IndexConfig;
use crate::edge::{Check, Edge, Found};
use crate::error::ConfigError;
use crate::hash::HashKey;
use crate::kids::Kids;
use crate::layout::{Arena, Fields, Header, ROOT};
use crate::place::{PageFigures, PagesTended, ShardPlacement, Site};
use crate::prefetch::read_soon;
use crate::slots::RankSlots;
use crate::sync::{AtomicU64, Mutex, Ordering, wait};
use crate::types::{ContentHash, Tier};
use crate::version::{Seen, Unreadable};
use crossbeam_utils::CachePadded;

/// Locks that stand in for the LOCK of the root's run, by first content.
const ROOT_STRIPES: usize = if cfg!(loom) { 1 } else { 64 };

/// Figures of one lane, written by it alone.
#[derive(Default)]
pub(crate) struct LaneFigures {
    pub held: AtomicU64,
    pub parked: AtomicU64,
    pub map_bytes: AtomicU64,
    pub splits: AtomicU64,
    pub merges: AtomicU64,
    pub lock_waits: AtomicU64,
    pub locks: AtomicU64,
    pub opened: AtomicU64,
    pub written: AtomicU64,
    /// Blocks this lane added to the arena, less those it took out; wraps.
    pub blocks: AtomicU64,
    /// Run ids in the lane's stock, and granules: not in use.
    pub runs_kept: AtomicU64,
    pub granules_kept: AtomicU64,
    /// Memberships of holders that are gone, not swept yet.
    pub sweeping: AtomicU64,
}

/// One shard.
pub(crate) struct Shard {
    pub arena: Arena,
    pub edge: Edge,
    pub kids: Kids,
    pub slots: RankSlots,
    pub alloc: Mutex<Alloc>,
    pub roots: Box<[Mutex<()>]>,
    pub figures: Box<[CachePadded<LaneFigures>]>,
    pub key: HashKey,
    pub run_blocks_max: u32,
    /// More holder blocks than any run has: bounds a walk along rumours.
    pub blocks_walked_max: u32,
    /// Where its regions were asked to lie.
    pub placement: ShardPlacement,
    /// Their pages, and those of the lanes' tables.
    #[cfg(not(loom))]
    pub pages: std::sync::Arc<crate::pages::Pages>,
}

/// A run as seen under a version.
#[derive(Clone, Copy)]
pub(crate) struct Sight {
    pub run: u32,
    pub seen: Seen,
    pub fields: Fields,
}

impl Shard {
    pub fn new(config: &IndexConfig, number: u32) -> Result<Self, ConfigError> {
        let key = HashKey::new(config.hash_key);
        let lanes = config.lanes_per_shard;
        let slots = RankSlots::new(config.ranks_max, lanes);
        let holders = slots.capacity() * Tier::COUNT as u32;
        let node = config.memory_nodes.get(number as usize).copied().flatten();
        let mut site = Site::new(node, config.node_policy, config.huge_pages);
        Ok(Self {
            arena: Arena::reserve(config, &mut site)?,
            edge: Edge::reserve(config.runs_max, lanes, &mut site)?,
            kids: Kids::new(key),
            alloc: Mutex::new(Alloc::new(config.blocks_max, config.runs_max, config.exts_max)),
            roots: (0..ROOT_STRIPES).map(|_| Mutex::new(())).collect(),
            figures: (0..lanes).map(|_| CachePadded::new(LaneFigures::default())).collect(),
            key,
            run_blocks_max: config.run_blocks_max,
            // A leaf has two keys at least, but for the last one.
            blocks_walked_max: holders / 2 + 64,
            slots,
            placement: site.report,
            #[cfg(not(loom))]
            pages: site.pages,
        })
    }

    /// The wishes for further memory, with the answers so far.
    pub fn site(&self) -> Site {
        Site {
            report: self.placement,
            #[cfg(not(loom))]
            pages: self.pages.clone(),
        }
    }

    /// One scan for stretches to be collapsed; attempts are taken from the budget.
    #[cfg_attr(loom, expect(unused_variables, reason = "models have no pages"))]
    pub fn tend_pages(&self, budget: &mut u32, tended: &mut PagesTended) {
        #[cfg(not(loom))]
        self.pages.tend(budget, tended);
    }

    /// What became of huge pages.
    pub fn page_figures(&self) -> PageFigures {
        #[cfg(loom)]
        return PageFigures::default();
        #[cfg(not(loom))]
        self.pages.figures()
    }

    /// Hash of a child link.
    #[inline]
    pub fn edge_hash(&self, parent: u32, content: u64) -> u64 {
        self.key.two(parent, content)
    }

    /// Hash of a linked run, read back from the arena. Only while the run cannot leave the table.
    pub fn rehash(&self, run: u32, granule: u32) -> u64 {
        let parent = self.arena.header(run).load().parent;
        self.edge_hash(parent, self.arena.content(granule * GRANULE))
    }

    /// The lock that stands in for the root's LOCK.
    pub fn root_lock(&self, content: u64) -> &Mutex<()> {
        &self.roots[(self.edge_hash(ROOT, content) >> 32) as usize % ROOT_STRIPES]
    }

    /// Reads a run's fields under its version. `None` when it is dead, or was moving for longer than `turns`.
    #[inline]
    pub fn sight(&self, run: u32, turns: u32) -> Result<Sight, Unreadable> {
        let header = self.arena.header(run);
        let mut turn = 0;
        loop {
            match header.version().begin() {
                Ok(seen) => {
                    let fields = header.load();
                    if header.version().confirm(seen) {
                        return Ok(Sight { run, seen, fields });
                    }
                }
                Err(Unreadable::Dead) => return Err(Unreadable::Dead),
                Err(Unreadable::Moving) => {}
            }
            turn += 1;
            if turn > turns {
                return Err(Unreadable::Moving);
            }
            wait(turn);
        }
    }

    /// The child at `parent` whose first content is `content`, verified by value. Takes no lock.
    #[inline]
    pub fn child(&self, parent: u32, content: ContentHash, turns: u32) -> Found<Sight> {
        self.edge.find(self.edge_hash(parent, content.0), |run, granule| {
            let base = granule * GRANULE;
            let first = self.arena.contents(base, 1);
            if first.first().map(|w| w.load(Ordering::Relaxed)) != Some(content.0) {
                return Check::No;
            }
            match self.sight(run, turns) {
                Ok(s) if s.fields.parent == parent && s.fields.base == base => {
                    // The content belongs to this life of the run only if it is the same under the version.
                    let same = first[0].load(Ordering::Relaxed) == content.0;
                    if same && self.arena.header(run).version().confirm(s.seen) { Check::Yes(s) } else { Check::Busy }
                }
                Ok(_) | Err(Unreadable::Dead) => Check::No,
                Err(Unreadable::Moving) => Check::Busy,
            }
        })
    }

    /// As [`Shard::child`] by the link's hash, but of what the child's header says only place and links were compared: all of
    /// it is a rumour until the caller confirms the version.
    #[inline(always)]
    pub fn child_rumour(&self, hash: u64, parent: u32, content: ContentHash, turns: u32) -> Found<Sight> {
        self.edge.find(hash, |run, granule| {
            let base = granule * GRANULE;
            // Asked for together with the first contents: neither waits for the other.
            read_soon(self.arena.header(run).version());
            if self.arena.first_content(granule) != content.0 {
                return Check::No;
            }
            match self.begin(run, turns) {
                Ok(s) if s.fields.parent == parent && s.fields.base == base => Check::Yes(s),
                Ok(_) | Err(Unreadable::Dead) => Check::No,
                Err(Unreadable::Moving) => Check::Busy,
            }
        })
    }

    /// Begins to read a run: its version and fields, unconfirmed. Waits up to `turns` while they are moving.
    #[inline(always)]
    pub fn begin(&self, run: u32, turns: u32) -> Result<Sight, Unreadable> {
        let header = self.arena.header(run);
        let seen = match header.version().begin() {
            Ok(seen) => seen,
            Err(Unreadable::Moving) => header.version().begin_patiently(turns)?,
            Err(dead) => return Err(dead),
        };
        Ok(Sight { run, seen, fields: header.load() })
    }

    /// The run that covers a position which the calling lane knows to be live (its own rank holds it), and the offset
    /// inside. Other lanes may split the run meanwhile: the sight says at which version it was right.
    #[inline]
    pub fn locate(&self, position: u32) -> (Sight, u32) {
        let mut turn = 0;
        loop {
            if let Some(there) = self.locate_once(position) {
                return there;
            }
            // A link was overtaken by a split or a death on the way: look again.
            turn += 1;
            debug_assert!(turn < 1 << 24, "position {position} is in no run");
            wait(turn);
        }
    }

    /// Asks for the line that tells the run of a position.
    #[inline]
    pub fn expect_owner(&self, position: u32) {
        read_soon(self.arena.owner(position / GRANULE));
    }

    /// The same as [`Self::locate`] for a position that may be gone: one look, which finds nothing also where a split or a death overtook a link.
    #[inline]
    pub fn locate_once(&self, position: u32) -> Option<(Sight, u32)> {
        // Acquire: pairs with the Release of the split that moved the owner.
        let mut run = self.arena.owner(position / GRANULE).load(Ordering::Acquire);
        while run != 0 {
            let sight = self.sight(run, u32::MAX).ok()?;
            let f = &sight.fields;
            if position < f.base {
                return None;
            }
            if position < f.end() {
                return Some((sight, position - f.base));
            }
            run = f.next;
        }
        None
    }

    /// What the free lists say, with what the lanes keep in stock counted as free. Of a moment when a lane is at work only
    /// about right.
    pub fn usage(&self) -> Usage {
        let mut usage = self.alloc.lock().usage();
        for lane in &self.figures {
            let kept = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
            usage.runs_live = usage.runs_live.saturating_sub(kept(&lane.runs_kept));
            usage.granules_live = usage.granules_live.saturating_sub(kept(&lane.granules_kept));
        }
        usage
    }

    /// A run's header.
    #[inline]
    pub fn header(&self, run: u32) -> Header<'_> {
        self.arena.header(run)
    }
}
