//! The published indexes, through the seam of `kvatlas-benches`. Whatever layout they want their hashes in is made before the
//! window and not charged. They have one writing lane.
//!
//! The event loop of CRTC only runs on a thread of its own: the event lane hands it an event and waits, so each of its events
//! is charged a hop between two threads of the lane's core. The `peers` benchmark takes that hop off.

use super::{Choice, EventLane, Figures, Indexer, IndexerError, Needs, QueryLane};
use crate::ladder::tape::{Step, Tape};
use kvatlas_benches::indexers::{Crtc, KvIndex, Searcher, Writer};
use kvatlas_corpora::Batch;
use kvatlas_index::{ContentHash, EngineHash, HolderDepth, RankKey, Tier};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Events by which the hop is measured.
const HOPS: usize = 1001;

/// Makes a peer with all its readers.
pub(super) fn build(choice: Choice, needs: &Needs) -> Result<Indexer, IndexerError> {
    if needs.event_lanes != 1 {
        return Err(IndexerError::OneLane { indexer: choice.name() });
    }
    let writer: Box<dyn Writer> = match choice {
        Choice::Crtc => Box::new(Crtc::new(0)),
        _ => Box::new(KvIndex::new(needs.workers)),
    };
    let reader = |_| {
        let (ahead, single) = (Batch::default(), Batch::default());
        Box::new(PeerReader { searcher: writer.searcher(), ahead, single }) as Box<dyn QueryLane>
    };
    let queries = (0..needs.query_lanes).map(reader).collect();
    let mut lane = PeerLane { writer, ahead: Batch::default(), single: Batch::default() };
    let hop_ns = if choice == Choice::Crtc { lane.hop_ns() } else { 0 };
    let figures = move || BTreeMap::from([("nanoseconds of a hop, charged to each event".to_owned(), hop_ns)]);
    let figures: Figures = if hop_ns > 0 { Box::new(figures) } else { Box::new(BTreeMap::new) };
    Ok(Indexer { events: vec![Box::new(lane)], queries, figures, exact: false, hop_ns, maps_memory: false })
}

/// Puts a stretch of the tape into a batch, operation by operation.
fn lay_out(tape: &Tape, range: Range<usize>, batch: &mut Batch) {
    batch.clear();
    for operation in &tape.operations[range] {
        let worker = operation.worker;
        match tape.step(operation) {
            Step::Lookup(contents) => batch.push_lookup(worker, contents.iter().copied()),
            Step::Store { parent, names, contents } => {
                batch.push_store(worker, parent, names.iter().copied().zip(contents.iter().copied()));
            }
            Step::Remove(names) => batch.push_remove(worker, names.iter().copied()),
            // No generated corpus clears a worker.
            Step::Clear => batch.push_remove(worker, []),
        }
    }
}

struct PeerLane {
    writer: Box<dyn Writer>,
    ahead: Batch,
    single: Batch,
}

impl PeerLane {
    /// What it takes to get an event to the writer's own thread and back: the median of events that remove nothing, which is a
    /// little too much.
    fn hop_ns(&mut self) -> u64 {
        let mut times: Vec<u64> = (0..HOPS)
            .map(|_| {
                let begun = Instant::now();
                self.remove(0, &[]);
                begun.elapsed().as_nanos() as u64
            })
            .collect();
        times.sort_unstable();
        times[HOPS / 2]
    }

    /// Applies one event that was not laid out ahead: outside windows only.
    fn apply(&mut self, put: impl FnOnce(&mut Batch)) {
        self.single.clear();
        put(&mut self.single);
        self.writer.prepare(&self.single);
        self.writer.apply(&self.single, 0);
    }
}

impl EventLane for PeerLane {
    fn store(&mut self, worker: u32, parent: Option<EngineHash>, names: &[EngineHash], contents: &[ContentHash]) {
        let blocks = names.iter().copied().zip(contents.iter().copied());
        self.apply(|batch| batch.push_store(worker, parent, blocks));
    }
    fn remove(&mut self, worker: u32, names: &[EngineHash]) {
        self.apply(|batch| batch.push_remove(worker, names.iter().copied()));
    }
    fn clear(&mut self, _: u32) {}
    fn prepare(&mut self, tape: &Tape, range: Range<usize>) -> bool {
        self.writer.tidy();
        lay_out(tape, range, &mut self.ahead);
        self.writer.prepare(&self.ahead);
        true
    }
    fn play(&mut self, place: usize) {
        self.writer.apply(&self.ahead, place);
    }
}

struct PeerReader {
    searcher: Box<dyn Searcher>,
    ahead: Batch,
    single: Batch,
}

impl QueryLane for PeerReader {
    fn lookup(&mut self, query: &[ContentHash], out: &mut Vec<HolderDepth>) {
        self.single.clear();
        self.single.push_lookup(0, query.iter().copied());
        self.searcher.prepare(&self.single);
        let line = |(worker, blocks)| HolderDepth { rank: RankKey(worker), tier: Tier::Device, blocks };
        out.extend(self.searcher.answer(&self.single, 0).into_iter().map(line));
    }
    fn prepare(&mut self, tape: &Tape, range: Range<usize>) -> bool {
        lay_out(tape, range, &mut self.ahead);
        self.searcher.prepare(&self.ahead);
        true
    }
    fn play(&mut self, place: usize) {
        self.searcher.lookup(&self.ahead, place);
    }
}
