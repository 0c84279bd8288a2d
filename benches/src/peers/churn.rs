//! The churn cells: one corpus, all indexes in one process, windows in turn.
//!
//! A window is a stretch of the corpus. Every index first answers its lookups, each timed singly, then applies its events. Nothing
//! is compared across windows but medians of ratios inside them.

use crate::contender::{Contender, Kind, turns};
use kvatlas_benches::sampling::{Estimate, estimate, quantile};
use kvatlas_corpora::{Batch, Class, Parameters, Stream, StreamError, Trace};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Operations of a window while the pools are filled.
const FILL_OPERATIONS: usize = 4000;
/// Fullness of the fleet's pools from which on windows count, in percent.
const FULL_PERCENT: u64 = 98;

/// What a churn cell measures.
#[derive(Clone, Debug)]
pub struct Cell {
    pub name: String,
    pub parameters: Parameters,
    /// Requests of a window.
    pub window_requests: u64,
    /// Windows after the fill.
    pub windows: usize,
    /// Further windows in which lookups run beside the events.
    pub busy_windows: usize,
}

/// Sums of a class in a window.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sum {
    pub ns: f64,
    pub blocks: u64,
    pub events: u64,
}

/// What was measured of one index.
#[derive(Debug, Default, Serialize)]
pub struct Measured {
    pub name: &'static str,
    /// Filling from empty: sums of the windows.
    pub fill: Vec<Sum>,
    /// Nanoseconds of full-size store events while tables grow.
    pub fill_store_ns: Vec<f64>,
    /// Sums of each class in each window.
    pub windows: Vec<BTreeMap<&'static str, Sum>>,
    /// Nanoseconds of each lookup in each window.
    pub lookups: Vec<Vec<f64>>,
    /// The same beside one writing lane.
    pub busy_lookups: Vec<Vec<f64>>,
    /// Bytes when the pools were full.
    pub bytes: u64,
    /// Bytes by the index's own account, where it has one.
    pub own_bytes: Option<u64>,
    /// What was taken off each event's time.
    pub overhead_ns: f64,
}

/// A cell's outcome.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub cell: String,
    pub parameters: Parameters,
    pub holders_per_block: f64,
    pub memberships: u64,
    pub distinct: u64,
    pub indexes: Vec<Measured>,
}

/// Runs a cell.
pub fn run(cell: &Cell, trace: &Trace, kinds: &[Kind]) -> Result<Outcome, StreamError> {
    let mut stream = Stream::new(trace, cell.parameters.clone())?;
    let mut all = Contender::all(kinds, cell.parameters.workers);
    let mut measured: Vec<Measured> = all
        .iter()
        .map(|c| Measured { name: c.name(), overhead_ns: c.writer.overhead_ns(), ..Measured::default() })
        .collect();
    fill(cell, &mut stream, &mut all, &mut measured)?;
    let full = stream.figures();
    for (contender, measured) in all.iter_mut().zip(&mut measured) {
        (measured.bytes, measured.own_bytes) = (contender.bytes(), contender.writer.own_bytes());
    }
    let mut batch = Batch::default();
    for window in 0..cell.windows + cell.busy_windows {
        batch.clear();
        stream.extend_requests(&mut batch, cell.window_requests)?;
        let (lookups, events) = split(&batch);
        for i in turns(all.len(), window) {
            let (contender, measured) = (&mut all[i], &mut measured[i]);
            contender.prepare(&batch);
            if window < cell.windows {
                measured.lookups.push(look_up(contender, &batch, &lookups));
                measured.windows.push(play(contender, &batch, &events));
            } else {
                measured.busy_lookups.push(beside(contender, &batch, &lookups, &events));
            }
        }
    }
    Ok(Outcome {
        cell: cell.name.clone(),
        parameters: cell.parameters.clone(),
        holders_per_block: full.holders_per_block(),
        memberships: full.resident,
        distinct: full.distinct,
        indexes: measured,
    })
}

fn fill(cell: &Cell, stream: &mut Stream, all: &mut [Contender], measured: &mut [Measured]) -> Result<(), StreamError> {
    let mut batch = Batch::default();
    let mut window = 0;
    while stream.figures().resident < cell.parameters.capacity() * FULL_PERCENT / 100 {
        batch.clear();
        stream.extend(&mut batch, FILL_OPERATIONS)?;
        let (_, events) = split(&batch);
        let full_size = |event: usize| batch.operations[event].blocks() == cell.parameters.store_blocks_max as usize;
        for i in turns(all.len(), window) {
            all[i].prepare(&batch);
            let times = all[i].play(&batch, &events);
            let mut sum = Sum::default();
            for (&event, &ns) in events.iter().zip(&times) {
                sum.add(ns, batch.operations[event].blocks());
                if full_size(event) && batch.operations[event].class() != Class::Remove {
                    measured[i].fill_store_ns.push(ns);
                }
            }
            measured[i].fill.push(sum);
        }
        window += 1;
    }
    Ok(())
}

/// Places of the lookups and of the events.
pub fn split(batch: &Batch) -> (Vec<usize>, Vec<usize>) {
    (0..batch.operations.len()).partition(|&i| batch.operations[i].class() == Class::Lookup)
}

/// Times every lookup singly; a clock reading is taken off.
pub fn look_up(contender: &mut Contender, batch: &Batch, lookups: &[usize]) -> Vec<f64> {
    let clock_ns = kvatlas_benches::sampling::clock_ns();
    let timed = |&lookup: &usize| {
        let begin = Instant::now();
        contender.searcher.lookup(batch, lookup);
        (begin.elapsed().as_nanos() as f64 - clock_ns).max(0.0)
    };
    lookups.iter().map(timed).collect()
}

fn play(contender: &mut Contender, batch: &Batch, events: &[usize]) -> BTreeMap<&'static str, Sum> {
    let times = contender.play(batch, events);
    let mut sums: BTreeMap<&'static str, Sum> = BTreeMap::new();
    for (&event, &ns) in events.iter().zip(&times) {
        let operation = &batch.operations[event];
        sums.entry(operation.class().name()).or_default().add(ns, operation.blocks());
        sums.entry("whole").or_default().add(ns, operation.blocks());
    }
    sums
}

/// Lookups on this thread while another one applies the window's events.
fn beside(contender: &mut Contender, batch: &Batch, lookups: &[usize], events: &[usize]) -> Vec<f64> {
    let clock_ns = kvatlas_benches::sampling::clock_ns();
    let done = AtomicBool::new(false);
    let (writer, searcher) = (&mut contender.writer, &mut contender.searcher);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.play(batch, events, &mut Vec::new());
            // Release: pairs with the Acquire below; the writer is at rest when the loop ends.
            done.store(true, Ordering::Release);
        });
        let mut times = Vec::new();
        while !done.load(Ordering::Acquire) {
            for &lookup in lookups.iter().take(64) {
                let begin = Instant::now();
                searcher.lookup(batch, lookup);
                times.push((begin.elapsed().as_nanos() as f64 - clock_ns).max(0.0));
            }
        }
        times
    })
}

impl Sum {
    fn add(&mut self, ns: f64, blocks: usize) {
        self.ns += ns;
        self.blocks += blocks as u64;
        self.events += 1;
    }

    pub fn ns_per_block(&self) -> f64 {
        self.ns / self.blocks.max(1) as f64
    }
}

impl Measured {
    /// Nanoseconds a block of a class: the median over windows.
    pub fn ns_per_block(&self, class: &str) -> Option<Estimate> {
        let windows: Vec<f64> = self.windows.iter().filter_map(|w| Some(w.get(class)?.ns_per_block())).collect();
        (!windows.is_empty()).then(|| kvatlas_benches::sampling::median(&windows))
    }

    /// How often our time of a class goes into this one's: the median over windows.
    pub fn ratio(&self, ours: &Measured, class: &str) -> Option<Estimate> {
        let both = self.windows.iter().zip(&ours.windows);
        let ratio = |(theirs, ours): (&BTreeMap<_, Sum>, &BTreeMap<_, Sum>)| {
            Some(theirs.get(class)?.ns_per_block() / ours.get(class)?.ns_per_block().max(0.01))
        };
        let ratios: Vec<f64> = both.filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| kvatlas_benches::sampling::median(&ratios))
    }

    /// Nanoseconds a block while filling from empty.
    pub fn fill_ns_per_block(&self) -> f64 {
        let (ns, blocks) = self.fill.iter().fold((0.0, 0), |(ns, blocks), sum| (ns + sum.ns, blocks + sum.blocks));
        ns / blocks.max(1) as f64
    }
}

/// A quantile of lookups over all windows; the interval resamples windows.
pub fn lookup_quantile(windows: &[Vec<f64>], share: f64) -> Estimate {
    estimate(windows.len(), |picked| {
        let mut all: Vec<f64> = picked.iter().flat_map(|&i| windows[i].iter().copied()).collect();
        quantile(&mut all, share)
    })
}
