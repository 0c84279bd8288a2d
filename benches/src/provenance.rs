//! Where figures come from: the source, the binary, the corpus, the command and the machine.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, as far as it tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// Frequency governor of the first core, where there is one.
    pub governor: Option<String>,
    /// Whether the processor says that it runs under a hypervisor.
    pub virtual_machine: bool,
    /// Clock source of the kernel.
    pub clock: Option<String>,
    /// Load average over a minute when the run began.
    pub load_average: Option<String>,
}

/// Where figures come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of the workspace.
    pub version: String,
    /// The commit checked out where the program ran, with `-dirty` if files differ from it; empty where git does not tell.
    pub commit: String,
    /// SHA-256 of the binary.
    pub binary_sha256: String,
    /// SHA-256 of the trace or of the tape made of it; empty where there is none.
    pub corpus_sha256: String,
    /// The command line.
    pub command: Vec<String>,
    /// SHA-256 of the command line, arguments apart by a zero byte.
    pub command_sha256: String,
    /// Begin, in seconds since 1970.
    pub begun_unix_s: u64,
    /// The machine.
    pub machine: Machine,
}

impl Provenance {
    /// That of this process, which reads its own binary and asks git.
    ///
    /// # Errors
    ///
    /// The binary cannot be read.
    pub fn of_this_process(corpus_sha256: String, cores: usize) -> io::Result<Self> {
        // Of paths only the last part: folders are the machine's own.
        let name = |word: String| match Path::new(&word).file_name() {
            Some(name) if word.starts_with('/') => name.to_string_lossy().into_owned(),
            _ => word,
        };
        let command: Vec<String> = std::env::args().map(name).collect();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit(),
            binary_sha256: hex(&Sha256::digest(fs::read(std::env::current_exe()?)?)),
            corpus_sha256,
            command_sha256: hex(&Sha256::digest(command.join("\0"))),
            command,
            begun_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            machine: Machine::read(cores),
        })
    }
}

/// The commit of the working directory.
fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| !files.is_empty());
    format!("{commit}{}", if changed { "-dirty" } else { "" })
}

impl Machine {
    fn read(cores: usize) -> Self {
        let text = |path: &str| fs::read_to_string(path).ok().map(|t| t.trim().to_owned());
        let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
        let meminfo = text("/proc/meminfo").unwrap_or_default();
        Self {
            processor: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores,
            memory_mib: field(&meminfo, "MemTotal").and_then(kib).unwrap_or(0) / 1024,
            kernel: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            clock: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            load_average: text("/proc/loadavg").and_then(|l| l.split(' ').next().map(str::to_owned)),
        }
    }

    /// One line.
    pub fn line(&self) -> String {
        let more = [
            Some(format!("Linux {}", self.kernel)),
            self.virtual_machine.then(|| "virtual machine".to_owned()),
            self.governor.as_ref().map(|g| format!("governor {g}")),
            self.clock.as_ref().map(|c| format!("clock {c}")),
        ];
        let more: Vec<String> = more.into_iter().flatten().collect();
        format!("{}, {} cores, {} MiB, {}", self.processor, self.cores, self.memory_mib, more.join(", "))
    }
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().filter_map(|l| l.split_once(':')).find(|(n, _)| n.trim() == name).map(|(_, value)| value.trim())
}

fn kib(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse().ok()
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_kernels_texts() {
        assert_eq!(field("model name\t: AMD EPYC\nflags\t: fpu hypervisor", "model name"), Some("AMD EPYC"));
        assert_eq!(field("MemTotal:  1024 kB", "MemTotal").and_then(kib), Some(1024));
        assert_eq!(field("", "MemTotal"), None);
    }

    #[test]
    fn this_process_has_hashes_of_binary_and_command() {
        let p = Provenance::of_this_process("c".to_owned(), 2).unwrap();
        assert_eq!((p.binary_sha256.len(), p.command_sha256.len()), (64, 64));
        assert!(!p.command[0].contains('/'), "no path of the machine in a report");
        assert!(p.machine.line().contains("2 cores"));
    }
}
