//! The loads of the fleet's workers: how they come, which of them can be believed, and for how long.
//!
//! A load is pushed (by `WorkerService.ReportLoad`, or beside a batch of events) or polled from the engine's own `/metrics`, which is
//! done only for a worker that pushed nothing of late. Whatever comes is checked, counted, kept for whoever asks, and handed on to a
//! [`LoadSink`]: the one place where decisions are made of it.
//!
//! Not here: what a load means for a decision (`routing`).

mod engines;
mod exposition;
mod poll;
mod source;
mod store;

pub use engines::{Reading, Scrape};
pub use exposition::{Exposition, ExpositionError, Sample};
pub use poll::{PollError, poll_all};
pub use source::{MetricsSource, MetricsSourceError};
pub use store::{LoadSink, Loads, Refused, WorkerLoads};
