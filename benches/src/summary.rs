//! The gate table of a run of `peers --all`, made of its files. Needs neither the published indexes nor a trace.

use clap::Parser;
use kvatlas_benches::results::{RunFile, into_readme, markdown};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Makes the gate table of benches/README.md from the files of a run")]
struct Cli {
    /// Folder of the run's files.
    #[arg(default_value = "harness/results")]
    results: PathBuf,
    /// Puts the table into this file, between its marks, instead of printing it.
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Box<dyn std::error::Error>> {
    let table = markdown(&RunFile::load_all(&cli.results)?);
    let Some(path) = &cli.readme else {
        print!("{table}");
        return Ok(());
    };
    let readme = std::fs::read_to_string(path)?;
    let made = into_readme(&readme, &table).ok_or_else(|| format!("{} has no marks for the table", path.display()))?;
    Ok(std::fs::write(path, made)?)
}
