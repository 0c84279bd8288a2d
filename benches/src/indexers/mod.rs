//! One seam over every index that is measured.
//!
//! A [`Batch`] is prepared first: whatever layout an index wants its hashes in is made there, outside any timing. Then a
//! [`Writer`] applies events and a [`Searcher`] answers lookups, each by the operation's number in the batch.

mod kvatlas;
mod null;
mod reference;

#[cfg(feature = "peers")]
mod crtc;
#[cfg(feature = "peers")]
mod kv_index;

use crate::laps::Laps;
use kvatlas_corpora::Batch;

pub use kvatlas::{Kvatlas, Setting};
pub use null::Null;
pub use reference::Oracle;

#[cfg(feature = "peers")]
pub use crtc::Crtc;
#[cfg(feature = "peers")]
pub use kv_index::KvIndex;

/// Applies the events of a fleet's workers, in order, alone.
pub trait Writer: Send {
    /// The index's name in tables and files.
    fn name(&self) -> &'static str;

    /// Makes the layouts that this index takes its events in.
    fn prepare(&mut self, batch: &Batch);

    /// Applies the event at this place of the prepared batch; a lookup is passed over.
    fn apply(&mut self, batch: &Batch, operation: usize);

    /// Applies events at these places of the prepared batch and appends the time of each. Every event's time includes one
    /// clock reading ([`Writer::overhead_ns`]).
    fn play(&mut self, batch: &Batch, events: &[usize], laps: &mut Laps) {
        laps.time(events.len(), |i| self.apply(batch, events[i]));
    }

    /// What each time of [`Writer::play`] has in it that is not the index's.
    fn overhead_ns(&self) -> f64 {
        crate::sampling::clock_ns()
    }

    /// Processor time of the last [`Writer::play`] in nanoseconds, where it ran on a thread of the index's own.
    fn play_cpu_ns(&self) -> Option<u64> {
        None
    }

    /// Events that the index refused so far, as far as it tells.
    fn refused(&self) -> u64 {
        0
    }

    /// A searcher of this index; one for each thread that looks up.
    fn searcher(&self) -> Box<dyn Searcher>;

    /// Lets the index do what it puts off until it is called for.
    fn tidy(&mut self) {}

    /// Bytes that the index says it uses itself, where it does.
    fn own_bytes(&self) -> Option<u64> {
        None
    }
}

/// Answers lookups.
pub trait Searcher: Send {
    /// Makes the layout that this index takes its lookups in.
    fn prepare(&mut self, batch: &Batch);

    /// Looks an operation's contents up, in the cheapest form that names every holder with its depth. The answer stays in the
    /// searcher's own memory. This is what is timed.
    fn lookup(&mut self, batch: &Batch, operation: usize);

    /// The same answer as sorted pairs of worker and blocks, for comparisons.
    fn answer(&mut self, batch: &Batch, operation: usize) -> Vec<(u32, u32)>;
}
