//! What nobody holds any more goes while another lane comes: the end of a run (S4, M4), a run with its last holder (S6, M8), and
//! one after the other in one removal (S8).
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_index::model::Children;
use kvatlas_index::sync::Mutex;
use kvatlas_index::watch::watch;
use kvatlas_loom_tests::check::{FOUND, broken, broken_by, sound, sound_to};
use kvatlas_loom_tests::fleet::{at_rest, fleet, race};
use loom::sync::Arc;

/// Rank 0 gives up block 2, the end of its run, which rank 1 joins.
fn attach_and_trim() {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1, 2]);
    second.store(0, &[1]);
    let leaver = move || {
        first.remove(0, &[2]);
        first
    };
    let (first, ()) = race(leaver, || second.store_after(0, 1, &[2]));
    at_rest(&index, [&first, &second], &[(&[1, 2], &[1, 2])]);
}

/// The last holder of a run leaves, and its lane may use the id for another chain at once; another lane joins the run.
fn leave_and_join(uses_the_id_again: bool) {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1, 2, 3]);
    second.store(0, &[1, 2]);
    let leaver = move || {
        first.remove(0, &[3]);
        if uses_the_id_again {
            first.store(0, &[7]);
        }
        first
    };
    let (first, ()) = race(leaver, || second.store_after(0, 2, &[3]));
    let other = u32::from(uses_the_id_again);
    at_rest(&index, [&first, &second], &[(&[1, 2, 3], &[2, 3]), (&[7], &[other, 0])]);
}

/// The count of a position's children, under the LOCK of the run around it: one goes, one comes.
fn one_goes_one_comes(late: bool) {
    watch(0);
    let shared = Arc::new((Children::new(), Mutex::new(())));
    let lane = shared.clone();
    let leaver = move || {
        let held = lane.1.lock();
        let held = (!late).then_some(held);
        lane.0.remove();
        drop(held);
    };
    race(leaver, || {
        let _held = shared.1.lock();
        shared.0.add();
    });
    assert!(shared.0.count() == (1, true), "{FOUND}one child is counted as {:?}", shared.0.count());
}

/// A removal cascades over two runs: the child at the end of a run goes, and then that end. Another lane stores what followed its
/// own first block there.
fn cascade(followed_by: &'static [u64]) {
    let (index, [mut first, mut second]) = fleet(1);
    first.store(0, &[1, 2, 3]);
    second.store(0, &[1]);
    let leaver = move || {
        first.remove(0, &[2, 3]);
        first
    };
    let (first, ()) = race(leaver, || second.store_after(0, 1, followed_by));
    at_rest(&index, [&first, &second], &[(&[1, 2, 3], &[1, 1 + followed_by.len() as u32])]);
}

/// It joins the end.
fn cascade_and_join() {
    cascade(&[2]);
}

/// It joins the end and then the child, or opens it.
fn cascade_and_open() {
    cascade(&[2, 3]);
}

#[test]
fn an_attached_end_is_never_trimmed() {
    sound("attach and trim", attach_and_trim);
}

#[test]
fn broken_attached_ends() {
    for fault in [Fault::LockedAtAnyVersion, Fault::FieldsFromBefore, Fault::TrimmedLater] {
        broken_by(fault, "attach and trim", attach_and_trim);
    }
}

#[test]
fn unlinked_or_joined() {
    sound("last holder leaves and another joins", || leave_and_join(false));
    sound_to(1, "last holder leaves and another joins, id used again", || leave_and_join(true));
}

#[test]
fn broken_last_holders() {
    broken_by(Fault::LockedAtAnyVersion, "last holder leaves and another joins", || leave_and_join(false));
    broken_by(Fault::ParentBeforeChild, "last holder leaves and another joins", || leave_and_join(false));
    broken_by(Fault::TrimmedLater, "last holder leaves and another joins", || leave_and_join(false));
    broken_by(Fault::LockedIfAlive, "last holder leaves and another joins, id used again", || leave_and_join(true));
}

#[test]
fn children_are_counted_under_lock() {
    sound("one child goes, one comes", || one_goes_one_comes(false));
}

#[test]
fn broken_count_after_the_lock() {
    broken("one child goes after the LOCK was given back", || one_goes_one_comes(true));
}

/// The same through the whole index: found, but not soon.
#[test]
#[ignore = "takes minutes"]
fn broken_unlinking_after_the_lock() {
    for fault in [Fault::KidClearedLate, Fault::LinkClearedLate] {
        broken_by(fault, "last holder leaves and another joins", || leave_and_join(false));
    }
}

#[test]
fn a_removal_over_two_runs_meets_an_opener() {
    sound_to(3, "removal over two runs and join", cascade_and_join);
    sound_to(1, "removal over two runs and opener", cascade_and_open);
}

#[test]
fn broken_removals_over_two_runs() {
    for fault in [Fault::ReachFromBefore, Fault::TrimmedLater, Fault::LockedAtAnyVersion, Fault::FieldsFromBefore] {
        broken_by(fault, "removal over two runs and join", cascade_and_join);
    }
    broken_by(Fault::LockedAtAnyVersion, "removal over two runs and opener", cascade_and_open);
}
