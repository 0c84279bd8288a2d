use super::*;
use crate::engine::{EngineSpec, Nanos};
use kvatlas_service::routing::{PolicyName, RoutingSettings, Timing};
use std::sync::Arc;
use std::time::Duration;
use world::Loads;

const MS: Nanos = 1_000_000;

/// One prompt token a millisecond, a millisecond for each further token.
fn engine() -> EngineSpec {
    let timing = Timing { base: 0.0, kp: 1e-3, ka: 0.0, kd: 1e-3, kc: 0.0, token_budget: 1e6, ..Timing::CLASS_8B };
    EngineSpec { block_size: 4, blocks: 10_000, seats: 1, removals_late_passes: 0, timing }
}

fn world(workers: usize, engine: EngineSpec) -> WorldSpec {
    WorldSpec { workers, engine, net: NetSpec::default(), loads: Loads::Polled(1_000), seed: 7 }
}

fn settings(policy: PolicyName) -> Arc<RoutingSettings> {
    Arc::new(RoutingSettings { policy, ..RoutingSettings::default() })
}

fn router(workers: usize, engine: &EngineSpec, policy: PolicyName, seed: u64) -> DeskRouter {
    DeskRouter::new(workers, engine, settings(policy), Some(Duration::from_secs(1)), seed)
}

/// Prompts that share nothing.
fn apart(times: impl Iterator<Item = Nanos>, prompt: u32, output: u32) -> Vec<Arrival> {
    let one = |(i, at): (usize, Nanos)| Arrival {
        at,
        prompt_tokens: prompt,
        output_tokens: output,
        contents: (0..(prompt + output - 1) / 4).map(|block| (i as u64) << 32 | u64::from(block)).collect(),
        prompt_blocks: prompt / 4,
    };
    times.enumerate().map(one).collect()
}

#[test]
fn one_seat_is_a_queue() {
    let engine = engine();
    let arrivals = apart([0, 5, 40].into_iter().map(|ms| ms * MS), 10, 3);
    let (outcomes, figures) = run(&world(1, engine), &arrivals, &mut [router(1, &engine, PolicyName::RoundRobin, 1)]);
    // Each takes 10 ms to its first token and 2 ms more; the second waits for the first.
    let times: Vec<_> = outcomes.iter().map(|o| (o.first_token / MS, o.ended / MS)).collect();
    assert_eq!(times, [(10, 12), (22, 24), (50, 52)]);
    assert_eq!((figures.requests, figures.in_flight_max, figures.preemptions), (3, 2, 0));
    assert!((figures.ttft_ms.mean - 37.0 / 3.0).abs() < 1e-9 && (figures.tpot_ms.mean - 1.0).abs() < 1e-9);
}

/// M/D/1: the mean wait is ρ / (2 (1 − ρ)) services.
#[test]
fn random_arrivals_wait_as_long_as_the_formula_says() {
    let engine = engine();
    let (service_ms, load) = (10.0, 0.7);
    let mut random = streams::stream(3, streams::Stream::Arrivals);
    let gap = Delay { least_us: 0.0, mean_more_us: service_ms * 1e3 / load };
    let mut at = 0;
    let times: Vec<Nanos> = (0..60_000)
        .map(|_| {
            at += gap.draw(&mut random);
            at
        })
        .collect();
    let arrivals = apart(times.into_iter(), 10, 1);
    let (_, figures) = run(&world(1, engine), &arrivals, &mut [router(1, &engine, PolicyName::RoundRobin, 1)]);
    let expected = service_ms * (1.0 + load / (2.0 * (1.0 - load)));
    let off = figures.ttft_ms.mean / expected - 1.0;
    assert!(off.abs() < 0.03, "{} ms, {expected} expected", figures.ttft_ms.mean);
}

/// Sessions whose prompts grow, over several workers, with every delay drawn.
fn sessions() -> (WorldSpec, Vec<Arrival>) {
    let engine = EngineSpec { seats: 8, blocks: 400, ..engine() };
    let mut random = streams::stream(11, streams::Stream::Arrivals);
    let gap = Delay { least_us: 0.0, mean_more_us: 9_000.0 };
    let (mut at, mut arrivals) = (0, Vec::new());
    for i in 0..600_u32 {
        at += gap.draw(&mut random);
        let (session, turn) = (u64::from(i % 40), i / 40);
        let prompt_tokens = 16 + 8 * turn;
        let own = u64::from(i) << 40;
        let content = |block: u32| {
            if block < prompt_tokens / 4 { session << 20 | u64::from(block) } else { own | u64::from(block) }
        };
        let contents = (0..(prompt_tokens + 5) / 4).map(content).collect();
        arrivals.push(Arrival { at, prompt_tokens, output_tokens: 6, contents, prompt_blocks: prompt_tokens / 4 });
    }
    let delay = Delay { least_us: 100.0, mean_more_us: 300.0 };
    let net = NetSpec { request: delay, token: delay, events: delay, load: delay };
    (WorldSpec { net, ..world(4, engine) }, arrivals)
}

#[test]
fn equal_seeds_give_equal_runs_bit_by_bit_and_every_request_ends_once() {
    let (spec, arrivals) = sessions();
    for policy in [PolicyName::RoundRobin, PolicyName::Random, PolicyName::PowerOfTwo, PolicyName::LeastLoad] {
        let play = |seed| {
            let mut routers = [router(4, &spec.engine, policy, seed), router(4, &spec.engine, policy, seed + 1)];
            let result = run(&spec, &arrivals, &mut routers);
            assert!(routers.iter().all(|r| r.desk().open() == 0), "{policy:?}: every booking is released");
            result
        };
        let (outcomes, figures) = play(5);
        assert_eq!((&outcomes, &figures), (&play(5).0, &play(5).1), "{policy:?}");
        assert!(
            outcomes
                .iter()
                .all(|o| o.arrived <= o.dispatched && o.dispatched < o.first_token && o.first_token < o.ended)
        );
        assert!(outcomes.iter().all(|o| o.held_tokens <= o.oracle_tokens && o.cached_tokens < o.prompt_tokens));
    }
}

#[test]
fn without_delays_and_evictions_what_is_predicted_is_what_is_found() {
    let (spec, arrivals) = sessions();
    let engine = EngineSpec { blocks: 100_000, ..spec.engine };
    // One at a time: nothing changes between a decision and its admission.
    let arrivals: Vec<Arrival> =
        arrivals.into_iter().enumerate().map(|(i, a)| Arrival { at: i as u64 * 1_000 * MS, ..a }).collect();
    let spec = WorldSpec { net: NetSpec::default(), ..world(4, engine) };
    let (outcomes, figures) = run(&spec, &arrivals, &mut [router(4, &engine, PolicyName::LeastLoad, 2)]);
    assert!(outcomes.iter().all(|o| o.predicted_tokens == o.cached_tokens));
    assert_eq!(figures.credit_is_cached, 1.0);
    assert!(figures.oracle_reuse > 0.5 && figures.reuse > 0.1, "{figures:?}");
}
