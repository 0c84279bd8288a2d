//! Seeded histories over the table of configurations, and the shrinking of one that fails.

use super::configurations::Configuration;
use super::generator::Generator;
use super::operation::Op;
use super::pair::{Difference, Pair, Seen};
use super::profiles::Profile;
use super::rng::{Rng, mix};
use kvatlas_index::{RankFilter, RankKey, Stats};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Steps between two rounds of lookups, queries of a round, steps between two comparisons of all names.
const LOOKUP_STEPS: usize = 4;
const QUERIES: usize = 5;
const NAMES_STEPS: usize = 50;
/// Steps between two checks of the index's own invariants: each walks the whole arena.
const CHECK_STEPS: usize = 200;
/// With more ranks than this, the random operations alone would spread too thinly.
const CROWD: usize = 64;
/// Replays that shrinking may use.
const SHRINK_REPLAYS_MAX: usize = 600;

/// Runs every history of a profile over one configuration. Panics with the seed and the shrunk operations.
pub fn run(profile: &str, configuration: &str) {
    let profile = Profile::named(profile);
    let configuration = Configuration::named(configuration);
    let (mut operations, mut lookups, mut full) = (0, 0, 0);
    for number in 0..profile.histories {
        let done = run_one(&profile, &configuration, number);
        operations += done.operations;
        lookups += done.lookups;
        full += done.full_errors;
    }
    println!(
        "{} over {}: {operations} operations, {lookups} lookups compared, {full} limits reached",
        profile.name, configuration.name
    );
}

/// Runs one history and says what came up in it.
pub fn run_one(profile: &Profile, configuration: &Configuration, number: usize) -> Replayed {
    let seed = seed_of(profile, configuration, number);
    let ops = operations_of(profile, configuration, seed);
    match replay(profile, configuration, seed, &ops) {
        Ok(done) => done,
        Err(first) => {
            let (ops, last) = shrink(profile, configuration, seed, ops, first.clone());
            let lines: Vec<String> = ops.iter().map(|op| format!("    {op:?},")).collect();
            panic!(
                "profile {} configuration {} seed {seed:#x}: {first}\nshrunk to {} operations: {last}\n{}",
                profile.name,
                configuration.name,
                ops.len(),
                lines.join("\n")
            );
        }
    }
}

/// A fixed seed for each history; `KVATLAS_SEED` shifts all of them for a run over other histories.
fn seed_of(profile: &Profile, configuration: &Configuration, number: usize) -> u64 {
    let shift = std::env::var("KVATLAS_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0u64);
    let text = profile.name.bytes().chain(configuration.name.bytes());
    text.fold(mix(shift, number as u64), |a, b| mix(a, b.into()))
}

fn operations_of(profile: &Profile, configuration: &Configuration, seed: u64) -> Vec<Op> {
    let mut generator = Generator::new(profile, configuration.ranks, seed);
    let mut rng = Rng::new(seed);
    let mut ops: Vec<Op> = (0..configuration.ranks).map(|rank| Op::Open { rank }).collect();
    ops.iter().for_each(|op| generator.note(op));
    if configuration.ranks > CROWD {
        // A prompt that the whole fleet shares, so that one run has more holders than any inline form.
        ops.extend((0..configuration.ranks).map(|rank| generator.draw_shared(rank, &mut rng)));
        ops[configuration.ranks..].iter().for_each(|op| generator.note(op));
    }
    for _ in 0..profile.steps {
        let op = generator.draw(&mut rng);
        generator.note(&op);
        ops.push(op);
    }
    ops
}

/// What a whole history compared.
pub struct Replayed {
    pub operations: usize,
    pub lookups: u64,
    pub full_errors: u64,
    /// Runs cut in two, and halves that became one again.
    pub splits: u64,
    pub merges: u64,
    pub seen: Seen,
}

/// Plays operations against both sides. A panic of the index is a difference like any other.
fn replay(profile: &Profile, configuration: &Configuration, seed: u64, ops: &[Op]) -> Result<Replayed, Difference> {
    let played = catch_unwind(AssertUnwindSafe(|| play(profile, configuration, seed, ops)));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn play(profile: &Profile, configuration: &Configuration, seed: u64, ops: &[Op]) -> Result<Replayed, Difference> {
    let mut pair = Pair::new(configuration);
    let mut generator = Generator::new(profile, configuration.ranks, seed);
    let mut rng = Rng::new(!seed);
    let filter: RankFilter = (0..2 * configuration.ranks as u32).filter(|r| r % 3 != 1).map(RankKey).collect();
    for (step, op) in ops.iter().enumerate() {
        let at_step = |difference| format!("step {step} ({}): {difference}", brief(op));
        pair.apply(op).map_err(at_step)?;
        generator.note(op);
        if step % LOOKUP_STEPS == 0 {
            for _ in 0..QUERIES {
                pair.compare_lookup(&generator.query(&mut rng), &filter).map_err(at_step)?;
            }
        }
        if step % NAMES_STEPS == 0 {
            pair.compare_names(op.rank()).map_err(at_step)?;
        }
        if step % CHECK_STEPS == CHECK_STEPS - 1 {
            pair.check().map_err(at_step)?;
        }
    }
    for _ in 0..4 * QUERIES {
        pair.compare_lookup(&generator.query(&mut rng), &filter)?;
    }
    let Stats { splits, merges, .. } = pair.index.stats();
    pair.finish()?;
    let (operations, lookups, full_errors, seen) = (ops.len(), pair.lookups, pair.full_errors, pair.seen);
    Ok(Replayed { operations, lookups, full_errors, splits, merges, seen })
}

fn brief(op: &Op) -> String {
    let mut text = format!("{op:?}");
    if text.len() > 60 {
        text.truncate((0..=60).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0));
        text.push_str("..");
    }
    text
}

/// Cuts a failing list down: first stretches of operations, ever shorter, then the blocks inside each operation.
fn shrink(
    profile: &Profile,
    configuration: &Configuration,
    seed: u64,
    mut ops: Vec<Op>,
    mut last: Difference,
) -> (Vec<Op>, Difference) {
    std::panic::set_hook(Box::new(|_| {}));
    let mut replays = 0;
    let mut fails = |ops: &[Op]| {
        replays += 1;
        if replays > SHRINK_REPLAYS_MAX { None } else { replay(profile, configuration, seed, ops).err() }
    };
    let mut chunk = ops.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        while from < ops.len() {
            let to = (from + chunk).min(ops.len());
            let fewer: Vec<Op> = ops[..from].iter().chain(&ops[to..]).cloned().collect();
            match fails(&fewer) {
                Some(difference) => (ops, last) = (fewer, difference),
                None => from = to,
            }
        }
        chunk /= 2;
    }
    for at in 0..ops.len() {
        while let Some((smaller, difference)) = ops[at].smaller().into_iter().find_map(|op| {
            let mut fewer = ops.clone();
            fewer[at] = op;
            fails(&fewer).map(|difference| (fewer, difference))
        }) {
            (ops, last) = (smaller, difference);
        }
    }
    drop(std::panic::take_hook());
    (ops, last)
}

/// One test for each configuration of the table, running the histories of a profile.
#[macro_export]
macro_rules! over_every_configuration {
    ($($profile:ident),+ $(,)?) => {
        $($crate::over_every_configuration! { @ $profile:
            one_lane two_lanes eight_lanes two_shards runs_of_1 runs_of_3 runs_of_8 ranks_200 ranks_320 tiny
        })+
    };
    (@ $profile:ident: $($configuration:ident)+) => {
        mod $profile {
            $(#[test]
            fn $configuration() {
                $crate::common::history::run(stringify!($profile), stringify!($configuration));
            })+
        }
    };
}
