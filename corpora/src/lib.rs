//! Corpora of KV-cache traffic: a request trace in, a deterministic stream of timed index operations out.
//!
//! A [`Trace`] is read from a file of the Mooncake project or made up from a seed. A [`Stream`] plays it on a fleet of mock
//! workers, each with a block pool of its own (LRU, tail first), and yields what the fleet's index would see: one lookup a
//! request, the stores of the blocks a worker lacked, the decode blocks one after the other as they fill up, and the removals
//! of what was evicted to make room. The same trace, [`Parameters`] and seed give the same stream on every machine; a
//! [`Manifest`] keeps its SHA-256.
//!
//! ```
//! use kvatlas_corpora::{Batch, Parameters, Stream, Synthetic, Trace};
//!
//! let trace = Trace::synthetic(&Synthetic { requests: 50, ..Synthetic::default() });
//! let parameters = Parameters { workers: 4, blocks_per_worker: 4096, ..Parameters::default() };
//! let mut stream = Stream::new(&trace, parameters)?;
//! let mut batch = Batch::default();
//! stream.extend(&mut batch, 1000)?;
//! let blocks: usize = batch.operations.iter().map(|operation| operation.blocks()).sum();
//! assert!(blocks > 1000 && stream.figures().resident > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Deliberately absent: threads, clocks, and the index itself. Whoever plays a stream decides when an operation is due.

mod batch;
mod manifest;
mod parameters;
mod pool;
mod random;
mod stream;
mod synthetic;
mod trace;

pub use batch::{Batch, Class, Operation, OperationKind};
pub use manifest::{Fingerprint, Manifest, TraceSource};
pub use parameters::{Names, Parameters, ParametersError, Sharing};
pub use random::{Random, mix};
pub use stream::{Figures, Stream, StreamError};
pub use synthetic::Synthetic;
pub use trace::{CHUNK_TOKENS, Request, Trace, TraceError};
