//! The ladder's own exactness: after the drain, sampled prompts are looked up again and compared with the oracle, which plays
//! the same tape.

use super::lane::Lane;
use super::tape::{Step, Tape};
use kvatlas_corpora::Random;
use kvatlas_index::reference::Reference;
use kvatlas_index::{ContentHash, HolderDepth, RankKey, Residency, Store, StoreKind, Tier};
use serde::{Deserialize, Serialize};

/// Seed of the sample.
const SEED: u64 = 0x4b56_4154_4c41_5302;

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Prompts compared.
    pub prompts: u64,
    /// Lines of the oracle's answers.
    pub lines: u64,
    /// Prompts whose answer differs.
    pub differing: u64,
    /// Whether the indexer promises that none does.
    pub promised: bool,
}

/// The oracle, fed with a tape.
pub struct Oracle(Reference);

impl Oracle {
    /// Without any block; knows every worker.
    pub fn new(workers: u32) -> Self {
        let mut reference = Reference::new(0);
        (0..workers).for_each(|worker| reference.open_rank(RankKey(worker)));
        Self(reference)
    }

    /// Applies an event; a lookup changes nothing.
    pub fn apply(&mut self, worker: u32, step: Step<'_>) {
        let key = RankKey(worker);
        let known = match step {
            Step::Lookup(_) => Ok(()),
            Step::Store { parent, names, contents } => {
                let store = Store { parent, names, contents, kind: StoreKind::Copy };
                self.0.store(key, Tier::Device, &store).map(drop)
            }
            Step::Remove(names) => self.0.remove(key, Tier::Device, names).map(drop),
            Step::Clear => self.0.clear(key, None).map(drop),
        };
        known.expect("a tape's workers are open and its stores well formed");
    }

    /// Applies every event of a stretch of the tape.
    pub fn play(&mut self, tape: &Tape, range: std::ops::Range<usize>) {
        for operation in &tape.operations[range] {
            self.apply(operation.worker, tape.step(operation));
        }
    }

    /// The true answer, sorted.
    pub fn lookup(&self, query: &[ContentHash]) -> Vec<HolderDepth> {
        self.0.lookup(query, Residency::PerTier)
    }

    /// Compares one prompt's answer, in any order, and counts it.
    pub fn compare(&self, query: &[ContentHash], answer: &mut [HolderDepth], checked: &mut Checked) {
        answer.sort_unstable();
        let truth = self.lookup(query);
        checked.prompts += 1;
        checked.lines += truth.len() as u64;
        checked.differing += u64::from(answer != truth);
    }
}

/// A sample of the prompts of a stretch of the tape, with repetition.
pub fn sample(tape: &Tape, end: usize, prompts: usize, seed: u64) -> Vec<&[ContentHash]> {
    let lookups: Vec<usize> = (0..end).filter(|&i| !tape.operations[i].is_event()).collect();
    let mut random = Random::new(SEED ^ seed);
    let pick = |_| match tape.step(&tape.operations[lookups[random.below(lookups.len() as u64) as usize]]) {
        Step::Lookup(query) => query,
        _ => unreachable!("only lookups are sampled"),
    };
    if lookups.is_empty() { Vec::new() } else { (0..prompts).map(pick).collect() }
}

/// Compares the lanes' answers with an oracle that plays the tape up to `end`. `None` without a query lane.
pub fn compare(tape: &Tape, end: usize, prompts: usize, promised: bool, lanes: &mut [Lane]) -> Option<Checked> {
    let mut oracle = Oracle::new(tape.workers);
    oracle.play(tape, 0..end);
    let mut checked = Checked { promised, ..Checked::default() };
    for query in sample(tape, end, prompts, 0) {
        let answer = lanes.iter_mut().find_map(|lane| lane.answer(query))?;
        oracle.compare(query, answer, &mut checked);
    }
    Some(checked)
}
