//! The product's table of child links while it grows and shrinks: who is there throughout is found throughout, and no insert
//! goes where nobody looks.
#![cfg(loom)]

use kvatlas_index::fault::Fault;
use kvatlas_index::model::Links;
use kvatlas_index::watch::watch;
use kvatlas_loom_tests::check::{FOUND, broken_by, sound};
use kvatlas_loom_tests::fleet::race;
use loom::sync::Arc;

const LOW: u64 = 1;
const HIGH: u64 = u64::MAX - 1;

/// Three links fill the smallest table; the fourth makes it grow.
fn full() -> Arc<Links> {
    watch(0);
    let links = Links::new(&[LOW, HIGH, HIGH - 4096, LOW + 4096, HIGH - 8192]);
    (1..=3).for_each(|run| links.insert(0, run));
    Arc::new(links)
}

/// A reader looks for a link that is moved.
fn find_while_growing() {
    let links = full();
    let lane = links.clone();
    let ((), found) = race(move || lane.insert(0, 4), || links.finds(1));
    assert!(found, "{FOUND}a link that was there throughout is missed");
    assert!((1..=4).all(|run| links.finds(run)), "{FOUND}a link is lost");
}

/// The table grows, and shrinks into the memory where it was first.
fn find_while_it_grows_and_shrinks() {
    let links = full();
    let lane = links.clone();
    let writer = move || {
        lane.insert(0, 4);
        lane.advance();
        for run in [2, 3, 4] {
            lane.remove(0, run);
        }
        lane.advance();
    };
    let ((), found) = race(writer, || links.finds(1));
    assert!(found, "{FOUND}a link that was there throughout is missed");
}

/// Two lanes insert, and one of them moves the half to which the other's link belongs.
fn insert_while_growing() {
    let links = full();
    let lane = links.clone();
    race(move || lane.insert(1, 5), || links.insert(0, 4));
    assert!((1..=5).all(|run| links.finds(run)), "{FOUND}a link is where nobody looks");
}

/// One lane takes a link out while another moves it.
fn remove_while_growing() {
    let links = full();
    let lane = links.clone();
    let (found, ()) = race(move || lane.remove(1, 1), || links.insert(0, 4));
    assert!(found, "{FOUND}a link that was there is not found by its remover");
    assert!(!links.finds(1) && (2..=4).all(|run| links.finds(run)), "{FOUND}a link is lost, or came back");
}

#[test]
fn a_link_is_found_while_the_table_grows() {
    sound("find while growing", find_while_growing);
}

#[test]
fn broken_misses_believed() {
    broken_by(Fault::MissBelieved, "a miss believed at once", find_while_growing);
}

#[test]
fn broken_cleared_before_published() {
    broken_by(Fault::ClearedBeforePublished, "links cleared before the directory says so", find_while_growing);
}

#[test]
fn a_link_is_found_while_the_table_comes_back() {
    sound("find while growing and shrinking", find_while_it_grows_and_shrinks);
}

#[test]
fn broken_misses_believed_both_ways() {
    broken_by(Fault::MissBelieved, "a miss believed, growing and shrinking", find_while_it_grows_and_shrinks);
}

#[test]
fn broken_cleared_relaxed() {
    broken_by(Fault::ClearedRelaxed, "links taken out Relaxed", find_while_growing);
}

#[test]
fn an_insert_goes_where_readers_look() {
    sound("insert while growing", insert_while_growing);
}

#[test]
fn broken_directory_read_before_the_lock() {
    broken_by(Fault::DirectoryBeforeLock, "insert by an old directory", insert_while_growing);
}

#[test]
fn a_removal_meets_a_move() {
    sound("remove while growing", remove_while_growing);
}

#[test]
fn broken_removal_by_an_old_directory() {
    broken_by(Fault::DirectoryBeforeLock, "remove by an old directory", remove_while_growing);
}
