//! The fuzz targets, each for a bounded time. Needs `cargo-fuzz`; the stable compiler will do.

use crate::section::{Failed, Runner};
use std::process::{Command, Stdio};

/// Seconds of one target unless said otherwise.
pub const SECONDS: u32 = 60;

/// Every target of `fuzz/`.
pub fn fuzz(runner: &mut Runner, seconds: u32) -> Result<(), Failed> {
    let mut probe = Command::new(env!("CARGO"));
    probe.args(["fuzz", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        runner.skip("fuzz", "cargo-fuzz is not installed (cargo install cargo-fuzz)");
        return Ok(());
    }
    let folder = runner.root().join("fuzz/fuzz_targets");
    let mut targets: Vec<String> = std::fs::read_dir(&folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
        .collect();
    targets.sort();
    for target in targets {
        let line = format!("cargo fuzz run {target} -- -max_total_time={seconds}");
        runner.run(&format!("fuzz {target}"), &line, &[("RUSTC_BOOTSTRAP", "1")])?;
    }
    Ok(())
}
