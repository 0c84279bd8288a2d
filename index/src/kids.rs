//! Which positions have children, and how many.
//!
//! One bit a position says "a child hangs here"; only positions with several children have a count aside, in striped maps.
//! Called under the LOCK of the run that covers the position, so a position's bit and count change together. The bits of
//! one granule may belong to two runs (a split inside it), hence the atomic read-modify-writes.

use crate::alloc::GRANULE;
use crate::hash::{HashKey, IntMap, shrink};
use crate::layout::{Arena, ROOT};
use crate::sync::{Mutex, Ordering};

const STRIPES: usize = if cfg!(loom) { 1 } else { 16 };
/// Counts that a stripe has room for from the beginning (9 KiB), so that branches which come and go, half as many at once, ask
/// the heap for nothing: a map may grow to twice its contents where they change.
const KEPT: usize = if cfg!(loom) { 1 } else { 896 };

/// The counts of positions with more than one child.
pub(crate) struct Kids {
    several: Box<[Mutex<IntMap<u32, u32>>]>,
}

#[inline]
fn place(position: u32) -> (u32, u8) {
    (position / GRANULE, 1 << (position % GRANULE))
}

impl Kids {
    pub fn new(key: HashKey) -> Self {
        Self { several: (0..STRIPES).map(|_| Mutex::new(IntMap::with_capacity_and_hasher(KEPT, key))).collect() }
    }

    fn stripe(&self, position: u32) -> &Mutex<IntMap<u32, u32>> {
        &self.several[(position / GRANULE) as usize % STRIPES]
    }

    /// Whether a child hangs at the position.
    #[inline]
    pub fn any(arena: &Arena, position: u32) -> bool {
        let (granule, bit) = place(position);
        arena.kids(granule).load(Ordering::Relaxed) & bit != 0
    }

    /// The position after the last one in `from..to` with a child; `from` when there is none. Looks at eight at a time.
    pub fn last(arena: &Arena, from: u32, to: u32) -> u32 {
        let mut end = to;
        while end > from {
            let (granule, bit) = place(end - 1);
            // Bits of this granule below `end`.
            let bits = arena.kids(granule).load(Ordering::Relaxed) & (bit | (bit - 1));
            let first = granule * GRANULE;
            if bits != 0 {
                return (first + u8::BITS - bits.leading_zeros()).max(from);
            }
            end = first;
        }
        from
    }

    /// One more child. The root's are not counted.
    pub fn add(&self, arena: &Arena, position: u32) {
        if position == ROOT {
            return;
        }
        let (granule, bit) = place(position);
        if arena.kids(granule).fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            *self.stripe(position).lock().entry(position).or_insert(1) += 1;
        }
    }

    /// One child less.
    pub fn remove(&self, arena: &Arena, position: u32) {
        if position == ROOT {
            return;
        }
        let mut several = self.stripe(position).lock();
        match several.get_mut(&position) {
            Some(count) if *count > 2 => *count -= 1,
            Some(_) => {
                several.remove(&position);
                shrink(&mut several, KEPT);
            }
            None => {
                let (granule, bit) = place(position);
                let had = arena.kids(granule).fetch_and(!bit, Ordering::Relaxed);
                debug_assert!(had & bit != 0, "a child that was not counted");
            }
        }
    }

    /// Children at a position. For checks.
    pub fn count(&self, arena: &Arena, position: u32) -> u32 {
        let several = self.stripe(position).lock().get(&position).copied();
        several.unwrap_or(u32::from(Self::any(arena, position)))
    }

    /// Bytes of the counts.
    pub fn bytes(&self) -> u64 {
        self.several.iter().map(|s| s.lock().capacity() as u64 * 9).sum()
    }
}
