use super::LivenessInput::{Contact, Dispatched, Failed, Finished, Progress, Tick};
use super::LivenessOutput::{Cleared, HangUp, Probe, Set};
use super::Veto::{Unreachable, Wedged};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const MS: fn(u64) -> Duration = Duration::from_millis;
const NONE: &[LivenessOutput] = &[];

type Step = (u64, LivenessInput, &'static [LivenessOutput]);

/// Runs a table: each step's milliseconds, input and outputs.
fn run(name: &str, steps: &[Step]) -> Liveness {
    let mut worker = Liveness::new(LivenessLimits::default());
    for (i, (at, input, expected)) in steps.iter().enumerate() {
        let mut out = Vec::new();
        worker.step(MS(*at), *input, &mut out);
        assert_eq!(out, *expected, "{name}, step {i}: {input:?} at {at} ms");
    }
    worker
}

fn dispatched(ms: u64) -> LivenessInput {
    Dispatched { prefill: MS(ms) }
}

#[test]
fn unreachable_row_by_row() {
    let tables: &[(&str, &[Step])] = &[
        ("silence alone sets nothing", &[(0, Contact(0), NONE), (3_600_000, Tick, NONE)]),
        ("nor does it for a worker that was never seen", &[(3_600_000, Tick, NONE)]),
        (
            "a failure and no contact for the stall time",
            &[
                (60_000, Failed(0), &[Probe]),
                (61_000, Tick, &[Probe]),
                (61_999, Tick, NONE),
                (62_000, Tick, &[Set(Unreachable), HangUp]),
                (70_000, Tick, NONE),
                (70_000, Failed(0), NONE),
            ],
        ),
        (
            "the time runs from the first of several failures",
            &[
                (0, Failed(0), &[Probe]),
                (900, Failed(0), NONE),
                (1_900, Failed(0), &[Probe]),
                (2_000, Tick, &[Set(Unreachable), HangUp]),
            ],
        ),
        ("a contact in time", &[(0, Failed(0), &[Probe]), (1_999, Contact(0), NONE), (9_000, Tick, NONE)]),
        (
            "the first contact clears, and the next failure begins anew",
            &[
                (0, Failed(0), &[Probe]),
                (2_000, Tick, &[Set(Unreachable), HangUp]),
                (5_000, Contact(0), &[Cleared(Unreachable)]),
                (5_000, Contact(0), NONE),
                (5_100, Failed(0), &[Probe]),
                (7_099, Tick, &[Probe]),
                (7_100, Tick, &[Set(Unreachable), HangUp]),
            ],
        ),
        (
            "contact on another stream keeps a worker whose one stream is lost",
            &[
                (0, Failed(0), &[Probe]),
                (1_000, Tick, &[Probe]),
                (1_001, Contact(1), NONE),
                (2_500, Tick, &[Probe]),
                (2_501, Contact(1), NONE),
                (4_500, Tick, &[Probe]),
                (4_501, Tick, &[Set(Unreachable), HangUp]),
                (9_000, Contact(1), &[Cleared(Unreachable)]),
                (9_000, Tick, &[Probe]),
                (11_000, Tick, &[Set(Unreachable), HangUp]),
            ],
        ),
        (
            "late news of an early contact is no step back",
            &[
                (5_000, Contact(0), NONE),
                (4_000, Contact(1), NONE),
                (5_000, Failed(0), &[Probe]),
                (6_999, Tick, &[Probe]),
            ],
        ),
    ];
    for (name, steps) in tables {
        run(name, steps);
    }
}

#[test]
fn wedged_row_by_row() {
    let done = |ms| Progress { prefill_done: MS(ms) };
    let tables: &[(&str, &[Step])] = &[
        ("nothing outstanding", &[(0, Contact(0), NONE), (60_000, Tick, NONE)]),
        (
            "the clock starts at the first dispatch",
            &[
                (10_000, dispatched(0), NONE),
                (12_000, dispatched(0), NONE),
                (12_999, Tick, NONE),
                (13_000, Tick, &[Set(Wedged)]),
                (14_000, Tick, NONE),
                (14_000, done(0), &[Cleared(Wedged)]),
                (16_999, Tick, NONE),
                (17_000, Tick, &[Set(Wedged)]),
            ],
        ),
        (
            "stretched by the prefill that is left",
            &[
                (0, dispatched(4_000), NONE),
                (7_999, Tick, NONE),
                (7_999, done(1_000), NONE),
                (13_998, Tick, NONE),
                (13_999, Tick, &[Set(Wedged)]),
            ],
        ),
        (
            "an end without a token is no progress, but takes its prefill along",
            &[
                (0, dispatched(9_000), NONE),
                (0, dispatched(0), NONE),
                (2_000, Finished { prefill_left: MS(9_000) }, NONE),
                (2_999, Tick, NONE),
                (3_000, Tick, &[Set(Wedged)]),
                (4_000, Finished { prefill_left: MS(0) }, NONE),
                (4_000, Contact(0), NONE),
                (5_000, done(0), &[Cleared(Wedged)]),
                (60_000, Tick, NONE),
            ],
        ),
        (
            "more ends than dispatches, and prefill without end",
            &[
                (0, Finished { prefill_left: Duration::MAX }, NONE),
                (0, Dispatched { prefill: Duration::MAX }, NONE),
                (0, Dispatched { prefill: Duration::MAX }, NONE),
                (u64::MAX / 2, Tick, NONE),
            ],
        ),
    ];
    for (name, steps) in tables {
        run(name, steps);
    }
}

#[test]
fn the_graver_veto_is_shown_and_each_ends_by_itself() {
    let worker = run(
        "both",
        &[
            (0, dispatched(0), NONE),
            (3_000, Tick, &[Set(Wedged)]),
            (3_000, Failed(0), &[Probe]),
            (5_000, Tick, &[Set(Unreachable), HangUp]),
        ],
    );
    assert_eq!((worker.veto(), worker.awaits_contact(), worker.next_tick()), (Some(Unreachable), true, None));
    let mut again = worker.clone();
    again.step(MS(6_000), Contact(0), &mut Vec::new());
    assert_eq!((again.veto(), again.awaits_contact()), (Some(Wedged), false));
    let mut again = worker;
    again.step(MS(6_000), Progress { prefill_done: MS(0) }, &mut Vec::new());
    assert_eq!(again.veto(), Some(Unreachable));
}

#[test]
fn a_healthy_worker_needs_no_timer() {
    let mut worker = run("healthy", &[(0, Contact(0), NONE), (1, Failed(0), &[Probe]), (2, Contact(0), NONE)]);
    assert_eq!(worker.next_tick(), None);
    worker.step(MS(10), dispatched(0), &mut Vec::new());
    assert_eq!(worker.next_tick(), Some(MS(3_010)));
}

#[test]
fn probes_fit_into_the_stall_time() {
    for (stall, period) in [(2_000, 1_000), (60_000, 1_000), (50, 25), (1, 1)] {
        assert_eq!(LivenessLimits { stall: MS(stall), ..LivenessLimits::default() }.probe_period(), MS(period));
    }
}

/// What the schedules do next: which stream, and after how many milliseconds.
#[derive(Clone, Copy, Debug)]
enum Action {
    Contact(u32),
    Fail(u32),
    Wait,
}

/// What the table says, kept as plain times of the streams.
#[derive(Default)]
struct Model {
    contact_at: u64,
    failing: [Option<u64>; 3],
}

impl Model {
    fn due(&self) -> Option<u64> {
        Some(self.failing.iter().flatten().min()?.max(&self.contact_at) + 2_000)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, rng_seed: RngSeed::Fixed(0x11fe), ..ProptestConfig::default() })]

    /// With a tick whenever one is due: vetoed exactly from the stall time after a failure without contact to the first contact.
    #[test]
    fn vetoed_exactly_while_the_table_says_so(
        actions in prop::collection::vec(
            (prop_oneof![(0..3_u32).prop_map(Action::Contact), (0..3_u32).prop_map(Action::Fail), Just(Action::Wait)],
             prop_oneof![0..50_u64, 900..1_100_u64, 1_900..2_100_u64]),
            1..60,
        )
    ) {
        let (mut worker, mut model, mut vetoed, mut now) =
            (Liveness::new(LivenessLimits::default()), Model::default(), false, 0);
        for (action, wait) in actions {
            let until = now + wait;
            // Every tick on the way comes when it is due.
            while let Some(due) = worker.next_tick().map(|d| d.as_millis() as u64).filter(|due| *due <= until) {
                let mut out = Vec::new();
                now = now.max(due);
                worker.step(MS(now), Tick, &mut out);
                if model.due().is_some_and(|due| now >= due) && !vetoed {
                    prop_assert_eq!(now, model.due().unwrap(), "set in time");
                    prop_assert_eq!(&out, &[Set(Unreachable), HangUp]);
                    vetoed = true;
                } else {
                    prop_assert_eq!(out, [Probe], "a due tick does something");
                }
                prop_assert_eq!(worker.veto().is_some(), vetoed);
            }
            now = until;
            let mut out = Vec::new();
            match action {
                Action::Contact(stream) => {
                    worker.step(MS(now), Contact(stream), &mut out);
                    model.failing[stream as usize] = None;
                    model.contact_at = now;
                    prop_assert_eq!(out, if vetoed { vec![Cleared(Unreachable)] } else { vec![] });
                    vetoed = false;
                }
                Action::Fail(stream) => {
                    worker.step(MS(now), Failed(stream), &mut out);
                    model.failing[stream as usize].get_or_insert(now);
                    prop_assert!(out.is_empty() || out == [Probe]);
                }
                Action::Wait => {}
            }
            prop_assert_eq!(worker.veto().is_some(), vetoed);
            prop_assert!(vetoed || model.due().is_none_or(|due| now <= due), "never later than a tick");
        }
    }

    /// Contacts on any stream that are less than the stall time apart: never vetoed, whatever fails.
    #[test]
    fn never_vetoed_while_contacts_come(
        steps in prop::collection::vec((0..3_u32, 1..2_000_u64, prop::collection::vec(0..3_u32, 0..4)), 1..60)
    ) {
        let (mut worker, mut now, mut out) = (Liveness::new(LivenessLimits::default()), 0, Vec::new());
        for (stream, gap, failures) in steps {
            worker.step(MS(now), Contact(stream), &mut out);
            failures.iter().for_each(|f| worker.step(MS(now), Failed(*f), &mut out));
            now += gap;
            worker.step(MS(now), Tick, &mut out);
            prop_assert_eq!(worker.veto(), None);
        }
        prop_assert!(out.iter().all(|o| *o == Probe));
    }
}
