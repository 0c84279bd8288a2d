//! The command line of `simulate`.

use super::arrivals::{Arrival, ArrivalError, ArrivalSpec, arrivals, infinite_reuse};
use super::net::{Delay, NetSpec};
use super::table::{Arm, Mean, Row, Seeded, play};
use super::world::{Loads, WorldSpec};
use crate::engine::EngineSpec;
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use kvatlas_corpora::{Trace, TraceError};
use kvatlas_service::routing::{ExpectedTtftSettings, PolicyName, RoutingSettings, Timing};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// When requests of a trace arrive whose times are rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Times {
    /// As recorded: many at one instant.
    AsRecorded,
    /// Each drawn out of the three seconds that its time stands for.
    Spread,
}

/// `kvatlas-harness simulate`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct SimulateArguments {
    /// Requests, in the Mooncake form.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    trace: PathBuf,
    /// Which of them, as FROM..TO.
    #[arg(long, default_value = "0..4000", value_parser = rows)]
    rows: Range<usize>,
    /// The trace's times are divided by this.
    #[arg(long, default_value_t = 3.0)]
    speed: f64,
    /// When requests arrive.
    #[arg(long, default_value = "as-recorded", value_enum)]
    times: Times,
    /// Copies of the trace, each with prompts of its own.
    #[arg(long, default_value_t = 1)]
    copies: u32,
    /// Engines.
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Routers, which tell each other nothing.
    #[arg(long, default_value_t = 1)]
    routers: usize,
    /// Policies, in turn.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "round_robin,least_load,cache_aware,expected_ttft",
        value_parser = policy_named
    )]
    #[serde(skip)]
    policy: Vec<PolicyName>,
    /// Runs of each policy.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Milliseconds between two polls of loads. 0: they are pushed with every pass.
    #[arg(long, default_value_t = 1_000)]
    poll_ms: u64,
    /// Tokens in a block.
    #[arg(long, default_value_t = 64)]
    block_size: u32,
    /// Tokens of an engine's pool.
    #[arg(long, default_value_t = 676_128)]
    pool_tokens: u32,
    /// Microseconds of prefill a token.
    #[arg(long, default_value_t = 26.0)]
    kp_us: f64,
    /// The router's calibration, as a multiple of the engines' times.
    #[arg(long, default_value_t = 1.0)]
    calibration: f64,
    /// Microseconds that each message takes.
    #[arg(long, default_value_t = 0.0)]
    delay_us: f64,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    json: Option<PathBuf>,
}

/// Why a simulation was not made.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// How it is played.
    #[error(transparent)]
    Arrivals(#[from] ArrivalError),
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Output.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// A setting out of its range.
    #[error("{setting}: {reason}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

fn rows(text: &str) -> Result<Range<usize>, String> {
    let (from, to) = text.split_once("..").ok_or("FROM..TO expected")?;
    let number = |text: &str| text.parse::<usize>().map_err(|error| format!("{text:?}: {error}"));
    let (from, to) = (number(from)?, number(to)?);
    if from < to { Ok(from..to) } else { Err(format!("{from} is not below {to}")) }
}

/// The policy of a name, for command lines.
pub(crate) fn policy_named(name: &str) -> Result<PolicyName, String> {
    let known = || PolicyName::ALL.map(PolicyName::name).join(", ");
    PolicyName::from_name(name).ok_or_else(|| format!("none of {}", known()))
}

/// Everything about a simulation.
#[derive(Serialize)]
struct Report<'a> {
    trace_sha256: String,
    requests: usize,
    infinite_reuse: f64,
    arguments: &'a SimulateArguments,
    rows: Vec<Row>,
}

/// Plays the policies and prints their table.
pub fn simulate(arguments: &SimulateArguments) -> Result<(), SimulateError> {
    let file = |source| SimulateError::File { path: arguments.trace.clone(), source };
    let trace = Trace::read(BufReader::new(File::open(&arguments.trace).map_err(file)?))?;
    let world = arguments.world()?;
    let seeds = arguments.arrivals(&trace, &world)?;
    let arms = arguments.arms(&world);
    let bar = ProgressBar::new((arms.len() * seeds.len()) as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let rows = play(&world, arguments.routers, &arms, &seeds, || bar.inc(1));
    bar.finish_and_clear();
    let (requests, infinite_reuse) = (seeds[0].1.len(), infinite_reuse(&seeds[0].1));
    let mut out = io::stdout().lock();
    let (workers, seeds) = (world.workers, seeds.len());
    writeln!(out, "{requests} requests, {workers} workers, {seeds} seeds; infinite reuse {infinite_reuse:.3}")?;
    writeln!(out, "{}", table(&rows))?;
    if let Some(path) = &arguments.json {
        let report = Report { trace_sha256: trace.sha256(), requests, infinite_reuse, arguments, rows };
        let file = |source| SimulateError::File { path: path.clone(), source };
        let text = serde_json::to_vec_pretty(&report).map_err(|error| file(error.into()))?;
        std::fs::write(path, text).map_err(file)?;
    }
    Ok(())
}

impl SimulateArguments {
    fn world(&self) -> Result<WorldSpec, SimulateError> {
        let wrong = |setting, reason: &str| Err(SimulateError::Setting { setting, reason: reason.to_owned() });
        let counts = [
            ("--workers", self.workers as u64, 4096),
            ("--routers", self.routers as u64, 64),
            ("--seeds", self.seeds, 1000),
        ];
        for (setting, value, most) in counts {
            if !(1..=most).contains(&value) {
                return wrong(setting, &format!("{value} is not from 1 to {most}"));
            }
        }
        for (setting, value) in [("--kp-us", self.kp_us), ("--calibration", self.calibration)] {
            if !(1e-6..=1e6).contains(&value) {
                return wrong(setting, &format!("{value} is not from 0.000001 to 1000000"));
            }
        }
        if !(0.0..=1e9).contains(&self.delay_us) {
            return wrong("--delay-us", &format!("{} is not from 0 to 1000000000", self.delay_us));
        }
        let timing = Timing { kp: self.kp_us * 1e-6, pool_tokens: self.pool_tokens.into(), ..Timing::CLASS_8B };
        let blocks = self.pool_tokens / self.block_size.max(1);
        let engine = EngineSpec { block_size: self.block_size, blocks, timing, ..EngineSpec::CLASS_8B };
        let delay = Delay::always(self.delay_us);
        let loads = if self.poll_ms == 0 { Loads::Pushed } else { Loads::Polled(self.poll_ms) };
        let net = NetSpec { request: delay, token: delay, events: delay, load: delay };
        Ok(WorldSpec { workers: self.workers, engine, net, loads, seed: 0 })
    }

    /// The arrivals of each seed. As recorded, they are the same for all: seeds only draw ties.
    fn arrivals(&self, trace: &Trace, world: &WorldSpec) -> Result<Vec<Seeded>, SimulateError> {
        let spread_ms = if self.times == Times::Spread { 3_000 } else { 0 };
        let (rows, block_size) = (self.rows.clone(), self.block_size);
        let spec = ArrivalSpec { rows, speed: self.speed, spread_ms, copies: self.copies, block_size };
        let mut all = Vec::new();
        for seed in 0..self.seeds {
            let drawn: Arc<[Arrival]> = arrivals(trace, &spec, seed)?.into();
            let tokens = |a: &Arrival| a.prompt_tokens + a.output_tokens - 1;
            let longest = drawn.iter().map(tokens).max().unwrap_or(0);
            if longest.div_ceil(world.engine.block_size) > world.engine.blocks {
                let reason = format!("a request takes {longest}");
                return Err(SimulateError::Setting { setting: "--pool-tokens", reason });
            }
            all.push((seed, drawn));
        }
        Ok(all)
    }

    fn arms(&self, world: &WorldSpec) -> Vec<Arm> {
        let Timing { base, kp, ka, kd, kc, .. } = world.engine.timing;
        let off = self.calibration;
        let timing =
            Timing { base: base * off, kp: kp * off, ka: ka * off, kd: kd * off, kc: kc * off, ..world.engine.timing };
        let expected_ttft = ExpectedTtftSettings { timing: Some(timing), ..ExpectedTtftSettings::default() };
        let settings = RoutingSettings { expected_ttft, ..RoutingSettings::default() };
        self.policy.iter().map(|policy| Arm::policy(*policy, &settings)).collect()
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "policy",
        "TTFT ms",
        "p50",
        "p90",
        "p99",
        "TPOT p50",
        "goodput/s",
        "strict",
        "within",
        "reuse",
        "hit/oracle",
        "credit",
        "balance",
        "preempted",
    ]);
    for row in rows {
        let with = |mean: Mean, digits: usize| match mean.half {
            0.0 => format!("{:.digits$}", mean.mean),
            half => format!("{:.digits$} ±{half:.digits$}", mean.mean),
        };
        table.add_row([
            row.arm.clone(),
            with(row.mean(|f| f.ttft_ms.mean), 0),
            with(row.mean(|f| f.ttft_ms.p50), 0),
            with(row.mean(|f| f.ttft_ms.p90), 0),
            with(row.mean(|f| f.ttft_ms.p99), 0),
            with(row.mean(|f| f.tpot_ms.p50), 1),
            with(row.mean(|f| f.goodput), 2),
            with(row.mean(|f| f.goodput_strict), 2),
            with(row.mean(|f| f.within), 3),
            with(row.mean(|f| f.reuse), 3),
            with(row.mean(|f| f.hit_over_oracle), 3),
            with(row.mean(|f| f.credit_is_cached), 3),
            with(row.mean(|f| f.balance), 2),
            with(row.mean(|f| f.preemptions as f64), 0),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SimulateArguments,
    }

    fn world(more: &[&str]) -> Result<WorldSpec, String> {
        let line = ["simulate", "--trace", "t"].iter().chain(more);
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        line.arguments.world().map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(world(&[]).map(|world| (world.workers, world.loads)), Ok((8, Loads::Polled(1_000))));
        assert_eq!(world(&["--poll-ms", "0"]).map(|world| world.loads), Ok(Loads::Pushed));
        for (flag, value, expected) in [
            ("--workers", "0", "--workers: 0 is not from 1 to 4096"),
            ("--routers", "65", "--routers: 65 is not from 1 to 64"),
            ("--seeds", "0", "--seeds: 0 is not from 1 to 1000"),
            ("--kp-us", "0", "--kp-us: 0 is not from"),
            ("--calibration", "NaN", "--calibration: NaN is not from"),
            ("--delay-us", "2e9", "--delay-us: 2000000000 is not from"),
            ("--rows", "5..5", "5 is not below 5"),
            ("--policy", "fastest", "none of round_robin, random"),
        ] {
            let error = world(&[flag, value]).unwrap_err();
            assert!(error.contains(expected), "{flag} {value}: {error}");
        }
    }
}
