//! Loom models of the index's concurrent protocols: small, named, one claim each.
//!
//! A model runs over a `protocol::Protocol`: the product's own version word, or `protocol::Faulty`, a twin with one fault put
//! in. The sound form must pass and every broken form must be rejected; a model that cannot fail checks nothing, and loom 0.7
//! misses some interleavings (tokio-rs/loom issues 166 and 392: a thread that loads a word and then stores to it hides an earlier
//! load by another thread), so a pass without its broken forms would prove little. Models avoid that shape where they can.
//!
//! To loom SeqCst accesses are AcqRel only; no model relies on more. Run with `cargo xtask loom`, which sets `--cfg loom` and a
//! bound of three preemptions. What larger numbers of threads and words do is the business of the concurrent suite and of
//! ThreadSanitizer.

#[cfg(loom)]
pub mod check;
#[cfg(loom)]
pub mod fleet;
