//! `--mode exact`: the corpus through every indexer and the oracle side by side, compared at drained points.

use super::check::{Checked, Oracle, sample};
use super::lane::Lane;
use super::report::plain_table;
use super::tape::Tape;
use super::trial::TrialError;
use crate::indexers::{Choice, Form, Indexer, Needs};
use comfy_table::Table;
use serde::{Deserialize, Serialize};

/// What was found for one indexer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactResult {
    /// The indexer.
    pub indexer: Choice,
    /// Sum over all points.
    pub checked: Checked,
    /// Points at which it was compared.
    pub points: usize,
}

/// Plays a tape and compares `prompts` prompts at each of `points` points. `progress` hears the point.
pub fn run(
    indexers: &[Choice],
    form: Form,
    tape: &Tape,
    points: usize,
    prompts: usize,
    mut progress: impl FnMut(usize),
) -> Result<Vec<ExactResult>, TrialError> {
    let needs = Needs::one_of_each(tape.workers, form);
    let mut sides = Vec::new();
    for &indexer in indexers {
        let built = Indexer::build(indexer, &needs)?;
        let checked = Checked { promised: built.exact, ..Checked::default() };
        let lane = Lane::new(built.events.into_iter().next(), built.queries.into_iter().next());
        sides.push((lane, ExactResult { indexer, checked, points }));
    }
    let mut oracle = Oracle::new(tape.workers);
    let mut from = 0;
    for point in 1..=points {
        let to = tape.warm + (tape.operations.len() - tape.warm) * point / points;
        oracle.play(tape, from..to);
        for (lane, _) in &mut sides {
            lane.warm(tape, &tape.operations[from..to], 0, 1);
        }
        for query in sample(tape, to, prompts, point as u64) {
            for (lane, result) in &mut sides {
                if let Some(answer) = lane.answer(query) {
                    oracle.compare(query, answer, &mut result.checked);
                }
            }
        }
        from = to;
        progress(point);
    }
    Ok(sides.into_iter().map(|(_, result)| result).collect())
}

/// Whether every indexer kept what it promises.
pub fn all_exact(results: &[ExactResult]) -> bool {
    results.iter().all(|r| !r.checked.promised || r.checked.differing == 0)
}

/// The terminal's table.
pub fn table(results: &[ExactResult]) -> Table {
    let mut table =
        plain_table(&["indexer", "points", "prompts", "lines of the oracle", "prompts that differ", "promised"]);
    for r in results {
        let c = &r.checked;
        let promised = if c.promised { "exact" } else { "nothing" };
        let counts = [r.points as u64, c.prompts, c.lines, c.differing].map(|n| n.to_string());
        table.add_row([vec![r.indexer.name().to_owned()], counts.to_vec(), vec![promised.to_owned()]].concat());
    }
    table
}
