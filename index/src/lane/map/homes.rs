//! Where a hash is at home while the map changes its size in place.
//!
//! Homes keep the order of the hashes (`home = hash * lines >> 64`), so a change of size is a sweep: from the top when the map
//! grows, from the bottom when it shrinks. One side of the sweep is laid out for the new number of lines already, the other
//! side still for the old one. A tag is sixteen bits of the hash from `shift` on; the upper eleven of them and the old home
//! tell the new home, but for entries on the boundary between two.

use crate::lane::map::line::Line;
use std::ops::RangeInclusive;

/// Lines and the first bit of the tags.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Layout {
    pub lines: usize,
    pub shift: u32,
    /// Hashes of a home, with 32 bits behind the point: 2^96 / lines, rounded down.
    width: u128,
}

/// Bits of a tag that are the hash's own; the others are mixed with the owner of a private name.
const PLACE_BITS: u32 = 11;
pub(crate) const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
/// Bits of a tag that are mixed with the owner.
pub(crate) const SALT_BITS: u32 = 16 - PLACE_BITS;

impl Layout {
    /// An old layout that has nothing.
    const NONE: Self = Self { lines: 0, shift: 0, width: 0 };

    /// The first layout of a map.
    pub fn first(lines: usize) -> Self {
        Self::of(lines, lines.ilog2() - 1)
    }

    fn of(lines: usize, shift: u32) -> Self {
        debug_assert!(u32::try_from(lines).is_ok(), "lines are numbered in 32 bits");
        Self { lines, shift, width: (1 << 96) / lines as u128 }
    }

    /// The layout for another number of lines. The tags stay what they are as long as a line's hashes span 16 to 1024 of
    /// their 2048 values: below, too many entries would stand on a boundary; above, its ends would look alike.
    pub fn resized(self, lines: usize) -> Self {
        let shift = if lines >> (self.shift + 7) != 0 {
            lines.ilog2() - 1
        } else if lines >> (self.shift + 1) == 0 {
            lines.ilog2().saturating_sub(4)
        } else {
            self.shift
        };
        Self::of(lines, shift)
    }

    #[inline(always)]
    pub fn home(self, hash: u64) -> usize {
        ((u128::from(hash) * self.lines as u128) >> 64) as usize
    }
    /// The tag before an owner is mixed in.
    #[inline(always)]
    pub fn raw_tag(self, hash: u64) -> u16 {
        ((hash << self.shift) >> 48) as u16
    }
    #[inline(always)]
    fn place_bits(self, hash: u64) -> u32 {
        u32::from(self.raw_tag(hash)) >> SALT_BITS
    }
    /// The first hash of a home: home * 2^64 / lines, rounded up. Without a division, as each moved line asks for four.
    #[inline(always)]
    fn bound(self, home: usize) -> u64 {
        let below = (home as u128 * self.width) >> 32;
        // `width` is short by less than one, so `below` by less than 2: by none, one or two whole hashes.
        let short = ((home as u128) << 64) - below * self.lines as u128;
        (below + u128::from(short > 0) + u128::from(short > self.lines as u128)) as u64
    }
    /// The first hash of a home, or one or two before it.
    #[inline(always)]
    fn about(self, home: usize) -> u64 {
        ((home as u128 * self.width) >> 32) as u64
    }
    /// The hashes of a home.
    #[inline(always)]
    pub fn span(self, home: usize) -> RangeInclusive<u64> {
        self.bound(home)..=self.bound(home + 1).wrapping_sub(1)
    }
}

/// A tag as it stands in a line; 0 is for empty slots.
#[inline(always)]
pub(crate) fn tag(raw: u16, salt: u16) -> u16 {
    (raw ^ salt).max(1)
}

/// The layout, or two of them while a sweep runs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Homes {
    pub new: Layout,
    pub old: Layout,
    /// Growing: old homes below this one are not moved yet. Shrinking: they are moved.
    pub edge: usize,
    pub growing: bool,
}

impl Homes {
    pub fn of(layout: Layout) -> Self {
        Self { new: layout, old: Layout::NONE, edge: 0, growing: true }
    }

    pub fn begin(&mut self, lines: usize) {
        let old = self.new;
        let growing = lines > old.lines;
        *self = Self { new: old.resized(lines), old, edge: if growing { old.lines } else { 0 }, growing };
    }

    pub fn sweeping(&self) -> bool {
        self.old.lines != 0
    }

    /// Home and raw tag of a hash.
    #[inline(always)]
    pub fn place(&self, hash: u64) -> (usize, u16) {
        if self.sweeping() { self.place_swept(hash) } else { self.place_still(hash) }
    }

    /// The same where no sweep is at work.
    #[inline(always)]
    pub fn place_still(&self, hash: u64) -> (usize, u16) {
        (self.new.home(hash), self.new.raw_tag(hash))
    }

    /// The same while one is. Which side of it a hash is on is a toss, so nothing here branches on it.
    #[inline(always)]
    pub fn place_swept(&self, hash: u64) -> (usize, u16) {
        let (old, new) = (self.old.home(hash), self.new.home(hash));
        let unmoved = (old < self.edge) == self.growing;
        let shift = if unmoved { self.old.shift } else { self.new.shift };
        (if unmoved { old } else { new }, ((hash << shift) >> 48) as u16)
    }

    /// The hashes that share a home with this one.
    pub fn span(&self, hash: u64) -> RangeInclusive<u64> {
        let old = self.old.home(hash);
        if (old < self.edge) == self.growing { self.old.span(old) } else { self.new.span(self.new.home(hash)) }
    }

    /// The new homes of an old one's entries.
    #[inline(always)]
    pub fn targets(&self, home: usize) -> Targets {
        // The span of the home, and a few hashes on either side. No entry has these, and a boundary too many parts nothing.
        let low = self.old.about(home);
        let high = low.saturating_add((self.old.width >> 32) as u64 + 4);
        let first = self.new.home(low);
        let base = self.old.place_bits(low);
        let place = |bound: u64| (self.old.place_bits(bound).wrapping_sub(base) & PLACE_MASK) as u16;
        let mut boundaries = [NOWHERE; 2];
        // The bound behind the last line is 0 again.
        let one = self.new.bound(first + 1);
        if low < one && one <= high {
            boundaries[0] = place(one);
            if high - one >= (self.new.width >> 32) as u64 {
                let two = self.new.bound(first + 2);
                if one < two && two <= high {
                    boundaries[1] = place(two);
                }
            }
        }
        Targets { first, base: base as u16, boundaries }
    }

    /// The first and the last new home of an old one's hashes.
    pub fn target_span(&self, home: usize) -> RangeInclusive<usize> {
        let (low, high) = self.old.span(home).into_inner();
        self.new.home(low)..=self.new.home(high)
    }

    /// Whether tags of the old layout are good in the new one.
    pub fn same_tags(&self) -> bool {
        self.old.shift == self.new.shift
    }
}

/// A boundary that no entry is at or beyond.
const NOWHERE: u16 = i16::MAX as u16;

/// Where the entries of one old home go, by the place bits of their tags.
pub(crate) struct Targets {
    pub first: usize,
    base: u16,
    boundaries: [u16; 2],
}

/// The slots of a line by the new homes of their entries, and those where only the name can tell.
pub(crate) struct Parted {
    /// Bound for the first target, for the second, for the third.
    pub to: [u32; 3],
    pub unclear: u32,
}

impl Targets {
    /// Parts the tags of a line. Only right for entries at home there.
    #[inline(always)]
    pub fn part(&self, line: &Line, leaving: u32) -> Parted {
        let [one, two] = self.boundaries;
        let (beyond_one, at_one) = line.tags_beyond(self.base, one);
        let (beyond_two, at_two) = if two == NOWHERE { (0, 0) } else { line.tags_beyond(self.base, two) };
        let unclear = (at_one | at_two) & leaving;
        let clear = leaving & !unclear;
        Parted { to: [clear & !beyond_one, clear & beyond_one & !beyond_two, clear & beyond_two], unclear }
    }
}

#[cfg(test)]
mod tests {
    use super::{Homes, Layout, tag};
    use crate::hash::HashKey;
    use crate::lane::map::line::Line;

    #[test]
    fn bounds_are_the_first_hashes_of_homes() {
        for lines in [4, 5, 7, 64, 85, 1000, 4096, 99_999] {
            let layout = Layout::first(lines);
            for home in [0, 1, lines / 3, lines / 2, lines - 2, lines - 1] {
                let (low, high) = layout.span(home).into_inner();
                assert_eq!((layout.home(low), layout.home(high)), (home, home), "{lines} lines");
                assert!(home == 0 || layout.home(low - 1) == home - 1);
                assert_eq!(high == u64::MAX, home + 1 == lines);
            }
        }
    }

    #[test]
    fn bounds_are_exact() {
        let key = HashKey::new(Some([3, 4]));
        for i in 0..20_000 {
            let lines = (key.one(i) >> (32 + i % 29)) as usize + 4;
            let layout = Layout::first(lines);
            for home in [key.one(!i) as usize % lines, 1, lines - 1, lines] {
                let exact = ((home as u128) << 64).div_ceil(lines as u128);
                assert_eq!(layout.bound(home), exact as u64, "home {home} of {lines}");
            }
        }
    }

    /// Tags and old homes tell new homes, over a long history of sizes both ways, for private names as well.
    #[test]
    fn tags_tell_the_new_home() {
        let key = HashKey::new(Some([1, 2]));
        let mut homes = Homes::of(Layout::first(4));
        let (mut lines, mut told, mut asked) = (4, 0, 0);
        let up = std::iter::repeat_n(true, 40);
        for grow in up.chain(std::iter::repeat_n(false, 45)).chain([true; 10]) {
            lines = if grow { lines + (lines / 3).max(4) } else { (lines - lines / 4).max(4) };
            if lines == homes.new.lines {
                continue;
            }
            homes.begin(lines);
            let (old, new) = (homes.old, homes.new);
            assert!(1 << (new.shift + 1) <= new.lines, "a line spans at most half of the tags' values");
            for i in 0..2000 {
                let hash = key.one(i);
                let raw = old.raw_tag(hash);
                let small = old.lines < 32;
                let told_home = || {
                    let targets = homes.targets(old.home(hash));
                    let parted = targets.part(&Line::of(&[(tag(raw, i as u16 % 32), 1)]), 1);
                    assert_eq!(parted.to.iter().sum::<u32>() + parted.unclear, 1);
                    parted.to.iter().position(|&bound| bound == 1).map(|target| targets.first + target)
                };
                match (!small && homes.same_tags()).then(told_home).flatten() {
                    Some(home) => {
                        assert_eq!((home, raw), (new.home(hash), new.raw_tag(hash)));
                        told += 1;
                    }
                    None => asked += u32::from(!small && homes.same_tags()),
                }
            }
        }
        assert!(told > 8 * asked, "{told} told by tags, {asked} by names");
    }
}
