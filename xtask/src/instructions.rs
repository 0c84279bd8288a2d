//! Instructions an operation, counted by callgrind and compared with the baselines in the tree.
//!
//! Counts do not depend on the machine's load, so a regression shows where seconds would not. They do depend on the compiler:
//! baselines name theirs, and another compiler's counts are shown, not judged.

use crate::section::{Failed, Runner};
use std::path::Path;
use std::process::{Command, Stdio};

const BASELINES: &str = "benches/baselines/instructions.json";
/// A count may be so much above its baseline, in per mille.
const TOLERANCE_PER_MILLE: f64 = 50.0;

/// Counts every class and compares, or writes the baselines anew.
pub fn run(runner: &mut Runner, update: bool) -> Result<(), Failed> {
    if !answers("valgrind", "--version") {
        runner.skip("instructions", "valgrind is not installed");
        return Ok(());
    }
    runner.run("instructions: build", "cargo build --release -p kvatlas-benches --bin instructions", &[])?;
    runner.note("instructions", |root| {
        let counts = count(root)?;
        if update {
            return write(root, &counts);
        }
        compare(root, &counts)
    })
}

fn answers(program: &str, argument: &str) -> bool {
    let mut probe = Command::new(program);
    probe.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// The compiler in a line.
fn compiler() -> Result<String, Failed> {
    let output = Command::new("rustc").arg("--version").output().map_err(|error| format!("rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Instructions an operation of each class.
fn count(root: &Path) -> Result<Vec<(String, f64)>, Failed> {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    let program = folder.join("release/instructions");
    let list =
        Command::new(&program).arg("list").output().map_err(|error| format!("{}: {error}", program.display()))?;
    let classes = String::from_utf8_lossy(&list.stdout).into_owned();
    let mut counts = Vec::new();
    for (class, operations) in classes.lines().filter_map(|line| line.split_once(' ')) {
        let operations: f64 = operations.parse().map_err(|_| format!("{class}: {operations} is no number"))?;
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*instructions*measured*"])
            .arg("--callgrind-out-file=/dev/null")
            .arg(&program)
            .arg(class)
            .output()
            .map_err(|error| format!("valgrind: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let collected = collected(&said).filter(|&count| output.status.success() && count > 0);
        let collected = collected.ok_or_else(|| format!("{class}: callgrind counted nothing:\n{said}"))?;
        println!("  {class:<12} {:>10.1} instructions an operation", collected as f64 / operations);
        counts.push((class.to_owned(), collected as f64 / operations));
    }
    Ok(counts)
}

/// The count in callgrind's closing lines.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

fn write(root: &Path, counts: &[(String, f64)]) -> Result<(), Failed> {
    let mut lines = vec![format!("  \"compiler\": \"{}\"", compiler()?)];
    lines.extend(counts.iter().map(|(class, count)| format!("  \"{class}\": {count:.1}")));
    let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
    std::fs::write(root.join(BASELINES), text).map_err(|error| format!("{BASELINES}: {error}"))
}

/// The entries of a flat object: one `"key": value` a line.
fn entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.trim().trim_end_matches(',').split_once("\": ")?;
        Some((key.trim_start_matches('"'), value.trim_matches('"')))
    })
}

fn compare(root: &Path, counts: &[(String, f64)]) -> Result<(), Failed> {
    let text = std::fs::read_to_string(root.join(BASELINES)).map_err(|error| format!("{BASELINES}: {error}"))?;
    let kept = |key: &str| entries(&text).find(|entry| entry.0 == key).map(|entry| entry.1);
    let (theirs, ours) = (kept("compiler").unwrap_or_default(), compiler()?);
    if theirs != ours {
        println!("  SKIPPED: the baselines are of {theirs}, this is {ours}");
        return Ok(());
    }
    let mut risen = Vec::new();
    for (class, count) in counts {
        let baseline: f64 = kept(class).and_then(|value| value.parse().ok()).unwrap_or(0.0);
        if *count > baseline * (1.0 + TOLERANCE_PER_MILLE / 1000.0) {
            risen.push(format!("{class}: {count:.1} instructions, {baseline:.1} before"));
        }
    }
    if risen.is_empty() {
        return Ok(());
    }
    Err(format!("{}; if that is meant: cargo xtask instructions --update", risen.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_count_is_found() {
        assert_eq!(collected("==7== \n==7== Events    : Ir\n==7== Collected : 123456\n"), Some(123_456));
        assert_eq!(collected("==7== nothing"), None);
    }

    #[test]
    fn a_count_above_its_baseline_is_named() {
        let folder = std::env::temp_dir().join(format!("kvatlas-instructions-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("benches/baselines")).unwrap();
        write(&folder, &[("join".to_owned(), 100.0), ("first".to_owned(), 50.0)]).unwrap();
        let compared = |join| compare(&folder, &[("join".to_owned(), join), ("first".to_owned(), 50.0)]);
        let outcomes = (compared(104.9), compared(105.1));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(outcomes.0.is_ok(), "{outcomes:?}");
        let failed = outcomes.1.unwrap_err();
        assert!(failed.starts_with("join: 105.1 instructions, 100.0 before"), "{failed}");
    }
}
