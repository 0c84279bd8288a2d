//! `--mode churn`: hours of virtual churn as fast as it goes, then the same content in a fresh indexer beside it: runs, bytes
//! and the cost of a lookup must not drift apart.

use super::campaign::amount;
use super::corpus::{CorpusArguments, CorpusError, put};
use super::measure::{Nanoseconds, Quantiles};
use super::mirror::Mirror;
use super::report::{plain_table, time};
use super::tape::{Step, Tape};
use super::trial::TrialError;
use crate::indexers::{Choice, EventLane, Figures, Form, Indexer, Needs, QueryLane};
use comfy_table::Table;
use kvatlas_corpora::{Batch, Stream};
use kvatlas_index::{ContentHash, HolderDepth};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Operations that are generated at a time.
const CHUNK: usize = 20_000;
/// Latest prompts that are looked up in both indexers.
const PROMPTS: usize = 2_000;
/// Times that each prompt is looked up in each indexer, in turn.
const ROUNDS: usize = 5;

/// Why churn cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ChurnError {
    /// No corpus.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// No indexer.
    #[error(transparent)]
    Trial(#[from] TrialError),
}

/// One indexer at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Time of a lookup.
    pub lookup: Quantiles,
    /// Figures of its own.
    pub figures: BTreeMap<String, u64>,
}

/// The churned indexer and a fresh one after some hours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Virtual hours.
    pub hours: f64,
    /// Memberships.
    pub memberships: u64,
    /// Block operations of events so far.
    pub event_block_ops: u64,
    /// The one that saw it all.
    pub churned: Side,
    /// A fresh one with the same content.
    pub fresh: Side,
    /// Prompts whose answers differ between both.
    pub differing: u64,
}

/// The whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChurnResult {
    /// The indexer.
    pub indexer: Choice,
    /// One a sampled hour.
    pub samples: Vec<Sample>,
}

struct Running {
    indexer: Choice,
    needs: Needs,
    lane: Box<dyn EventLane>,
    reader: Box<dyn QueryLane>,
    figures: Figures,
    mirror: Mirror,
    prompts: VecDeque<Vec<ContentHash>>,
    event_block_ops: u64,
}

/// Runs one indexer through `hours` of virtual time, sampled `samples` times. `progress` hears the hour.
pub fn run(
    indexer: Choice,
    form: Form,
    corpus: &CorpusArguments,
    hours: f64,
    samples: u32,
    mut progress: impl FnMut(f64),
) -> Result<ChurnResult, ChurnError> {
    let parameters = corpus.parameters()?;
    let (trace, _) = corpus.schedule()?;
    let mut stream = Stream::new(&trace, parameters.clone()).map_err(CorpusError::from)?;
    let mut running = Running::new(indexer, Needs::one_of_each(parameters.workers, form))?;
    let mut result = ChurnResult { indexer, samples: Vec::new() };
    let mut batch = Batch::default();
    let step = hours / f64::from(samples.max(1));
    let mut hour = 0.0;
    while (result.samples.len() as u32) < samples.max(1) {
        batch.clear();
        stream.extend(&mut batch, CHUNK).map_err(CorpusError::from)?;
        let mut tape = Tape::new(parameters.workers);
        for operation in &batch.operations {
            put(&mut tape, &batch, operation).map_err(CorpusError::from)?;
        }
        running.play(&tape);
        hour = batch.operations.last().map_or(hour, |o| o.at_ns as f64 / 3.6e12);
        progress(hour);
        if hour >= step * (result.samples.len() + 1) as f64 {
            result.samples.push(running.sample(hour)?);
        }
    }
    Ok(result)
}

fn build(indexer: Choice, needs: &Needs) -> Result<Indexer, ChurnError> {
    Ok(Indexer::build(indexer, needs).map_err(TrialError::from)?)
}

impl Running {
    fn new(indexer: Choice, needs: Needs) -> Result<Self, ChurnError> {
        let mut built = build(indexer, &needs)?;
        Ok(Self {
            indexer,
            needs,
            lane: built.events.remove(0),
            reader: built.queries.remove(0),
            figures: built.figures,
            mirror: Mirror::new(needs.workers),
            prompts: VecDeque::new(),
            event_block_ops: 0,
        })
    }

    fn play(&mut self, tape: &Tape) {
        for operation in &tape.operations {
            let step = tape.step(operation);
            match step {
                Step::Lookup(query) => {
                    self.prompts.truncate(PROMPTS - 1);
                    self.prompts.push_front(query.to_vec());
                    continue;
                }
                Step::Store { parent, names, contents } => self.lane.store(operation.worker, parent, names, contents),
                Step::Remove(names) => self.lane.remove(operation.worker, names),
                Step::Clear => self.lane.clear(operation.worker),
            }
            self.mirror.apply(operation.worker, step);
            self.event_block_ops += operation.block_ops();
        }
    }

    /// Builds the fresh one, looks up in both in turn, and drops it again.
    fn sample(&mut self, hours: f64) -> Result<Sample, ChurnError> {
        let mut fresh = build(self.indexer, &self.needs)?;
        self.mirror.fill(&mut *fresh.events[0]);
        let fresh_reader = &mut *fresh.queries[0];
        let (mut of_churned, mut of_fresh) = (Nanoseconds::new(), Nanoseconds::new());
        let (mut ours, mut theirs, mut differing) = (Vec::new(), Vec::new(), 0);
        for query in &self.prompts {
            let sorted = |reader: &mut dyn QueryLane, out: &mut Vec<HolderDepth>| {
                out.clear();
                reader.lookup(query, out);
                out.sort_unstable();
            };
            sorted(&mut *self.reader, &mut ours);
            sorted(fresh_reader, &mut theirs);
            differing += u64::from(ours != theirs);
        }
        for round in 0..ROUNDS {
            for (i, query) in self.prompts.iter().enumerate() {
                // Who comes second finds the prompt in the cache: they take turns.
                let mut times = [0; 2];
                for side in [(i + round) % 2, (i + round + 1) % 2] {
                    times[side] = match side {
                        0 => timed(&mut *self.reader, query, &mut ours),
                        _ => timed(fresh_reader, query, &mut theirs),
                    };
                }
                of_churned.record(times[0]);
                of_fresh.record(times[1]);
            }
        }
        Ok(Sample {
            hours,
            memberships: self.mirror.memberships(),
            event_block_ops: self.event_block_ops,
            churned: Side { lookup: of_churned.quantiles(), figures: (self.figures)() },
            fresh: Side { lookup: of_fresh.quantiles(), figures: (fresh.figures)() },
            differing,
        })
    }
}

fn timed(reader: &mut dyn QueryLane, query: &[ContentHash], out: &mut Vec<HolderDepth>) -> u64 {
    out.clear();
    let begun = Instant::now();
    reader.serve(query, out);
    begun.elapsed().as_nanos() as u64
}

/// The terminal's table.
pub fn table(result: &ChurnResult) -> Table {
    let mut table = plain_table(&[
        "hours",
        "event blocks",
        "memberships",
        "runs",
        "fresh",
        "bytes / membership",
        "fresh",
        "lookup p50",
        "fresh",
        "lookup p99",
        "fresh",
        "differ",
    ]);
    for s in &result.samples {
        let figure = |side: &Side, name: &str| side.figures.get(name).map_or(String::from("-"), |&v| amount(v as f64));
        let bytes = |side: &Side| {
            let bytes = side.figures.get("bytes in use").map(|&b| b as f64 / s.memberships.max(1) as f64);
            bytes.map_or(String::from("-"), |b| format!("{b:.2}"))
        };
        table.add_row([
            format!("{:.1}", s.hours),
            amount(s.event_block_ops as f64),
            amount(s.memberships as f64),
            figure(&s.churned, "runs"),
            figure(&s.fresh, "runs"),
            bytes(&s.churned),
            bytes(&s.fresh),
            time(s.churned.lookup.p50 as f64),
            time(s.fresh.lookup.p50 as f64),
            time(s.churned.lookup.p99 as f64),
            time(s.fresh.lookup.p99 as f64),
            s.differing.to_string(),
        ]);
    }
    table
}
