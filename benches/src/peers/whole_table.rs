//! Every cell of the gate table, each in a fresh process: no cell sees another one's heap, and one that fails leaves the rest.

use crate::{Cli, Failed};
use kvatlas_benches::results::CELLS;
use std::process::Command;
use std::time::Instant;

/// Runs them one after the other.
pub fn run(cli: &Cli) -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let begun = Instant::now();
    let mut failed = Vec::new();
    let cells = || CELLS.iter().filter(|cell| cell.command == "peers");
    for (number, cell) in cells().enumerate() {
        let mut command = Command::new(&program);
        let indexes: Vec<&str> = std::iter::once("kvatlas").chain(cell.rivals.iter().copied()).collect();
        command.args(["--cell", cell.name, "--indexes", &indexes.join(","), "--hours", &cli.hours.to_string()]);
        for (flag, path) in [("--trace", &cli.trace), ("--out", &cli.out)] {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        if cli.quick {
            command.arg("--quick");
        }
        if let Some(windows) = cli.windows {
            command.args(["--windows", &windows.to_string()]);
        }
        let cell_begun = Instant::now();
        if !command.status()?.success() {
            failed.push(cell.name);
        }
        let (took, all) = (cell_begun.elapsed().as_secs(), begun.elapsed().as_secs());
        println!("{} took {took} s; {} of {} cells in {all} s", cell.name, number + 1, cells().count());
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("cells that failed: {}", failed.join(", ")).into()) }
}
