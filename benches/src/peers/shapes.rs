//! Shapes that no corpus has: thousands of holders on one chain, very many children of the root, a very long prompt.

use crate::churn::look_up;
use crate::contender::{Contender, Kind};
use kvatlas_benches::results::Row;
use kvatlas_benches::sampling::{Estimate, median};
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

/// Applies a batch; the time of each event.
fn play(contender: &mut Contender, batch: &Batch) -> Vec<f64> {
    contender.prepare(batch);
    let events: Vec<usize> = (0..batch.operations.len()).collect();
    contender.play(batch, &events).ns
}

/// Lookups of a batch that has nothing else, once unmeasured and once measured.
fn ask(contender: &mut Contender, batch: &Batch) -> Vec<f64> {
    contender.prepare(batch);
    let lookups: Vec<usize> = (0..batch.operations.len()).collect();
    look_up(contender, batch, &lookups);
    look_up(contender, batch, &lookups)
}

fn without_control(kinds: &[Kind]) -> Vec<Kind> {
    kinds.iter().copied().filter(|&kind| kind != Kind::Control && kind != Kind::Reference).collect()
}

type Figures = Vec<(&'static str, Estimate)>;

/// Ours against a limit, which is the gate, and against each rival.
fn against(cell: &str, what: &str, figures: &Figures, limit: (&'static str, f64)) -> Vec<Row> {
    let Some(&(_, ours)) = figures.iter().find(|figure| figure.0 == "kvatlas") else { return Vec::new() };
    let (name, value) = limit;
    let limit = Estimate::exactly(value);
    let mut rows = vec![Row::new(cell, what, name, (ours.value, value), limit.over(ours), Some(1.0))];
    for &(name, theirs) in figures.iter().filter(|figure| figure.0 != "kvatlas") {
        rows.push(Row::new(cell, what, name, (ours.value, theirs.value), theirs.over(ours), None));
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
            figures.push((contender.name(), median(&ask(&mut contender, &batch))));
        }
        rows.extend(against("holders", &format!("{workers} holders, lookup p50 ns"), &figures, (limit, limit_ns)));
    }
    rows
}

/// Very many chains of two blocks from the root.
pub fn root(kinds: &[Kind], quick: bool) -> Vec<Row> {
    const WHAT: [&str; 3] = ["missing lookup", "store of one chain", "removal of one chain"];
    let mut rows = Vec::new();
    let sizes: &[u64] = if quick { &[16_000, 65_500] } else { &[16_000, 65_500, 250_000] };
    let mut smallest: Option<[f64; 3]> = None;
    for &children in sizes {
        let mut figures = [Figures::new(), Figures::new(), Figures::new()];
        for kind in without_control(kinds) {
            let samples = one_root(kind, children, if quick { 3 } else { 15 });
            for (figures, (name, samples)) in figures.iter_mut().zip(samples) {
                figures.push((name, median(&samples)));
            }
        }
        let ours =
            |i: usize| figures[i].iter().find(|figure| figure.0 == "kvatlas").map_or(0.0, |figure| figure.1.value);
        let base = *smallest.get_or_insert([ours(0), ours(1), ours(2)]);
        for (i, what) in WHAT.into_iter().enumerate() {
            let what = format!("{children} children, {what} p50 ns");
            let limit = if i == 0 { ("150 ns", 150.0) } else { ("1.5 x 16k", 1.5 * base[i]) };
            rows.extend(against("root", &what, &figures[i], limit));
            if i == 0 && children != sizes[0] {
                rows.push(Row::plain("root", &what, "1.5 x 16k", (ours(0), 1.5 * base[0].max(20.0)), Some(1.0)));
            }
        }
    }
    rows
}

/// Times of missing lookups, and of storing and removing one chain more, with so many chains at the root.
fn one_root(kind: Kind, children: u64, rounds: usize) -> [(&'static str, Vec<f64>); 3] {
    let mut contender = Contender::all(&[kind], 64).remove(0);
    let mut samples = [Vec::new(), Vec::new(), Vec::new()];
    let mut batch = Batch::default();
    for chain in 0..children {
        batch.push_store((chain % 64) as u32, None, (0..2).map(|place| block(chain, place)));
    }
    play(&mut contender, &batch);
    for round in 0..rounds {
        let extra = |i: usize| children + 7 * (round * SAMPLES + i) as u64;
        batch.clear();
        (0..SAMPLES).for_each(|i| batch.push_lookup(0, (0..2).map(|place| block(extra(i), place).1)));
        samples[0].extend(ask(&mut contender, &batch));
        batch.clear();
        for i in 0..SAMPLES {
            batch.push_store((i % 64) as u32, None, (0..2).map(|place| block(extra(i), place)));
        }
        samples[1].extend(play(&mut contender, &batch));
        batch.clear();
        for i in 0..SAMPLES {
            batch.push_remove((i % 64) as u32, (0..2).rev().map(|place| block(extra(i), place).0));
        }
        samples[2].extend(play(&mut contender, &batch));
    }
    let name = contender.name();
    samples.map(|samples| (name, samples))
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
    let ours = median(&ask(&mut contender, &batch));
    let stored: Vec<Vec<ContentHash>> =
        (0..PROMPTS).map(|chain| (0..BLOCKS).map(|place| block(chain, place).1).collect()).collect();
    let clock_ns = kvatlas_benches::sampling::clock_ns();
    let compare = |i: usize| {
        let asked = batch.contents(&batch.operations[i]);
        let begin = Instant::now();
        black_box(black_box(asked) == black_box(&stored[i % PROMPTS as usize][..]));
        begin.elapsed().as_nanos() as f64 - clock_ns
    };
    let raw = median(&(0..SAMPLES).map(compare).collect::<Vec<_>>());
    let limit = Estimate { value: 1.5 * raw.value, low: 1.5 * raw.low, high: 1.5 * raw.high };
    let figures = (ours.value, limit.value);
    vec![Row::new("prompt", "8,192 blocks, lookup p50 ns", "1.5 x raw", figures, limit.over(ours), Some(1.0))]
}
