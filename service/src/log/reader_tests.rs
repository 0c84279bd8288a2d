use super::*;
use crate::ingest::{Now, Trust};
use crate::ops::{Applied, Op, OpBatch};
use crate::relay::{Life, Part};
use kvatlas_index::{EngineHash, Tier};

const A: Life = Life(0xa);
const B: Life = Life(0xb);
const EXACT: Option<Trust> = Some(Trust::Exact);

fn id(epoch: u64, number: u64) -> EntryId {
    EntryId { epoch, number }
}

fn ops(name: u64) -> Vec<Op> {
    vec![Op::Remove { tier: Tier::Device, names: vec![EngineHash(name)] }]
}

fn entry(life: Life, trust: Option<Trust>, says: Says) -> Entry {
    Entry { life, trust, upper_bound: false, fits: true, bytes: 100, says }
}

fn batch(life: Life, sequence: u64, trust: Option<Trust>) -> Entry {
    let batch = OpBatch { sequence: Some(sequence), ops: ops(sequence), ..OpBatch::default() };
    entry(life, trust, Says::Batch { reset: false, batch })
}

fn part(life: Life, chunk: u32, last: bool, sequence: u64) -> Entry {
    entry(life, None, Says::Part { part: Part { chunk, last }, sequence, ops: ops(sequence) })
}

fn word(life: Life, trust: Trust) -> Entry {
    entry(life, Some(trust), Says::Nothing)
}

struct Machine {
    reader: Reader,
    out: Vec<ReaderOutput>,
}

impl Machine {
    fn new() -> Self {
        Self { reader: Reader::new(LogLimits { state_bytes_max: 1_000, ..LogLimits::default() }), out: Vec::new() }
    }

    fn step(&mut self, input: ReaderInput) -> Trust {
        self.reader.step(Now::default(), input, &mut self.out);
        self.reader.trust()
    }

    fn read(&mut self, id: EntryId, entry: Entry) -> Trust {
        self.step(ReaderInput::Entry { id, read: Ok(entry) })
    }

    /// Follows life `A` at batch 9, whose state came in two parts.
    fn following() -> Self {
        let mut machine = Self::new();
        machine.step(ReaderInput::Connected { tail: Some(id(1, 2)) });
        machine.read(id(1, 0), part(A, 0, false, 8));
        machine.read(id(1, 1), part(A, 1, true, 9));
        assert_eq!(machine.read(id(1, 2), word(A, Trust::Exact)), Trust::Exact);
        machine.out.clear();
        machine
    }

    fn cursor(&self) -> Option<u64> {
        self.reader.status().cursor
    }

    fn count(&self, reason: &str) -> u64 {
        self.reader.status().counters.get(reason).copied().unwrap_or(0)
    }
}

#[test]
fn a_state_is_loaded_when_it_is_whole_and_batches_follow() {
    let mut machine = Machine::new();
    assert_eq!(machine.reader.trust(), Trust::NeverSeen);
    assert_eq!(machine.step(ReaderInput::Connected { tail: Some(id(1, 2)) }), Trust::NeverSeen);
    assert_eq!(machine.read(id(1, 0), part(A, 0, false, 8)), Trust::Bootstrapping);
    assert_eq!(machine.read(id(1, 1), part(A, 1, true, 9)), Trust::Bootstrapping);
    let load = ReaderOutput::Load { sequence: 9, parts: vec![ops(8), ops(9)] };
    let begins = ReaderOutput::Judge(Trust::Bootstrapping);
    assert_eq!(machine.out, [begins, load]);
    // Not before everything is read that was there, and the log says so.
    assert_eq!(machine.read(id(1, 2), word(A, Trust::Exact)), Trust::Exact);
    assert_eq!(machine.read(id(1, 3), batch(A, 10, EXACT)), Trust::Exact);
    assert_eq!((machine.cursor(), machine.reader.status().incarnation), (Some(10), 1));
}

#[test]
fn an_empty_life_begins_with_its_first_batch() {
    let mut machine = Machine::new();
    machine.step(ReaderInput::Connected { tail: None });
    let mut first = batch(A, 0, EXACT);
    if let Says::Batch { reset, .. } = &mut first.says {
        *reset = true;
    }
    assert_eq!(machine.read(id(1, 0), first), Trust::Exact);
    let applied: Vec<_> = machine.out.iter().filter(|o| matches!(o, ReaderOutput::Apply(_))).collect();
    let clear = OpBatch { ops: vec![Op::Clear { tier: None }], ..OpBatch::default() };
    assert_eq!(applied[0], &ReaderOutput::Apply(clear));
    assert_eq!(machine.cursor(), Some(0));
}

#[test]
fn what_is_worse_is_told_before_it_is_applied_and_what_is_better_after() {
    let mut machine = Machine::following();
    machine.read(id(1, 3), batch(A, 10, Some(Trust::Degraded)));
    machine.read(id(1, 4), batch(A, 11, EXACT));
    let order = machine.out.iter().map(|output| match output {
        ReaderOutput::Judge(trust) => trust.name(),
        ReaderOutput::Apply(_) => "apply",
        ReaderOutput::Load { .. } => "load",
    });
    assert_eq!(order.collect::<Vec<_>>(), ["DEGRADED", "apply", "apply", "EXACT"]);
    // What is not said of a batch is not exact.
    assert_eq!(machine.read(id(1, 5), batch(A, 12, None)), Trust::Degraded);
}

#[test]
fn a_state_that_repeats_what_is_known_is_passed_by() {
    let mut machine = Machine::following();
    assert_eq!(machine.read(id(1, 3), part(A, 0, false, 8)), Trust::Exact);
    assert_eq!(machine.read(id(1, 4), part(A, 1, true, 9)), Trust::Exact);
    assert_eq!(machine.read(id(1, 5), batch(A, 10, EXACT)), Trust::Exact);
    assert!(machine.out.iter().all(|output| !matches!(output, ReaderOutput::Load { .. })));
    assert_eq!(machine.count("states_passed"), 1);
    // One of another place does not.
    machine.read(id(1, 6), part(A, 0, true, 14));
    assert_eq!(machine.reader.trust(), Trust::Degraded);
}

#[test]
fn whatever_does_not_follow_is_lost_until_the_next_state() {
    type Do = fn(&mut Machine) -> Trust;
    let unreadable =
        |machine: &mut Machine| machine.step(ReaderInput::Entry { id: id(1, 3), read: Err("entry_malformed") });
    let cases: [(&str, Do); 7] = [
        ("unreadable", unreadable),
        ("a number is missing", |m| m.read(id(1, 4), batch(A, 11, EXACT))),
        ("another epoch without a state", |m| m.read(id(2, 0), batch(A, 10, EXACT))),
        ("another life without a state", |m| m.read(id(1, 3), batch(B, 10, EXACT))),
        ("a batch is missing", |m| m.read(id(1, 3), batch(A, 11, EXACT))),
        ("a part without its first", |m| m.read(id(1, 3), part(A, 1, true, 12))),
        ("the stream went back", |m| m.step(ReaderInput::Quiet { tail: Some(id(1, 1)), writer: true })),
    ];
    for (name, what) in cases {
        let mut machine = Machine::following();
        assert_eq!(what(&mut machine), Trust::Degraded, "{name}");
        assert!(machine.reader.status().detail.is_some(), "{name}");
        assert!(!machine.out.iter().any(|o| matches!(o, ReaderOutput::Apply(_) | ReaderOutput::Load { .. })), "{name}");
        // Nothing is applied before the next state.
        machine.read(id(9, 7), batch(A, 12, EXACT));
        assert!(!machine.out.iter().any(|o| matches!(o, ReaderOutput::Apply(_))), "{name}");
        machine.read(id(10, 0), part(B, 0, true, 20));
        assert_eq!(machine.read(id(10, 1), word(B, Trust::Exact)), Trust::Exact, "{name}");
        assert_eq!(machine.cursor(), Some(20), "{name}");
    }
}

#[test]
fn repeated_entries_and_batches_do_nothing() {
    let mut machine = Machine::following();
    machine.read(id(1, 2), batch(A, 77, EXACT));
    machine.read(id(1, 3), batch(A, 9, EXACT));
    assert!(!machine.out.iter().any(|o| matches!(o, ReaderOutput::Apply(_))));
    assert_eq!((machine.count("entries_repeated"), machine.count("stale")), (1, 1));
    assert_eq!(machine.read(id(1, 4), batch(A, 10, EXACT)), Trust::Exact);
}

#[test]
fn nobody_is_exact_without_a_server_without_a_writer_or_with_something_left_to_read() {
    let mut machine = Machine::following();
    assert_eq!(machine.step(ReaderInput::Disconnected), Trust::Degraded);
    assert_eq!(machine.step(ReaderInput::Connected { tail: Some(id(1, 2)) }), Trust::Exact);
    assert_eq!(machine.step(ReaderInput::Quiet { tail: Some(id(1, 2)), writer: false }), Trust::Degraded);
    assert_eq!(machine.step(ReaderInput::Quiet { tail: Some(id(1, 2)), writer: true }), Trust::Exact);
    machine.step(ReaderInput::Disconnected);
    assert_eq!(machine.step(ReaderInput::Connected { tail: Some(id(1, 4)) }), Trust::Degraded);
    assert_eq!(machine.read(id(1, 3), batch(A, 10, EXACT)), Trust::Degraded);
    assert_eq!(machine.read(id(1, 4), batch(A, 11, EXACT)), Trust::Exact);
}

#[test]
fn limits_of_states_and_of_the_index_are_not_passed_over() {
    let mut machine = Machine::new();
    machine.step(ReaderInput::Connected { tail: None });
    for chunk in 0..11 {
        machine.read(id(1, u64::from(chunk)), part(A, chunk, false, 9));
    }
    assert_eq!(machine.count("states_too_large"), 1);
    assert!(!machine.out.iter().any(|output| matches!(output, ReaderOutput::Load { .. })));

    for did in
        [Applied { limit_reached: 1, ..Applied::default() }, Applied { orphans_dropped: 1, ..Applied::default() }]
    {
        let mut machine = Machine::following();
        machine.read(id(1, 3), batch(A, 10, EXACT));
        let mut out = Vec::new();
        machine.reader.applied(&did, &mut out);
        assert_eq!(out, [ReaderOutput::Judge(Trust::Degraded)]);
        assert_eq!(machine.read(id(1, 4), batch(A, 11, EXACT)), Trust::Degraded);
    }
}

#[test]
fn another_block_size_is_a_misfit() {
    let mut machine = Machine::following();
    let other = Entry { fits: false, ..batch(A, 10, EXACT) };
    assert_eq!(machine.read(id(1, 3), other), Trust::Misconfigured);
}

#[test]
fn an_upper_bound_is_passed_on() {
    let mut machine = Machine::following();
    machine.read(id(1, 3), Entry { upper_bound: true, ..batch(A, 10, EXACT) });
    assert!(machine.reader.status().upper_bound.is_some());
    machine.read(id(1, 4), batch(A, 11, EXACT));
    assert_eq!(machine.reader.status().upper_bound, None);
}
