//! Loom models of the index's concurrent protocols: small, named, one claim each.
//!
//! Most models are a whole index of some dozens of words (`fleet`): lanes that store and remove, a reader that looks up, and in
//! the end every invariant of the structure and the right answers, whatever order the threads took. The product is built smaller
//! for them (`cfg!(loom)`: runs of two blocks, granules of two positions, a set form from five holders on), not otherwise.
//!
//! A model has broken forms that must be rejected: faults that are put into the product's own code (`kvatlas_index::fault`). A
//! model that cannot fail checks nothing. Release 0.7 of loom misses interleavings by itself; `kvatlas_index::watch` says which,
//! and makes it see them. Without it the model of a split is one execution.
//!
//! To loom SeqCst accesses are AcqRel only; no model relies on more. Run with `cargo xtask loom`, which sets `--cfg loom`. What
//! larger numbers of threads and words do is the business of the concurrent suite and of ThreadSanitizer.

#[cfg(loom)]
pub mod check;
#[cfg(loom)]
pub mod fleet;
