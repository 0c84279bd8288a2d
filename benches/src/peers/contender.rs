//! The indexes of a run, each with its memory account, and the fair order in which they take turns.

use clap::ValueEnum;
use kvatlas_benches::indexers::{Crtc, KvIndex, Kvatlas, Oracle, Searcher, Setting, Writer};
use kvatlas_benches::laps::Laps;
use kvatlas_benches::memory::{self, Reserved};
use kvatlas_corpora::Batch;
use kvatlas_index::HugePages;

/// An index that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Ours, as the service runs it.
    Kvatlas,
    /// Ours, with a lane that sees its queue.
    KvatlasAhead,
    /// Ours, on small pages only.
    KvatlasSmallPages,
    /// Ours, on huge pages from the first touch on.
    KvatlasHuge,
    /// kv-index 2.0.0.
    KvIndex,
    /// dynamo-kv-router 1.6.1.
    Crtc,
    /// Ours once more: what two equal indexes differ by is noise.
    Control,
    /// The oracle.
    Reference,
}

/// An index in a run.
pub struct Contender {
    pub kind: Kind,
    pub writer: Box<dyn Writer>,
    pub searcher: Box<dyn Searcher>,
    account: usize,
    reserved: Reserved,
    /// What an index before it left on its account: it is freed under another one.
    heap_before: u64,
}

impl Contender {
    /// Builds the indexes of a run, each under the account of its kind.
    pub fn all(kinds: &[Kind], workers: u32) -> Vec<Contender> {
        kinds.iter().map(|&kind| Contender::new(kind, kind as usize + 1, workers)).collect()
    }

    fn new(kind: Kind, account: usize, workers: u32) -> Self {
        let (before, heap_before) = (Reserved::now(), memory::heap(account));
        let writer: Box<dyn Writer> = memory::charge(account, || -> Box<dyn Writer> {
            match kind {
                Kind::Kvatlas | Kind::Control => Box::new(Kvatlas::new(workers)),
                Kind::KvatlasAhead => {
                    Box::new(Kvatlas::with(workers, Setting { look_ahead: true, ..Setting::default() }))
                }
                Kind::KvatlasSmallPages | Kind::KvatlasHuge => {
                    let small = kind == Kind::KvatlasSmallPages;
                    let huge_pages = if small { HugePages::Off } else { HugePages::Transparent };
                    Box::new(Kvatlas::with(workers, Setting { huge_pages, ..Setting::default() }))
                }
                Kind::KvIndex => Box::new(KvIndex::new(workers)),
                Kind::Crtc => Box::new(Crtc::new(account)),
                Kind::Reference => Box::new(Oracle::new(workers)),
            }
        });
        // Only ours maps memory itself; what came otherwise is the allocator's.
        let ours = !matches!(kind, Kind::KvIndex | Kind::Crtc | Kind::Reference);
        let reserved = if ours { Reserved::now().since(&before) } else { Reserved::default() };
        let searcher = writer.searcher();
        Self { kind, writer, searcher, account, reserved, heap_before }
    }

    pub fn name(&self) -> &'static str {
        if self.kind == Kind::Control { "control" } else { self.writer.name() }
    }

    pub fn prepare(&mut self, batch: &Batch) {
        // Layouts that outlive a batch are the benchmark's; an event that the index takes over is the index's.
        let account = if self.kind == Kind::Crtc { self.account } else { 0 };
        memory::charge(account, || self.writer.prepare(batch));
        memory::charge(0, || self.searcher.prepare(batch));
    }

    /// Applies events and says how long each took, less what the measuring costs.
    pub fn play(&mut self, batch: &Batch, events: &[usize]) -> Laps {
        let mut laps = Laps::default();
        laps.ns.reserve(events.len());
        memory::charge(self.account, || self.writer.play(batch, events, &mut laps));
        let overhead = self.writer.overhead_ns();
        laps.ns.iter_mut().for_each(|ns| *ns = (*ns - overhead).max(0.0));
        laps
    }

    /// Bytes that the index holds: its heap and the resident pages of its reserved ranges.
    pub fn bytes(&mut self) -> u64 {
        self.writer.tidy();
        memory::heap(self.account).saturating_sub(self.heap_before) + self.reserved.resident()
    }
}

/// The order of turns in a window: it begins with another index each time.
pub fn turns(count: usize, window: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| (i + window) % count)
}
