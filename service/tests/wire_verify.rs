//! The engines' names recomputed over every recorded stream and over the engines' own event vectors.

#![allow(clippy::unwrap_used, reason = "tests, helpers among them, say with a panic what went wrong")]

mod recorded;

use kvatlas_service::wire::engine::{Digest, ExtraForm, SglangFormat, SglangScheme, VllmScheme, VllmSeed};
use kvatlas_service::wire::{DecodeLimits, Event, HashScheme, Unverifiable, Verdict, Verifier, decode_batch};
use recorded::{Kind, messages, paths, sidecar};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn sglang(format: &str) -> HashScheme {
    let format = if format == "dynamo" { SglangFormat::Dynamo } else { SglangFormat::Default };
    HashScheme::Sglang(SglangScheme { format })
}

/// The scheme that a sidecar's `meta` describes.
fn scheme(meta: &Value) -> HashScheme {
    if meta["engine"] == "sglang" {
        return sglang(meta["format"].as_str().unwrap());
    }
    let seed = VllmSeed::NoneHash(Digest::from_slice(&bytes(meta["none_hash"].as_str().unwrap())).unwrap());
    let form = match meta["version"].as_str().unwrap() {
        "0.32.0" => ExtraForm::Tagged,
        _ => ExtraForm::Pairs,
    };
    HashScheme::Vllm(VllmScheme::named(meta["hash_algo"].as_str().unwrap(), seed, form).unwrap())
}

/// Verdicts of one recording, counted by their text.
fn verdicts(path: &Path) -> BTreeMap<String, u64> {
    let side = sidecar(path);
    let mut verifiers: BTreeMap<(usize, u64), Verifier> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for m in messages(path).iter().filter(|m| m.kind == Kind::Live) {
        let verifier = verifiers.entry((m.publisher, m.incarnation)).or_insert_with(|| {
            let life = m.incarnation as usize;
            Verifier::new(scheme(&side["incarnations"][life]["ranks"][m.publisher]["meta"]), 1 << 16)
        });
        for event in decode_batch(&m.frames[2], &DecodeLimits::default()).unwrap().events {
            let Event::Stored(stored) = event else { continue };
            let verdict = verifier.check(&stored);
            let text = match verdict {
                Verdict::Unverifiable(why) => why.to_string(),
                verdict => verdict.label().to_owned(),
            };
            *counts.entry(text).or_default() += 1;
        }
    }
    counts
}

#[test]
fn no_recorded_name_differs_from_the_recomputed_one() {
    let mut total: BTreeMap<String, u64> = BTreeMap::new();
    for path in paths() {
        let counts = verdicts(&path);
        println!("{}: {counts:?}", path.file_stem().unwrap().to_str().unwrap());
        assert_eq!(counts.get("mismatch"), None, "{}", path.display());
        assert!(counts.contains_key("match"), "{}: {counts:?}", path.display());
        counts.into_iter().for_each(|(text, n)| *total.entry(text).or_default() += n);
    }
    println!("in all: {total:?}");
    assert!(total["match"] >= 6797, "{total:?}");
}

#[test]
fn a_wrong_registration_shows() {
    let path = paths().into_iter().find(|p| p.ends_with("vllm-chat.kvrec")).unwrap();
    let wrong_seed = VllmScheme::named("sha256", VllmSeed::Text("0".into()), ExtraForm::Tagged).unwrap();
    let wrong_algorithm = VllmScheme::named("sha256_cbor", VllmSeed::EngineDefault, ExtraForm::Tagged).unwrap();
    let right = VllmScheme::named("sha256", VllmSeed::EngineDefault, ExtraForm::Tagged).unwrap();
    let roots = |scheme: HashScheme| {
        let mut verifier = Verifier::new(scheme, 1024);
        let mut verdicts: BTreeMap<&str, u64> = BTreeMap::new();
        for m in messages(&path).iter().filter(|m| m.kind == Kind::Live) {
            for event in decode_batch(&m.frames[2], &DecodeLimits::default()).unwrap().events {
                match event {
                    Event::Stored(s) if s.parent.is_none() => {
                        *verdicts.entry(verifier.check(&s).label()).or_default() += 1_u64;
                    }
                    _ => {}
                }
            }
        }
        verdicts
    };
    for wrong in [HashScheme::Vllm(wrong_seed), HashScheme::Vllm(wrong_algorithm), sglang("default")] {
        let verdicts = roots(wrong);
        assert!(verdicts["mismatch"] > 10 && verdicts.len() == 1, "{verdicts:?}");
    }
    let verdicts = roots(HashScheme::Vllm(right));
    assert!(verdicts["match"] > 10 && verdicts.len() == 1, "{verdicts:?}");
}

#[test]
fn event_vectors_of_sglang() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpora/vectors/sglang.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let vectors = file["events"].as_array().unwrap();
    assert_eq!(vectors.len(), 12);
    for v in vectors {
        let (format, case) = (v["format"].as_str().unwrap(), v["case"].as_str().unwrap());
        // The vectors are lists of events; a batch is the list between its time and its rank.
        let payload = [&[0x93, 0][..], &bytes(v["msgpack"].as_str().unwrap()), &[0]].concat();
        let batch = decode_batch(&payload, &DecodeLimits::default()).unwrap();
        assert_eq!(batch.skipped, []);
        let [Event::Stored(stored)] = &batch.events[..] else { panic!("{batch:?}") };
        let unknown = case == "lora" || (format == "dynamo" && case.starts_with("extra_key"));
        let want = if unknown { Verdict::Unverifiable(Unverifiable::NamespaceUnknown) } else { Verdict::Match };
        assert_eq!(Verifier::new(sglang(format), 16).check(stored), want, "{format} {case}");
    }
}
