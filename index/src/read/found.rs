//! What a walk found in one shard: holder slots by depth, in the order in which the walk met them. Depths rise along a walk,
//! so nothing is sorted but the few holders that end inside one run.

/// Slots by depth, shallowest first.
#[derive(Default)]
pub(crate) struct Found {
    /// (depth in blocks, place of the first slot).
    pub levels: Vec<(u32, u32)>,
    pub slots: Vec<u32>,
}

impl Found {
    pub fn clear(&mut self) {
        self.levels.clear();
        self.slots.clear();
    }

    /// Makes sure that the last level is this deep.
    #[inline]
    pub fn level(&mut self, depth: u32) {
        if self.levels.last().is_none_or(|l| l.0 != depth) {
            self.levels.push((depth, self.slots.len() as u32));
        }
    }

    /// Adds a slot at a depth not less than the last one.
    #[inline]
    pub fn push(&mut self, depth: u32, slot: u32) {
        self.level(depth);
        self.slots.push(slot);
    }

    /// Adds slots that end in one run, by cutoff; `depth` is before the run.
    #[inline]
    pub fn extend(&mut self, depth: u32, partial: impl ExactSizeIterator<Item = (u32, u32)>) {
        let mut last = self.levels.last().map_or(0, |l| l.0);
        self.slots.reserve(partial.len());
        for (cut, slot) in partial {
            if depth + cut != last {
                last = depth + cut;
                self.levels.push((last, self.slots.len() as u32));
            }
            self.slots.push(slot);
        }
    }

    /// Puts what was found from the slot at `mark` on at this depth, which is at most any of theirs.
    pub fn clamp(&mut self, mark: usize, depth: u32) {
        if self.slots.len() > mark {
            self.levels.retain(|&(_, start)| (start as usize) < mark);
            if self.levels.last().is_none_or(|l| l.0 != depth) {
                self.levels.push((depth, mark as u32));
            }
        }
    }

    /// The levels, shallowest first: depth, and its slots' places.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &[u32])> {
        (0..self.levels.len()).map(|i| {
            let (depth, start) = self.levels[i];
            let end = self.levels.get(i + 1).map_or(self.slots.len(), |next| next.1 as usize);
            (depth, &self.slots[start as usize..end])
        })
    }
}
