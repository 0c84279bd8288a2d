//! The oracle behind the seam: slow, and right.

use super::{Searcher, Writer};
use kvatlas_corpora::{Batch, OperationKind};
use kvatlas_index::reference::Reference;
use kvatlas_index::{RankKey, Residency, Store, StoreKind, Tier};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The oracle.
pub struct Oracle {
    shared: Arc<Mutex<Reference>>,
}

fn lock(shared: &Mutex<Reference>) -> MutexGuard<'_, Reference> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Oracle {
    /// An oracle of so many workers.
    pub fn new(workers: u32) -> Self {
        let mut reference = Reference::new(4096);
        (0..workers).for_each(|worker| reference.open_rank(RankKey(worker)));
        Self { shared: Arc::new(Mutex::new(reference)) }
    }
}

impl Writer for Oracle {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn prepare(&mut self, _batch: &Batch) {}

    fn apply(&mut self, batch: &Batch, operation: usize) {
        let operation = &batch.operations[operation];
        let (key, names, contents) = (RankKey(operation.worker), batch.names(operation), batch.contents(operation));
        let mut reference = lock(&self.shared);
        let done = match operation.kind {
            OperationKind::Lookup => return,
            OperationKind::Store { parent, .. } => {
                let store = Store { parent, names, contents, kind: StoreKind::Copy };
                reference.store(key, Tier::Device, &store).map(|_| ())
            }
            OperationKind::Remove => reference.remove(key, Tier::Device, names).map(|_| ()),
        };
        debug_assert!(done.is_ok(), "{done:?}");
    }

    fn searcher(&self) -> Box<dyn Searcher> {
        Box::new(Search { shared: self.shared.clone() })
    }
}

struct Search {
    shared: Arc<Mutex<Reference>>,
}

impl Searcher for Search {
    fn prepare(&mut self, _batch: &Batch) {}

    fn lookup(&mut self, batch: &Batch, operation: usize) {
        std::hint::black_box(self.answer(batch, operation));
    }

    fn answer(&mut self, batch: &Batch, operation: usize) -> Vec<(u32, u32)> {
        let found = lock(&self.shared).lookup(batch.contents(&batch.operations[operation]), Residency::PerTier);
        let mut pairs: Vec<_> = found.iter().map(|line| (line.rank.0, line.blocks)).collect();
        pairs.sort_unstable();
        pairs
    }
}
