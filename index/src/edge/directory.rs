//! Where the links are: how large the table is, and how far a move to the next size has come.

use super::bucket::{ID_BITS, ID_MASK, SLOTS};

pub(super) const CLASS_BITS: u32 = 6;
const MOVED_SHIFT: u32 = CLASS_BITS + 2;
const CHANGES_SHIFT: u32 = MOVED_SHIFT + ID_BITS;

/// A number of buckets, and the memory for it.
#[derive(Clone, Copy)]
pub(super) struct Class {
    /// First bucket.
    pub from: usize,
    pub buckets: u32,
}

impl Class {
    #[inline]
    pub fn home(self, hash: u64) -> u32 {
        ((u128::from(hash) * u128::from(self.buckets)) >> 64) as u32
    }
    /// The bucket `step` places behind `home`.
    #[inline]
    pub fn after(self, home: u32, step: u32) -> u32 {
        let i = home + step;
        if i < self.buckets { i } else { i - self.buckets }
    }
    pub fn slots(self) -> u64 {
        SLOTS as u64 * u64::from(self.buckets)
    }
    /// Three quarters of the slots: a table runs at most a few hundredths above that while its links move out.
    pub fn room(self) -> u64 {
        self.slots() * 3 / 4
    }
}

/// Where the links are going.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    None = 0,
    Grow = 1,
    Shrink = 2,
}

/// The directory word, unpacked.
#[derive(Clone, Copy)]
pub(super) struct Directory {
    pub class: usize,
    pub to: Move,
    pub moved: u32,
    pub changes: u64,
}

impl Directory {
    #[inline]
    pub fn unpack(word: u64) -> Self {
        let to = match word >> CLASS_BITS & 3 {
            0 => Move::None,
            1 => Move::Grow,
            _ => Move::Shrink,
        };
        let moved = (word >> MOVED_SHIFT & ID_MASK) as u32;
        Self { class: (word & ((1 << CLASS_BITS) - 1)) as usize, to, moved, changes: word >> CHANGES_SHIFT }
    }
    pub fn pack(self) -> u64 {
        // The count of changes wraps after 2^30: a reader is not put aside for as many steps.
        self.changes << CHANGES_SHIFT
            | u64::from(self.moved) << MOVED_SHIFT
            | (self.to as u64) << CLASS_BITS
            | self.class as u64
    }
    /// The class that links go to.
    #[inline]
    pub fn target(self) -> usize {
        match self.to {
            Move::None => self.class,
            Move::Grow => self.class + 1,
            Move::Shrink => self.class - 1,
        }
    }
}
