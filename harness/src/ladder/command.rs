//! The command line of `ladder`: what the operator wrote, what it comes to, and the four modes.

use super::campaign::{Campaign, Listener, Plan};
use super::child::{ChildError, Children};
use super::churn::{self, ChurnError};
use super::corpus::{CorpusArguments, CorpusError, CorpusFacts, in_range};
use super::exact;
use super::layout::{Layout, LayoutError};
use super::memory;
use super::pace::Arrivals;
use super::report::{self, ChurnFacts, Findings, Page, Report};
use super::tape::Tape;
use super::trial::TrialError;
use crate::indexers::{Choice, Form};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use kvatlas_benches::provenance::Provenance;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Points at which `--mode exact` compares.
const EXACT_POINTS: usize = 20;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Rates and latencies, open loop.
    Ladder,
    /// Bytes for each membership.
    Memory,
    /// Hours of virtual churn against a fresh indexer with the same content.
    Churn,
    /// Every answer against the oracle.
    Exact,
}

/// `kvatlas-harness ladder`.
#[derive(Clone, Debug, Args)]
pub struct LadderArguments {
    /// What is measured.
    #[arg(long, default_value = "ladder", value_enum)]
    mode: Mode,
    /// About two minutes on two cores: small caches, short windows, few trials. Says whether everything works and roughly how
    /// far indexers are apart.
    #[arg(long)]
    quick: bool,
    /// Indexers, in turn. The first is also the A/A control.
    #[arg(long, value_enum, value_delimiter = ',')]
    indexer: Vec<Choice>,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    corpus: CorpusArguments,
    /// File of layouts, instead of those built in (harness/layouts.toml).
    #[arg(long, value_name = "FILE")]
    layouts: Option<PathBuf>,
    /// Which cores issue, look up and apply events.
    #[arg(long, default_value = "two", value_name = "NAME")]
    layout: String,
    /// Leave threads where the system puts them.
    #[arg(long)]
    no_pin: bool,
    /// How operations are spread over the window.
    #[arg(long, default_value = "trace", value_enum)]
    arrivals: Arrivals,
    /// Window of a trial [1000; quick: 250].
    #[arg(long, value_name = "MS")]
    window_ms: Option<u64>,
    /// Usable trials of each arm of a series [20; quick: 3].
    #[arg(long, value_name = "N")]
    trials: Option<usize>,
    /// Disturbed trials that each arm of a series may replace [as many as trials; quick: 1].
    #[arg(long, value_name = "N")]
    replacements: Option<usize>,
    /// Loads, as parts of the slowest indexer's sustained rate [0.1,0.25,0.5,0.75,1; quick: 0.25,0.5,1].
    #[arg(long, value_delimiter = ',', value_name = "SHARES")]
    loads: Vec<f64>,
    /// Compare so many prompts with the oracle after every trial (exact mode: at every point, 500 without it).
    #[arg(long, default_missing_value = "200", num_args = 0..=1, value_name = "PROMPTS")]
    check: Option<usize>,
    /// Virtual hours of churn.
    #[arg(long, default_value_t = 24.0)]
    hours: f64,
    /// Comparisons with a fresh indexer over these hours.
    #[arg(long, default_value_t = 8)]
    samples: u32,
    /// Ends in so many minutes after the corpus, whatever is left: a quarter for capacities, then searches up to seven tenths, then
    /// the ladder [no end; quick: 2].
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Folder for the report.
    #[arg(long, default_value = "target/ladder", value_name = "DIR")]
    out: PathBuf,
    /// Name of the report's files, without the ending [the mode's].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Why the ladder ended.
#[derive(Debug, thiserror::Error)]
pub enum LadderError {
    /// The layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The corpus.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// A trial.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// A trial in this process.
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// Churn.
    #[error(transparent)]
    Churn(#[from] ChurnError),
    /// A file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A report.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Runs the ladder. `false` if an answer is wrong where none may be.
pub fn run(mut arguments: LadderArguments) -> Result<bool, LadderError> {
    arguments.check()?;
    if arguments.indexer.is_empty() {
        arguments.indexer = Choice::defaults();
    }
    if arguments.quick {
        let corpus = &mut arguments.corpus;
        corpus.worker_blocks = corpus.worker_blocks.or(Some((1 << 18) / corpus.block_tokens.max(1)));
        corpus.block_ops = corpus.block_ops.min(QUICK_BLOCK_OPS);
    }
    match arguments.mode {
        Mode::Ladder => ladder(&arguments),
        Mode::Memory => weigh(&arguments),
        Mode::Churn => churned(&arguments),
        Mode::Exact => compared(&arguments),
    }
}

/// Seconds of a quick run, after its corpus.
const QUICK_S: f64 = 120.0;
/// Block operations of a quick run, in millions.
const QUICK_BLOCK_OPS: f64 = 16.0;

impl LadderArguments {
    /// Refuses numbers that nothing can be measured with, before the corpus is made.
    fn check(&self) -> Result<(), CorpusError> {
        if let Some(minutes) = self.minutes {
            in_range("minutes", minutes, 0.0, 1e6)?;
        }
        self.loads.iter().try_for_each(|&load| in_range("loads", load, 0.0001, 100.0).map(drop))?;
        in_range("hours", self.hours, 0.001, 100_000.0)?;
        Ok(())
    }

    fn plan(&self, layout: Layout) -> Plan {
        let quick = |quick: usize, usual: usize| if self.quick { quick } else { usual };
        let trials = self.trials.unwrap_or(quick(3, 20)).max(1);
        let loads = if self.quick && self.loads.is_empty() { vec![0.25, 0.5, 1.0] } else { self.loads.clone() };
        Plan {
            indexers: self.indexer.clone(),
            layout,
            pin: true,
            arrivals: self.arrivals,
            window_ms: self.window_ms.unwrap_or(quick(250, 1000) as u64).clamp(1, 3_600_000),
            trials,
            replacements_max: self.replacements.unwrap_or(quick(1, trials)),
            loads,
            form: self.form,
            check_prompts: self.check.unwrap_or(0),
            time_s: self.minutes.map(|minutes| minutes * 60.0).or(self.quick.then_some(QUICK_S)),
        }
    }
}

fn ladder(arguments: &LadderArguments) -> Result<bool, LadderError> {
    let begun = Instant::now();
    let mut pin = !arguments.no_pin;
    // Listed before the first pin: a pinned process sees one core.
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let layout = Layout::load(arguments.layouts.as_deref(), &arguments.layout)?;
    match layout.check_cores(&arguments.layout, &cores) {
        // A quick run is to work everywhere; the report says that nothing was pinned.
        Err(_) if arguments.quick => pin = false,
        refused if pin => refused?,
        _ => {}
    }
    let plan = Plan { pin, ..arguments.plan(layout) };
    let folder = tempfile::tempdir()?;
    let (tape, corpus, hash) = record(&arguments.corpus, folder.path())?;
    let provenance = Provenance::of_this_process(hash, cores.len())?;
    let bars = Bars::new();
    let runner = Children::new(&tape)?;
    let measured = Campaign { plan: &plan, runner: &runner, listener: &bars }.run()?;
    bars.finish();
    let took_s = begun.elapsed().as_secs_f64();
    let report = Report { provenance, corpus, plan, layout_name: arguments.layout.clone(), took_s, measured };
    let files = publish(arguments, "ladder", &report, &report::page(&report))?;
    writeln!(io::stdout(), "{}report: {files}", report::table(&report))?;
    Ok(report.checked().is_none_or(|(_, differing)| differing == 0))
}

fn weigh(arguments: &LadderArguments) -> Result<bool, LadderError> {
    let begun = Instant::now();
    let folder = tempfile::tempdir()?;
    let (tape, corpus, hash) = record(&arguments.corpus, folder.path())?;
    let provenance = Provenance::of_this_process(hash, cores())?;
    let bars = Bars::new();
    let mut results = Vec::new();
    for &indexer in &arguments.indexer {
        bars.part(&format!("weighing {}", indexer.name()), Some(1));
        results.push(memory::weigh_in_child(indexer, &tape)?);
        bars.trial("");
    }
    bars.finish();
    let findings = Findings { provenance, corpus, took_s: begun.elapsed().as_secs_f64(), results };
    let report = publish(arguments, "memory", &findings, &findings.page())?;
    writeln!(io::stdout(), "{}\nreport: {report}", memory::table(&findings.results))?;
    Ok(true)
}

fn churned(arguments: &LadderArguments) -> Result<bool, LadderError> {
    let begun = Instant::now();
    let (trace, schedule) = arguments.corpus.schedule()?;
    let provenance = Provenance::of_this_process(trace.sha256(), cores())?;
    let corpus = ChurnFacts { parameters: arguments.corpus.parameters()?, schedule };
    let mut results = Vec::new();
    for &indexer in &arguments.indexer {
        let bar = share_bar(&format!("churn of {}", indexer.name()));
        let hours = arguments.hours;
        let result = churn::run(indexer, arguments.form, &arguments.corpus, hours, arguments.samples, |hour| {
            bar.set_position((hour / hours * 1000.0) as u64);
        })?;
        bar.finish_and_clear();
        writeln!(io::stdout(), "{}\n{}", indexer.name(), churn::table(&result))?;
        results.push(result);
    }
    let findings = Findings { provenance, corpus, took_s: begun.elapsed().as_secs_f64(), results };
    writeln!(io::stdout(), "report: {}", publish(arguments, "churn", &findings, &findings.page())?)?;
    Ok(findings.results.iter().flat_map(|r| &r.samples).all(|s| s.differing == 0))
}

fn compared(arguments: &LadderArguments) -> Result<bool, LadderError> {
    let begun = Instant::now();
    let folder = tempfile::tempdir()?;
    let (tape, corpus, hash) = record(&arguments.corpus, folder.path())?;
    let provenance = Provenance::of_this_process(hash, cores())?;
    let tape = Tape::load(&tape)?;
    let bars = Bars::new();
    bars.part("comparing", Some(EXACT_POINTS as u64));
    let prompts = arguments.check.unwrap_or(500);
    let results = exact::run(&arguments.indexer, arguments.form, &tape, EXACT_POINTS, prompts, |_| bars.trial(""))?;
    bars.finish();
    let findings = Findings { provenance, corpus, took_s: begun.elapsed().as_secs_f64(), results };
    let report = publish(arguments, "exact", &findings, &findings.page())?;
    writeln!(io::stdout(), "{}\nreport: {report}", exact::table(&findings.results))?;
    Ok(exact::all_exact(&findings.results))
}

/// Cores that this process may use.
fn cores() -> usize {
    core_affinity::get_core_ids().map_or(0, |cores| cores.len())
}

/// Writes what was found and its page; where they are.
fn publish(arguments: &LadderArguments, mode: &str, value: &impl Serialize, page: &str) -> Result<String, LadderError> {
    std::fs::create_dir_all(&arguments.out)?;
    let name = arguments.name.as_deref().unwrap_or(mode);
    let [html, json] = ["html", "json"].map(|ending| arguments.out.join(format!("{name}.{ending}")));
    std::fs::write(&html, page)?;
    let mut file = io::BufWriter::new(std::fs::File::create(&json)?);
    serde_json::to_writer(&mut file, value)?;
    file.write_all(b"\n")?;
    file.flush()?;
    Ok(format!("{} and {}", html.display(), json.display()))
}

/// Records the corpus into a folder; returns the tape's path, what it is, and its hash.
fn record(corpus: &CorpusArguments, folder: &Path) -> Result<(PathBuf, CorpusFacts, String), LadderError> {
    let bar = share_bar("corpus");
    let (tape, facts) = corpus.record(|share| bar.set_position((share * 1000.0) as u64))?;
    let path = folder.join("tape");
    let hash = tape.save(&path)?;
    bar.finish_and_clear();
    Ok((path, facts, hash))
}

fn share_bar(words: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:28} {bar:40} {percent:>3}% {elapsed}").expect("a constant template");
    let bar = ProgressBar::new(1000).with_style(style).with_message(words.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Progress of a campaign: one bar, replaced at each part.
struct Bars(std::cell::RefCell<ProgressBar>);

impl Bars {
    fn new() -> Self {
        Self(std::cell::RefCell::new(ProgressBar::hidden()))
    }

    fn finish(&self) {
        self.0.borrow().finish_and_clear();
    }
}

impl Listener for Bars {
    fn part(&self, words: &str, trials: Option<u64>) {
        self.finish();
        let template = match trials {
            Some(_) => "{prefix:28} {bar:40} {pos}/{len} {elapsed} {msg}",
            None => "{prefix:28} trial {pos} {elapsed} {msg}",
        };
        let style = ProgressStyle::with_template(template).expect("a constant template");
        let bar = trials.map_or_else(ProgressBar::no_length, ProgressBar::new);
        *self.0.borrow_mut() = bar.with_style(style).with_prefix(words.to_owned());
    }

    fn trial(&self, words: &str) {
        let bar = self.0.borrow();
        bar.set_message(words.to_owned());
        bar.inc(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        ladder: LadderArguments,
    }

    #[test]
    fn numbers_that_nothing_can_be_measured_with_are_refused() {
        let flags = ["--minutes=nan", "--minutes=-1", "--loads=0.5,nan", "--loads=0", "--hours=0", "--requests=0"];
        for flag in flags {
            let line = Line::try_parse_from(["ladder", "--mode", "exact", flag]).unwrap_or_else(|e| panic!("{e}"));
            let refused = run(line.ladder).map_err(|error| error.to_string());
            let name = flag.split_once('=').map_or(flag, |(name, _)| name);
            assert!(refused.as_ref().is_err_and(|reason| reason.starts_with(name)), "{flag}: {refused:?}");
        }
    }
}
