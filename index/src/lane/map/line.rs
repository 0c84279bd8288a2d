//! A cache line of the lane map.

use crate::lane::map::tags;
pub(crate) use crate::lane::map::tags::SLOTS;

/// Lines behind its home that an entry may stand in.
pub(crate) const REACH: usize = 3;
const _: () = assert!(REACH <= 3, "two bits a slot for the distance");
const _: () = assert!(REACH * SLOTS < 1 << PASSED_BITS, "entries that can pass a line");

const PASSED_BITS: u32 = 11;
const MARK: u32 = 1 << PASSED_BITS;
const DISTANCE_SHIFT: u32 = PASSED_BITS + 1;
const _: () = assert!(DISTANCE_SHIFT as usize + 2 * SLOTS == 32);

/// Ten entries: a tag (0 where a slot is empty) and what it stands for, and for each the lines from its home. `meta` is
/// distance 10 x 2 | mark 1 | passed 11: entries that went past this line on their way from home, and whether a name of this
/// home is in a side map.
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

impl Line {
    pub const EMPTY: Self = Self { tags: [0; SLOTS], meta: 0, slots: [0; SLOTS] };

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
    /// Taken slots.
    #[inline(always)]
    pub fn taken(&self) -> u32 {
        !self.free() & ((1 << SLOTS) - 1)
    }
    /// Slots whose entry is not at home here.
    #[inline(always)]
    pub fn away(&self) -> u32 {
        let distances = self.meta >> DISTANCE_SHIFT;
        if distances == 0 {
            return 0;
        }
        (0..SLOTS).fold(0, |bits, k| bits | u32::from(distances >> (2 * k) & 3 != 0) << k)
    }
    #[inline(always)]
    pub fn tag(&self, k: usize) -> u16 {
        self.tags[k]
    }
    #[inline(always)]
    pub fn slot(&self, k: usize) -> u32 {
        self.slots[k]
    }
    /// Lines from home of the entry in slot `k`.
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
    /// Whether a name of this home may be in a side map.
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
        self.meta |= (distance as u32) << (DISTANCE_SHIFT as usize + 2 * k);
    }
    /// Empties a slot.
    #[inline(always)]
    pub fn clear(&mut self, k: usize) {
        (self.tags[k], self.slots[k]) = (0, 0);
        self.meta &= !(3 << (DISTANCE_SHIFT as usize + 2 * k));
    }
}
