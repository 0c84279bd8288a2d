//! Telling what is held: segments depth first, each with what its tiers hold, then what its bare blocks lead to, and last the
//! removal of what stood in for those.
//!
//! A store goes on behind a name, which its tier looks for among its own names first and among the nearest tier's then. So
//! the name for a block above is the tier's own one there; else a synthetic one where the block is bare; else that of the
//! tier with the longest part, if it leads there from this tier as well. Where it does not (names of several blocks in several
//! tiers), the block gets a synthetic name beside its own for as long as the segment below is told: a *bridge*.

use crate::lane::alias::PLACES;
use crate::lane::export::segments::{NONE, Segments};
use crate::lane::export::{Export, Exported, Source};
use crate::sync::Ordering;
use crate::types::{ContentHash, EngineHash, Store, StoreKind, Tier};

/// Reused memory.
#[derive(Default)]
pub(super) struct Buffers {
    pub names: Vec<EngineHash>,
    pub contents: Vec<ContentHash>,
    /// Names of held blocks beyond one each, and their offsets.
    twins: Vec<(u32, EngineHash)>,
}

/// A place on the way through the segments.
#[derive(Clone, Copy)]
pub(super) enum Walk {
    Enter(u32),
    Leave(u32),
}

impl Walk {
    /// The way through all of them.
    pub fn from(segments: &Segments) -> Self {
        Self::Enter(segments.first)
    }
}

impl Export {
    /// Goes on telling what is held; whether that was all.
    pub(super) fn tell_held(
        &mut self,
        from: Source<'_>,
        walk: &mut Walk,
        left: &mut i64,
        see: &mut dyn FnMut(Exported<'_>),
    ) -> bool {
        while *left > 0 {
            *walk = match *walk {
                Walk::Enter(NONE) => return true,
                Walk::Enter(i) => {
                    self.enter(from, i, see);
                    let segment = self.segments.at(i);
                    *left -= i64::from(segment.len);
                    if segment.child == NONE { Walk::Leave(i) } else { Walk::Enter(segment.child) }
                }
                Walk::Leave(i) => {
                    self.leave(i, see);
                    *left -= 1;
                    let segment = self.segments.at(i);
                    match (segment.sibling, segment.parent) {
                        (NONE, NONE) => return true,
                        (NONE, parent) => Walk::Leave(parent),
                        (sibling, _) => Walk::Enter(sibling),
                    }
                }
            };
        }
        false
    }

    /// Stores what is held of a segment, and its bare blocks.
    fn enter(&mut self, from: Source<'_>, i: u32, see: &mut dyn FnMut(Exported<'_>)) {
        let (base, len) = (self.segments.at(i).base, self.segments.at(i).len);
        self.buffers.contents.clear();
        let words = from.shard().arena.contents(base, len);
        self.buffers.contents.extend(words.iter().map(|word| ContentHash(word.load(Ordering::Relaxed))));
        let longest = self.segments.at(i).longest();
        for tier in Tier::ALL {
            let part = self.segments.at(i).parts[tier.index()];
            if part.cut() == 0 {
                continue;
            }
            let up = self.name_above(from, i, tier, see);
            if let (true, Some(up)) = (tier == longest, up) {
                self.segments.at_mut(i).up = up;
            }
            self.collect_names(from, tier, base, part.cut(), part.private());
            self.tell_part(from, tier, up, see);
        }
        if self.segments.at(i).held() < len {
            self.tell_bare(from, i, see);
        }
    }

    /// Stores the names collected in a tier, with their twins and copies.
    fn tell_part(&mut self, from: Source<'_>, tier: Tier, up: Option<EngineHash>, see: &mut dyn FnMut(Exported<'_>)) {
        let Buffers { names, contents, twins } = &self.buffers;
        see(stored(tier, up, names, &contents[..names.len()]));
        for (offset, twin) in twins {
            let at = *offset as usize;
            let parent = if at == 0 { up } else { Some(names[at - 1]) };
            see(stored(tier, parent, &[*twin], &contents[at..=at]));
        }
        let copies = &from.rank.holders[tier.index()].copies;
        if copies.is_empty() {
            return;
        }
        for name in names.iter().chain(twins.iter().map(|(_, twin)| twin)) {
            if let Some(&more) = copies.get(&name.0) {
                see(Exported::Copies { tier, name: *name, left: more.saturating_add(1) });
            }
        }
    }

    /// Stores the bare blocks of a segment under synthetic names.
    fn tell_bare(&mut self, from: Source<'_>, i: u32, see: &mut dyn FnMut(Exported<'_>)) {
        let segment = self.segments.at(i);
        let (held, len, above) = (segment.held(), segment.len, segment.parent);
        let (tier, up) = if held > 0 {
            let tier = segment.longest();
            (tier, Some(self.name_at(from, i, tier, held - 1)))
        } else {
            // A name of the longest part there leads there in its own tier, and a synthetic one does in every tier.
            let tier = if above == NONE { Tier::External } else { self.tier_at(above, segment.above) };
            (tier, self.name_above(from, i, tier, see))
        };
        let first = self.synthetic.take(from, len - held);
        let segment = self.segments.at_mut(i);
        (segment.bare, segment.synthetic) = (tier, first);
        let names = &mut self.buffers.names;
        names.clear();
        names.extend((0..u64::from(len - held)).map(|n| self.synthetic.name(first + n)));
        see(stored(tier, up, names, &self.buffers.contents[held as usize..]));
    }

    /// Takes back what stood in for the bare blocks of a segment, tail first, and its bridge.
    fn leave(&mut self, i: u32, see: &mut dyn FnMut(Exported<'_>)) {
        let segment = self.segments.at(i);
        let bare = u64::from(segment.len - segment.held());
        if bare > 0 {
            let names = &mut self.buffers.names;
            names.clear();
            names.extend((0..bare).rev().map(|n| self.synthetic.name(segment.synthetic + n)));
            see(Exported::Remove { tier: segment.bare, names });
        }
        if let Some(bridge) = segment.bridge {
            let tier = self.segments.at(segment.parent).longest();
            see(Exported::Remove { tier, names: &[self.synthetic.name(bridge)] });
        }
    }

    /// The tier in which a position of a segment has the name that was told for it first.
    fn tier_at(&self, i: u32, position: u32) -> Tier {
        let segment = self.segments.at(i);
        if position - segment.base < segment.held() { segment.longest() } else { segment.bare }
    }

    /// The name of the block above a segment, behind which a store into this tier goes on; `None` for the root.
    fn name_above(
        &mut self,
        from: Source<'_>,
        i: u32,
        tier: Tier,
        see: &mut dyn FnMut(Exported<'_>),
    ) -> Option<EngineHash> {
        let (parent, above) = (self.segments.at(i).parent, self.segments.at(i).above);
        if parent == NONE {
            return None;
        }
        let over = self.segments.at(parent);
        let offset = above - over.base;
        if offset < over.parts[tier.index()].cut() {
            return Some(self.name_at(from, parent, tier, offset));
        }
        if offset >= over.held() {
            return Some(self.synthetic.name(over.synthetic + u64::from(offset - over.held())));
        }
        let name = self.name_at(from, parent, over.longest(), offset);
        if from.leads_to(tier, name.0, above) {
            return Some(name);
        }
        Some(self.bridge(from, i, see))
    }

    /// A synthetic name for the block above a segment, in the tier with the longest part there.
    fn bridge(&mut self, from: Source<'_>, i: u32, see: &mut dyn FnMut(Exported<'_>)) -> EngineHash {
        let (parent, above) = (self.segments.at(i).parent, self.segments.at(i).above);
        if let Some(bridge) = self.segments.at(i).bridge {
            return self.synthetic.name(bridge);
        }
        let number = self.synthetic.take(from, 1);
        self.segments.at_mut(i).bridge = Some(number);
        let over = self.segments.at(parent);
        let (tier, offset) = (over.longest(), above - over.base);
        let up = match offset {
            0 if over.parent == NONE => None,
            0 => Some(over.up),
            _ => Some(self.name_at(from, parent, tier, offset - 1)),
        };
        let name = self.synthetic.name(number);
        see(stored(tier, up, &[name], &[ContentHash(from.shard().arena.content(above))]));
        name
    }

    /// A name of a block that a tier holds.
    fn name_at(&self, from: Source<'_>, i: u32, tier: Tier, offset: u32) -> EngineHash {
        let segment = self.segments.at(i);
        let position = segment.base + offset;
        if !segment.parts[tier.index()].private() {
            return EngineHash(from.shard().arena.name(position));
        }
        let mut found = None;
        self.each_private(from, tier, position, 1, |_, name| found = found.or(Some(name)));
        found.expect("a position held under private names has one")
    }

    /// Collects the names of `count` blocks of a tier from a position on: one each, the others as twins.
    fn collect_names(&mut self, from: Source<'_>, tier: Tier, base: u32, count: u32, private: bool) {
        let mut names = std::mem::take(&mut self.buffers.names);
        let mut twins = std::mem::take(&mut self.buffers.twins);
        names.clear();
        twins.clear();
        if !private {
            let words = from.shard().arena.names(base, count);
            names.extend(words.iter().map(|word| EngineHash(word.load(Ordering::Relaxed))));
            self.each_private(from, tier, base, count, |offset, name| twins.push((offset, name)));
        } else {
            let mut named = [0u64; 8];
            names.resize(count as usize, EngineHash(0));
            self.each_private(from, tier, base, count, |offset, name| {
                let (word, bit) = (offset as usize / 64, 1 << (offset % 64));
                if named[word] & bit == 0 {
                    named[word] |= bit;
                    names[offset as usize] = name;
                } else {
                    twins.push((offset, name));
                }
            });
            let have = named.iter().map(|word| word.count_ones()).sum::<u32>();
            debug_assert_eq!(have, count, "a position held under private names has one");
        }
        (self.buffers.names, self.buffers.twins) = (names, twins);
    }

    /// Calls `see` with the private names of a tier at `count` positions from one on: offset and name.
    fn each_private(&self, from: Source<'_>, tier: Tier, base: u32, count: u32, mut see: impl FnMut(u32, EngineHash)) {
        let granules = &self.granules[tier.index()];
        let aliases = from.lane.lane_names().aliases();
        let start = granules.partition_point(|&(first, _)| first + PLACES <= base);
        let holder = from.slot(tier);
        for &(first, granule) in granules[start..].iter().take_while(|&&(first, _)| first < base + count) {
            for place in 0..PLACES {
                let (alias, position) = (granule * PLACES + place, first + place);
                if (base..base + count).contains(&position) && aliases.is_live(alias, holder) {
                    see(position - base, EngineHash(aliases.name(alias)));
                }
            }
        }
    }
}

/// A store of held blocks, which keep their copies where an export tells them twice.
fn stored<'a>(
    tier: Tier,
    parent: Option<EngineHash>,
    names: &'a [EngineHash],
    contents: &'a [ContentHash],
) -> Exported<'a> {
    Exported::Store { tier, store: Store { parent, names, contents, kind: StoreKind::Announce } }
}
