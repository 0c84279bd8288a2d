//! The rows of bounded cache credit, through `least_load`.

use super::credit::CreditReason;
use super::{LeastLoad, Policy};
use crate::routing::columns::Slot;
use crate::routing::load::RankLoad;
use crate::routing::settings::CreditMode;
use crate::routing::testing::{BLOCK, FRESH_FOR, Fleet, Prompt, rank, seeded};
use crate::routing::view::{Branch, Pick};
use crate::routing::{Trace, TraceRow};
use std::time::Duration;

const B: Slot = 0;
const O: Slot = 1;

/// Base and owner with these waits in seconds, and these tokens cached; the prompt has 8,192.
fn fleet(waits: [f64; 2], cached: [u32; 2]) -> Fleet {
    let load = |wait: f64| RankLoad { waiting_uncached_tokens: (wait * 1000.0).round() as i64, ..rank(1, 1000.0) };
    let mut fleet = Fleet::of(&waits.map(load));
    fleet.hold(&cached.map(|tokens| tokens / BLOCK));
    fleet.settings.credit.mode = CreditMode::Enforce;
    fleet
}

fn pick(fleet: &Fleet, seed: u64) -> Pick {
    let prompt = Prompt::new(1, 8192);
    fleet.pick(&mut LeastLoad::default(), &prompt.request(1), &mut seeded(seed)).unwrap()
}

/// The pick, and its reason.
fn credited(fleet: &Fleet) -> (Slot, &'static str) {
    let pick = pick(fleet, 70);
    let branch = match pick.detail {
        Some("moved") => Branch::CreditMoved,
        Some("mode_off") => Branch::MinWait,
        _ => Branch::CreditBase,
    };
    assert_eq!(pick.branch, branch);
    (pick.slot, pick.detail.unwrap())
}

#[test]
fn bc1_equal_waits() {
    let fleet = fleet([0.0, 0.0], [0, 4096]);
    // Whichever of the two is the base.
    for seed in 0..20 {
        let pick = pick(&fleet, seed);
        assert_eq!(pick.slot, O);
        assert!(matches!(pick.detail, Some("moved" | "owner_is_base")));
    }
}

#[test]
fn bc2_one_queued_request() {
    let mut fleet = fleet([0.0, 0.0], [0, 4096]);
    fleet.record(B, &[rank(1, 200.0)]);
    fleet.record(O, &[RankLoad { waiting: 1, ..rank(1, 200.0) }]);
    assert_eq!(credited(&fleet), (B, "saving_below_cost"));
    let prompt = Prompt::new(1, 8192);
    let mut trace = Trace::on();
    let candidates = fleet.candidates();
    let view = fleet.view(&candidates);
    LeastLoad::default().pick(&view, &prompt.request(1), &mut seeded(71), &mut trace);
    let net = TraceRow { slot: O, what: "net_saving", value: 0.512 - 5.12 };
    assert!(trace.rows().contains(&net), "{:?}", trace.rows());
}

#[test]
fn bc3_saving_above_cost() {
    assert_eq!(credited(&fleet([0.0, 0.5], [0, 4096])), (O, "moved"));
}

#[test]
fn bc4_equality_keeps_the_base() {
    assert_eq!(credited(&fleet([0.0, 0.512], [0, 4096])), (B, "saving_below_cost"));
}

#[test]
fn bc5_base_also_caches() {
    assert_eq!(credited(&fleet([0.0, 0.3], [2048, 4096])), (B, "saving_below_cost"));
}

#[test]
fn bc6_base_also_caches_but_less_wait() {
    assert_eq!(credited(&fleet([0.0, 0.2], [2048, 4096])), (O, "moved"));
}

#[test]
fn bc7_another_worker_dark() {
    let mut three = Fleet::dark(3);
    three.hold(&[0, 256, 256]);
    three.in_flight(&[0, 0, 9]);
    three.settings.credit.mode = CreditMode::Enforce;
    three.record(B, &[rank(1, 1000.0)]);
    three.record(O, &[RankLoad { waiting_uncached_tokens: 1, ..rank(1, 1000.0) }]);
    assert_eq!(credited(&three), (O, "moved"), "the third alone is out of the question");
}

#[test]
fn bc8_owner_dark() {
    let mut fleet = fleet([0.0, 0.0], [0, 4096]);
    fleet.in_flight(&[0, 1]);
    fleet.columns.fresh_until[O as usize] = 0;
    assert_eq!(credited(&fleet), (B, "owner_dark"));
    fleet.columns.darken(O);
    assert_eq!(credited(&fleet), (B, "owner_malformed"));
}

#[test]
fn what_no_exact_events_say_is_no_credit() {
    let base = fleet([0.0, 0.1], [0, 4096]);
    let mut degraded = base.clone();
    degraded.columns.certified[O as usize] = false;
    assert_eq!(credited(&degraded), (B, "owner_uncertified"));
    let mut guessed = base.clone();
    guessed.overlap.approximate = true;
    assert_eq!(credited(&guessed), (B, "owner_uncertified"));
    let mut predicted = fleet([0.0, 0.1], [0, 0]);
    predicted.overlap.predict(O, 256);
    assert_eq!(credited(&predicted), (B, "owner_uncertified"));
    // But the base is believed to hold what was dispatched to it.
    let mut base_predicted = base.clone();
    base_predicted.overlap.predict(B, 256);
    assert_eq!(credited(&base_predicted), (B, "owner_is_base"));
}

#[test]
fn every_other_reason() {
    assert_eq!(credited(&fleet([0.0, 0.1], [0, 0])), (B, "no_owner"));
    assert_eq!(credited(&fleet([0.0, 0.1], [4096, 4096])), (B, "owner_is_base"));
    let mut off = fleet([0.0, 0.1], [0, 4096]);
    off.settings.credit.mode = CreditMode::Off;
    assert_eq!(credited(&off), (B, "mode_off"));
    off.settings.credit.mode = CreditMode::Shadow;
    assert_eq!(credited(&off), (B, "shadow_would_move"));
    let mut dark = fleet([0.0, 0.1], [0, 4096]);
    dark.columns.fresh_until[B as usize] = 0;
    assert_eq!(credited(&dark), (B, "base_dark"));
    dark.now += FRESH_FOR + Duration::from_nanos(1);
    dark.in_flight(&[0, 1]);
    assert_eq!(credited(&dark), (B, "base_dark"), "requests are no seconds");
    let unknown = fleet([0.0, 0.1], [0, 4096]);
    let pick = unknown.pick(&mut LeastLoad::default(), &Prompt::unknown().request(1), &mut seeded(72)).unwrap();
    assert_eq!((pick.slot, pick.detail), (B, Some("ineligible_request")));
}

#[test]
fn reasons_have_names_of_their_own() {
    let names: std::collections::BTreeSet<_> = CreditReason::ALL.into_iter().map(CreditReason::name).collect();
    assert_eq!(names.len(), CreditReason::ALL.len());
}

/// The mode changes nothing of the base: the same draws choose it.
#[test]
fn shadow_picks_what_off_picks() {
    let mut rng = seeded(73);
    for seed in 0..200 {
        let mut fleet = Fleet::random(6, 512, &mut rng);
        let mut picks = [CreditMode::Off, CreditMode::Shadow].map(|mode| {
            fleet.settings.credit.mode = mode;
            pick(&fleet, seed).slot
        });
        assert_eq!(picks[0], picks[1], "seed {seed}");
        // Enforced, a pick that differs is one that shadow foretold.
        fleet.settings.credit.mode = CreditMode::Shadow;
        let foretold = pick(&fleet, seed).detail == Some("shadow_would_move");
        fleet.settings.credit.mode = CreditMode::Enforce;
        picks[1] = pick(&fleet, seed).slot;
        assert_eq!(picks[0] != picks[1], foretold, "seed {seed}");
    }
}
