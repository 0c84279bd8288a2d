//! Two halves of a run become one while a lookup is on its way through them, and while another lane joins the second one: the
//! product's own merge, walk and lock.
#![cfg(loom)]

use kvatlas_index::fault::{Fault, turn};
use kvatlas_index::model::Halves;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound, sound_within};
use loom::sync::Arc;
use loom::thread;

/// Of the long models: three take a minute or two, and find nothing either.
const PREEMPTIONS: usize = 2;

/// Who holds both halves throughout is found with both, or the lookup gives up.
fn lookup() {
    let halves = Arc::new(Halves::linked());
    let lane = halves.clone();
    let writer = thread::spawn(move || {
        assert!(lane.merge(), "nobody is in the way");
        turn();
    });
    turn();
    if let Some(depth) = halves.depth(0) {
        assert!(depth == 2, "{FOUND}a holder of two blocks is found with {depth}");
    }
    writer.join().unwrap();
    assert!(halves.depth(0) == Some(2) && halves.depth(1) == Some(1), "{FOUND}who held what is lost");
}

/// A holder that joins the second half meanwhile is in the whole, whichever lane is first.
fn join() {
    let halves = Arc::new(Halves::apart());
    let lane = halves.clone();
    let writer = thread::spawn(move || {
        lane.merge();
        turn();
    });
    turn();
    halves.join();
    writer.join().unwrap();
    assert!(halves.holds(0), "{FOUND}a holder is lost");
    assert!(halves.holds(1), "{FOUND}the holder that joined is lost");
}

/// Two lanes find the same halves: one of them merges, or none.
fn twice() {
    let halves = Arc::new(Halves::apart());
    let lane = halves.clone();
    let writer = thread::spawn(move || lane.merge());
    let merged = [halves.merge(), writer.join().unwrap()];
    assert!(merged != [true, true], "{FOUND}merged twice");
    assert!(halves.holds(0) && !halves.holds(1), "{FOUND}who held what is lost");
}

#[test]
fn a_lookup_finds_both_halves() {
    sound_within(PREEMPTIONS, "merge against lookup", lookup);
}

#[test]
fn a_join_is_in_the_whole() {
    sound("merge against join", join);
}

#[test]
fn two_lanes_merge_once() {
    sound_within(PREEMPTIONS, "merge against merge", twice);
}

#[test]
fn broken_without_a_window() {
    broken_by(Fault::ReplacedUnwindowed, "merge without an odd window", lookup);
}

#[test]
fn broken_holders_read_before_the_lock() {
    broken_by(Fault::SuccessorBeforeLock, "merge, holders read before the LOCK", join);
}

#[test]
fn broken_second_half_left_alive() {
    broken_by(Fault::SuccessorLeftAlive, "merge, second half left alive", join);
}
