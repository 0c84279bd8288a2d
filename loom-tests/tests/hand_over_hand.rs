//! The last matched position is trimmed and used again for another chain while a reader looks for its child.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;

/// Contents: the query is x, y, z. Nobody ever stored that chain.
const Y: u64 = 5;
const Z: u64 = 6;
const OTHER: u64 = 9;

/// A run over positions 1 and 2 with contents x and y, and the header of the child that comes later.
struct Chain<P> {
    run: P,
    len: AtomicU64,
    content2: AtomicU64,
    free: AtomicU64,
    link: AtomicU64,
    child: P,
    child_parent: AtomicU64,
    child_content: AtomicU64,
}

/// Takes position 2 for another chain and hangs a child with content z there.
fn use_again<P: Protocol>(chain: &Chain<P>) {
    if chain.free.load(Acquire) == 1 {
        P::reuse_fence();
        chain.content2.store(OTHER, Relaxed);
        chain.child_parent.store(2, Relaxed);
        chain.child_content.store(Z, Relaxed);
        drop(chain.child.revive());
        chain.link.store(1, Release);
    }
}

/// The depth that a reader accepts for x, y, z.
fn read<P: Protocol>(chain: &Chain<P>, steps_back: bool) -> Option<u64> {
    let seen = chain.run.begin()?;
    let (len, y) = (chain.len.load(Acquire), chain.content2.load(Relaxed));
    if !chain.run.confirm(seen) || len < 2 {
        return None;
    }
    assert!(y == Y, "{FOUND}content of another chain was accepted");
    if chain.link.load(Acquire) == 0 {
        return Some(2);
    }
    let child = chain.child.begin()?;
    let (parent, content) = (chain.child_parent.load(Relaxed), chain.child_content.load(Relaxed));
    if !chain.child.confirm(child) || (parent, content) != (2, Z) {
        return None;
    }
    (!steps_back || chain.run.confirm(seen)).then_some(3)
}

fn child_of_a_position_used_again<P: Protocol>(steps_back: bool) {
    let word = AtomicU64::new;
    let chain = Arc::new(Chain {
        run: P::new_alive(),
        len: word(2),
        content2: word(Y),
        free: word(0),
        link: word(0),
        child: P::new_dead(),
        child_parent: word(0),
        child_content: word(0),
    });
    let lane = chain.clone();
    let trimmer = thread::spawn(move || {
        let mut held = lane.run.lock();
        held.window(|| lane.len.store(1, Relaxed));
        drop(held);
        lane.free.store(1, Release);
    });
    let lane = chain.clone();
    let taker = thread::spawn(move || use_again(&lane));
    let depth = read(&chain, steps_back);
    assert!(depth != Some(3), "{FOUND}depth 3 of a chain that never existed");
    trimmer.join().unwrap();
    taker.join().unwrap();
}

#[test]
fn one_step_back_is_enough() {
    sound("hand over hand", || child_of_a_position_used_again::<Version>(true));
}

#[test]
fn broken_without_a_step_back() {
    broken("no step back", || child_of_a_position_used_again::<Version>(false));
}

#[test]
fn broken_trim_without_window() {
    broken("hand over hand, trim without a window", || child_of_a_position_used_again::<Faulty<NO_WINDOW>>(true));
}
