//! The real binary, served from a process of its own.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub const KVATLAS: &str = env!("CARGO_BIN_EXE_kvatlas");

/// A served binary that does not outlive its test.
pub struct Served {
    pub child: Child,
    pub grpc: String,
    pub admin: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves on free ports, which the first line that it prints names.
pub fn serve(args: &[&str]) -> Served {
    let mut child = Command::new(KVATLAS)
        .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let after =
        |key: &str| line.split_whitespace().find_map(|w| w.strip_prefix(key)).expect("ports are named").to_owned();
    Served { grpc: after("grpc="), admin: after("admin="), child }
}

/// Sends a signal by `kill`, since that needs no unsafe code.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}
