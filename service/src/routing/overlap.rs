//! What the index says about one prompt, for each worker.

use super::columns::Slot;

/// Leading blocks of a prompt that each worker holds: its deepest rank and tier.
#[derive(Clone, Debug, Default)]
pub struct Overlap {
    /// By slot; as long as the columns. 0: none.
    pub blocks: Vec<u32>,
    /// Whether the figures are guesses, made from what was routed and not from events.
    pub approximate: bool,
    /// Whether some figure was raised to what was dispatched and has not been confirmed by events yet.
    pub predicted: bool,
    /// The figures before any of them was raised; what is in it counts only while `predicted`.
    pub unraised: Vec<u32>,
}

impl Overlap {
    /// Nobody holds anything.
    pub fn reset(&mut self, slots: usize) {
        self.blocks.clear();
        self.blocks.resize(slots, 0);
        self.approximate = false;
        self.predicted = false;
    }

    /// Credits a worker, if this is more than before. A slot that has no figure is left out.
    pub fn credit(&mut self, slot: Slot, blocks: u32) {
        if let Some(is) = self.blocks.get_mut(slot as usize) {
            *is = (*is).max(blocks);
        }
    }

    /// Credits a worker with what was dispatched to it, if this is more than its events say. After all of [`Overlap::credit`].
    pub fn predict(&mut self, slot: Slot, blocks: u32) {
        self.predict_all([(slot, blocks)]);
    }

    /// The same of several workers at once.
    pub fn predict_all(&mut self, predictions: impl IntoIterator<Item = (Slot, u32)>) {
        if !self.predicted {
            self.unraised.clone_from(&self.blocks);
        }
        for (slot, blocks) in predictions {
            if let Some(is) = self.blocks.get_mut(slot as usize)
                && blocks > *is
            {
                *is = blocks;
                self.predicted = true;
            }
        }
    }

    /// Leading blocks that a worker holds by its own events: nothing that was guessed or predicted.
    pub fn confirmed(&self, slot: Slot) -> u32 {
        match (self.approximate, self.predicted) {
            (true, _) => 0,
            (false, true) => self.unraised[slot as usize],
            (false, false) => self.blocks[slot as usize],
        }
    }

    /// The most that anybody in `slots` holds.
    pub fn deepest(&self, slots: &[Slot]) -> u32 {
        slots.iter().map(|slot| self.blocks[*slot as usize]).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_raises_a_figure_and_keeps_what_events_said() {
        let mut overlap = Overlap::default();
        overlap.reset(3);
        overlap.credit(0, 4);
        overlap.credit(1, 2);
        overlap.predict(0, 3);
        assert!(!overlap.predicted, "events say more");
        overlap.predict(1, 5);
        overlap.predict(2, 1);
        overlap.predict(9, 7);
        assert_eq!((overlap.blocks.as_slice(), overlap.predicted), ([4, 5, 1].as_slice(), true));
        assert_eq!([0, 1, 2].map(|slot| overlap.confirmed(slot)), [4, 2, 0]);
        overlap.reset(3);
        assert_eq!([0, 1, 2].map(|slot| overlap.confirmed(slot)), [0, 0, 0]);
    }

    #[test]
    fn nothing_of_a_guess_is_confirmed() {
        let mut overlap = Overlap::default();
        overlap.reset(1);
        overlap.credit(0, 4);
        overlap.approximate = true;
        assert_eq!((overlap.blocks[0], overlap.confirmed(0)), (4, 0));
    }
}
