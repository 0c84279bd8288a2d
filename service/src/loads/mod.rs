//! The loads of the fleet's workers: how they come in, and who is told.
//!
//! A load is pushed (by `WorkerService.ReportLoad`, or beside a batch of events) or polled from the engine's own `/metrics`, which is
//! done only for a worker that pushed nothing of late. Whatever comes is checked, counted and kept with its worker
//! ([`crate::fleet::LoadCell`]), and handed on to a [`LoadSink`]: the one place where decisions are made of it.
//!
//! Neither the engines' own ZeroMQ wire nor `SubscribeKvEvents` says anything of loads: workers that are followed there only are polled.
//!
//! Not here: what a load means for a decision (`routing`).

mod engines;
mod exposition;
mod poll;
mod store;

pub use engines::Scrape;
pub use exposition::{Exposition, ExpositionError, Sample};
pub use poll::{PollError, poll_all};
pub use store::{LoadSink, Loads, Refused};
