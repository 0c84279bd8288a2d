//! Fills `fuzz/corpus/wire` with payloads of the recorded streams, 40 of each, small ones.

#![allow(clippy::unwrap_used, reason = "a tool of the developer: a panic says what went wrong")]

#[path = "../service/tests/recorded/mod.rs"]
mod recorded;

fn main() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/wire");
    std::fs::create_dir_all(&dir).unwrap();
    let mut count = 0;
    for path in recorded::paths() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let payloads: Vec<Vec<u8>> = recorded::messages(&path)
            .into_iter()
            .filter(|m| m.kind == recorded::Kind::Live && m.frames[2].len() <= 2048)
            .map(|mut m| m.frames.swap_remove(2))
            .collect();
        for (i, payload) in payloads.iter().step_by((payloads.len() / 40).max(1)).enumerate() {
            std::fs::write(dir.join(format!("{name}-{i:03}")), payload).unwrap();
            count += 1;
        }
    }
    println!("{count} payloads in {}", dir.display());
}
