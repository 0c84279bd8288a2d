//! Fresh processes: every trial runs in a child of the same binary, so that no trial inherits another's heap, tables or luck.

use super::tape::Tape;
use super::trial::{self, TrialError, TrialResult, TrialSpec};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The hidden subcommand that a child runs.
pub const SUBCOMMAND: &str = "ladder-trial";

/// Why a child brought no result.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started or talked to.
    #[error("trial process: {0}")]
    Io(#[from] io::Error),
    /// Its question or answer is not JSON.
    #[error("trial process: {0}")]
    Json(#[from] serde_json::Error),
    /// It failed.
    #[error("trial process: {0}")]
    Failed(String),
    /// The offer cannot be issued from this tape.
    #[error(transparent)]
    Trial(#[from] TrialError),
}

/// Exit status of a child whose tape is too short for the offer.
const TAPE_SHORT: i32 = 3;

/// Where trials are run.
pub trait Runner {
    /// Runs one trial. `None` when the tape is too short for its rate.
    fn run(&self, spec: &TrialSpec) -> Result<Option<TrialResult>, ChildError>;
}

/// Runs each trial in a child process.
#[derive(Clone, Debug)]
pub struct Children {
    binary: PathBuf,
    tape: PathBuf,
}

impl Children {
    /// Children of this binary that play a saved tape.
    pub fn new(tape: &Path) -> io::Result<Self> {
        Ok(Self { binary: std::env::current_exe()?, tape: tape.to_owned() })
    }
}

impl Runner for Children {
    fn run(&self, spec: &TrialSpec) -> Result<Option<TrialResult>, ChildError> {
        let mut command = Command::new(&self.binary);
        command.arg(SUBCOMMAND).arg(&self.tape).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&serde_json::to_vec(spec)?)?;
        }
        let output = child.wait_with_output()?;
        match output.status.code() {
            Some(0) => Ok(Some(serde_json::from_slice(&output.stdout)?)),
            Some(TAPE_SHORT) => Ok(None),
            _ => Err(ChildError::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }
}

/// Runs trials in this very process, for tests.
#[derive(Clone, Debug)]
pub struct InProcess {
    /// What is played.
    pub tape: Tape,
}

impl Runner for InProcess {
    fn run(&self, spec: &TrialSpec) -> Result<Option<TrialResult>, ChildError> {
        match trial::run(spec, &self.tape) {
            Err(TrialError::Pace(super::pace::PaceError::TapeShort { .. })) => Ok(None),
            result => Ok(Some(result?)),
        }
    }
}

/// The child's side: reads a spec from standard input, writes the result to standard output. Returns the exit status.
pub fn answer(tape: &Path) -> Result<u8, ChildError> {
    let spec: TrialSpec = serde_json::from_reader(io::stdin().lock())?;
    let runner = InProcess { tape: Tape::load(tape)? };
    match runner.run(&spec)? {
        Some(result) => {
            serde_json::to_writer(io::stdout().lock(), &result)?;
            Ok(0)
        }
        None => Ok(TAPE_SHORT as u8),
    }
}
