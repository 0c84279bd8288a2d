//! Our index beside the published ones, in one process, on the same work.
//!
//! `cargo run --release -p kvatlas-benches --features peers --bin peers -- --help`. See `benches/README.md`.

mod after_churn;
mod cell;
mod churn;
mod contender;
mod exact;
mod shapes;
mod whole_table;

use clap::Parser;
use contender::Kind;
use kvatlas_benches::memory::Counting;
use kvatlas_benches::provenance::Provenance;
use kvatlas_benches::results::{RunFile, print};
use kvatlas_corpora::{Sharing, Synthetic, Trace};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

#[derive(Parser)]
#[command(about = "Our index beside the published ones")]
struct Cli {
    /// Cells to run: SHARING-NAMES-TOKENS with SHARING high, standard or low, NAMES same or random, TOKENS 128, 16 or 1, and
    /// any of -one (one-hash removals) and -best-fill (24,000 blocks a worker at 128 tokens); or holders, root, prompt, exact, after-churn.
    #[arg(long, value_delimiter = ',', default_value = "high-same-128,low-same-128")]
    cell: Vec<String>,
    /// Every cell of the gate table, each in a process of its own and with the indexes that the table has there.
    #[arg(long, conflicts_with_all = ["cell", "indexes"])]
    all: bool,
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
    /// Folder for what was measured: a JSON file for each cell.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match if cli.all { whole_table::run(&cli) } else { run(&cli) } {
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
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (mut gates, mut short) = (0, 0);
    for name in &cli.cell {
        println!("\n== {name}");
        let provenance = Provenance::of_this_process(trace.sha256().to_owned(), cores)?;
        let begun = Instant::now();
        let mut file = RunFile { cell: name.clone(), provenance, took_s: 0, outcome: None, rows: Vec::new() };
        measure(cli, &trace, &mut file)?;
        file.took_s = begun.elapsed().as_secs();
        let rows = file.rows();
        if name != "exact" {
            print(&rows);
        }
        gates += rows.iter().filter(|row| row.gate.is_some()).count();
        short += rows.iter().filter(|row| row.passed == Some(false)).count();
        if let Some(folder) = &cli.out {
            file.save(folder)?;
        }
    }
    println!("\n{gates} gates, {short} short");
    Ok(())
}

/// Runs the file's cell.
fn measure(cli: &Cli, trace: &Trace, file: &mut RunFile) -> Result<(), Failed> {
    file.rows = match file.cell.as_str() {
        "holders" => shapes::holders(&cli.indexes, cli.quick),
        "root" => shapes::root(&cli.indexes, cli.quick),
        "prompt" => shapes::prompt(),
        "exact" => exact::run(trace, &cli.indexes, cli.quick)?,
        "after-churn" => {
            let mut rows = after_churn::run(trace, Sharing::High, cli.hours, cli.quick)?;
            rows.extend(after_churn::run(trace, Sharing::Low, cli.hours, cli.quick)?);
            rows
        }
        name => {
            let outcome = churn::run(&cell::of_name(name, cli.quick, cli.windows)?, trace, &cli.indexes)?;
            println!(
                "{} memberships, {:.2} holders a block; ns a block, ns a lookup, bytes",
                outcome.memberships, outcome.holders_per_block
            );
            for index in outcome.indexes.iter().filter(|index| index.refused > 0) {
                println!("{} refused {} stores", index.name, index.refused);
            }
            file.outcome = Some(outcome);
            Vec::new()
        }
    };
    Ok(())
}
