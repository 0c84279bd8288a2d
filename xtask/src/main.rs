//! The task runner: `cargo xtask test` passes every suite, `cargo xtask ci` checks everything else as well.
//!
//! A task is a list of sections; a section is one command, timed and named. The first that fails ends the run, and the
//! summary in the end says what ran, for how long, and what was left out and why.

mod documents;
mod fuzz;
mod instructions;
mod sanitizer;
mod section;
mod tasks;

use section::Runner;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  test     every suite: units, properties, concurrent, loom, recorded streams, service end to end
  ci       test, plus formatting, lints, documentation and the README's commands
  loom     the loom models alone
  network  recorded streams through a hostile network, 500 seeds, and 10,000 schedules in virtual time (minutes)
  churn    the long memory test: a million chains through an index that keeps 200 (minutes)
  instructions [--update]   instructions an operation against the baselines; needs valgrind
  tsan     the concurrent suite under ThreadSanitizer
  fuzz [SECONDS]   every fuzz target, 60 seconds each by default
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut runner = Runner::new();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => tasks::test(&mut runner),
        ["ci"] => tasks::ci(&mut runner),
        ["loom"] => tasks::loom(&mut runner),
        ["network"] => tasks::network(&mut runner),
        ["churn"] => tasks::churn(&mut runner),
        ["instructions"] => instructions::run(&mut runner, false),
        ["instructions", "--update"] => instructions::run(&mut runner, true),
        ["tsan"] => sanitizer::tsan(&mut runner),
        ["fuzz"] => fuzz::fuzz(&mut runner, fuzz::SECONDS),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::fuzz(&mut runner, seconds),
            Err(_) => return usage(),
        },
        _ => return usage(),
    };
    runner.print_summary();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("FAILED: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}
