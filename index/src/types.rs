//! The words of the index as types: hashes, ranks, tiers, holders. Plain `Copy` data, defined once.

use core::fmt;

/// What a block's tokens hash to (XXH3-64 over little-endian `u32`s, computed by the caller). Lookups compare these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ContentHash(pub u64);

/// The engine's own 64-bit name of a block. Opaque: the index compares it and hashes it with a secret key, nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct EngineHash(pub u64);

impl fmt::Display for EngineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The caller's own dense number of a (worker, rank). Answers carry it; the index gives it no meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RankKey(pub u32);

/// The place of a (worker, rank) inside one shard, as [`crate::Lane::open_rank`] gave it. Valid on that lane until
/// [`crate::Lane::close_rank`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RankSlot(pub(crate) u32);

/// Where a block lives, nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Tier {
    /// Accelerator memory.
    Device = 0,
    /// Host memory.
    Host = 1,
    /// Local disk.
    Disk = 2,
    /// A store outside the worker.
    External = 3,
}

impl Tier {
    /// Number of tiers; a rank has one holder for each.
    pub const COUNT: usize = 4;
    /// Every tier, nearest first.
    pub const ALL: [Tier; Tier::COUNT] = [Tier::Device, Tier::Host, Tier::Disk, Tier::External];

    /// The tier with this number, if there is one.
    pub const fn from_index(i: usize) -> Option<Tier> {
        match i {
            0 => Some(Tier::Device),
            1 => Some(Tier::Host),
            2 => Some(Tier::Disk),
            3 => Some(Tier::External),
            _ => None,
        }
    }

    /// 0 for the nearest.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The unit that the index credits: one tier of one rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Holder {
    /// The rank's place on its lane.
    pub rank: RankSlot,
    /// The tier.
    pub tier: Tier,
}

/// What a store says about physical copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    /// A physical block was added: a name that is held already gets one more copy.
    #[default]
    Copy,
    /// A block may have been announced again without a new physical copy: a name that is held already keeps its count.
    Announce,
}

/// One store: consecutive blocks after `parent`.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a> {
    /// Name of the block before the first one; `None` puts the first block at position 0.
    pub parent: Option<EngineHash>,
    /// Engine names of the blocks, in order.
    pub names: &'a [EngineHash],
    /// Content hashes of the same blocks, in order; as many as names.
    pub contents: &'a [ContentHash],
    /// Whether a name that is held already gets another copy.
    pub kind: StoreKind,
}

/// What a store did. The counts are blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// Names that the holder did not have before.
    pub stored: u64,
    /// Further copies of names that the holder had already.
    pub copies: u64,
    /// Names that the holder had elsewhere and that stand at their latest place now.
    pub moved: u64,
    /// Blocks whose parent is unknown, parked until it arrives.
    pub orphans: u64,
    /// Blocks whose parent is unknown and for which the parking place was full: dropped.
    pub orphans_dropped: u64,
    /// Parked blocks that this store's names attached (also counted in `stored`, `copies` or `moved`).
    pub attached: u64,
    /// Names of an adoption that no tier of the rank has.
    pub unknown: u64,
}

/// What a removal did. The counts are names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// Names that lost their last copy.
    pub removed: u64,
    /// Names of which copies are left.
    pub copies: u64,
    /// Parked blocks that were taken out again.
    pub parked: u64,
    /// Names that the holder does not have: ignored.
    pub unknown: u64,
}

/// What a clear dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleared {
    /// Blocks that were held.
    pub blocks: u64,
    /// Blocks that were parked.
    pub parked: u64,
}

/// One line of an answer: this rank and tier hold the first `blocks` blocks of the query.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HolderDepth {
    /// The caller's number of the rank.
    pub rank: RankKey,
    /// The tier.
    pub tier: Tier,
    /// Leading blocks of the query, at least 1.
    pub blocks: u32,
}

/// How tiers count in an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Residency {
    /// Each tier by itself: every block below the answer is in that very tier.
    #[default]
    PerTier,
    /// A tier together with all nearer ones: every block below the answer is in this tier or a nearer one. A tier is
    /// named only where it reaches further than the tier before it.
    Cumulative,
}

/// Ranks of a page of a filter.
const FILTER_PAGE: u32 = 1 << 16;

/// A set of ranks, by the caller's numbers: restricts a lookup to them. Up to eight kilobytes for each 65,536 numbers in use,
/// and up to two megabytes more where a number is very large.
#[derive(Clone, Debug, Default)]
pub struct RankFilter {
    /// Pages of numbers; one without any is empty.
    pages: Vec<Vec<u64>>,
}

#[inline]
fn filter_place(rank: RankKey) -> (usize, usize, u64) {
    let in_page = rank.0 % FILTER_PAGE;
    ((rank.0 / FILTER_PAGE) as usize, (in_page / 64) as usize, 1 << (in_page % 64))
}

impl RankFilter {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rank. Allocates when the number is larger than all before, or than all of its page.
    pub fn insert(&mut self, rank: RankKey) {
        let (page, word, bit) = filter_place(rank);
        if page >= self.pages.len() {
            self.pages.resize(page + 1, Vec::new());
        }
        let page = &mut self.pages[page];
        if word >= page.len() {
            page.resize(word + 1, 0);
        }
        page[word] |= bit;
    }

    /// Takes a rank out.
    pub fn remove(&mut self, rank: RankKey) {
        let (page, word, bit) = filter_place(rank);
        if let Some(word) = self.pages.get_mut(page).and_then(|p| p.get_mut(word)) {
            *word &= !bit;
        }
    }

    /// Whether the rank is in the set.
    #[inline]
    pub fn contains(&self, rank: RankKey) -> bool {
        let (page, word, bit) = filter_place(rank);
        self.pages.get(page).and_then(|p| p.get(word)).is_some_and(|w| w & bit != 0)
    }

    /// Every word that is not empty, with its place.
    fn used(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let words = self.pages.iter().enumerate().flat_map(|(i, p)| p.iter().enumerate().map(move |(j, &w)| (i, j, w)));
        words.filter(|&(_, _, word)| word != 0)
    }
}

/// Equal sets are equal, whatever was in them before.
impl PartialEq for RankFilter {
    fn eq(&self, other: &Self) -> bool {
        self.used().eq(other.used())
    }
}
impl Eq for RankFilter {}

impl FromIterator<RankKey> for RankFilter {
    fn from_iter<I: IntoIterator<Item = RankKey>>(iter: I) -> Self {
        let mut set = Self::new();
        iter.into_iter().for_each(|r| set.insert(r));
        set
    }
}

/// What a lookup is restricted to.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookupOptions<'a> {
    /// Only these ranks; `None` for all.
    pub filter: Option<&'a RankFilter>,
    /// How tiers count.
    pub residency: Residency,
}

/// Whether an answer is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Outcome {
    /// Exact for every rank without an event in flight during the lookup.
    Exact,
    /// Writers kept changing the path of this lookup until the retry bound: what was found up to there is right, but
    /// nothing deeper was looked at.
    Busy,
}

/// One step of [`crate::Reader::walk`]: a stretch of the query that lies in one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkStep {
    /// Block of the query at which the stretch begins.
    pub from: u32,
    /// Blocks of the query that match this run's content.
    pub matched: u32,
    /// Of these, the leading blocks that the asked holder holds.
    pub held: u32,
    /// Holders (of any rank and tier) with at least one block of the run.
    pub holders: u32,
}
