//! `--mode memory`: bytes for each membership, in a fresh process for each indexer.
//!
//! Charged are the bytes that the indexer asked the allocator for and did not give back, and the resident pages of the mappings
//! that came with it. Resident growth of the whole process stands beside it: it has the allocator's slack as well.

use super::campaign::amount;
use super::child::ChildError;
use super::counting;
use super::lane::Lane;
use super::report::plain_table;
use super::tape::{Kind, Step, Tape};
use super::trial::TrialError;
use crate::indexers::{Choice, Form, Indexer, Needs};
use comfy_table::Table;
use kvatlas_benches::memory::{Reserved, resident_anonymous};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The hidden subcommand that a child runs.
pub const SUBCOMMAND: &str = "ladder-memory";
/// Taken from the allocator and given back before anything is counted, so that its first arena stands already.
const ALLOCATOR_WARM_BYTES: usize = 64 << 20;

/// What one indexer needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryResult {
    /// The indexer.
    pub indexer: Choice,
    /// (worker, block) pairs at the end, by the tape.
    pub memberships: u64,
    /// Heap bytes asked for and not given back.
    pub heap_bytes: i64,
    /// The most heap bytes at any moment.
    pub heap_peak_bytes: i64,
    /// Resident bytes of mappings beside the allocator's.
    pub mapped_bytes: u64,
    /// Growth of all resident anonymous memory of the process.
    pub resident_growth_bytes: u64,
    /// Figures of its own.
    pub figures: BTreeMap<String, u64>,
}

impl MemoryResult {
    /// What is charged.
    pub fn bytes(&self) -> f64 {
        (self.heap_bytes.max(0) as u64 + self.mapped_bytes) as f64
    }

    /// Bytes for each membership.
    pub fn per_membership(&self) -> f64 {
        self.bytes() / self.memberships.max(1) as f64
    }
}

/// Plays the whole tape into one indexer of this process and weighs it.
pub fn weigh(indexer: Choice, tape: &Tape) -> Result<MemoryResult, ChildError> {
    drop(std::hint::black_box(vec![1u8; ALLOCATOR_WARM_BYTES]));
    let memberships = memberships(tape);
    let (before, resident_before) = (Reserved::now(), resident_anonymous()?);
    counting::start();
    let needs = Needs::one_of_each(tape.workers, Form::default());
    let built = Indexer::build(indexer, &needs).map_err(TrialError::from)?;
    let own = built.maps_memory.then(|| Reserved::now().since(&before));
    let figures = built.figures;
    let mut lane = Lane::new(built.events.into_iter().next(), built.queries.into_iter().next());
    lane.warm(tape, &tape.operations, 0, 1);
    let (heap_bytes, heap_peak_bytes) = counting::live();
    let mapped_bytes = own.map_or(0, |own| own.resident());
    let resident_growth_bytes = resident_anonymous()?.saturating_sub(resident_before);
    let figures = figures();
    drop(lane);
    Ok(MemoryResult { indexer, memberships, heap_bytes, heap_peak_bytes, mapped_bytes, resident_growth_bytes, figures })
}

/// Stored less removed names: mock caches store no second copies and remove nothing that they lack.
fn memberships(tape: &Tape) -> u64 {
    let mut of_worker = vec![0u64; tape.workers as usize];
    for operation in &tape.operations {
        let held = &mut of_worker[operation.worker as usize];
        match (operation.kind, tape.step(operation)) {
            (_, Step::Store { names, .. }) => *held += names.len() as u64,
            (_, Step::Remove(names)) => *held = held.saturating_sub(names.len() as u64),
            (Kind::Clear, _) => *held = 0,
            _ => {}
        }
    }
    of_worker.iter().sum()
}

/// Weighs an indexer in a child process.
pub fn weigh_in_child(indexer: Choice, tape: &Path) -> Result<MemoryResult, ChildError> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    let output = command.arg(SUBCOMMAND).arg(tape).arg(indexer.name()).output()?;
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout)?);
    }
    Err(ChildError::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// The terminal's table.
pub fn table(results: &[MemoryResult]) -> Table {
    let mut table = plain_table(&[
        "indexer",
        "memberships",
        "heap",
        "mapped",
        "bytes / membership",
        "this / first",
        "resident growth / membership",
    ]);
    let first = results.first().map_or(0.0, MemoryResult::per_membership);
    for r in results {
        table.add_row([
            r.indexer.name().to_owned(),
            amount(r.memberships as f64),
            amount(r.heap_bytes as f64),
            amount(r.mapped_bytes as f64),
            format!("{:.2}", r.per_membership()),
            format!("{:.2}", r.per_membership() / first),
            format!("{:.2}", r.resident_growth_bytes as f64 / r.memberships.max(1) as f64),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_index::{ContentHash, EngineHash};

    #[test]
    fn memberships_are_what_is_left() {
        let mut tape = Tape::new(2);
        let at = tape.put_contents(&[ContentHash(1), ContentHash(2)]).unwrap();
        tape.store((0, 0), None, &[1, 2].map(EngineHash), at).unwrap();
        tape.store((1, 1), None, &[1, 2].map(EngineHash), at).unwrap();
        tape.remove(2, 0, &[EngineHash(2)]).unwrap();
        tape.lookup(3, at, 2).unwrap();
        assert_eq!(memberships(&tape), 3);
        tape.clear(4, 1).unwrap();
        assert_eq!(memberships(&tape), 1);
    }
}
