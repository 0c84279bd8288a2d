//! Shapes that no corpus has: thousands of holders on one chain, very many children of the root, a very long prompt.

use crate::churn::look_up;
use crate::contender::{Contender, Kind};
use crate::gates::Row;
use kvatlas_benches::sampling::quantile;
use kvatlas_corpora::{Batch, Random, mix};
use kvatlas_index::{ContentHash, EngineHash};
use std::hint::black_box;
use std::time::Instant;

/// Samples of each figure.
const SAMPLES: usize = 401;

fn block(chain: u64, place: u64) -> (EngineHash, ContentHash) {
    let x = chain << 20 | place;
    (EngineHash(mix(17, x)), ContentHash(mix(18, x)))
}

fn median(times: Vec<f64>) -> f64 {
    let mut times = times;
    quantile(&mut times, 0.5)
}

/// Applies a batch and returns the median time of an event.
fn play(contender: &mut Contender, batch: &Batch) -> f64 {
    contender.prepare(batch);
    let events: Vec<usize> = (0..batch.operations.len()).collect();
    median(contender.play(batch, &events))
}

/// Lookups of a batch that has nothing else: the median time.
fn ask(contender: &mut Contender, batch: &Batch) -> f64 {
    contender.prepare(batch);
    let lookups: Vec<usize> = (0..batch.operations.len()).collect();
    look_up(contender, batch, &lookups);
    median(look_up(contender, batch, &lookups))
}

fn without_control(kinds: &[Kind]) -> Vec<Kind> {
    kinds.iter().copied().filter(|&kind| kind != Kind::Control && kind != Kind::Reference).collect()
}

/// Ours against each rival.
fn against(cell: &str, what: &str, figures: &[(&'static str, f64)], limit: (&'static str, f64)) -> Vec<Row> {
    let Some(&(_, ours)) = figures.iter().find(|figure| figure.0 == "kvatlas") else { return Vec::new() };
    let mut rows = vec![Row::plain(cell, what, limit.0, (ours, limit.1), Some(1.0))];
    for &(name, theirs) in figures.iter().filter(|figure| figure.0 != "kvatlas") {
        rows.push(Row::plain(cell, what, name, (ours, theirs), None));
    }
    rows
}

/// Thousands of holders at random depths of one chain of 256 blocks.
pub fn holders(kinds: &[Kind], quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (workers, limit_ns, limit) in [(1_000, 1_500.0, "1.5 us"), (10_000, 12_000.0, "12 us")] {
        let mut figures = Vec::new();
        for kind in without_control(kinds) {
            let mut contender = Contender::all(&[kind], workers).remove(0);
            let (mut batch, mut random) = (Batch::default(), Random::new(5));
            for worker in 0..workers {
                let depth = 1 + random.below(256);
                batch.push_store(worker, None, (0..depth).map(|place| block(0, place)));
            }
            play(&mut contender, &batch);
            batch.clear();
            for _ in 0..if quick { 50 } else { SAMPLES } {
                batch.push_lookup(0, (0..256).map(|place| block(0, place).1));
            }
            figures.push((contender.name(), ask(&mut contender, &batch)));
        }
        rows.extend(against("holders", &format!("{workers} holders, lookup p50 ns"), &figures, (limit, limit_ns)));
    }
    rows
}

/// Very many chains of two blocks from the root.
pub fn root(kinds: &[Kind], quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    let sizes: &[u64] = if quick { &[16_000, 65_500] } else { &[16_000, 65_500, 250_000] };
    let mut first: Vec<[f64; 3]> = Vec::new();
    for &children in sizes {
        let mut figures = [Vec::new(), Vec::new(), Vec::new()];
        for kind in without_control(kinds) {
            let mut contender = Contender::all(&[kind], 64).remove(0);
            let mut batch = Batch::default();
            for chain in 0..children {
                batch.push_store((chain % 64) as u32, None, (0..2).map(|place| block(chain, place)));
            }
            play(&mut contender, &batch);
            let extra = |i: usize| children + 7 * i as u64;
            batch.clear();
            (0..SAMPLES).for_each(|i| batch.push_lookup(0, (0..2).map(|place| block(extra(i), place).1)));
            figures[0].push((contender.name(), ask(&mut contender, &batch)));
            batch.clear();
            (0..SAMPLES)
                .for_each(|i| batch.push_store((i % 64) as u32, None, (0..2).map(|place| block(extra(i), place))));
            figures[1].push((contender.name(), play(&mut contender, &batch)));
            batch.clear();
            (0..SAMPLES)
                .for_each(|i| batch.push_remove((i % 64) as u32, (0..2).rev().map(|place| block(extra(i), place).0)));
            figures[2].push((contender.name(), play(&mut contender, &batch)));
        }
        let ours = |i: usize| figures[i].iter().find(|f| f.0 == "kvatlas").map_or(0.0, |f| f.1);
        first.push([ours(0), ours(1), ours(2)]);
        for (i, what) in ["missing lookup", "store of one chain", "removal of one chain"].into_iter().enumerate() {
            let limit = if i == 0 { ("150 ns", 150.0) } else { ("1.5 x 16k", 1.5 * first[0][i]) };
            rows.extend(against("root", &format!("{children} children, {what} p50 ns"), &figures[i], limit));
            if i == 0 && children != sizes[0] {
                let flat = (ours(0), 1.5 * first[0][0]);
                rows.push(Row::plain(
                    "root",
                    &format!("{children} children, {what} p50 ns"),
                    "1.5 x 16k",
                    flat,
                    Some(1.0),
                ));
            }
        }
    }
    rows
}

/// A prompt of 8,192 blocks, against comparing the raw arrays.
pub fn prompt() -> Vec<Row> {
    const BLOCKS: u64 = 8192;
    const PROMPTS: u64 = 8;
    let mut contender = Contender::all(&[Kind::Kvatlas], 64).remove(0);
    let mut batch = Batch::default();
    for (worker, chain) in (0..4).flat_map(|worker| (0..PROMPTS).map(move |chain| (worker, chain))) {
        for from in (0..BLOCKS).step_by(512) {
            let parent = from.checked_sub(1).map(|place| block(chain, place).0);
            batch.push_store(worker, parent, (from..from + 512).map(|place| block(chain, place)));
        }
    }
    play(&mut contender, &batch);
    batch.clear();
    for i in 0..SAMPLES as u64 {
        batch.push_lookup(0, (0..BLOCKS).map(|place| block(i % PROMPTS, place).1));
    }
    let ours = ask(&mut contender, &batch);
    let stored: Vec<Vec<ContentHash>> =
        (0..PROMPTS).map(|chain| (0..BLOCKS).map(|place| block(chain, place).1).collect()).collect();
    let compare = |i: usize| {
        let asked = batch.contents(&batch.operations[i]);
        let begin = Instant::now();
        black_box(black_box(asked) == black_box(&stored[i % PROMPTS as usize][..]));
        begin.elapsed().as_nanos() as f64 - kvatlas_benches::sampling::clock_ns()
    };
    let raw = median((0..SAMPLES).map(compare).collect());
    vec![Row::plain("prompt", "8,192 blocks, lookup p50 ns", "1.5 x raw", (ours, 1.5 * raw), Some(1.0))]
}
