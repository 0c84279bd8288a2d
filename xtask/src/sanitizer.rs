//! ThreadSanitizer over the concurrent suite, on the stable compiler.
//!
//! The standard library is built again under the sanitizer, since the locks of the one that comes ready-made are invisible to it
//! and every lane would look like a race. That needs its sources (`rustup component add rust-src`). The sanitizer does not
//! model fences: the index's shared words are all atomics, and the fences are what the loom models are for.

use crate::section::{Failed, Runner};
use std::path::Path;
use std::process::{Command, Stdio};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Runs of the suite: the sanitizer is slow, and sees orderings that did not even collide.
const RUNS: &str = "3";

/// The concurrent suite, a few runs, under the sanitizer; skipped, and said so, where the toolchain cannot.
pub fn tsan(runner: &mut Runner) -> Result<(), Failed> {
    if let Err(reason) = available() {
        runner.skip("tsan", &reason);
        return Ok(());
    }
    let suppressions = runner.root().join("xtask/tsan.suppressions");
    let options = format!("halt_on_error=1 suppressions={}", suppressions.display());
    let environment = [
        ("RUSTC_BOOTSTRAP", "1"),
        ("RUSTFLAGS", "-Zsanitizer=thread"),
        ("TSAN_OPTIONS", &options),
        ("KVATLAS_CONCURRENT_RUNS", RUNS),
    ];
    let test = "cargo test -Zbuild-std -p kvatlas-index --test concurrent";
    runner.run("tsan", &format!("{test} --target {TARGET} --target-dir target/tsan"), &environment)
}

/// Whether the standard library's sources are there, or can be had.
fn available() -> Result<(), String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("only set up for x86-64 Linux".to_owned());
    }
    if !has_sources() {
        let mut rustup = Command::new("rustup");
        rustup.args(["component", "add", "rust-src"]).stdout(Stdio::null()).stderr(Stdio::null());
        // Whether it worked shows in the sources being there.
        rustup.status().map_err(|error| format!("no rust-src, and rustup: {error}"))?;
    }
    if has_sources() { Ok(()) } else { Err("no rust-src (rustup component add rust-src)".to_owned()) }
}

fn has_sources() -> bool {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    sysroot.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Path::new(&sysroot).join("lib/rustlib/src/rust/library/Cargo.toml").is_file()
    })
}
