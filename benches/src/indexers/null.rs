//! No index: what the harness itself costs.

use super::{Searcher, Writer};
use kvatlas_corpora::Batch;
use std::hint::black_box;

/// Touches what it is given and does nothing.
pub struct Null;

impl Writer for Null {
    fn name(&self) -> &'static str {
        "null"
    }
    fn prepare(&mut self, _batch: &Batch) {}
    fn apply(&mut self, batch: &Batch, operation: usize) {
        black_box(batch.names(&batch.operations[operation]).first());
    }
    fn searcher(&self) -> Box<dyn Searcher> {
        Box::new(Null)
    }
}

impl Searcher for Null {
    fn prepare(&mut self, _batch: &Batch) {}
    fn lookup(&mut self, batch: &Batch, operation: usize) {
        black_box(batch.contents(&batch.operations[operation]).first());
    }
    fn answer(&mut self, _batch: &Batch, _operation: usize) -> Vec<(u32, u32)> {
        Vec::new()
    }
}
