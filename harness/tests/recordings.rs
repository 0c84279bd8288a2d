//! Every recorded stream of a real engine is followed exactly: live sets with copies, and every probe.

use kvatlas_harness::recording::Recording;
use kvatlas_harness::verify::{Faults, Report, Rule, verify_with};
use std::path::PathBuf;

/// Stream, checkpoints, probes, and of these how many answer more than the engine, by the rule that explains each of them.
type Figures = (&'static str, u64, u64, &'static [(Rule, u64)]);

const FIGURES: [Figures; 26] = [
    ("sglang-chat", 17, 470, &[]),
    ("sglang-dp2", 30, 497, &[]),
    ("sglang-evict", 36, 707, &[]),
    ("sglang-evict-pycore", 52, 1401, &[]),
    ("sglang-hicache-small", 28, 531, &[]),
    ("sglang-hicache-wb", 28, 453, &[]),
    ("sglang-hicache-wt", 28, 695, &[]),
    ("sglang-hicache-wts", 28, 420, &[]),
    ("sglang-lora", 26, 491, &[]),
    ("sglang-page1", 18, 234, &[]),
    ("sglang-restart", 15, 194, &[]),
    ("sglang-salt-extrakey", 28, 554, &[(Rule::ExtraKey, 14)]),
    ("sglang-salt-extrakey-dynamo", 28, 554, &[(Rule::ExtraKey, 14)]),
    ("sglang0516-evict", 22, 314, &[]),
    ("vllm-bytes-topic-reset", 15, 317, &[]),
    ("vllm-chat", 16, 398, &[]),
    ("vllm-dp2", 28, 551, &[]),
    ("vllm-evict", 61, 2149, &[]),
    ("vllm-full-report", 31, 911, &[]),
    ("vllm-hybrid-swa", 31, 853, &[(Rule::WindowUpperBound, 345)]),
    ("vllm-lora-salt", 16, 468, &[]),
    ("vllm-restart", 13, 179, &[]),
    ("vllm-xxhash", 11, 143, &[]),
    ("vllm011-evict", 27, 794, &[]),
    ("vllm023-evict", 27, 794, &[]),
    ("vllm023-salt", 20, 424, &[]),
];

fn load(name: &str) -> Recording {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../corpora/recordings");
    Recording::load(&folder.join(name).with_extension("kvrec")).expect("a recording of the corpus can be read")
}

/// A broken copy of a recording must be refused when it is read: the player takes its publishers for granted.
#[test]
fn a_record_of_a_publisher_without_truth_is_refused() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../corpora/recordings");
    let folder = tempfile::tempdir().expect("a folder for the copy");
    let copy = folder.path().join("vllm-chat.kvrec");
    std::fs::copy(corpus.join("vllm-chat.json"), copy.with_extension("json")).expect("the truth is copied");
    let mut bytes = std::fs::read(corpus.join("vllm-chat.kvrec")).expect("the recording is read");
    // The magic, then a live message of publisher 1: the truth knows publisher 0 only.
    let stray = [&[0, 1, 3][..], &[0; 8], &[0; 4], &[0, 0, 0, 8], &[0; 8], &[0; 4]].concat();
    bytes.splice(8..8, stray);
    std::fs::write(&copy, bytes).expect("the copy is written");
    let refused = Recording::load(&copy).expect_err("publisher 1 has no truth").to_string();
    assert!(refused.contains("record 0: a publisher of which the truth says nothing"), "{refused}");
}

fn check(report: &Report, checkpoints: u64, probes: u64, over: &[(Rule, u64)]) {
    assert!(report.is_exact(), "{report}");
    assert_eq!((report.checkpoints_equal, report.probes_equal), (checkpoints, probes), "{report}");
    assert_eq!(report.probes_under, 0, "{report}");
    assert_eq!(report.probes_over, over.iter().map(|(_, n)| n).sum::<u64>(), "{report}");
    for (rule, times) in over {
        assert_eq!(report.count(*rule), *times, "{report}");
    }
}

#[test]
fn every_checkpoint_and_every_probe_is_the_engines() {
    for (name, checkpoints, probes, over) in FIGURES {
        let recording = load(name);
        let ranks = || recording.truth.incarnations.iter().flat_map(|i| &i.ranks);
        assert_eq!(ranks().map(|r| r.checkpoints.len() as u64).sum::<u64>(), checkpoints, "{name}");
        let rows = ranks().flat_map(|r| &r.checkpoints).map(|c| c.probes.len() as u64).sum::<u64>();
        assert_eq!(rows, probes, "{name}");
        check(&verify_with(&recording, Faults::default()).unwrap(), checkpoints, probes, over);
    }
}

#[test]
fn the_corpus_has_no_stream_beyond_the_table() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../corpora/recordings");
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut names: Vec<String> = names
        .filter(|p| p.extension().is_some_and(|e| e == "kvrec"))
        .map(|p| p.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, FIGURES.map(|(name, ..)| name));
}

/// Lost and repeated messages and broken connections change nothing once they are repaired. Every batch is compared by the
/// time the next one comes, so a checkpoint in a gap is reached through the replay.
#[test]
fn losses_repeats_and_reconnections_change_nothing() {
    let cases = [
        Faults { lose_every: 3, ..Faults::default() },
        Faults { repeat_every: 2, ..Faults::default() },
        Faults { reconnects: true, ..Faults::default() },
        Faults { lose_every: 2, repeat_every: 3, reconnects: true },
    ];
    for (name, checkpoints, probes, over) in FIGURES {
        let recording = load(name);
        for faults in cases {
            let report = verify_with(&recording, faults).unwrap();
            assert!(report.is_exact(), "{faults:?} {report}");
            check(&report, checkpoints, probes, over);
        }
    }
}

/// A comparison that cannot fail shows nothing: each kind of truth, made wrong in one place, is found.
#[test]
fn a_truth_that_is_off_by_one_is_found() {
    let exact = load("vllm-evict");
    let tampered = |change: &dyn Fn(&mut Recording)| {
        let mut recording = exact.clone();
        change(&mut recording);
        verify_with(&recording, Faults::default()).unwrap()
    };
    let copies = tampered(&|r| {
        let live = &mut r.truth.incarnations[0].ranks[0].checkpoints[30].live;
        *live.values_mut().next().unwrap().values_mut().next().unwrap() += 1;
    });
    assert_eq!((copies.is_exact(), copies.checkpoints_equal), (false, 60), "{copies}");
    let missing = tampered(&|r| {
        let live = &mut r.truth.incarnations[0].ranks[0].checkpoints[30].live;
        live.values_mut().next().unwrap().pop_first();
    });
    assert_eq!((missing.is_exact(), missing.checkpoints_equal), (false, 60), "{missing}");
    for column in [1, 2] {
        for change in [|answer: u64| answer + 32, |answer: u64| answer.saturating_sub(32)] {
            let probe = tampered(&|r| {
                let row = r.truth.incarnations[0].ranks[0].checkpoints[30].probes.iter_mut().find(|row| row[2] > 32);
                let answer = &mut row.unwrap()[column];
                *answer = change(*answer);
            });
            assert_eq!((probe.is_exact(), probe.probes_equal), (false, 2148), "{probe}");
        }
    }
    let lost = tampered(&|r| r.live.truncate(r.live.len() / 2));
    assert!(!lost.is_exact() && lost.checkpoints == 61, "{lost}");
}
