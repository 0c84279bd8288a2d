//! Checks of the documents: a map that names files which are gone is worse than none.

use crate::section::Failed;
use std::path::Path;

/// Documents whose tables name files.
const MAPS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "NUMA.md"];
/// Stands before a code block of the README whose commands are run by `cargo xtask ci`.
const CHECKED: &str = "<!-- checked by cargo xtask ci -->";

/// Stands before a code block of the README that is run as one shell session by `cargo xtask ci`.
const SESSION: &str = "<!-- run as one session by cargo xtask ci -->";
/// What a session does after a command that it leaves in the background: wait until the service answers.
const WAIT: &str = "for i in $(seq 100); do kvatlas status >/dev/null 2>&1 && break; sleep 0.1; done";

/// Every file and folder that a table names exists.
pub fn check(root: &Path) -> Result<(), Failed> {
    for document in MAPS {
        let text = read(root, document)?;
        let rows = text.lines().filter(|line| line.trim_start().starts_with('|'));
        let missing: Vec<String> = rows.flat_map(|row| missing_in_row(root, row)).collect();
        if !missing.is_empty() {
            return Err(format!("{document} names files that do not exist: {}", missing.join(", ")));
        }
    }
    Ok(())
}

/// The text of a document.
pub fn read(root: &Path, document: &str) -> Result<String, Failed> {
    std::fs::read_to_string(root.join(document)).map_err(|error| format!("{document}: {error}"))
}

/// The paths of a table row that do not exist, from the root or from a folder that the row names.
fn missing_in_row(root: &Path, row: &str) -> Vec<String> {
    let paths = paths_in_row(row);
    let folders: Vec<_> = paths.iter().map(|path| root.join(path)).filter(|path| path.is_dir()).collect();
    let exists = |path: &String| root.join(path).exists() || folders.iter().any(|folder| folder.join(path).exists());
    paths.iter().filter(|path| !exists(path)).cloned().collect()
}

/// Paths between backquotes: words with a slash in them, or names of sources and documents.
fn paths_in_row(row: &str) -> Vec<String> {
    let quoted = row.split('`').skip(1).step_by(2);
    quoted.filter(|word| is_path(word)).map(|word| word.trim_end_matches('/').to_owned()).collect()
}

fn is_path(word: &str) -> bool {
    let plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    let file = [".rs", ".md", ".toml", ".proto", ".sh"].iter().any(|ending| word.ends_with(ending));
    plain && !word.starts_with('/') && (file || word.contains('/'))
}

/// The commands of the code blocks that are marked as checked.
pub fn checked_commands(readme: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for part in readme.split(CHECKED).skip(1) {
        let block = part.split("```").nth(1).unwrap_or_default();
        let lines = block.lines().skip(1).map(|line| line.split('#').next().unwrap_or_default().trim());
        commands.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
    }
    commands
}

/// The marked sessions as shell scripts. A background command is waited for at the end, and its exit status counts.
pub fn sessions(readme: &str) -> Vec<String> {
    let block = |part: &str| {
        let lines = part.split("```").nth(1).unwrap_or_default().lines().skip(1);
        let lines = lines.map(|line| match line.trim_end().ends_with('&') {
            true => format!("{line} \nbackground=$!\n{WAIT}\n"),
            false => format!("{}\n", line.replace("%1", "$background")),
        });
        format!("set -eu\n{}wait $background\n", lines.collect::<String>())
    };
    readme.split(SESSION).skip(1).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section::root;

    #[test]
    fn documents_name_files_that_exist() {
        check(&root()).unwrap();
    }

    #[test]
    fn paths_are_told_from_other_words() {
        let row = "| `index/src/lib.rs` | `Lane::store`, `--workers 8`, `/metrics`, `service/` and `R1` |";
        assert_eq!(paths_in_row(row), ["index/src/lib.rs", "service"]);
    }

    #[test]
    fn a_name_may_be_relative_to_a_folder_of_its_row() {
        assert_eq!(missing_in_row(&root(), "| `index/src/` | `lib.rs` and `nowhere.rs` |"), ["nowhere.rs"]);
        assert_eq!(missing_in_row(&root(), "| `lib.rs` |"), ["lib.rs"]);
    }

    #[test]
    fn a_missing_file_is_reported() {
        let folder = std::env::temp_dir().join(format!("kvatlas-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for document in MAPS {
            std::fs::write(folder.join(document), "| `gone/nowhere.rs` |").unwrap();
        }
        let failed = check(&folder).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(failed, "README.md names files that do not exist: gone/nowhere.rs");
    }

    #[test]
    fn only_marked_blocks_are_commands() {
        let readme = "```sh\nrm x\n```\n<!-- checked by cargo xtask ci -->\n```sh\ncargo a   # why\n\ncargo b\n```\n```sh\nc\n```";
        assert_eq!(checked_commands(readme), ["cargo a", "cargo b"]);
    }

    #[test]
    fn a_session_waits_for_what_it_leaves_in_the_background() {
        let readme = "<!-- run as one session by cargo xtask ci -->\n```sh\na &\nb\nkill %1\n```\n";
        let script = format!("set -eu\na & \nbackground=$!\n{WAIT}\nb\nkill $background\nwait $background\n");
        assert_eq!(sessions(readme), [script]);
    }

    #[test]
    fn the_readme_promises_two_commands_first() {
        let commands = checked_commands(&read(&root(), "README.md").unwrap());
        assert_eq!(commands[..2], ["cargo run --release --bin kvatlas -- demo", "cargo xtask test"]);
    }
}
