//! ThreadSanitizer over the concurrent suite. Works on the stable compiler without a rebuilt standard library, since the
//! index's shared words are all atomics; the sanitizer does not model fences, which is what the loom models are for.

use crate::section::{Failed, Runner};
use std::process::{Command, Stdio};

const FLAGS: &str = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The concurrent suite, a few runs, under the sanitizer; skipped, and said so, where the compiler cannot.
pub fn tsan(runner: &mut Runner) -> Result<(), Failed> {
    if let Err(reason) = available(runner) {
        runner.skip("tsan", &reason);
        return Ok(());
    }
    let suppressions = runner.root().join("xtask/tsan.suppressions");
    let options = format!("halt_on_error=1 suppressions={}", suppressions.display());
    let environment =
        [("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", FLAGS), ("TSAN_OPTIONS", &options), ("KVATLAS_CONCURRENT_RUNS", "3")];
    let line = format!("cargo test -p kvatlas-index --test concurrent --target {TARGET} --target-dir target/tsan");
    runner.run("tsan", &line, &environment)
}

/// Builds and runs an empty program under the sanitizer.
fn available(runner: &Runner) -> Result<(), String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("only set up for x86-64 Linux".to_owned());
    }
    let folder = runner.root().join("target/tsan");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let (source, program) = (folder.join("probe.rs"), folder.join("probe"));
    std::fs::write(&source, "fn main() {}").map_err(|error| error.to_string())?;
    let mut rustc = Command::new("rustc");
    rustc.args(FLAGS.split(' ')).args(["--target", TARGET, "-o"]).arg(&program).arg(&source);
    let built = rustc.env("RUSTC_BOOTSTRAP", "1").stderr(Stdio::null()).status();
    let ran = built.is_ok_and(|s| s.success()) && Command::new(&program).status().is_ok_and(|s| s.success());
    if ran { Ok(()) } else { Err("this toolchain cannot build or run sanitized programs".to_owned()) }
}
