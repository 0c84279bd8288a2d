//! Exactness: every index against the oracle on corpora without and with holes.

use crate::churn::split;
use crate::contender::{Contender, Kind};
use kvatlas_benches::results::Row;
use kvatlas_corpora::{Batch, Names, Parameters, Sharing, Stream, StreamError, Trace};

/// Lookups of a window that are compared.
const LOOKUPS: usize = 40;

/// Counts the lookups whose answer differs from the oracle's; ours must have none.
pub fn run(trace: &Trace, kinds: &[Kind], quick: bool) -> Result<Vec<Row>, StreamError> {
    let mut rows = Vec::new();
    let mut kinds: Vec<Kind> = kinds.iter().copied().filter(|&kind| kind != Kind::Control).collect();
    kinds.insert(0, Kind::Reference);
    // Tokens of a block, blocks of a worker, operations of a window: the oracle is slow.
    for (tokens, blocks, operations) in [(128, 2048, 4000), (16, 8192, 1000), (1, 65_536, 60)] {
        for (sharing, level) in [(Sharing::High, "high"), (Sharing::Low, "low")] {
            for (names, naming) in [(Names::Same, "same"), (Names::Random, "random")] {
                for evictions in [0, 10, 200] {
                    let mut parameters = Parameters::standard(tokens, sharing, names);
                    parameters.blocks_per_worker = if quick { blocks / 4 } else { blocks };
                    parameters.workers = if tokens == 128 { parameters.workers } else { 16 };
                    parameters.replicas = parameters.replicas.min(8);
                    parameters.random_evictions_per_mille = evictions;
                    let name = format!("exact-{level}-{naming}-{tokens}-holes-{evictions}");
                    let windows = if quick { 4 } else { 40 };
                    rows.extend(compare(&name, trace, parameters, &kinds, (windows, operations))?);
                }
            }
        }
    }
    Ok(rows)
}

fn compare(
    cell: &str,
    trace: &Trace,
    parameters: Parameters,
    kinds: &[Kind],
    (windows, operations): (usize, usize),
) -> Result<Vec<Row>, StreamError> {
    let mut stream = Stream::new(trace, parameters.clone())?;
    let mut all = Contender::all(kinds, parameters.workers);
    let (mut batch, mut compared) = (Batch::default(), 0);
    let mut differ = vec![0u64; all.len()];
    for _ in 0..windows {
        batch.clear();
        stream.extend(&mut batch, operations)?;
        let (lookups, events) = split(&batch);
        all.iter_mut().for_each(|contender| contender.prepare(&batch));
        // Before the events a prompt is new; after them it is held, or already gone again.
        for after in [false, true] {
            if after {
                all.iter_mut().for_each(|contender| drop(contender.play(&batch, &events)));
            }
            for &lookup in lookups.iter().take(LOOKUPS) {
                let expected = all[0].searcher.answer(&batch, lookup);
                compared += 1;
                for (contender, differ) in all.iter_mut().zip(&mut differ).skip(1) {
                    *differ += u64::from(contender.searcher.answer(&batch, lookup) != expected);
                }
            }
        }
    }
    let rows = all.iter().zip(differ).skip(1).map(|(contender, differ)| {
        println!("{cell}: {compared} lookups, {differ} differ ({})", contender.name());
        let figures = (differ as f64, compared as f64);
        let mut row = Row::plain(cell, "lookups that differ, of", contender.name(), figures, None);
        row.passed = (contender.kind == Kind::Kvatlas).then_some(differ == 0);
        row
    });
    Ok(rows.collect())
}
