//! Our index beside the published ones, in one process, on the same work.
//!
//! `cargo run --release -p kvatlas-benches --features peers --bin peers -- --help`. See `benches/README.md`.

mod after_churn;
mod churn;
mod contender;
mod exact;
mod gates;
mod shapes;

use churn::Cell;
use clap::Parser;
use contender::Kind;
use gates::Row;
use kvatlas_benches::memory::Counting;
use kvatlas_corpora::{Names, Parameters, Sharing, Synthetic, Trace};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

#[derive(Parser)]
#[command(about = "Our index beside the published ones")]
struct Cli {
    /// Cells to run: SHARING-NAMES-TOKENS with SHARING high, standard or low, NAMES same or random, TOKENS 128, 16 or 1, and
    /// any of -one (one-hash removals) and -best-fill (24,000 blocks a worker at 128 tokens); or holders, root, prompt, exact, after-churn.
    #[arg(long, value_delimiter = ',', default_value = "high-same-128,low-same-128")]
    cell: Vec<String>,
    /// Indexes that take part.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "kvatlas,kv-index,crtc,control")]
    indexes: Vec<Kind>,
    /// Trace file of the Mooncake form; made up when left out.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// A sixteenth of the pools and a few windows.
    #[arg(long)]
    quick: bool,
    /// Hours of the corpus's own time that after-churn plays.
    #[arg(long, default_value_t = 24)]
    hours: u64,
    /// Windows of each churn cell.
    #[arg(long)]
    windows: Option<usize>,
    /// Where rows and raw samples go, as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
}

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failed> {
    let trace = match &cli.trace {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Trace::read(std::io::BufReader::new(file))?
        }
        None => Trace::synthetic(&Synthetic::default()),
    };
    let mut all: Vec<Row> = Vec::new();
    let mut raw = Vec::new();
    for name in &cli.cell {
        println!("\n== {name}");
        let rows = match name.as_str() {
            "holders" => shapes::holders(&cli.indexes, cli.quick),
            "root" => shapes::root(&cli.indexes, cli.quick),
            "prompt" => shapes::prompt(),
            "exact" => exact::run(&trace, &cli.indexes, cli.quick)?,
            "after-churn" => {
                let mut rows = after_churn::run(&trace, Sharing::High, cli.hours, cli.quick)?;
                rows.extend(after_churn::run(&trace, Sharing::Low, cli.hours, cli.quick)?);
                rows
            }
            _ => {
                let outcome = churn::run(&cell(name, cli)?, &trace, &cli.indexes)?;
                println!(
                    "{} memberships, {:.2} holders a block; ns a block, ns a lookup, bytes",
                    outcome.memberships, outcome.holders_per_block
                );
                let rows = gates::rows(&outcome);
                raw.push(serde_json::to_value(&outcome)?);
                rows
            }
        };
        if name != "exact" {
            gates::print(&rows);
        }
        all.extend(rows);
    }
    let short = all.iter().filter(|row| row.passed == Some(false)).count();
    println!("\n{} gates, {short} short", all.iter().filter(|row| row.gate.is_some()).count());
    if let Some(path) = &cli.out {
        let command: Vec<String> = std::env::args().skip(1).collect();
        let text = json!({
            "command": command,
            "trace_sha256": trace.sha256(),
            "clock_ns": kvatlas_benches::sampling::clock_ns(),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "rows": all,
            "cells": raw,
        });
        std::fs::write(path, serde_json::to_string(&text)?)?;
    }
    Ok(())
}

/// The churn cell of a name.
fn cell(name: &str, cli: &Cli) -> Result<Cell, Failed> {
    let unknown = || format!("unknown cell {name}");
    let mut words = name.split('-');
    let sharing = match words.next() {
        Some("high") => Sharing::High,
        Some("standard") => Sharing::Standard,
        Some("low") => Sharing::Low,
        _ => return Err(unknown().into()),
    };
    let names = match words.next() {
        Some("same") => Names::Same,
        Some("random") => Names::Random,
        _ => return Err(unknown().into()),
    };
    let tokens: u32 = words.next().and_then(|tokens| tokens.parse().ok()).ok_or_else(unknown)?;
    let mut parameters = Parameters::standard(tokens, sharing, names);
    if name.contains("-one") {
        parameters.removal_names_max = 1;
    }
    if name.contains("-best-fill") {
        parameters.blocks_per_worker = parameters.blocks_per_worker / 256 * 375;
    }
    if cli.quick {
        parameters.blocks_per_worker /= 16;
    }
    let requests = match (sharing, tokens) {
        (Sharing::High, 128) => 60,
        (Sharing::Standard, 128) => 300,
        (Sharing::Low, 128) => 1500,
        (Sharing::High, 16) => 20,
        (Sharing::Standard, 16) => 80,
        (Sharing::Low, 16) => 400,
        (Sharing::High, _) => 20,
        _ => 60,
    };
    let windows = cli.windows.unwrap_or(if cli.quick { 8 } else { 24 });
    Ok(Cell { name: name.to_owned(), parameters, window_requests: requests, windows, busy_windows: windows / 2 })
}
