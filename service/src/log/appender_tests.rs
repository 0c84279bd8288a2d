use super::*;
use crate::ingest::Now;
use bytes::Bytes;
use std::time::Duration;

fn at(ms: u64) -> Now {
    Now { elapsed: Duration::from_millis(ms), unix_ms: 1_000 + ms }
}

fn piece(begins: bool, ends: bool) -> AppenderInput {
    AppenderInput::Piece(Piece { bytes: Bytes::from_static(b"entry"), begins, ends })
}

const OURS: AppenderInput = AppenderInput::Lease { ours: true, stream: true };
const THEIRS: AppenderInput = AppenderInput::Lease { ours: false, stream: true };
const STATE: (bool, bool) = (true, true);
const BATCH: (bool, bool) = (false, false);

struct Machine(Appender);

impl Machine {
    fn new(limits: LogLimits) -> Self {
        Self(Appender::new(limits, 0))
    }

    fn step(&mut self, ms: u64, input: AppenderInput) -> Vec<AppenderOutput> {
        let mut out = Vec::new();
        self.0.step(at(ms), input, &mut out);
        out
    }

    /// A machine that has the lease, and the epoch that it took.
    fn writing(limits: LogLimits, tail: Option<EntryId>) -> (Self, u64) {
        let mut machine = Self::new(limits);
        assert_eq!(machine.step(0, AppenderInput::Tick), [AppenderOutput::Lease]);
        assert_eq!(machine.step(0, OURS), [AppenderOutput::Tail]);
        assert_eq!(machine.step(0, AppenderInput::Tail(tail)), [AppenderOutput::Subscribe]);
        let epoch = machine.0.epoch;
        (machine, epoch)
    }

    /// Appends one more entry, which is taken.
    fn append(&mut self, (begins, ends): (bool, bool)) -> Vec<AppenderOutput> {
        let asked = self.step(0, piece(begins, ends));
        assert!(matches!(asked[..], [AppenderOutput::Append { .. }]), "{asked:?}");
        self.step(0, AppenderInput::Appended(Outcome::Taken))
    }

    fn count(&mut self, reason: &str) -> u64 {
        self.0.take_counters().get(reason)
    }
}

fn names(out: &[AppenderOutput]) -> Vec<(EntryId, usize)> {
    let name = |output: &AppenderOutput| match output {
        AppenderOutput::Append { first, entries } => Some((*first, entries.len())),
        _ => None,
    };
    out.iter().filter_map(name).collect()
}

#[test]
fn who_has_no_lease_appends_nothing_and_looks_again() {
    let mut machine = Machine::new(LogLimits::default());
    assert_eq!(machine.step(0, AppenderInput::Tick), [AppenderOutput::Lease]);
    assert_eq!(machine.step(0, THEIRS), []);
    assert!(!machine.0.is_writing() && !machine.0.wants_more());
    assert_eq!(machine.step(1, piece(true, true)), []);
    let due = machine.0.next_tick().unwrap();
    assert_eq!(due, LogLimits::default().renewal());
    assert_eq!(machine.step(due.as_millis() as u64, AppenderInput::Tick), [AppenderOutput::Lease]);
}

#[test]
fn an_epoch_is_beyond_the_newest_entry_and_the_clock_s() {
    let newest = EntryId { epoch: u64::MAX - 7, number: 3 };
    let (_, epoch) = Machine::writing(LogLimits::default(), Some(newest));
    assert_eq!(epoch, u64::MAX - 6);
    let (_, epoch) = Machine::writing(LogLimits::default(), None);
    assert_eq!(epoch, 1_000 << 10);

    let mut machine = Machine::new(LogLimits::default());
    machine.step(0, AppenderInput::Tick);
    machine.step(0, OURS);
    let last = EntryId { epoch: u64::MAX, number: 0 };
    assert_eq!(machine.step(0, AppenderInput::Tail(Some(last))), [AppenderOutput::Delete]);
    assert_eq!(machine.step(0, AppenderInput::Trimmed), [AppenderOutput::Tail]);
    assert_eq!(machine.step(0, AppenderInput::Tail(None)), [AppenderOutput::Subscribe]);
}

#[test]
fn one_command_carries_what_came_while_the_one_before_was_on_its_way() {
    let (mut machine, epoch) = Machine::writing(LogLimits::default(), None);
    let id = |number| EntryId { epoch, number };
    assert_eq!(names(&machine.step(0, piece(true, true))), [(id(0), 1)]);
    for _ in 0..3 {
        assert_eq!(machine.step(0, piece(false, false)), []);
    }
    // What is before the state goes first.
    let out = machine.step(0, AppenderInput::Appended(Outcome::Taken));
    assert_eq!(out, [AppenderOutput::Trim { from: id(0) }]);
    assert_eq!(names(&machine.step(0, AppenderInput::Trimmed)), [(id(1), 3)]);
}

#[test]
fn without_an_answer_only_what_is_not_there_is_appended_again() {
    let (mut machine, epoch) = Machine::writing(LogLimits::default(), None);
    let id = |number| EntryId { epoch, number };
    machine.append(STATE);
    machine.step(0, AppenderInput::Trimmed);
    machine.step(0, piece(false, false));
    (0..3).for_each(|_| {
        machine.step(0, piece(false, false));
    });
    assert_eq!(names(&machine.step(0, AppenderInput::Appended(Outcome::Taken))), [(id(2), 3)]);
    assert_eq!(machine.step(0, AppenderInput::Appended(Outcome::Unanswered)), []);
    let due = machine.0.next_tick().unwrap().as_millis() as u64;
    assert_eq!(due, 100, "a pause");
    assert_eq!(machine.step(due, AppenderInput::Tick), [AppenderOutput::Lease]);
    assert_eq!(machine.step(due, OURS), [AppenderOutput::Tail]);
    assert_eq!(names(&machine.step(due, AppenderInput::Tail(Some(id(3))))), [(id(4), 1)]);
    assert_eq!(machine.count("entries_appended"), 4);
}

#[test]
fn lost_entries_and_other_writers_end_an_epoch() {
    // The server lost what it had taken.
    let (mut machine, epoch) = Machine::writing(LogLimits::default(), None);
    machine.append(STATE);
    machine.step(0, AppenderInput::Trimmed);
    machine.step(0, piece(false, false));
    machine.step(0, AppenderInput::Appended(Outcome::Unanswered));
    machine.step(100, AppenderInput::Tick);
    machine.step(100, OURS);
    let again = machine.step(100, AppenderInput::Tail(None));
    assert_eq!(again, [AppenderOutput::Unsubscribe, AppenderOutput::Tail]);
    assert_eq!(machine.step(100, AppenderInput::Tail(None)), [AppenderOutput::Subscribe]);
    assert!(machine.0.epoch > epoch);
    assert_eq!(machine.count("entries_lost"), 1);

    // The stream is gone although nothing was to be appended.
    let (mut machine, _) = Machine::writing(LogLimits::default(), None);
    machine.append(STATE);
    machine.step(0, AppenderInput::Trimmed);
    machine.step(1_000, AppenderInput::Tick);
    let gone = AppenderInput::Lease { ours: true, stream: false };
    assert_eq!(machine.step(1_000, gone), [AppenderOutput::Unsubscribe, AppenderOutput::Tail]);

    for outcome in [Outcome::Fenced, Outcome::Refused] {
        let (mut machine, _) = Machine::writing(LogLimits::default(), None);
        machine.append(STATE);
        machine.step(0, AppenderInput::Trimmed);
        machine.step(0, piece(false, false));
        assert_eq!(machine.step(0, AppenderInput::Appended(outcome)), [AppenderOutput::Unsubscribe]);
        assert!(!machine.0.is_writing());
        assert_eq!(machine.step(100, AppenderInput::Tick), [AppenderOutput::Lease]);
        assert_eq!(machine.step(100, OURS), [AppenderOutput::Tail], "the lease decides who goes on");
    }

    // Another one's entries, seen when the fate of ours was looked at.
    let (mut machine, epoch) = Machine::writing(LogLimits::default(), None);
    machine.append(STATE);
    machine.step(0, AppenderInput::Trimmed);
    machine.step(0, piece(false, false));
    machine.step(0, AppenderInput::Appended(Outcome::Unanswered));
    machine.step(100, AppenderInput::Tick);
    machine.step(100, OURS);
    let theirs = EntryId { epoch: epoch + 1, number: 0 };
    assert_eq!(machine.step(100, AppenderInput::Tail(Some(theirs))), [AppenderOutput::Unsubscribe]);
}

#[test]
fn a_lost_lease_ends_an_epoch() {
    let (mut machine, _) = Machine::writing(LogLimits::default(), None);
    machine.append(STATE);
    machine.step(0, AppenderInput::Trimmed);
    assert_eq!(machine.step(1_000, AppenderInput::Tick), [AppenderOutput::Lease]);
    assert_eq!(machine.step(1_000, THEIRS), [AppenderOutput::Unsubscribe]);
    assert_eq!(machine.count("leases_lost"), 1);
}

#[test]
fn enough_after_a_state_calls_for_another_one_and_then_for_trimming() {
    let limits = LogLimits { entries_max: 3, ..LogLimits::default() };
    let (mut machine, epoch) = Machine::writing(limits, None);
    let id = |number| EntryId { epoch, number };
    assert_eq!(machine.append(STATE), [AppenderOutput::Trim { from: id(0) }]);
    machine.step(0, AppenderInput::Trimmed);
    assert_eq!(machine.append(BATCH), []);
    assert_eq!(machine.append(BATCH), []);
    assert_eq!(machine.append(BATCH), [AppenderOutput::Subscribe]);
    assert_eq!(machine.append(BATCH), [], "once");
    assert_eq!(machine.append((true, false)), []);
    assert_eq!(machine.append(BATCH), []);
    assert_eq!(machine.append((false, true)), [AppenderOutput::Trim { from: id(5) }]);

    let limits = LogLimits { bytes_max: 10, ..LogLimits::default() };
    let (mut machine, _) = Machine::writing(limits, None);
    machine.append(STATE);
    machine.step(0, AppenderInput::Trimmed);
    assert_eq!(machine.append(BATCH), []);
    assert_eq!(machine.append(BATCH), [AppenderOutput::Subscribe]);
}

#[test]
fn what_waits_is_bounded_and_nothing_too_large_is_appended() {
    let limits = LogLimits { queue_entries_max: 3, ..LogLimits::default() };
    let (mut machine, _) = Machine::writing(limits, None);
    for (left, ends) in [(2, true), (1, false), (0, false)] {
        machine.step(0, piece(ends, ends));
        assert_eq!(machine.0.wants_more(), left > 0);
    }
    let limits = LogLimits { queue_bytes_max: 8, entry_bytes_max: 5, ..LogLimits::default() };
    let (mut machine, _) = Machine::writing(limits, None);
    machine.step(0, piece(true, true));
    assert!(machine.0.wants_more());
    machine.step(0, piece(false, false));
    assert!(!machine.0.wants_more());
    let large = Piece { bytes: Bytes::from_static(b"larger"), begins: false, ends: false };
    assert_eq!(machine.step(0, AppenderInput::Piece(large)), [AppenderOutput::Unsubscribe]);
    assert_eq!(machine.count("entries_too_large"), 1);
    // The answer to what was on its way is for nobody.
    assert_eq!(machine.step(0, AppenderInput::Appended(Outcome::Taken)), []);
}

#[test]
fn who_gave_up_asks_for_no_state() {
    let limits = LogLimits { entries_max: 1, entry_bytes_max: 5, ..LogLimits::default() };
    let (mut machine, _) = Machine::writing(limits, None);
    machine.append(STATE);
    machine.step(0, AppenderInput::Trimmed);
    assert_eq!(machine.append(BATCH), [AppenderOutput::Subscribe]);
    machine.step(0, piece(false, false));
    let large = Piece { bytes: Bytes::from_static(b"larger"), begins: false, ends: false };
    assert_eq!(machine.step(0, AppenderInput::Piece(large)), [AppenderOutput::Unsubscribe]);
    // It comes late, and enough had come after the state.
    assert_eq!(machine.step(0, AppenderInput::Appended(Outcome::Taken)), []);
}

#[test]
fn a_server_that_does_not_answer_holds_no_state() {
    let (mut machine, _) = Machine::writing(LogLimits::default(), None);
    machine.step(0, piece(true, false));
    let out = machine.step(0, AppenderInput::Appended(Outcome::Unanswered));
    assert_eq!(out, [AppenderOutput::Unsubscribe], "its parts take up the relay's room");
    let mut due = Vec::new();
    let mut ms = 0;
    for _ in 0..8 {
        let next = machine.0.next_tick().unwrap().as_millis() as u64;
        due.push(next - ms);
        ms = next;
        assert_eq!(machine.step(ms, AppenderInput::Tick), [AppenderOutput::Lease]);
        machine.step(ms, AppenderInput::Unanswered);
    }
    assert_eq!(due, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
}
