//! A tiny ladder from corpus to page, in this process: everything but the clock is checked.

use kvatlas_benches::provenance::Provenance;
use kvatlas_corpora::{Names, Parameters, Sharing};
use kvatlas_harness::indexers::{Choice, Form};
use kvatlas_harness::ladder::campaign::{Campaign, Listener, Plan};
use kvatlas_harness::ladder::child::{InProcess, Runner};
use kvatlas_harness::ladder::corpus::{CorpusArguments, CorpusFacts, NamesArgument, SharingArgument};
use kvatlas_harness::ladder::layout::Layout;
use kvatlas_harness::ladder::pace::{Arrivals, Offer};
use kvatlas_harness::ladder::report::{self, Report};
use kvatlas_harness::ladder::tape::Tape;
use kvatlas_harness::ladder::trial::{self, BlockOps, TrialSpec};

const ALL: [Choice; 4] = [Choice::Kvatlas, Choice::Positional, Choice::Reference, Choice::Null];

struct Silent;

impl Listener for Silent {
    fn part(&self, _: &str, _: Option<u64>) {}
    fn trial(&self, _: &str) {}
}

fn corpus(random_evictions: f64, names: NamesArgument) -> (Tape, CorpusFacts) {
    let arguments = CorpusArguments {
        trace: None,
        requests: 300,
        duplicate: None,
        length_factor: 1,
        block_tokens: 128,
        workers: Some(6),
        worker_blocks: Some(600),
        names,
        sharing: SharingArgument::High,
        random_evictions,
        one_name_removals: false,
        seed: 3,
        block_ops: 0.06,
    };
    arguments.record(|_| {}).expect("valid parameters")
}

/// Cores are not pinned, so any numbers do.
fn layout() -> Layout {
    Layout { about: String::new(), issuers: vec![0, 1], queries: vec![2, 3], events: vec![3, 4] }
}

fn spec(indexer: Choice, arrivals: Arrivals) -> TrialSpec {
    let offer = Offer { rate: 10_000_000, window_ms: 5, arrivals };
    TrialSpec { indexer, layout: layout(), pin: false, offer, form: Form::default(), check_prompts: 200 }
}

#[test]
fn every_indexer_serves_everything_and_answers_like_the_oracle() {
    for (holes, names) in [(0.0, NamesArgument::Same), (0.2, NamesArgument::Random)] {
        let (tape, facts) = corpus(holes, names);
        assert!(facts.memberships > 3000, "{facts:?}");
        for indexer in ALL {
            for arrivals in [Arrivals::Trace, Arrivals::Even, Arrivals::AtOnce] {
                let result = trial::run(&spec(indexer, arrivals), &tape).unwrap();
                assert_eq!((result.overflow, result.gave_up), (0, false));
                let end = tape.warm + result.operations as usize;
                assert_eq!(result.block_ops, BlockOps::of(&tape, tape.warm..end));
                assert_eq!(result.done, result.block_ops, "drained: {indexer:?} {arrivals:?}");
                let served = result.lookups.service.count + result.events.service.count;
                assert_eq!(served, result.operations);
                assert!(result.lookups.scheduled_to_done.max >= result.lookups.service.max);
                let checked = result.checked.unwrap();
                assert_eq!(checked.prompts, 200);
                assert!(checked.lines > 200, "the sample has hits: {checked:?}");
                if indexer == Choice::Null {
                    assert!(checked.differing > 0 && !checked.promised, "a comparison that cannot fail");
                } else {
                    assert_eq!(checked.differing, 0, "{indexer:?} {arrivals:?} holes {holes}");
                }
            }
        }
    }
}

#[test]
fn looking_ahead_and_pairs_change_no_answer_and_the_reader_counts_its_lookups() {
    let (tape, _) = corpus(0.2, NamesArgument::Same);
    for (pairs, look_ahead) in [(true, false), (false, true)] {
        let mut spec = spec(Choice::Kvatlas, Arrivals::AtOnce);
        spec.form = Form { pairs, look_ahead, small_pages: pairs };
        spec.check_prompts = 200;
        let result = trial::run(&spec, &tape).unwrap();
        assert_eq!(result.done, result.block_ops);
        assert_eq!(result.checked.unwrap().differing, 0);
        assert_eq!(result.figures["lookups"].0, result.lookups.service.count);
    }
}

#[cfg(feature = "peers")]
#[test]
fn published_indexes_serve_everything_too() {
    let (tape, _) = corpus(0.0, NamesArgument::Same);
    for indexer in [Choice::KvIndex, Choice::Crtc] {
        let mut spec = spec(indexer, Arrivals::AtOnce);
        assert!(trial::run(&spec, &tape).is_err(), "they have one writing lane");
        spec.layout.events = vec![3];
        let result = trial::run(&spec, &tape).unwrap();
        assert_eq!(result.done, result.block_ops);
        let checked = result.checked.unwrap();
        assert!(checked.prompts == 200 && checked.differing == 0, "without holes they are exact, too: {checked:?}");
    }
}

#[test]
fn a_corpus_is_the_same_every_time_and_fills_its_caches() {
    let (tape, facts) = corpus(0.0, NamesArgument::Same);
    let (again, _) = corpus(0.0, NamesArgument::Same);
    assert!(tape == again);
    let parameters =
        Parameters { workers: 6, blocks_per_worker: 600, replicas: 6, seed: 3, ..facts.parameters.clone() };
    assert_eq!(facts.parameters, Parameters { ..parameters });
    assert_eq!(Parameters::standard(128, Sharing::High, Names::Same).names, facts.parameters.names);
    assert!(tape.operations[..tape.warm].iter().all(|o| o.is_event()), "the warm part looks nothing up");
    assert!(tape.operations.is_sorted_by_key(|o| o.at_us));
    assert!(BlockOps::of(&tape, tape.warm..tape.operations.len()).total() >= 60_000);
}

#[test]
fn a_rate_beyond_the_tape_is_not_offered_rather_than_measured_briefly() {
    let (tape, _) = corpus(0.0, NamesArgument::Same);
    let mut spec = spec(Choice::Null, Arrivals::Even);
    spec.offer = Offer { rate: 1_000_000_000, window_ms: 1000, arrivals: Arrivals::Even };
    assert!(InProcess { tape }.run(&spec).unwrap().is_none());
}

#[test]
fn a_whole_campaign_makes_a_report_that_reads_back() {
    let (tape, corpus) = corpus(0.0, NamesArgument::Same);
    let plan = Plan {
        indexers: vec![Choice::Kvatlas, Choice::Null],
        layout: layout(),
        pin: false,
        arrivals: Arrivals::Even,
        window_ms: 2,
        trials: 2,
        replacements_max: 1,
        loads: vec![0.5, 1.0],
        form: Form::default(),
        check_prompts: 20,
        time_s: None,
    };
    let runner = InProcess { tape };
    let hurried = Plan { time_s: Some(0.0), ..plan.clone() };
    let hurried = Campaign { plan: &hurried, runner: &runner, listener: &Silent }.run().unwrap();
    assert!(hurried.cut_short && hurried.capacity.arms.iter().all(|a| a.trials.len() == 1) && hurried.rungs.is_empty());
    assert!(hurried.sustained.iter().all(|s| s.told() == "at least (time was over)"));
    let measured = Campaign { plan: &plan, runner: &runner, listener: &Silent }.run().unwrap();
    assert!(!measured.cut_short);
    assert_eq!(measured.capacity.arms.len(), 3, "two indexers and a control");
    assert!(measured.capacity.arms.iter().all(|a| a.trials.len() == 2 && a.tally.usable == 2));
    assert!(measured.capacity.arms[2].control && measured.capacity.arms[2].indexer == Choice::Kvatlas);
    assert_eq!(measured.sustained.len(), 2);
    assert!(measured.sustained.iter().all(|s| !s.probes.is_empty()));
    let provenance = Provenance::of_this_process("none".to_owned(), 2).unwrap();
    let report = Report { provenance, corpus, plan, layout_name: "test".to_owned(), took_s: 1.0, measured };
    let json = serde_json::to_string(&report).unwrap();
    let again: Report = serde_json::from_str(&json).unwrap();
    assert_eq!(again.measured.capacity.arms.len(), 3);
    assert_eq!(report.checked().map(|(_, differing)| differing), Some(0));
    let page = report::page(&report);
    assert!(
        page.starts_with("<!doctype html>") && page.contains("kvatlas") && page.contains("Threads were not pinned")
    );
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "the page needs nothing from outside: {outside}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(report::table(&report).contains("kvatlas (A/A)"));
}
