//! What the ladder drives: an indexer as writing lanes and readers. The harness adds one baseline of its own, [`positional`].

mod adapters;
#[cfg(feature = "peers")]
mod peers;
pub mod positional;

use crate::ladder::tape::{Step, Tape};
use clap::Args;
use kvatlas_index::{ContentHash, EngineHash, HolderDepth};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// The one thread that applies the events of its workers.
pub trait EventLane: Send {
    /// Consecutive blocks after `parent`, or from position 0 on.
    fn store(&mut self, worker: u32, parent: Option<EngineHash>, names: &[EngineHash], contents: &[ContentHash]);
    /// One copy of each name goes.
    fn remove(&mut self, worker: u32, names: &[EngineHash]);
    /// Everything of a worker goes.
    fn clear(&mut self, worker: u32);
    /// Lays a stretch of the tape out as the indexer wants its events, before the window. `true` if [`EventLane::play`] is to be
    /// called in it.
    fn prepare(&mut self, _tape: &Tape, _range: Range<usize>) -> bool {
        false
    }
    /// Applies the event at this place of the stretch that was laid out.
    fn play(&mut self, _place: usize) {}
    /// Whether [`EventLane::look_ahead`] is to be called before each event.
    fn looks_ahead(&self) -> bool {
        false
    }
    /// Sees what is queued: `event(n)` is the n-th event from the one applied next (0) with its worker.
    fn look_ahead<'a>(&mut self, _event: &dyn Fn(usize) -> Option<(u32, Step<'a>)>) {}
}

/// A thread that looks up.
pub trait QueryLane: Send {
    /// Appends every worker with at least one leading block, in any order. `rank` is the worker's number.
    fn lookup(&mut self, query: &[ContentHash], out: &mut Vec<HolderDepth>);
    /// Looks up in the form that is measured; the answer stays in the indexer's own memory or in `out`, which comes empty.
    fn serve(&mut self, query: &[ContentHash], out: &mut Vec<HolderDepth>) {
        self.lookup(query, out);
    }
    /// Figures of its own, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// As [`EventLane::prepare`].
    fn prepare(&mut self, _tape: &Tape, _range: Range<usize>) -> bool {
        false
    }
    /// Looks up the prompt at this place of the stretch that was laid out; the answer stays in the indexer's own memory.
    fn play(&mut self, _place: usize) {}
}

/// What an indexer tells about itself, by name.
pub type Figures = Box<dyn Fn() -> BTreeMap<String, u64> + Send + Sync>;

/// An indexer, ready: its lanes and what it tells about itself.
pub struct Indexer {
    /// Writing lanes; worker `w` belongs to lane `w % lanes`.
    pub events: Vec<Box<dyn EventLane>>,
    /// Readers.
    pub queries: Vec<Box<dyn QueryLane>>,
    /// Figures of its own, by name; callable at any time.
    pub figures: Figures,
    /// Whether its answers have to equal the oracle's.
    pub exact: bool,
    /// What each of its events is charged that is not its own, in nanoseconds: a hop to a thread that it insists on.
    pub hop_ns: u64,
    /// Whether it keeps memory in mappings of its own, beside the allocator.
    pub maps_memory: bool,
}

/// Which indexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The chain index of this repository.
    Kvatlas,
    /// The baseline of this harness: one entry for each position and content.
    Positional,
    /// The oracle behind one lock.
    Reference,
    /// Reads its operations and does nothing: what the ladder itself costs.
    Null,
    /// kv-index 2.0.0.
    #[cfg(feature = "peers")]
    KvIndex,
    /// The concurrent compressed radix tree of dynamo-kv-router 1.6.1.
    #[cfg(feature = "peers")]
    Crtc,
}

impl Choice {
    /// Those that are compared unless others are named.
    pub fn defaults() -> Vec<Choice> {
        vec![
            Choice::Kvatlas,
            Choice::Positional,
            #[cfg(feature = "peers")]
            Choice::KvIndex,
            #[cfg(feature = "peers")]
            Choice::Crtc,
        ]
    }

    /// As it is written on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Choice::Kvatlas => "kvatlas",
            Choice::Positional => "positional",
            Choice::Reference => "reference",
            Choice::Null => "null",
            #[cfg(feature = "peers")]
            Choice::KvIndex => "kv-index",
            #[cfg(feature = "peers")]
            Choice::Crtc => "crtc",
        }
    }
}

/// How the product's own arm is driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Form {
    /// The kvatlas arm answers in (holder, depth) pairs instead of levels.
    #[arg(long)]
    pub pairs: bool,
    /// The kvatlas arm's event lanes look ahead in their queues.
    #[arg(long)]
    pub look_ahead: bool,
    /// The kvatlas arm's memory stays on small pages.
    #[arg(long)]
    #[serde(default)]
    pub small_pages: bool,
}

/// What an indexer has to serve.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Workers, numbered from 0.
    pub workers: u32,
    /// Writing threads.
    pub event_lanes: usize,
    /// Reading threads.
    pub query_lanes: usize,
    /// How the product's own arm is driven.
    pub form: Form,
}

impl Needs {
    /// One writing and one reading thread.
    pub fn one_of_each(workers: u32, form: Form) -> Needs {
        Needs { workers, event_lanes: 1, query_lanes: 1, form }
    }
}

/// Why an indexer cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum IndexerError {
    /// Its settings are refused.
    #[error("kvatlas: {0}")]
    Config(#[from] kvatlas_index::ConfigError),
    /// The layout has more event lanes than the indexer.
    #[error("{indexer} has one writing lane: take a layout with one events core")]
    OneLane {
        /// The indexer.
        indexer: &'static str,
    },
    /// The thread that makes huge pages cannot be started.
    #[error("kvatlas: {0}")]
    Thread(std::io::Error),
    /// A worker cannot be opened.
    #[error("kvatlas: {0}")]
    Index(#[from] kvatlas_index::IndexError),
}
