//! From wire bytes to the index, on the recorded streams of vLLM and SGLang: nanoseconds for each stored block.
//!
//! Stages, interleaved round by round in one process, in an order that rotates:
//!
//! - `peer` and `peer again`: rmp-serde into typed structs and XXH3 ([`peer`]); the second is the A/A control.
//! - `decode`: our decoder, names, and content hashes.
//! - `first`: decode, hash, normalise, apply to an index that does not know the blocks.
//! - `join`: the same for a second rank of the same stream.
//!
//! `cargo bench -p kvatlas-benches --bench ingest -- [--rounds N] [--repeats N] [--only GROUP] [--json FILE]`.
//! For instruction counts: `--count STAGE --repeats N` runs one stage and nothing else; the difference of two N is exact.

mod peer;
mod stages;

use kvatlas_benches::sampling::median;
use stages::{Group, STAGES, Stage};
use std::path::Path;

struct Options {
    rounds: usize,
    repeats: usize,
    only: Option<String>,
    count: Option<String>,
    json: Option<String>,
}

fn options() -> Options {
    let mut options = Options { rounds: 61, repeats: 20, only: None, count: None, json: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--rounds" => options.rounds = value().parse().expect("a number"),
            "--repeats" => options.repeats = value().parse().expect("a number"),
            "--only" => options.only = Some(value()),
            "--count" => options.count = Some(value()),
            "--json" => options.json = Some(value()),
            "--bench" => {}
            other => panic!("unknown option {other}"),
        }
    }
    options
}

fn main() {
    let options = options();
    let mut groups = stages::groups(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../corpora/recordings")));
    groups.retain(|group| options.only.as_ref().is_none_or(|only| group.name.contains(only)));
    if let Some(name) = &options.count {
        let stage = STAGES.into_iter().find(|stage| stage.name() == name).expect("a stage");
        for group in &mut groups {
            for _ in 0..options.repeats {
                group.run(stage);
            }
            println!("{} {name}: {} blocks", group.name, options.repeats * group.blocks);
        }
        return;
    }
    println!(
        "ns a stored block, median [95% interval] of {} rounds; ratios to the peer within a round",
        options.rounds
    );
    let mut results = Vec::new();
    for group in &mut groups {
        let samples = measure(group, &options);
        report(group, &samples);
        let stages: serde_json::Map<_, _> =
            STAGES.iter().zip(&samples).map(|(stage, s)| (stage.name().to_owned(), s.clone().into())).collect();
        results.push(serde_json::json!({
            "group": group.name, "blocks": group.blocks, "removed": group.removed, "bytes": group.bytes,
            "block_size": group.block_size, "ns_per_block": stages,
        }));
    }
    if let Some(path) = options.json {
        let text = serde_json::to_string_pretty(&results).expect("plain data");
        std::fs::write(path, text + "\n").expect("a writable path");
    }
}

/// A sample for each stage and round.
fn measure(group: &mut Group, options: &Options) -> Vec<Vec<f64>> {
    let mut samples = vec![Vec::with_capacity(options.rounds); STAGES.len()];
    STAGES.into_iter().for_each(|stage| _ = group.run(stage));
    for round in 0..options.rounds {
        for turn in 0..STAGES.len() {
            let number = (round + turn) % STAGES.len();
            let spent: f64 = (0..options.repeats).map(|_| group.run(STAGES[number]).as_nanos() as f64).sum();
            samples[number].push(spent / (options.repeats * group.blocks) as f64);
        }
    }
    samples
}

fn report(group: &Group, samples: &[Vec<f64>]) {
    println!(
        "\n{}: {} blocks stored, {} removed, {:.0} bytes a block, {:.1} blocks a store",
        group.name,
        group.blocks,
        group.removed,
        group.bytes as f64 / group.blocks as f64,
        group.blocks as f64 / group.stores as f64
    );
    for (stage, own) in STAGES.iter().zip(samples) {
        let ratios: Vec<f64> = samples[Stage::Peer as usize].iter().zip(own).map(|(peer, own)| peer / own).collect();
        let (own, ratio) = (median(own), median(&ratios));
        println!(
            "  {:<11} {:>7.1} [{:>6.1}, {:>6.1}]   peer/this {:>5.2} [{:.2}, {:.2}]",
            stage.name(),
            own.value,
            own.low,
            own.high,
            ratio.value,
            ratio.low,
            ratio.high
        );
    }
}
