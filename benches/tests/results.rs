//! The table in the README is what the files of the run give.

use kvatlas_benches::results::{RunFile, into_readme, markdown};
use std::path::Path;

#[test]
fn the_readme_shows_what_was_measured() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = RunFile::load_all(&here.join("../harness/results")).expect("files of a run");
    let readme = std::fs::read_to_string(here.join("README.md")).expect("the README");
    let made = into_readme(&readme, &markdown(&files)).expect("a README with marks");
    assert!(made == readme, "run: cargo run -p kvatlas-benches --bin summary -- --readme benches/README.md");
}
