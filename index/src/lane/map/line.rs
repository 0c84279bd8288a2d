//! A cache line of the lane map.

use crate::lane::map::tags;
pub(crate) use crate::lane::map::tags::SLOTS;

/// Lines behind its home that an entry may stand in. Up to three quarters full, one name in five hundred finds no room in
/// three lines behind its home, and next to none in seven.
pub(crate) const REACH: usize = 7;
const _: () = assert!(REACH * SLOTS < 1 << PASSED_BITS, "entries that can pass a line");

/// This distance or more: two bits a slot, and the few entries so far from home tell by their names.
pub(crate) const FAR: usize = 3;

const PASSED_BITS: u32 = 11;
const MARK: u32 = 1 << PASSED_BITS;
const DISTANCE_SHIFT: u32 = PASSED_BITS + 1;
const _: () = assert!(DISTANCE_SHIFT as usize + 2 * SLOTS == 32);

/// Ten entries: a tag (0 where a slot is empty) and what it stands for, and for each the lines from its home, at most `FAR`.
/// `meta` is distance 10 x 2 | mark 1 | passed 11: entries that went past this line on their way from home, and whether a name
/// of this home is in the side map.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line {
    tags: [u16; SLOTS],
    meta: u32,
    slots: [u32; SLOTS],
}
const _: () = assert!(size_of::<Line>() == 64);

/// The set bits of a mask of slots, lowest first.
#[inline(always)]
pub(crate) fn each(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            first
        })
    })
}

/// Every second bit, side by side.
#[inline(always)]
fn squeezed(pairs: u32) -> u32 {
    let bits = pairs & 0x5_5555;
    let bits = (bits | bits >> 1) & 0x3_3333;
    let bits = (bits | bits >> 2) & 0xf_0f0f;
    let bits = (bits | bits >> 4) & 0xf_00ff;
    (bits | bits >> 8) & ((1 << SLOTS) - 1)
}

impl Line {
    pub const EMPTY: Self = Self { tags: [0; SLOTS], meta: 0, slots: [0; SLOTS] };

    /// A line of these entries, at home.
    pub fn of(entries: &[(u16, u32)]) -> Self {
        let mut line = Self::EMPTY;
        entries.iter().enumerate().for_each(|(k, &(tag, slot))| line.set(k, tag, slot, 0));
        line
    }
    /// Slots with this tag.
    #[inline(always)]
    pub fn with_tag(&self, tag: u16) -> u32 {
        tags::equal(&self.tags, tag)
    }
    /// Empty slots.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        tags::equal(&self.tags, 0)
    }
    /// An empty slot, where neither tag stands here and a probe that begins here is done: most names that are new.
    #[inline(always)]
    pub fn free_for_new(&self, one: u16, two: u16) -> Option<usize> {
        let (there, free) = tags::either_or_none(&self.tags, one, two);
        (there == 0 && free != 0 && self.ends_here()).then(|| free.trailing_zeros() as usize)
    }
    /// Taken slots.
    #[inline(always)]
    pub fn taken(&self) -> u32 {
        !self.free() & ((1 << SLOTS) - 1)
    }
    /// Slots whose entry is not at home here.
    #[inline(always)]
    pub fn away(&self) -> u32 {
        let distances = self.meta >> DISTANCE_SHIFT;
        if distances == 0 { 0 } else { squeezed(distances | distances >> 1) }
    }
    /// Taken slots whose entry stands so many lines from home, or `FAR` or more.
    #[inline(always)]
    pub fn at_distance(&self, distance: usize) -> u32 {
        let other = (self.meta >> DISTANCE_SHIFT) ^ (distance as u32 * 0x5_5555);
        !squeezed(other | other >> 1) & self.taken()
    }
    /// Slots whose place bits are more than `boundary` above `base`, and those where they are just that.
    #[inline(always)]
    pub fn tags_beyond(&self, base: u16, boundary: u16) -> (u32, u32) {
        tags::beyond(&self.tags, base, boundary)
    }
    #[inline(always)]
    pub fn tag(&self, k: usize) -> u16 {
        self.tags[k]
    }
    #[inline(always)]
    pub fn slot(&self, k: usize) -> u32 {
        self.slots[k]
    }
    /// Lines from home of the entry in slot `k`, or `FAR` where it is that many or more.
    #[inline(always)]
    pub fn distance(&self, k: usize) -> usize {
        (self.meta >> (DISTANCE_SHIFT as usize + 2 * k) & 3) as usize
    }
    /// Entries that passed this line.
    #[inline(always)]
    pub fn passed(&self) -> u32 {
        self.meta & (MARK - 1)
    }
    #[inline(always)]
    pub fn pass(&mut self) {
        self.meta += 1;
    }
    #[inline(always)]
    pub fn unpass(&mut self) {
        debug_assert!(self.passed() > 0);
        self.meta -= 1;
    }
    /// Whether a probe that begins here is done: nothing passed this line, and no name of it is in the side map.
    #[inline(always)]
    pub fn ends_here(&self) -> bool {
        self.meta & (2 * MARK - 1) == 0
    }
    /// Whether a name of this home is in the side map.
    #[inline(always)]
    pub fn marked(&self) -> bool {
        self.meta & MARK != 0
    }
    #[inline(always)]
    pub fn mark(&mut self) {
        self.meta |= MARK;
    }
    #[inline(always)]
    pub fn unmark(&mut self) {
        self.meta &= !MARK;
    }
    /// Fills an empty slot.
    #[inline(always)]
    pub fn set(&mut self, k: usize, tag: u16, slot: u32, distance: usize) {
        debug_assert!(self.tags[k] == 0 && tag != 0);
        (self.tags[k], self.slots[k]) = (tag, slot);
        self.meta |= (distance.min(FAR) as u32) << (DISTANCE_SHIFT as usize + 2 * k);
    }
    /// Takes entries of another line that are at home here, as far as there is room; which found none.
    #[inline(always)]
    pub fn fill(&mut self, other: &Self, slots: u32) -> u32 {
        let (mut coming, mut free) = (slots, self.free());
        while coming != 0 && free != 0 {
            let (from, to) = (coming.trailing_zeros() as usize, free.trailing_zeros() as usize);
            self.set(to, other.tags[from], other.slots[from], 0);
            coming &= coming - 1;
            free &= free - 1;
        }
        coming
    }
    /// Empties a slot.
    #[inline(always)]
    pub fn clear(&mut self, k: usize) {
        (self.tags[k], self.slots[k]) = (0, 0);
        self.meta &= !(3 << (DISTANCE_SHIFT as usize + 2 * k));
    }
    /// Whether these are all entries that the line has.
    #[inline(always)]
    pub fn alone(&self, slots: u32) -> bool {
        self.meta >> DISTANCE_SHIFT == 0 && slots == self.taken()
    }
    /// Empties all slots; no entry is away from home. What passed the line passed it.
    #[inline(always)]
    pub fn clear_all(&mut self) {
        *self = Self { meta: self.meta, ..Self::EMPTY };
    }
}
