//! The command line of `decide`.

use super::corpus::CorpusSpec;
use super::fleet::Inside;
use super::run::{Shares, TrialFigures, TrialSpec, orders, shares, trial};
use crate::ladder::statistics::interval;
use crate::simulate::policy_named;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use kvatlas_service::routing::{ExpectedTtftSettings, PolicyName, RoutingSettings, Timing};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

/// `kvatlas-harness decide`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct DecideArguments {
    /// Fleets, by their number of workers.
    #[arg(long, value_delimiter = ',', default_value = "128,1024", value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: Vec<u32>,
    /// Policies, in turn.
    #[arg(long, value_delimiter = ',', default_value = "cache_aware,expected_ttft,least_load", value_parser = policy_named)]
    #[serde(skip)]
    policy: Vec<PolicyName>,
    /// Decisions a second.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Seconds of a trial.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Trials of each policy, interleaved.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    trials: u32,
    /// (worker, block) pairs of the index, about.
    #[arg(long, default_value_t = 940_000)]
    memberships: u64,
    /// Tokens in a block.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    block_size: u32,
    /// Different prompts.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompts: u32,
    /// Leave threads where the system puts them.
    #[arg(long)]
    no_pin: bool,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    json: Option<PathBuf>,
}

/// One policy on one fleet.
#[derive(Clone, Debug, Serialize)]
struct Arm {
    workers: u32,
    memberships: u64,
    policy: &'static str,
    shares: Shares,
    trials: Vec<TrialFigures>,
}

#[derive(Serialize)]
struct Report<'a> {
    arguments: &'a DecideArguments,
    arms: &'a [Arm],
}

/// Measures and prints a table. Fails where a fleet cannot be made or a file not written.
pub fn decide(arguments: &DecideArguments) -> Result<(), Box<dyn Error>> {
    let bar =
        ProgressBar::new(arguments.workers.len() as u64 * u64::from(arguments.trials) * arguments.policy.len() as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} trials, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut arms = Vec::new();
    for workers in &arguments.workers {
        arms.extend(arguments.fleet(*workers, &bar)?);
    }
    bar.finish_and_clear();
    writeln!(io::stdout().lock(), "{}", table(&arms))?;
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&Report { arguments, arms: &arms })?)?;
    }
    Ok(())
}

impl DecideArguments {
    fn fleet(&self, workers: u32, bar: &ProgressBar) -> Result<Vec<Arm>, Box<dyn Error>> {
        let expected_ttft = ExpectedTtftSettings { timing: Some(Timing::CLASS_8B), ..ExpectedTtftSettings::default() };
        let spec = CorpusSpec {
            workers,
            block_size: self.block_size as usize,
            memberships: self.memberships,
            prompts: self.prompts as usize,
            seed: 1,
        };
        let inside = Inside::new(&spec, RoutingSettings { expected_ttft, ..RoutingSettings::default() })?;
        inside.tell_loads(&mut StdRng::seed_from_u64(0));
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let cores = match cores[..] {
            [first, second, ..] if !self.no_pin => Some((first.id, second.id)),
            _ => None,
        };
        let memberships = inside.memberships;
        let arm = |policy: &PolicyName| {
            let shares = shares(&inside, &orders(&inside, *policy));
            Arm { workers, memberships, policy: policy.name(), shares, trials: Vec::new() }
        };
        let mut arms: Vec<Arm> = self.policy.iter().map(arm).collect();
        for _ in 0..self.trials {
            for (policy, arm) in self.policy.iter().zip(&mut arms) {
                let spec = TrialSpec { rate: self.rate, seconds: self.seconds, policy: *policy, cores };
                arm.trials.push(trial(&inside, &orders(&inside, *policy), &spec));
                bar.inc(1);
            }
        }
        Ok(arms)
    }
}

fn table(arms: &[Arm]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "workers",
        "policy",
        "mean us",
        "hash",
        "lookup",
        "rest",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "due to done p99 us",
        "refused",
        "overflow",
    ]);
    for arm in arms {
        let median = |of: &dyn Fn(&TrialFigures) -> f64| {
            let all: Vec<f64> = arm.trials.iter().map(of).collect();
            interval(&all).map_or((0.0, 0.0, 0.0), |i| (i.median / 1e3, i.low / 1e3, i.high / 1e3))
        };
        let spread = |(median, low, high): (f64, f64, f64)| format!("{median:.1} [{low:.1}, {high:.1}]");
        let (mean, ..) = median(&|t| t.service.mean);
        let (hash, lookup) = (arm.shares.hash / 1e3, arm.shares.lookup / 1e3);
        let sum = |of: fn(&TrialFigures) -> u64| arm.trials.iter().map(of).sum::<u64>().to_string();
        table.add_row([
            arm.workers.to_string(),
            arm.policy.to_owned(),
            format!("{mean:.2}"),
            format!("{hash:.2}"),
            format!("{lookup:.2}"),
            format!("{:.2}", mean - hash - lookup),
            spread(median(&|t| t.service.p50 as f64)),
            spread(median(&|t| t.service.p99 as f64)),
            spread(median(&|t| t.service.p999 as f64)),
            spread(median(&|t| t.scheduled_to_done.p99 as f64)),
            sum(|t| t.refused),
            sum(|t| t.overflow),
        ]);
    }
    table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
