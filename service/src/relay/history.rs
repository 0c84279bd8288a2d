//! The batches of one life that are still there, oldest out first. Pure.

use super::relayed::Relayed;
use crate::ingest::Trust;
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a sequence stands in a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It, or the next one after it, is here.
    At(usize),
    /// It is the one that comes next.
    Next,
    /// It went out already; the oldest that is left, if any is.
    Gone(Option<u64>),
    /// It is further ahead than the next one, which is this.
    Ahead(u64),
}

#[derive(Debug)]
struct Kept {
    batch: Arc<Relayed>,
    bytes: u64,
    /// What was believed of the rank right after it, where that was told.
    trust: Option<Trust>,
}

/// A bounded stretch of a rank's batches, in the order in which they were applied.
#[derive(Debug)]
pub struct History {
    batches: VecDeque<Kept>,
    bytes: u64,
    batches_max: usize,
    bytes_max: u64,
    /// Nothing of this life went out: from an empty rank the history leads to its state.
    whole: bool,
    newest: Option<u64>,
    /// Batches that went out, over all lives.
    gone: u64,
}

impl History {
    /// An empty history of a life that has just begun.
    pub fn new(batches_max: usize, bytes_max: u64) -> Self {
        let batches = VecDeque::new();
        Self { batches, bytes: 0, batches_max, bytes_max, whole: true, newest: None, gone: 0 }
    }

    /// Adds a batch; older ones go out until the limits hold, perhaps the new one itself. Its sequence is beyond all before.
    pub fn push(&mut self, batch: Arc<Relayed>) {
        debug_assert!(self.newest.is_none_or(|newest| newest < batch.sequence));
        self.newest = Some(batch.sequence);
        let bytes = batch.bytes();
        self.bytes += bytes;
        self.batches.push_back(Kept { batch, bytes, trust: None });
        while self.batches.len() > self.batches_max || self.bytes > self.bytes_max {
            self.shed();
        }
    }

    /// Lets the oldest batch go; `false` if there is none.
    pub fn shed(&mut self) -> bool {
        let Some(Kept { bytes, .. }) = self.batches.pop_front() else { return false };
        self.bytes -= bytes;
        self.whole = false;
        self.gone += 1;
        true
    }

    /// Another life begins: nothing of the one before is kept.
    pub fn restart(&mut self) {
        self.batches.clear();
        self.bytes = 0;
        self.whole = true;
        self.newest = None;
    }

    /// The state came from elsewhere, with everything up to this sequence: what led to it is not here.
    pub fn continue_after(&mut self, cursor: u64) {
        self.restart();
        self.whole = false;
        self.newest = Some(cursor);
    }

    /// Whether the history leads from an empty rank to its state.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Sequence of the newest batch of this life, kept or not.
    pub fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// The batch at a place, and what was believed of the rank right after it, where that was told.
    pub fn get(&self, at: usize) -> Option<(&Arc<Relayed>, Option<Trust>)> {
        self.batches.get(at).map(|kept| (&kept.batch, kept.trust))
    }

    /// Tells what is believed of everything up to the newest batch.
    pub fn settle(&mut self, trust: Trust) {
        if let Some(kept) = self.batches.back_mut().filter(|kept| Some(kept.batch.sequence) == self.newest) {
            kept.trust = Some(trust);
        }
    }

    /// Batches that are here.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Whether no batch is here.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Batches that went out so far.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Where a sequence stands. What the publisher lost is no hole: the next batch that was applied stands in its place.
    pub fn place(&self, sequence: u64) -> Place {
        let next = self.newest.map_or(0, |newest| newest.saturating_add(1));
        if sequence > next {
            return Place::Ahead(next);
        }
        if sequence == next && self.newest.is_some() {
            return Place::Next;
        }
        let oldest = self.batches.front().map(|kept| kept.batch.sequence);
        match oldest {
            Some(oldest) if sequence >= oldest || self.whole => {
                Place::At(self.batches.partition_point(|kept| kept.batch.sequence < sequence))
            }
            None if self.whole => Place::Next,
            _ => Place::Gone(oldest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sequence: u64) -> Arc<Relayed> {
        Arc::new(Relayed { sequence, published_at: None, ops: Vec::new(), lost_before: false })
    }

    fn history(batches_max: usize, sequences: impl IntoIterator<Item = u64>) -> History {
        let mut history = History::new(batches_max, u64::MAX);
        sequences.into_iter().for_each(|sequence| history.push(batch(sequence)));
        history
    }

    #[test]
    fn an_empty_life_waits_for_its_first_batch() {
        let history = history(4, []);
        assert_eq!(history.place(0), Place::Next);
        assert_eq!(history.place(1), Place::Ahead(0));
    }

    #[test]
    fn a_whole_history_serves_every_sequence_up_to_the_next() {
        let history = history(4, [3, 4, 7]);
        assert!(history.is_whole());
        let places = [0, 3, 4, 5, 7, 8, 9].map(|sequence| history.place(sequence));
        use Place::{Ahead, At, Next};
        assert_eq!(places, [At(0), At(0), At(1), At(2), At(2), Next, Ahead(8)]);
    }

    #[test]
    fn what_went_out_is_gone_by_count_and_by_bytes() {
        let mut history = history(2, [0, 1, 2, 3]);
        assert_eq!((history.len(), history.gone(), history.is_whole()), (2, 2, false));
        assert_eq!(history.place(1), Place::Gone(Some(2)));
        assert_eq!(history.place(2), Place::At(0));
        while history.shed() {}
        assert_eq!((history.bytes(), history.place(3), history.place(4)), (0, Place::Gone(None), Place::Next));

        let size = batch(0).bytes();
        let mut small = History::new(100, 2 * size);
        (0..5).for_each(|sequence| small.push(batch(sequence)));
        assert_eq!((small.len(), small.bytes()), (2, 2 * size));
        let mut none = History::new(100, size - 1);
        none.push(batch(0));
        assert_eq!((none.len(), none.place(0), none.place(1)), (0, Place::Gone(None), Place::Next));
    }

    #[test]
    fn a_state_from_elsewhere_has_no_history_before_it() {
        let mut history = history(4, [0, 1]);
        history.continue_after(70);
        let places = [0, 70, 71, 72].map(|sequence| history.place(sequence));
        assert_eq!(places, [Place::Gone(None), Place::Gone(None), Place::Next, Place::Ahead(71)]);
        history.push(batch(71));
        assert_eq!((history.place(70), history.place(71)), (Place::Gone(Some(71)), Place::At(0)));
    }

    #[test]
    fn another_life_begins_empty_and_whole() {
        let mut history = history(1, [5, 6]);
        history.restart();
        assert!(history.is_whole() && history.is_empty());
        assert_eq!(history.place(0), Place::Next);
        history.push(batch(0));
        assert_eq!(history.place(0), Place::At(0));
    }
}
