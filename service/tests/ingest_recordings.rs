//! Recorded engine streams through the whole rank: cursor, decoder, normalizer, hash check. (That what comes out equals the
//! engine's own tables is `kvatlas-harness verify`'s to show; here it is that nothing is refused, lost or mistrusted.)
#![allow(clippy::unwrap_used, reason = "test code")]

mod engine;
mod recorded;

use bytes::Bytes;
use engine::{World, spec};
use kvatlas_service::ingest::{Engine, RankInput, RankStatus, Trust, WorkerSpec};
use recorded::Kind;
use std::path::Path;

/// The registration that a sidecar's `meta` describes.
fn spec_of(meta: &serde_json::Value) -> WorkerSpec {
    let engine = if meta["engine"] == "vllm" { Engine::Vllm } else { Engine::Sglang };
    WorkerSpec { engine, hash_check_every: 1, ..spec(meta["block_size"].as_u64().unwrap() as u32) }
}

/// Plays one publisher's live messages; the status at the end.
fn play(path: &Path, publisher: usize, hash_seed: Option<&str>) -> RankStatus {
    let spec = spec_of(&recorded::sidecar(path)["incarnations"][0]["ranks"][publisher]["meta"]);
    play_as(path, publisher, WorkerSpec { hash_seed: hash_seed.map(str::to_owned), ..spec })
}

fn play_as(path: &Path, publisher: usize, mut spec: WorkerSpec) -> RankStatus {
    spec.ranks[0].rank = publisher as u32;
    let mut world = World::new(&[spec]);
    let messages = recorded::messages(path);
    for message in messages.into_iter().filter(|m| m.publisher == publisher && m.kind == Kind::Live) {
        world.step(0, RankInput::Live(message.frames.into_iter().map(Bytes::from).collect()));
    }
    world.status(0)
}

fn publishers(path: &Path) -> usize {
    recorded::sidecar(path)["incarnations"][0]["ranks"].as_array().unwrap().len()
}

fn count(status: &RankStatus, reason: &str) -> u64 {
    status.counters.get(reason).copied().unwrap_or(0)
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

#[test]
fn every_stream_is_followed_exactly_and_nothing_in_it_is_refused() {
    const HARMLESS: [&str; 16] = [
        "messages",
        "batches",
        "events",
        "connections",
        "restarts",
        "blocks_stored",
        "block_copies",
        "blocks_moved",
        "orphans",
        "orphans_attached",
        "blocks_removed",
        "block_copies_removed",
        "blocks_cleared",
        "other_group",
        "main_group_changes",
        "hash_match",
    ];
    for path in recorded::paths() {
        for publisher in 0..publishers(&path) {
            let status = play(&path, publisher, None);
            let name = name(&path);
            assert_eq!(status.trust, Trust::Exact, "{name}: {status:?}");
            let lives = recorded::sidecar(&path)["incarnations"].as_array().unwrap().len() as u64;
            assert_eq!(status.incarnation, lives, "{name}");
            let unexpected: Vec<_> = status
                .counters
                .iter()
                .filter(|(reason, _)| !HARMLESS.contains(reason) && !reason.starts_with("hash_"))
                .collect();
            assert!(unexpected.is_empty(), "{name}: {unexpected:?}");
            assert_eq!(status.upper_bound.is_some(), name == "vllm-hybrid-swa", "{name}");
        }
    }
}

#[test]
fn a_wrong_seed_shows_as_a_rate_and_the_right_one_does_not() {
    let mut checked = 0;
    for path in recorded::paths() {
        let name = name(&path);
        let meta = &recorded::sidecar(&path)["incarnations"][0]["ranks"][0]["meta"];
        let default_scheme = match meta["engine"].as_str().unwrap() {
            "vllm" => meta["hash_algo"] == "sha256" && meta["version"] == "0.32.0",
            _ => !name.ends_with("dynamo"),
        };
        if !default_scheme {
            continue;
        }
        let right = play(&path, 0, None);
        assert!(count(&right, "hash_match") > 0, "{name}: {right:?}");
        assert_eq!(count(&right, "hash_mismatch"), 0, "{name}: {right:?}");
        if meta["engine"] == "vllm" {
            let wrong = play(&path, 0, Some("7"));
            // First blocks disagree; later ones do where the parent's whole digest is on the wire.
            assert!(count(&wrong, "hash_mismatch") > 0, "{name}");
        }
        checked += 1;
    }
    assert!(checked >= 15, "{checked}");
}

/// The scheme of a recorded engine as an operator would write it, and a wrong one that is near it.
fn schemes(meta: &serde_json::Value) -> [String; 2] {
    let text = |key: &str| meta[key].as_str().unwrap();
    if meta["engine"] == "sglang" {
        let wrong = "vllm:sha256".to_owned();
        return [format!("sglang:{}", text("format")), wrong];
    }
    let extras = if meta["version"] == "0.32.0" { "tagged" } else { "pairs" };
    let vllm = |seed: &str| format!("vllm:{}:{seed}:extras={extras}", text("hash_algo"));
    [vllm(&format!("none-hash={}", text("none_hash"))), vllm("seed=7")]
}

#[test]
fn every_stream_agrees_with_its_own_scheme_and_not_with_another() {
    for path in recorded::paths() {
        let name = name(&path);
        let sidecar = recorded::sidecar(&path);
        let lives = sidecar["incarnations"].as_array().unwrap();
        let meta = |life: &serde_json::Value| life["ranks"][0]["meta"].clone();
        assert!(
            lives.iter().all(|l| schemes(&meta(l)) == schemes(&meta(&lives[0]))),
            "{name}: one scheme for all lives"
        );
        let [right, wrong] = schemes(&meta(&lives[0]));
        let play = |text: &str| {
            let spec = WorkerSpec { hash_scheme: text.parse().unwrap(), ..spec_of(&meta(&lives[0])) };
            play_as(&path, 0, spec)
        };
        let (agrees, differs) = (play(&right), play(&wrong));
        let rate = |s: &RankStatus| (count(s, "hash_match"), count(s, "hash_mismatch"));
        println!("{name}: match, mismatch {:?} as {right}, {:?} as {wrong}", rate(&agrees), rate(&differs));
        assert!(count(&agrees, "hash_match") > 0, "{name}: {agrees:?}");
        assert_eq!(count(&agrees, "hash_mismatch"), 0, "{name}: {agrees:?}");
        let (matches, mismatches) = rate(&differs);
        // Where the parent's whole digest is on the wire, only first blocks depend on the seed.
        let digests = name.starts_with("vllm-bytes");
        assert!(mismatches > 0 && mismatches * 10 >= matches + mismatches, "{name}: {differs:?}");
        assert!(digests || matches == 0, "{name}: {differs:?}");
        assert_eq!(differs.trust, agrees.trust, "{name}: the check tells, it does not judge");
    }
}
