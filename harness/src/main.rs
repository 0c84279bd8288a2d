//! `kvatlas-harness`.

use clap::{Parser, Subcommand};
use kvatlas_harness::decide::{DecideArguments, decide};
use kvatlas_harness::indexers::Choice;
use kvatlas_harness::ladder::counting::Counting;
use kvatlas_harness::ladder::{LadderArguments, child, memory, tape};
use kvatlas_harness::simulate::{SimulateArguments, simulate};
use kvatlas_harness::verify::{Report, Rule, verify};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The workbench of KV Atlas.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play recorded engine streams through decoder, cursor, normalizer and index, and compare with the engine's truth.
    ///
    /// Exits with 1 on any difference, with 2 if a file cannot be played.
    Verify {
        /// Recordings, each with its `.json` beside it. Without any: all of corpora/recordings.
        files: Vec<PathBuf>,
    },
    /// Measure indexers side by side: an open-loop throughput ladder on pinned cores, memory, churn, exactness.
    ///
    /// Exits with 1 if an answer is wrong where none may be, with 2 if it cannot run.
    Ladder(Box<LadderArguments>),
    /// Play a trace through policies on a fleet of mock engines in virtual time.
    Simulate(Box<SimulateArguments>),
    /// Measure what a routing decision costs: open loop on two pinned cores, hashing and lookup included.
    Decide(Box<DecideArguments>),
    /// One trial, asked for on standard input: what `ladder` starts.
    #[command(hide = true)]
    LadderTrial {
        /// The tape.
        tape: PathBuf,
    },
    /// Weighs one indexer: what `ladder --mode memory` starts.
    #[command(hide = true)]
    LadderMemory {
        /// The tape.
        tape: PathBuf,
        /// The indexer.
        #[arg(value_enum)]
        indexer: Choice,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Verify { files } => run(files).map(|exact| u8::from(!exact)),
        Command::Ladder(arguments) => {
            kvatlas_harness::ladder::run(*arguments).map(|exact| u8::from(!exact)).map_err(Into::into)
        }
        Command::Simulate(arguments) => simulate(&arguments).map(|()| 0).map_err(Into::into),
        Command::Decide(arguments) => decide(&arguments).map(|()| 0),
        Command::LadderTrial { tape } => child::answer(&tape).map_err(Into::into),
        Command::LadderMemory { tape, indexer } => weigh(&tape, indexer).map(|()| 0),
    };
    result.map_or_else(
        |error| {
            eprintln!("kvatlas-harness: {error}");
            ExitCode::from(2)
        },
        ExitCode::from,
    )
}

fn weigh(path: &Path, indexer: Choice) -> Result<(), Box<dyn std::error::Error>> {
    let result = memory::weigh(indexer, &tape::Tape::load(path)?)?;
    Ok(serde_json::to_writer(io::stdout().lock(), &result)?)
}

fn run(mut files: Vec<PathBuf>) -> Result<bool, Box<dyn std::error::Error>> {
    if files.is_empty() {
        files = recordings()?;
    }
    let mut out = io::stdout().lock();
    let mut reports = Vec::new();
    for file in &files {
        let report = verify(file)?;
        writeln!(out, "{report}")?;
        reports.push(report);
    }
    writeln!(out, "{}", total(&reports))?;
    Ok(reports.iter().all(Report::is_exact))
}

/// Every recording of the corpus: below the working directory, or else where this program was built.
fn recordings() -> io::Result<Vec<PathBuf>> {
    let here = Path::new("corpora/recordings");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpora/recordings");
    let folder = if here.is_dir() { here } else { &built };
    let entries = std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path()));
    let mut files: Vec<PathBuf> = entries.collect::<Result<_, _>>()?;
    files.retain(|f| f.extension().is_some_and(|e| e == "kvrec"));
    files.sort();
    Ok(files)
}

fn total(reports: &[Report]) -> String {
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let exact = reports.iter().filter(|r| r.is_exact()).count();
    format!(
        "{exact}/{} streams exact, checkpoints {}/{} probes {}/{}; below the engine's answer {}, above it {}, explained {}",
        reports.len(),
        sum(|r| r.checkpoints_equal),
        sum(|r| r.checkpoints),
        sum(|r| r.probes_equal),
        sum(|r| r.probes),
        sum(|r| r.probes_under),
        sum(|r| r.probes_over),
        sum(|r| r.count(Rule::WindowUpperBound) + r.count(Rule::ExtraKey)),
    )
}
