//! What the index says about one prompt, for each worker.

use super::columns::Slot;

/// Leading blocks of a prompt that each worker holds: its deepest rank and tier.
#[derive(Clone, Debug, Default)]
pub struct Overlap {
    /// By slot; as long as the columns. 0: none.
    pub blocks: Vec<u32>,
    /// Whether the figures are guesses, made from what was routed and not from events.
    pub approximate: bool,
}

impl Overlap {
    /// Nobody holds anything.
    pub fn reset(&mut self, slots: usize) {
        self.blocks.clear();
        self.blocks.resize(slots, 0);
        self.approximate = false;
    }

    /// Credits a worker, if this is more than before.
    pub fn credit(&mut self, slot: Slot, blocks: u32) {
        let is = &mut self.blocks[slot as usize];
        *is = (*is).max(blocks);
    }

    /// The most that anybody in `slots` holds.
    pub fn deepest(&self, slots: &[Slot]) -> u32 {
        slots.iter().map(|slot| self.blocks[*slot as usize]).max().unwrap_or(0)
    }
}
