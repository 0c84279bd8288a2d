//! The suites together play at least 100,000 operations over every configuration.

mod common;

use common::configurations::{CONFIGURATIONS, Configuration};
use common::history::run_one;
use common::pair::Seen;
use common::profiles::{PROFILES, Profile};

#[test]
fn a_hundred_thousand_operations_a_configuration() {
    let operations: usize = PROFILES.iter().map(|p| p.steps * p.histories).sum();
    assert!(operations >= 100_000, "{operations} operations over each of {} configurations", CONFIGURATIONS.len());
}

/// The macro that spells the configurations out and the table must not drift apart, nor may a profile be left unused.
#[test]
fn every_profile_and_configuration_is_played() {
    let history = include_str!("common/history.rs");
    for configuration in CONFIGURATIONS {
        assert!(history.contains(&format!(" {}", configuration.name)), "{} is not played", configuration.name);
    }
    let suites = [
        include_str!("exactness_plain.rs"),
        include_str!("exactness_holes.rs"),
        include_str!("merging.rs"),
        include_str!("exactness_names.rs"),
        include_str!("exactness_copies.rs"),
        include_str!("exactness_orphans.rs"),
        include_str!("exactness_tiers.rs"),
        include_str!("exactness_long_chains.rs"),
        include_str!("recycling.rs"),
    ];
    for profile in PROFILES {
        assert!(suites.iter().any(|s| s.contains(profile.name)), "{} is not played", profile.name);
    }
}

fn seen(profile: &str, configuration: &str) -> Seen {
    let configuration = Configuration::named(configuration);
    let seen = run_one(&Profile::named(profile), &configuration, 0).seen;
    println!("{profile} over {}: {seen:?}", configuration.name);
    seen
}

/// The generator meets every case that the suites are about, in the first history already.
#[test]
fn every_case_comes_up() {
    let plain = seen("plain", "one_lane");
    assert!(plain.stored > 2000 && plain.removed > 2000 && plain.removals_unknown > 100, "{plain:?}");
    assert!(
        plain.self_parents > 0 && plain.length_mismatches > 0 && plain.cleared > 100 && plain.closed > 0,
        "{plain:?}"
    );
    let copies = seen("copies", "one_lane");
    assert!(copies.copies > 1000 && copies.copies_removed > 200, "{copies:?}");
    let names = seen("names", "one_lane");
    assert!(names.moved > 50 && names.self_parents > 0, "{names:?}");
    let orphans = seen("orphans", "one_lane");
    assert!(orphans.orphans > 200 && orphans.attached > 50 && orphans.orphans_dropped > 50, "{orphans:?}");
    assert!(orphans.parked_removed > 20 && orphans.parked_cleared > 20, "{orphans:?}");
    let tiers = seen("tiers", "one_lane");
    assert!(tiers.adoptions_unknown > 50 && tiers.answers_tiers > 500, "{tiers:?}");
    assert!(seen("long_chains", "one_lane").blocks_max > 600);
    assert!(seen("plain", "ranks_320").answer_lines_max > 256);
    assert!((65..=256).contains(&seen("plain", "ranks_200").answer_lines_max));
}
