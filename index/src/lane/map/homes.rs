//! Where a hash is at home while the map changes its size in place.
//!
//! Homes keep the order of the hashes (`home = hash * lines >> 64`), so a change of size is a sweep: from the top when the map
//! grows, from the bottom when it shrinks. One side of the sweep is laid out for the new number of lines already, the other
//! side still for the old one. A tag is sixteen bits of the hash from `shift` on; the upper eleven of them and the old home
//! tell the new home, but for entries on the boundary between two.

/// Lines and the first bit of the tags.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Layout {
    pub lines: usize,
    pub shift: u32,
}

/// Bits of a tag that are the hash's own; the others are mixed with the owner of a private name.
const PLACE_BITS: u32 = 11;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
/// Bits of a tag that are mixed with the owner.
pub(crate) const SALT_BITS: u32 = 16 - PLACE_BITS;

impl Layout {
    /// An old layout that has nothing.
    const NONE: Self = Self { lines: 0, shift: 0 };

    /// The first layout of a map.
    pub fn first(lines: usize) -> Self {
        Self { lines, shift: lines.ilog2() - 1 }
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
        Self { lines, shift }
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
    /// The first hash of a home.
    fn bound(self, home: usize) -> u64 {
        let lines = self.lines as u64;
        // 2^64 = quotient * lines + rest.
        let (quotient, rest) = (u64::MAX / lines, u64::MAX % lines + 1);
        (home as u64).wrapping_mul(quotient).wrapping_add((home as u64 * rest).div_ceil(lines))
    }
    /// The first and the last hash of a home.
    fn span(self, home: usize) -> (u64, u64) {
        (self.bound(home), self.bound(home + 1).wrapping_sub(1))
    }
}

/// A tag as it stands in a line; 0 is for empty slots.
#[inline(always)]
pub(crate) fn tag(raw: u16, salt: u16) -> u16 {
    (raw ^ salt).max(1)
}

/// The layout, or two of them while a sweep runs.
#[derive(Clone, Copy)]
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
        // Without a sweep the old home is 0, which is not below an edge of 0.
        let old = self.old.home(hash);
        let unmoved = (old < self.edge) == self.growing;
        if unmoved { (old, self.old.raw_tag(hash)) } else { (self.new.home(hash), self.new.raw_tag(hash)) }
    }

    /// The new homes of an old one's entries.
    pub fn targets(&self, home: usize) -> Targets {
        let (first, last) = self.target_span(home);
        let base = self.old.place_bits(self.old.bound(home));
        let from_base = |bits: u32| bits.wrapping_sub(base) & PLACE_MASK;
        let boundary = |line: usize| {
            if line <= last { from_base(self.old.place_bits(self.new.bound(line))) } else { u32::MAX }
        };
        debug_assert!(last <= first + 2, "growth by a third or shrinking by a quarter");
        Targets { first, base, boundaries: [boundary(first + 1), boundary(first + 2)], kept: self.same_tags() }
    }

    /// The first and the last new home of an old one's hashes.
    pub fn target_span(&self, home: usize) -> (usize, usize) {
        let (low, high) = self.old.span(home);
        (self.new.home(low), self.new.home(high))
    }

    /// Whether tags of the old layout are good in the new one.
    pub fn same_tags(&self) -> bool {
        self.old.shift == self.new.shift
    }
}

/// Where the entries of one old home go.
pub(crate) struct Targets {
    pub first: usize,
    base: u32,
    boundaries: [u32; 2],
    kept: bool,
}

impl Targets {
    /// The new home of an entry with this tag; `None` where the name itself must tell.
    #[inline(always)]
    pub fn home(&self, tag: u16) -> Option<usize> {
        let at = (u32::from(tag) >> SALT_BITS).wrapping_sub(self.base) & PLACE_MASK;
        let [one, two] = self.boundaries;
        let clear = self.kept && at != one && at != two;
        clear.then(|| self.first + usize::from(at > one) + usize::from(at > two))
    }
}

#[cfg(test)]
mod tests {
    use super::{Homes, Layout, tag};
    use crate::hash::HashKey;

    #[test]
    fn bounds_are_the_first_hashes_of_homes() {
        for lines in [4, 5, 7, 64, 85, 1000, 4096, 99_999] {
            let layout = Layout::first(lines);
            for home in [0, 1, lines / 3, lines / 2, lines - 2, lines - 1] {
                let (low, high) = layout.span(home);
                assert_eq!((layout.home(low), layout.home(high)), (home, home), "{lines} lines");
                assert!(home == 0 || layout.home(low - 1) == home - 1);
                assert_eq!(high == u64::MAX, home + 1 == lines);
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
                match (!small).then(|| homes.targets(old.home(hash)).home(tag(raw, i as u16 % 32))).flatten() {
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
