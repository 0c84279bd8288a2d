//! What each task runs. Change the suites here, nowhere else: CI and the README call these.

use crate::documents;
use crate::instructions;
use crate::sanitizer;
use crate::section::{Failed, Runner};
use std::path::Path;

/// Each model says itself how many preemptions it is explored to. Loom builds apart, since `--cfg loom` changes every crate.
const LOOM: &[(&str, &str)] = &[("RUSTFLAGS", "--cfg loom")];

/// Every suite.
pub fn test(runner: &mut Runner) -> Result<(), Failed> {
    runner.run("units", "cargo test --workspace --lib --bins", &[])?;
    runner.run("properties", "cargo test -p kvatlas-index --tests", &[])?;
    runner.run("documentation examples", "cargo test --workspace --doc", &[])?;
    loom(runner)?;
    service(runner)?;
    runner.run("corpora", "cargo test -p kvatlas-corpora --tests", &[])?;
    runner.run("harness", "cargo test -p kvatlas-harness --tests", &[])?;
    recorded_streams(runner)
}

/// Every suite, and what a reviewer would otherwise have to look at.
pub fn ci(runner: &mut Runner) -> Result<(), Failed> {
    runner.run("formatting", "cargo fmt --all --check", &[])?;
    runner.run("lints", "cargo clippy --workspace --all-targets -- -D warnings", &[])?;
    let with_clients = "cargo clippy -p kvatlas-service --features redis,etcd --all-targets -- -D warnings";
    runner.run("lints of the shared log and of leases on etcd", with_clients, &[])?;
    runner.note("a default build has no client of the shared log", no_client)?;
    let strict = &[("RUSTDOCFLAGS", "-D warnings")];
    runner.run("documentation", "cargo doc --workspace --no-deps --document-private-items", strict)?;
    runner.note("documents name files that exist", documents::check)?;
    test(runner)?;
    hwloc(runner)?;
    instructions::run(runner, false)?;
    sanitizer::tsan(runner)?;
    readme_commands(runner)
}

/// The service over real sockets. Built with the clients of the shared log and of etcd, whose tests need a server; they say so and pass
/// where there is none, but not in CI.
fn service(runner: &mut Runner) -> Result<(), Failed> {
    if !is_installed("redis-server") {
        runner.skip("shared log on a real server", "needs redis-server (apt-get install redis-server)");
    }
    if !is_installed("etcd") {
        runner.skip("leases on a real cluster", "needs etcd (apt-get install etcd-server)");
    }
    runner.run("service end to end", "cargo test -p kvatlas-service --features redis,etcd --tests", &[])
}

fn is_installed(program: &str) -> bool {
    std::process::Command::new(program).arg("--version").output().is_ok()
}

/// A build without features has no client of a log's server.
fn no_client(root: &Path) -> Result<(), Failed> {
    let line = ["tree", "-p", "kvatlas-service", "-e", "normal,build", "--prefix", "none"];
    let tree = std::process::Command::new(env!("CARGO")).args(line).current_dir(root).output();
    let tree = tree.map_err(|error| error.to_string())?;
    let names = String::from_utf8_lossy(&tree.stdout);
    match names.lines().find(|name| name.starts_with("redis ")) {
        _ if !tree.status.success() || !names.contains("tokio ") => Err("cargo tree tells nothing".to_owned()),
        Some(name) => Err(format!("a default build pulls in {name}")),
        None => Ok(()),
    }
}

/// The topology through hwloc, where its libraries are.
fn hwloc(runner: &mut Runner) -> Result<(), Failed> {
    let there = |library| {
        std::process::Command::new("pkg-config")
            .args(["--exists", library])
            .status()
            .is_ok_and(|status| status.success())
    };
    if there("hwloc") && there("libudev") {
        return runner.run("hwloc", "cargo test -p kvatlas-service --lib --features hwloc topology", &[]);
    }
    runner.skip("hwloc", "needs libhwloc-dev and libudev-dev");
    Ok(())
}

/// The loom models.
pub fn loom(runner: &mut Runner) -> Result<(), Failed> {
    runner.run("loom", "cargo test -p kvatlas-loom-tests --release --target-dir target/loom", LOOM)
}

/// Hostile networks at full size; the suites play fewer.
pub fn network(runner: &mut Runner) -> Result<(), Failed> {
    let sockets = "cargo test -p kvatlas-service --test hostile_network -- --nocapture";
    runner.run("recorded streams through a hostile network", sockets, &[("KVATLAS_SEEDS", "500")])?;
    let virtual_time = "cargo test -p kvatlas-service --lib cursor::property -- --nocapture";
    runner.run("schedules in virtual time", virtual_time, &[("KVATLAS_CASES", "10000")])?;
    let log = "cargo test -p kvatlas-service --lib log::property -- --nocapture";
    runner.run("schedules of the shared log in virtual time", log, &[("KVATLAS_CASES", "10000")])
}

/// The long memory test.
pub fn churn(runner: &mut Runner) -> Result<(), Failed> {
    let line = "cargo test --release -p kvatlas-index --test memory_churn -- --ignored --nocapture";
    runner.run("churn", line, &[])
}

/// The recordings, compared with what the engines themselves held.
fn recorded_streams(runner: &mut Runner) -> Result<(), Failed> {
    let folder = "corpora/recordings";
    let mut files: Vec<String> = std::fs::read_dir(runner.root().join(folder))
        .map_err(|error| format!("{folder}: {error}"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".kvrec"))
        .map(|name| format!("{folder}/{name}"))
        .collect();
    files.sort();
    let line = format!("cargo run --release --bin kvatlas-harness -- verify {}", files.join(" "));
    runner.run("recorded streams", &line, &[])
}

/// The commands that the README promises. The suites have run already.
fn readme_commands(runner: &mut Runner) -> Result<(), Failed> {
    let readme = documents::read(runner.root(), "README.md")?;
    let commands = documents::checked_commands(&readme);
    if commands.is_empty() {
        return Err("README.md has no command marked as checked".to_owned());
    }
    for command in commands.iter().filter(|command| command.as_str() != "cargo xtask test") {
        runner.run("README command", command, &[])?;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", runner.root().join("target/release").display());
    for session in documents::sessions(&readme) {
        runner.shell("README session", &session, &[("PATH", &path)])?;
    }
    Ok(())
}
