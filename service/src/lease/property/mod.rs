//! Three routers, replicas whose clocks differ, engines and a network in virtual time: crashes, pauses, delays, lost and repeated
//! messages, partitions, restarts and removals. After every event the invariants hold; and each broken variant of the machine is
//! found out by the same checks.
//!
//! `KVATLAS_CASES=100000 KVATLAS_SEED=7 cargo test -p kvatlas-service --lib lease::property -- --nocapture` plays others.

mod checks;
mod random;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use world::{Broken, Tally, World};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Plays one schedule to its end, or to the first violation.
fn play(seed: u64, broken: Option<Broken>) -> Result<Tally, String> {
    let mut world = World::new(seed, broken);
    while world.step() {
        if let Some(violation) = world.checks.violation.take() {
            return Err(violation);
        }
    }
    Ok(world.tally)
}

#[test]
fn sl10_invariants_hold_over_10_000_schedules_of_three_routers() {
    let (first, cases) = (setting("KVATLAS_SEED", 0).wrapping_mul(1 << 32), setting("KVATLAS_CASES", 10_000));
    let mut sum = Tally::default();
    for seed in first..first.saturating_add(cases) {
        match catch_unwind(AssertUnwindSafe(|| play(seed, None))) {
            Ok(Ok(tally)) => sum.add(&tally),
            Ok(Err(violation)) => panic!("seed {seed}: {violation}"),
            Err(panic) => {
                eprintln!("seed {seed}");
                resume_unwind(panic);
            }
        }
    }
    println!("seeds {first}.. ({cases}): {sum:?}");
    // Nothing holds for want of happening.
    let each = [
        sum.granted,
        sum.dispatched,
        sum.committed,
        sum.expired,
        sum.aborted,
        sum.fenced,
        sum.refused,
        sum.revoked,
        sum.pauses,
        sum.crashes,
        sum.cut,
        sum.late_dispatches,
        sum.tokens_replayed,
    ];
    assert!(each.iter().all(|count| *count > cases / 20), "{sum:?}");
}

#[test]
fn every_broken_variant_is_found_out() {
    for (broken, invariant) in Broken::ALL {
        let violations = (0..2_000).filter_map(|seed| Some((seed, play(seed, Some(broken)).err()?)));
        let found = violations.into_iter().find(|(_, violation)| violation.starts_with(invariant));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{broken:?} does not break {invariant}"));
        println!("{broken:?}: seed {seed}: {violation}");
    }
}
