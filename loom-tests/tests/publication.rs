//! Publication of a child: whoever finds its link finds it whole; two lanes that open the same child end up with one.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;

#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Fields, version, link.
    Sound,
    /// The link comes first.
    LinkFirst,
    /// The version comes to life and is linked before the fields are there.
    FieldsLast,
}

struct Child<P> {
    link: AtomicU64,
    version: P,
    content: AtomicU64,
    holders: AtomicU64,
}

fn publish<P: Protocol>(order: Order) {
    let word = AtomicU64::new;
    let child = Arc::new(Child { link: word(0), version: P::new_dead(), content: word(0), holders: word(0) });
    let lane = child.clone();
    let opener = thread::spawn(move || {
        if order == Order::LinkFirst {
            lane.link.store(1, Release);
        }
        P::reuse_fence();
        let born = (order == Order::FieldsLast).then(|| {
            let born = lane.version.revive();
            lane.link.store(1, Release);
            born
        });
        lane.content.store(8, Relaxed);
        lane.holders.store(1, Relaxed);
        let born = born.unwrap_or_else(|| lane.version.revive());
        if order == Order::Sound {
            lane.link.store(1, Release);
        }
        drop(born);
    });
    if child.link.load(Acquire) == 1 {
        let read = child.version.begin().and_then(|seen| {
            let words = [&child.content, &child.holders].map(|word| word.load(Relaxed));
            child.version.confirm(seen).then_some(words)
        });
        // Born before it is linked: a reader never meets a dead child here.
        let words = read.unwrap_or_else(|| panic!("{FOUND}a link to a dead child"));
        assert!(words == [8, 1], "{FOUND}a child without its content or holder: {words:?}");
    }
    opener.join().unwrap();
}

struct Openers<P> {
    parent: P,
    link: AtomicU64,
    children: [(P, AtomicU64); 2],
}

fn open<P: Protocol>(openers: &Openers<P>, me: usize, second_probe: bool) {
    let mut link = openers.link.load(Acquire);
    if link == 0 {
        let held = openers.parent.lock();
        if second_probe {
            link = openers.link.load(Relaxed);
        }
        if link == 0 {
            let (version, holders) = &openers.children[me];
            holders.store(1 << me, Relaxed);
            drop(version.revive());
            openers.link.store(me as u64 + 1, Release);
            return;
        }
        drop(held);
    }
    let (version, holders) = &openers.children[link as usize - 1];
    let held = version.lock();
    holders.store(holders.load(Relaxed) | 1 << me, Release);
    drop(held);
}

/// Two lanes open the same child: under the parent's lock the loser finds the winner's run and joins it.
fn twins<P: Protocol>(second_probe: bool) {
    let child = || (P::new_dead(), AtomicU64::new(0));
    let openers = Arc::new(Openers { parent: P::new_alive(), link: AtomicU64::new(0), children: [child(), child()] });
    let other = openers.clone();
    let lane = thread::spawn(move || open(&other, 1, second_probe));
    open(&openers, 0, second_probe);
    lane.join().unwrap();
    let link = openers.link.load(Acquire) as usize;
    let holders = openers.children[link - 1].1.load(Relaxed);
    assert!(holders == 3, "{FOUND}a holder is lost: {holders:b}");
}

#[test]
fn a_linked_child_is_whole() {
    sound("publication of a child", || publish::<Version>(Order::Sound));
}

#[test]
fn broken_linked_before_it_is_born() {
    broken("child linked first", || publish::<Version>(Order::LinkFirst));
}

#[test]
fn broken_born_before_it_is_filled() {
    broken("child filled last", || publish::<Version>(Order::FieldsLast));
}

#[test]
fn two_openers_make_one_child() {
    sound("twin openers", || twins::<Version>(true));
}

#[test]
fn broken_without_a_second_probe() {
    broken("twin openers, no second probe", || twins::<Version>(false));
}
