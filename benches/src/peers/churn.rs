//! The churn cells: one corpus, all indexes in one process, windows in turn.
//!
//! A window is a stretch of the corpus. Every index first answers its lookups, each timed singly, then applies its events. Nothing
//! is compared across windows but medians of ratios inside them.
//!
//! Lookups are measured in three ways. *Cold*: the window's lookups once, each a prompt never asked before, when the other indexes
//! have used the caches, the code's among them. *Steady*: the same lookups in several passes, each in an order of its own, of which
//! the first is not measured. *Busy*: while another thread applies the window's events.

use crate::contender::{Contender, Kind, turns};
use kvatlas_benches::clock::thread_cpu_ns;
use kvatlas_benches::histogram::Histogram;
use kvatlas_benches::laps::Laps;
use kvatlas_benches::results::{Measured, Outcome, Sum};
use kvatlas_corpora::{Batch, Class, Parameters, Random, Stream, StreamError, Trace};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Operations of a window while the pools are filled.
const FILL_OPERATIONS: usize = 4000;
/// Fullness of the fleet's pools from which on windows count, in percent.
const FULL_PERCENT: u64 = 98;
/// Passes over a window's lookups that count, after one that does not.
const STEADY_PASSES: u64 = 4;

/// What a churn cell measures.
#[derive(Clone, Debug)]
pub struct Cell {
    pub name: String,
    pub parameters: Parameters,
    /// Requests of a window.
    pub window_requests: u64,
    /// Windows after the fill.
    pub windows: usize,
    /// Further windows in which lookups run in passes, and then beside the events.
    pub busy_windows: usize,
}

/// Runs a cell.
pub fn run(cell: &Cell, trace: &Trace, kinds: &[Kind]) -> Result<Outcome, StreamError> {
    let mut stream = Stream::new(trace, cell.parameters.clone())?;
    let mut all = Contender::all(kinds, cell.parameters.workers);
    let mut measured: Vec<Measured> = all
        .iter()
        .map(|c| Measured { name: c.name().to_owned(), overhead_ns: c.writer.overhead_ns(), ..Measured::default() })
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
                measured.cold_lookups.push(look_up(contender, &batch, &lookups).into_iter().collect());
                measured.windows.push(play(contender, &batch, &events));
            } else {
                measured.steady_lookups.push(steady(contender, &batch, &lookups));
                let (times, busy) = beside(contender, &batch, &lookups, &events);
                measured.busy_lookups.push(times);
                measured.busy_events.push(busy);
            }
        }
    }
    for (contender, measured) in all.iter().zip(&mut measured) {
        measured.refused = contender.writer.refused();
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
            let laps = all[i].play(&batch, &events);
            let mut sum = Sum::default();
            for ((&event, &ns), worked_ns) in events.iter().zip(&laps.ns).zip(laps.worked_ns()) {
                sum.add(ns, batch.operations[event].blocks());
                if full_size(event) && batch.operations[event].class() != Class::Remove {
                    measured[i].fill_stores.record(ns as u64);
                    measured[i].fill_stores_worked.record(worked_ns as u64);
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

/// Lookups in several passes, each in an order of its own; the first pass is not measured.
fn steady(contender: &mut Contender, batch: &Batch, lookups: &[usize]) -> Histogram {
    let (mut order, mut random) = (lookups.to_vec(), Random::new(41));
    look_up(contender, batch, &order);
    let mut times = Vec::new();
    for _ in 0..STEADY_PASSES {
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        times.extend(look_up(contender, batch, &order));
    }
    times.into_iter().collect()
}

fn play(contender: &mut Contender, batch: &Batch, events: &[usize]) -> BTreeMap<String, Sum> {
    let times = contender.play(batch, events).ns;
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for (&event, &ns) in events.iter().zip(&times) {
        let operation = &batch.operations[event];
        sums.entry(operation.class().name()).or_default().add(ns, operation.blocks());
        sums.entry("whole").or_default().add(ns, operation.blocks());
    }
    sums.into_iter().map(|(class, sum)| (class.to_owned(), sum)).collect()
}

/// Lookups on this thread while another one applies the window's events; with the processor time of that one, less what measuring
/// each event costs.
fn beside(contender: &mut Contender, batch: &Batch, lookups: &[usize], events: &[usize]) -> (Histogram, Sum) {
    let clock_ns = kvatlas_benches::sampling::clock_ns();
    let done = AtomicBool::new(false);
    let (writer, searcher) = (&mut contender.writer, &mut contender.searcher);
    let (times, cpu_ns) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let begun_ns = thread_cpu_ns();
            writer.play(batch, events, &mut Laps::default());
            let cpu_ns = writer.play_cpu_ns().unwrap_or(thread_cpu_ns() - begun_ns);
            // Release: pairs with the Acquire below; the writer is at rest when the loop ends.
            done.store(true, Ordering::Release);
            cpu_ns
        });
        let mut times = Histogram::default();
        while !done.load(Ordering::Acquire) {
            for &lookup in lookups.iter().take(64) {
                let begin = Instant::now();
                searcher.lookup(batch, lookup);
                times.record((begin.elapsed().as_nanos() as f64 - clock_ns).max(0.0) as u64);
            }
        }
        (times, writing.join().expect("a writer that does not panic"))
    });
    let overhead_ns = contender.writer.overhead_ns() * events.len() as f64;
    let blocks = events.iter().map(|&event| batch.operations[event].blocks() as u64).sum();
    let ns = (cpu_ns as f64 - overhead_ns).max(0.0) as u64;
    (times, Sum { ns, blocks, events: events.len() as u64 })
}
