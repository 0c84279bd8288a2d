//! The rank's part of the trie: segments, each hanging under another one or under the root.
//!
//! A segment is a stretch of positions. Of its blocks each tier holds a prefix; behind the longest of them come blocks that
//! nobody of the rank holds but something below does (the *bare* ones). Segments with something held are sorted by
//! position; those with nothing held, which only lead to others, follow as they are met.

use crate::hash::{HashKey, IntMap};
use crate::lane::export::found::{Found, Part};
use crate::layout::ROOT;
use crate::shard::Shard;
use crate::types::{EngineHash, Tier};

/// No segment.
pub(super) const NONE: u32 = u32::MAX;

/// A stretch of positions.
pub(super) struct Segment {
    pub base: u32,
    /// Position of the block before the first one.
    pub above: u32,
    /// The segment that has it; `NONE` for the root.
    pub parent: u32,
    /// A segment below this one.
    pub child: u32,
    /// Another one below the same.
    pub sibling: u32,
    /// Blocks, bare ones included.
    pub len: u32,
    pub parts: [Part; Tier::COUNT],
    /// Where its bare blocks are stored meanwhile.
    pub bare: Tier,
    /// The name behind which the longest part was stored; meaningless below the root.
    pub up: EngineHash,
    /// Number of the first synthetic name of the bare blocks.
    pub synthetic: u64,
    /// Number of a synthetic name for the block above, where no name of the rank leads there.
    pub bridge: Option<u64>,
}

impl Segment {
    fn new(found: &Found) -> Self {
        Self {
            base: found.base,
            above: found.above,
            parent: NONE,
            child: NONE,
            sibling: NONE,
            len: found.held(),
            parts: found.parts,
            bare: Tier::External,
            up: EngineHash(0),
            synthetic: 0,
            bridge: None,
        }
    }

    /// Blocks that any tier holds.
    pub fn held(&self) -> u32 {
        self.parts.iter().map(|part| part.cut()).max().unwrap_or(0)
    }

    /// The nearest tier that holds all of these.
    pub fn longest(&self) -> Tier {
        let held = self.held();
        Tier::ALL.into_iter().find(|tier| self.parts[tier.index()].cut() == held).unwrap_or(Tier::Device)
    }
}

/// All segments of a rank.
pub(super) struct Segments {
    all: Vec<Segment>,
    /// How many of them have something held.
    held: usize,
    /// Those that only lead to others, by base.
    leading: IntMap<u32, u32>,
    /// A segment below the root.
    pub first: u32,
}

impl Segments {
    /// Segments of what was found, which is sorted and disjoint; they hang nowhere yet.
    pub fn new(found: &[Found], key: HashKey) -> Self {
        let all: Vec<_> = found.iter().map(Segment::new).collect();
        Self { held: all.len(), all, leading: IntMap::with_hasher(key), first: NONE }
    }

    pub fn at(&self, i: u32) -> &Segment {
        &self.all[i as usize]
    }
    pub fn at_mut(&mut self, i: u32) -> &mut Segment {
        &mut self.all[i as usize]
    }

    /// Hangs segments from number `next` on under those above them; the one to go on with, or `None` when all hang.
    pub fn hang(&mut self, shard: &Shard, mut next: u32, left: &mut i64) -> Option<u32> {
        while (next as usize) < self.all.len() {
            if *left <= 0 {
                return Some(next);
            }
            *left -= 1;
            let above = self.at(next).above;
            let parent = if above == ROOT { NONE } else { self.with(shard, above) };
            let first = if parent == NONE { &mut self.first } else { &mut self.all[parent as usize].child };
            let sibling = std::mem::replace(first, next);
            let segment = self.at_mut(next);
            (segment.parent, segment.sibling) = (parent, sibling);
            next += 1;
        }
        None
    }

    /// The segment that has a position above something of the rank's, made or made longer where it is not there.
    fn with(&mut self, shard: &Shard, position: u32) -> u32 {
        let before = self.all[..self.held].partition_point(|s| s.base <= position).checked_sub(1);
        if let Some(i) = before.filter(|&i| position < self.all[i].base + self.all[i].len) {
            return i as u32;
        }
        // A block that the rank does not hold. It stays, and with it the run around it, since something below is held.
        let (sight, offset) = shard.locate(position);
        let f = &sight.fields;
        let there = match before.filter(|&i| self.all[i].base >= f.base) {
            Some(i) => i as u32,
            None => match self.leading.get(&f.base) {
                Some(&i) => i,
                None => {
                    let i = self.all.len() as u32;
                    self.all.push(Segment::new(&Found { base: f.base, above: f.parent, parts: Default::default() }));
                    self.leading.insert(f.base, i);
                    i
                }
            },
        };
        debug_assert!(position < f.base + f.len && offset < f.len, "a located position is in its run");
        let segment = self.at_mut(there);
        segment.len = segment.len.max(position - segment.base + 1);
        there
    }
}
