//! Named, timed commands and the summary of a run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Which section failed, and how.
pub type Failed = String;

enum Ending {
    Passed(Duration),
    Failed(Duration),
    Skipped(String),
}

/// Runs sections one after the other and remembers how each ended.
pub struct Runner {
    root: PathBuf,
    sections: Vec<(String, Ending)>,
}

impl Runner {
    /// A runner whose commands start in the workspace's root.
    pub fn new() -> Self {
        Self { root: root(), sections: Vec::new() }
    }

    /// The workspace's root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Runs one command, its output passed through. `line` is a program and its arguments, separated by spaces.
    pub fn run(&mut self, name: &str, line: &str, environment: &[(&str, &str)]) -> Result<(), Failed> {
        let settings: String = environment.iter().map(|(key, value)| format!("{key}='{value}' ")).collect();
        println!("\n==> {name}: {settings}{line}");
        let mut words = line.split_whitespace();
        let program = words.next().unwrap_or_default();
        let mut command = Command::new(if program == "cargo" { env!("CARGO") } else { program });
        // The runner itself is a cargo child: what cargo told it about its own package is not for the commands it starts.
        command.args(words).current_dir(&self.root).envs(environment.iter().copied());
        command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_PKG_NAME");
        self.finish(name, line, command)
    }

    /// Runs a shell script as one section.
    pub fn shell(&mut self, name: &str, script: &str, environment: &[(&str, &str)]) -> Result<(), Failed> {
        println!("\n==> {name}:\n{script}");
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(&self.root).envs(environment.iter().copied());
        self.finish(name, "bash", command)
    }

    fn finish(&mut self, name: &str, line: &str, mut command: Command) -> Result<(), Failed> {
        let start = Instant::now();
        let status = command.status();
        let took = start.elapsed();
        let outcome = match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{name}: {line}: {status}")),
            Err(error) => Err(format!("{name}: {line}: {error}")),
        };
        let ending = if outcome.is_ok() { Ending::Passed(took) } else { Ending::Failed(took) };
        self.sections.push((name.to_owned(), ending));
        outcome
    }

    /// Notes a check that is no command.
    pub fn note(&mut self, name: &str, check: impl FnOnce(&Path) -> Result<(), Failed>) -> Result<(), Failed> {
        println!("\n==> {name}");
        let start = Instant::now();
        let outcome = check(&self.root);
        let took = start.elapsed();
        let ending = if outcome.is_ok() { Ending::Passed(took) } else { Ending::Failed(took) };
        self.sections.push((name.to_owned(), ending));
        outcome
    }

    /// Notes a section that cannot run here.
    pub fn skip(&mut self, name: &str, reason: &str) {
        println!("\n==> {name}: SKIPPED: {reason}");
        self.sections.push((name.to_owned(), Ending::Skipped(reason.to_owned())));
    }

    /// One line a section.
    pub fn print_summary(&self) {
        println!("\nsummary");
        for (name, ending) in &self.sections {
            match ending {
                Ending::Passed(took) => println!("  ok      {name} ({:.1} s)", took.as_secs_f64()),
                Ending::Failed(took) => println!("  FAILED  {name} ({:.1} s)", took.as_secs_f64()),
                Ending::Skipped(reason) => println!("  SKIPPED {name}: {reason}"),
            }
        }
        let total: Duration = self.sections.iter().map(|(_, ending)| ending.took()).sum();
        println!("  {} sections, {:.1} s", self.sections.len(), total.as_secs_f64());
    }
}

impl Ending {
    fn took(&self) -> Duration {
        match self {
            Ending::Passed(took) | Ending::Failed(took) => *took,
            Ending::Skipped(_) => Duration::ZERO,
        }
    }
}

/// The workspace's root: the folder above this package.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}
