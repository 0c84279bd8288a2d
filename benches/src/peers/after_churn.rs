//! After a long churn: lookup cost and bytes of the index that lived through it, against a fresh index with the same content.
//!
//! Pools evict tail first, so what a worker holds is always closed under prefixes and can be stored again chain by chain.

use crate::churn::{look_up, split};
use crate::contender::{Contender, Kind, turns};
use kvatlas_benches::histogram::{Histogram, quantile_over, ratio_over};
use kvatlas_benches::results::Row;
use kvatlas_corpora::{Batch, Names, OperationKind, Parameters, Sharing, Stream, StreamError, Trace};
use kvatlas_index::{ContentHash, EngineHash};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Operations that are applied at a time.
const STEP: usize = 20_000;
/// Windows of lookups after the churn.
const WINDOWS: usize = 24;
/// A churned index may cost a tenth more.
const GATE: f64 = 1.0 / 1.1;

/// Names are mixed words already: they are their own hashes.
#[derive(Default)]
struct Word(u64);

impl Hasher for Word {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// A block that somebody holds: what stands before it, what it contains, and a bit for each worker that holds it.
struct Held {
    parent: Option<EngineHash>,
    content: ContentHash,
    workers: u128,
}

/// What the fleet holds, to be stored again.
#[derive(Default)]
struct Content {
    blocks: HashMap<EngineHash, Held, BuildHasherDefault<Word>>,
}

impl Content {
    fn follow(&mut self, batch: &Batch) {
        for operation in &batch.operations {
            let (names, contents) = (batch.names(operation), batch.contents(operation));
            let bit = 1 << operation.worker;
            match operation.kind {
                OperationKind::Lookup => {}
                OperationKind::Store { parent, .. } => {
                    let parents = std::iter::once(parent).chain(names.iter().copied().map(Some));
                    for ((&name, &content), parent) in names.iter().zip(contents).zip(parents) {
                        let held = self.blocks.entry(name).or_insert(Held { parent, content, workers: 0 });
                        held.workers |= bit;
                    }
                }
                OperationKind::Remove => {
                    for name in names {
                        let Some(held) = self.blocks.get_mut(name) else { continue };
                        held.workers &= !bit;
                        if held.workers == 0 {
                            self.blocks.remove(name);
                        }
                    }
                }
            }
        }
    }

    /// The names that each of so many workers holds, in the same order in every run.
    fn by_worker(&self, workers: u32) -> Vec<Vec<EngineHash>> {
        let mut names: Vec<(&EngineHash, u128)> = self.blocks.iter().map(|(name, held)| (name, held.workers)).collect();
        names.sort_unstable();
        let of_worker = |worker| names.iter().filter(|held| held.1 >> worker & 1 == 1).map(|held| *held.0).collect();
        (0..workers).map(of_worker).collect()
    }

    /// Stores that build one worker's content, parents first.
    fn stores(&self, worker: u32, names: &[EngineHash], blocks_max: usize, batch: &mut Batch) {
        let mut placed = HashSet::new();
        for &name in names {
            let mut path = Vec::new();
            let mut at = Some(name);
            while let Some(name) = at.filter(|name| placed.insert(*name)) {
                let held = &self.blocks[&name];
                path.push((name, held.content));
                at = held.parent;
            }
            path.reverse();
            for stretch in path.chunks(blocks_max) {
                batch.push_store(worker, at, stretch.iter().copied());
                at = stretch.last().map(|block| block.0);
            }
        }
    }
}

/// Runs so many hours of the corpus's own time, then compares.
pub fn run(trace: &Trace, sharing: Sharing, hours: u64, quick: bool) -> Result<Vec<Row>, StreamError> {
    let mut parameters = Parameters::standard(128, sharing, Names::Same);
    if quick {
        parameters.blocks_per_worker /= 16;
    }
    let mut all = Contender::all(&[Kind::Kvatlas], parameters.workers);
    let mut stream = Stream::new(trace, parameters.clone())?;
    let mut content = Content::default();
    let mut batch = Batch::default();
    let mut at_ns = 0;
    while at_ns < hours * 3_600_000_000_000 {
        batch.clear();
        stream.extend(&mut batch, STEP)?;
        at_ns = batch.operations.last().map_or(u64::MAX, |operation| operation.at_ns);
        let (_, events) = split(&batch);
        all[0].play(&batch, &events);
        content.follow(&batch);
    }
    let mut fresh = Contender::all(&[Kind::Control], parameters.workers).remove(0);
    for (worker, names) in (0..).zip(content.by_worker(parameters.workers)) {
        batch.clear();
        content.stores(worker, &names, parameters.store_blocks_max as usize, &mut batch);
        let (_, events) = split(&batch);
        fresh.play(&batch, &events);
    }
    drop(content);
    all.push(fresh);
    let bytes = [all[0].bytes() as f64, all[1].bytes() as f64];
    let mut lookups: [Vec<Histogram>; 2] = [Vec::new(), Vec::new()];
    for window in 0..WINDOWS {
        batch.clear();
        stream.extend_requests(&mut batch, 200)?;
        let (asked, _) = split(&batch);
        turns(2, window).for_each(|i| lookups[i].push(look_up(&mut all[i], &batch, &asked).into_iter().collect()));
    }
    let (level, held) = (format!("{sharing:?}").to_lowercase(), stream.figures().resident as f64);
    let cell = format!("after-churn-{level}");
    let what = format!("{level}, after {hours} h: bytes a membership");
    let mut rows = vec![Row::plain(&cell, &what, "fresh", (bytes[0] / held, bytes[1] / held), Some(GATE))];
    for (share, name) in [(0.5, "p50"), (0.99, "p99")] {
        let at = |i: usize| quantile_over(&lookups[i], share).value;
        let what = format!("{level}, after {hours} h: lookup {name} ns");
        let ratio = ratio_over(&lookups[1], &lookups[0], share);
        rows.push(Row::new(&cell, &what, "fresh", (at(0), at(1)), ratio, Some(GATE)));
    }
    Ok(rows)
}
