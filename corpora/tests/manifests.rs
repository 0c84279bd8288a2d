//! The manifests in the tree: those of made-up traces are generated again and compared, all are read.

use kvatlas_corpora::{Manifest, Names, Parameters, Sharing, Synthetic, Trace, TraceSource};
use std::path::Path;

/// Blocks of a manifest that a test generates again at most; larger ones are for `kvatlas-corpora check`.
const BLOCKS_MAX: u64 = 1_000_000;

fn manifests() -> Vec<(String, Manifest)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let entries = std::fs::read_dir(folder).expect("the folder is in the tree");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).expect("a readable file");
        (path.display().to_string(), serde_json::from_str(&text).expect("a manifest"))
    };
    paths.iter().map(read).collect()
}

#[test]
fn made_up_corpora_are_the_same_again() {
    let mut compared = 0;
    for (name, kept) in manifests() {
        let TraceSource::Synthetic(settings) = &kept.trace else { continue };
        if kept.blocks > BLOCKS_MAX {
            continue;
        }
        let trace = Trace::synthetic(settings);
        let again = Manifest::generate(kept.trace.clone(), &trace, kept.parameters.clone(), kept.requests).unwrap();
        assert_eq!(again, kept, "{name}");
        compared += 1;
    }
    assert!(compared >= 3, "{compared} manifests compared");
}

#[test]
fn every_parameter_changes_the_stream() {
    let settings = Synthetic { requests: 60, user_tokens: 2000, ..Synthetic::default() };
    let trace = Trace::synthetic(&settings);
    let sha256 = |change: fn(&mut Parameters)| {
        let mut parameters = Parameters::standard(128, Sharing::Standard, Names::Same);
        (parameters.workers, parameters.blocks_per_worker, parameters.replicas) = (8, 200, 2);
        change(&mut parameters);
        let source = TraceSource::Synthetic(settings.clone());
        Manifest::generate(source, &trace, parameters, 60).unwrap().sha256
    };
    let changes: &[fn(&mut Parameters)] = &[
        |_| {},
        |p| p.seed = 2,
        |p| p.workers = 9,
        |p| p.blocks_per_worker = 180,
        |p| p.block_tokens = 64,
        |p| p.length_factor = 2,
        |p| p.copies = 2,
        |p| p.replicas = 3,
        |p| p.wander_per_mille = 500,
        |p| p.replica_spread_ms = 5,
        |p| p.names = Names::Random,
        |p| p.store_blocks_max = 5,
        |p| p.removal_names_max = 1,
        |p| p.decode_blocks_max = 2,
        |p| p.random_evictions_per_mille = 300,
        |p| p.decode_tokens_per_s = 100,
    ];
    let all: std::collections::BTreeSet<String> = changes.iter().map(|&change| sha256(change)).collect();
    assert_eq!(all.len(), changes.len());
}
