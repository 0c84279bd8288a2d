//! Which life of a slot something belongs to: what is remembered of a worker's cache is void at once when the cache is, and
//! is taken out when somebody comes across it.

use super::columns::Slot;

/// One count for each slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives(Vec<u32>);

impl Lives {
    /// The slot's life at present.
    pub fn of(&self, slot: Slot) -> u32 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    /// The worker is gone, or its cache is empty: all that belongs to the present life is void.
    pub fn end(&mut self, slot: Slot) {
        let slots = self.0.len().max(slot as usize + 1);
        self.0.resize(slots, 0);
        self.0[slot as usize] = self.0[slot as usize].wrapping_add(1);
    }
}
