//! Two halves of a run become one while a lookup is on its way through them, and while another lane joins the second one: the
//! product's own merge, walk and lock.
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_index::model::Halves;
use kvatlas_index::watch::watch;
use kvatlas_loom_tests::check::{FOUND, broken_by, broken_by_all, sound};
use kvatlas_loom_tests::fleet::race;
use loom::sync::Arc;

/// Who holds both halves throughout is found with both, or the lookup gives up.
fn lookup() {
    watch(0);
    let halves = Arc::new(Halves::linked());
    let lane = halves.clone();
    let (merged, depth) = race(move || lane.merge(), || halves.depth(0));
    assert!(merged, "nobody is in the way");
    assert!(depth.is_none_or(|depth| depth == 2), "{FOUND}a holder of two blocks is found with {depth:?}");
    assert!(halves.depth(0) == Some(2) && halves.depth(1) == Some(1), "{FOUND}who held what is lost");
}

/// A holder that joins the second half meanwhile is in the whole, whichever lane is first.
fn join() {
    watch(0);
    let halves = Arc::new(Halves::apart());
    let lane = halves.clone();
    race(move || lane.merge(), || halves.join());
    assert!(halves.holds(0, 1), "{FOUND}a holder is lost");
    assert!(halves.holds(1, 1), "{FOUND}the holder that joined is lost");
}

/// Two lanes find the same halves: one of them merges, or none.
fn twice() {
    watch(0);
    let halves = Arc::new(Halves::apart());
    let lane = halves.clone();
    let merged = race(move || lane.merge(), || halves.merge());
    assert!(merged != (true, true), "{FOUND}merged twice");
    assert!(halves.holds(0, 1) && !halves.holds(1, 1), "{FOUND}who held what is lost");
}

/// One lane merges the first two parts of three, another the last two: the middle one is the second of the one and the first of
/// the other.
fn neighbours() {
    watch(0);
    let parts = Arc::new(Halves::thirds());
    let lane = parts.clone();
    race(move || lane.merge(), || parts.merge_third());
    for block in 0..3 {
        assert!(parts.holds(0, block), "{FOUND}block {block} is lost");
        assert!(parts.holds(1, block) == (block == 0), "{FOUND}block {block} is held by who has it not");
    }
}

#[test]
fn a_lookup_finds_both_halves() {
    sound("merge against lookup", lookup);
}

#[test]
fn a_join_is_in_the_whole() {
    sound("merge against join", join);
}

#[test]
fn two_lanes_merge_once() {
    sound("merge against merge", twice);
    sound("merge against merge of the neighbours", neighbours);
}

#[test]
fn broken_without_a_window() {
    broken_by(Fault::ReplacedUnwindowed, "merge without an odd window", lookup);
}

#[test]
fn broken_holders_read_before_the_lock() {
    broken_by(Fault::HalvesBeforeLock, "merge, holders read before the LOCK", join);
}

#[test]
fn broken_merges_of_two_lanes() {
    broken_by(Fault::LockedAtAnyVersion, "merge against merge of the neighbours", neighbours);
    // Either of them is made good by the other's absence: links and lengths, and holders, are judged under the LOCKs.
    let both = [Fault::FieldsFromBefore, Fault::HalvesBeforeLock];
    broken_by_all(&both, "merge against merge", twice);
}

#[test]
fn broken_second_half_left_alive() {
    broken_by(Fault::SuccessorLeftAlive, "merge, second half left alive", join);
}
