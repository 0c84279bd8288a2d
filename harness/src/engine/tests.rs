use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;

const MS: Nanos = 1_000_000;

/// One token a millisecond, nothing else costs anything.
fn spec(blocks: u32, seats: u32, budget: f64) -> EngineSpec {
    let timing = Timing { base: 0.0, kp: 1e-3, ka: 0.0, kd: 1e-3, kc: 0.0, token_budget: budget, ..Timing::CLASS_8B };
    EngineSpec { block_size: 4, blocks, seats, removals_late_passes: 0, timing }
}

fn request(id: RequestId, contents: &[u64], prompt: u32, output: u32) -> Request {
    Request::new(id, prompt, output, 4, contents.into()).expect("enough contents")
}

/// Runs until nothing is left to do; outputs with the times at which they became visible.
fn drain(engine: &mut Engine) -> Vec<(Nanos, Output)> {
    let mut all = Vec::new();
    while let Some(at) = engine.next_wakeup() {
        let mut out = Vec::new();
        engine.advance(at, &mut out);
        engine.pool().check();
        all.extend(out.into_iter().map(|output| (at, output)));
    }
    all
}

fn tokens(outputs: &[(Nanos, Output)], wanted: RequestId) -> Vec<Nanos> {
    let at = |(at, output): &(Nanos, Output)| match output {
        Output::Token { id, .. } if *id == wanted => Some(*at),
        _ => None,
    };
    outputs.iter().filter_map(at).collect()
}

fn ended(outputs: &[(Nanos, Output)]) -> BTreeMap<RequestId, u32> {
    let one = |(_, output): &(Nanos, Output)| match output {
        Output::Ended { id, cached_tokens } => Some((*id, *cached_tokens)),
        _ => None,
    };
    outputs.iter().filter_map(one).collect()
}

#[test]
fn a_prompt_takes_its_tokens_and_a_decode_one_a_pass() {
    let mut engine = Engine::new(spec(100, 8, 8.0));
    engine.submit(0, request(1, &[1, 2, 3, 4], 10, 3)).unwrap();
    let outputs = drain(&mut engine);
    // Passes of 8, 2, 1 and 1 tokens.
    assert_eq!(tokens(&outputs, 1), [10 * MS, 11 * MS, 12 * MS]);
    let stored: Vec<_> = outputs
        .iter()
        .filter_map(|(at, o)| match o {
            Output::Stored { from, parent, names, .. } => Some((*at, *from, *parent, names.len())),
            _ => None,
        })
        .collect();
    let names = chained(&[1, 2, 3, 4]);
    assert_eq!(stored, [(8 * MS, 0, None, 2), (12 * MS, 2, Some(names[1]), 1)]);
    assert_eq!(ended(&outputs), BTreeMap::from([(1, 0)]));
    assert_eq!(engine.truth(&names), 3);
    assert_eq!(engine.pool().free(), 100);
}

#[test]
fn a_full_hit_computes_its_last_block_again() {
    let mut engine = Engine::new(spec(100, 8, 64.0));
    engine.submit(0, request(1, &[1, 2], 8, 1)).unwrap();
    drain(&mut engine);
    engine.submit(100 * MS, request(2, &[1, 2], 8, 1)).unwrap();
    let outputs = drain(&mut engine);
    assert_eq!((tokens(&outputs, 2), ended(&outputs)), (vec![104 * MS], BTreeMap::from([(2, 4)])));
    // The block that was computed again is a copy.
    assert_eq!(engine.cached().map(|(_, copies)| copies).sum::<u32>(), 3);
}

#[test]
fn whoever_does_not_fit_whole_waits_and_nobody_overtakes_it() {
    let mut engine = Engine::new(spec(6, 8, 64.0));
    engine.submit(0, request(1, &[1, 2, 3, 4], 16, 2)).unwrap();
    engine.submit(0, request(2, &[5, 6, 7], 12, 1)).unwrap();
    engine.submit(0, request(3, &[8], 4, 1)).unwrap();
    let outputs = drain(&mut engine);
    let first = |id| tokens(&outputs, id)[0];
    assert_eq!((first(1), first(2), first(3)), (16 * MS, 33 * MS, 33 * MS));
}

#[test]
fn the_one_admitted_last_is_preempted_and_computes_again() {
    // Two requests of 2 blocks in a pool of 5: the second block boundary of both needs more than there is.
    let mut engine = Engine::new(spec(5, 8, 64.0));
    engine.submit(0, request(1, &[1, 2, 3], 8, 5)).unwrap();
    engine.submit(0, request(2, &[4, 5, 6], 8, 5)).unwrap();
    let outputs = drain(&mut engine);
    assert_eq!(engine.counters().preemptions, 1);
    assert_eq!((tokens(&outputs, 1).len(), tokens(&outputs, 2).len()), (5, 5));
    assert!(tokens(&outputs, 1)[4] < tokens(&outputs, 2)[1]);
    assert_eq!(ended(&outputs), BTreeMap::from([(1, 0), (2, 0)]), "what it finds of its own is no hit");
}

#[test]
fn what_could_never_be_admitted_is_refused() {
    let mut engine = Engine::new(spec(2, 8, 64.0));
    let refused = engine.submit(0, request(1, &[1, 2, 3], 8, 2));
    assert_eq!(refused, Err(Refused::TooLong { needed: 3, blocks: 2 }));
    assert_eq!(engine.submit(0, request(2, &[1, 2, 3], 8, 1)), Ok(()));
    assert_eq!(Request::new(3, 8, 2, 4, [1].into()).map(|r| r.id), None, "blocks without contents");
}

#[test]
fn a_paused_engine_says_nothing_and_goes_on_later() {
    let mut engine = Engine::new(spec(100, 8, 64.0));
    engine.submit(0, request(1, &[1, 2], 8, 2)).unwrap();
    engine.pause(500 * MS);
    assert_eq!(tokens(&drain(&mut engine), 1), [500 * MS, 501 * MS]);
    engine.slow(10.0);
    engine.submit(600 * MS, request(2, &[3, 4], 8, 1)).unwrap();
    assert_eq!(tokens(&drain(&mut engine), 2), [680 * MS]);
}

#[test]
fn removals_are_told_late_and_clears_only_of_an_idle_engine() {
    let mut engine = Engine::new(EngineSpec { removals_late_passes: 3, ..spec(2, 8, 64.0) });
    engine.submit(0, request(1, &[1, 2], 8, 1)).unwrap();
    drain(&mut engine);
    engine.submit(100 * MS, request(2, &[3, 4], 4, 4)).unwrap();
    assert!(!{ engine.clear() }, "a request runs");
    let outputs = drain(&mut engine);
    let removed: Vec<_> =
        outputs.iter().filter(|(_, o)| matches!(o, Output::Removed { .. })).map(|(at, _)| *at).collect();
    // The prompt takes one block, the answer the other.
    assert_eq!((removed, engine.truth(&chained(&[1, 2]))), (vec![106 * MS, 107 * MS], 0));
    assert!(engine.clear());
    assert_eq!(drain(&mut engine), [(0, Output::Cleared)]);
    assert_eq!(engine.cached().count(), 0);
}

#[test]
fn an_aborted_request_gives_its_blocks_back() {
    let mut engine = Engine::new(spec(8, 1, 64.0));
    engine.submit(0, request(1, &[1, 2], 8, 4)).unwrap();
    engine.submit(0, request(2, &[3, 4], 8, 1)).unwrap();
    engine.submit(0, request(3, &[5, 6], 8, 1)).unwrap();
    assert!(engine.abort(1) && engine.abort(3) && !engine.abort(3));
    let outputs = drain(&mut engine);
    assert_eq!(ended(&outputs).into_keys().collect::<Vec<_>>(), [2]);
    assert_eq!(engine.pool().free(), 8);
}

/// What a consumer that counts copies makes of the events.
fn fold(outputs: &[(Nanos, Output)], held: &mut BTreeMap<Name, u32>) {
    for (_, output) in outputs {
        match output {
            Output::Stored { names, .. } => names.iter().for_each(|name| *held.entry(*name).or_default() += 1),
            Output::Removed { names } => {
                for name in names {
                    let copies = held.get_mut(name).expect("only what was stored is removed");
                    *copies -= 1;
                    if *copies == 0 {
                        held.remove(name);
                    }
                }
            }
            Output::Cleared => held.clear(),
            Output::Token { .. } | Output::Ended { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, rng_seed: RngSeed::Fixed(0x6b76), failure_persistence: None, ..ProptestConfig::default() })]

    /// Every request ends once, with all its tokens, in rising time; the events lead to what is cached; no block is lost.
    #[test]
    fn nothing_is_lost(
        blocks in 4_u32..20,
        seats in 1_u32..5,
        budget in 1_u32..12,
        late in 0_u32..3,
        asked in prop::collection::vec((0_u64..4, 1_u32..20, 1_u32..9, 0_u64..30), 1..30),
    ) {
        let mut engine =
            Engine::new(EngineSpec { removals_late_passes: late, ..spec(blocks, seats, f64::from(budget)) });
        let (mut now, mut outputs, mut admitted) = (0, Vec::new(), BTreeMap::new());
        for (id, (family, prompt, output, pause)) in asked.into_iter().enumerate() {
            // Prompts of one family begin alike; answers are each request's own.
            let of = |i: u32| if i < prompt / 4 { family * 100 + u64::from(i) } else { 1_000_000 + id as u64 * 100 + u64::from(i) };
            let contents: Vec<u64> = (0..(prompt + output - 1) / 4).map(of).collect();
            now += pause * MS;
            while let Some(at) = engine.next_wakeup().filter(|at| *at <= now) {
                let mut out = Vec::new();
                engine.advance(at.max(1), &mut out);
                outputs.extend(out.into_iter().map(|o| (at, o)));
            }
            if engine.submit(now, request(id as u64, &contents, prompt, output)).is_ok() {
                admitted.insert(id as u64, output);
            }
        }
        outputs.extend(drain(&mut engine));
        let mut told: BTreeMap<RequestId, u32> = BTreeMap::new();
        for (_, output) in &outputs {
            if let Output::Token { id, tokens } = output {
                let before = told.insert(*id, *tokens).unwrap_or(0);
                prop_assert_eq!(*tokens, before + 1);
            }
        }
        prop_assert_eq!(&told, &admitted);
        prop_assert_eq!(ended(&outputs).len(), admitted.len());
        prop_assert_eq!(engine.pool().free(), blocks);
        let mut held = BTreeMap::new();
        fold(&outputs, &mut held);
        let unannounced = engine.unannounced.iter().flat_map(|(_, names)| names).count() as u32;
        let cached: BTreeMap<Name, u32> = engine.cached().collect();
        prop_assert_eq!(held.values().sum::<u32>(), cached.values().sum::<u32>() + unannounced);
        if late == 0 {
            prop_assert_eq!(held, cached);
        }
    }
}
