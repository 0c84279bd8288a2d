//! A reader on its way from a run to its child while the run's tail is trimmed and used again; a join while a run is unlinked.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;

const Y: u64 = 5;
const Z: u64 = 6;

struct Chain<P> {
    /// Covers positions 1 and 2 with contents x, y.
    run: P,
    len: AtomicU64,
    content2: AtomicU64,
    free: AtomicU64,
    link: AtomicU64,
    /// A dead run that comes to life as the child of position 2.
    child: P,
    child_parent: AtomicU64,
    child_content: AtomicU64,
}

/// x, y, z never existed as one chain: no reader may walk three blocks deep.
fn reuse_of_a_parent<P: Protocol>(hand_over_hand: bool) {
    let word = AtomicU64::new;
    let chain = Arc::new(Chain {
        run: P::new_alive(),
        len: word(2),
        content2: word(Y),
        free: word(0),
        link: word(0),
        child: P::new_dead(),
        child_parent: word(9),
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
    let other = thread::spawn(move || {
        if lane.free.load(Acquire) == 1 {
            P::reuse_fence();
            lane.content2.store(99, Relaxed);
            lane.child_parent.store(2, Relaxed);
            lane.child_content.store(Z, Relaxed);
            drop(lane.child.revive());
            lane.link.store(1, Release);
        }
    });
    let depth = walk(&chain, hand_over_hand);
    assert!(depth < 3, "{FOUND}matched a chain that never existed");
    trimmer.join().unwrap();
    other.join().unwrap();
}

/// Blocks matched; 0 where the reader would start again.
fn walk<P: Protocol>(chain: &Chain<P>, hand_over_hand: bool) -> u64 {
    let Some(seen) = chain.run.begin() else { return 0 };
    let (len, content) = (chain.len.load(Acquire), chain.content2.load(Relaxed));
    if !chain.run.confirm(seen) || len < 2 {
        return 0;
    }
    assert!(content == Y, "{FOUND}compared the content of another chain");
    if chain.link.load(Acquire) == 0 {
        return 2;
    }
    let Some(child) = chain.child.begin() else { return 0 };
    let (parent, content) = (chain.child_parent.load(Relaxed), chain.child_content.load(Relaxed));
    let verified = chain.child.confirm(child) && (parent, content) == (2, Z);
    if !verified || (hand_over_hand && !chain.run.confirm(seen)) {
        return 0;
    }
    3
}

struct Leaf<P> {
    version: P,
    link: AtomicU64,
    holders: AtomicU64,
}

/// The last holder leaves and the run is unlinked, while a lane that found it before joins it.
fn unlink_against_join<P: Protocol>() {
    let leaf = Arc::new(Leaf { version: P::new_alive(), link: AtomicU64::new(1), holders: AtomicU64::new(1) });
    let lane = leaf.clone();
    let leaver = thread::spawn(move || {
        let mut held = lane.version.lock();
        let left = lane.holders.load(Relaxed) & !1;
        lane.holders.store(left, Release);
        if left == 0 {
            lane.link.store(0, Release);
            held.kill();
            drop(held);
            // The id is used again at once, for a chain of another holder.
            P::reuse_fence();
            lane.holders.store(4, Relaxed);
            drop(lane.version.revive());
        }
    });
    let mut joined = false;
    if let Some(seen) = leaf.version.begin() {
        let linked = leaf.link.load(Acquire) == 1;
        if linked
            && leaf.version.confirm(seen)
            && let Some(held) = leaf.version.lock_at(seen)
        {
            leaf.holders.store(leaf.holders.load(Relaxed) | 2, Release);
            joined = true;
            drop(held);
        }
    }
    leaver.join().unwrap();
    let (link, holders) = (leaf.link.load(Acquire), leaf.holders.load(Acquire));
    if joined {
        assert!((link, holders) == (1, 2), "{FOUND}joined another chain's run: link {link}, holders {holders:b}");
    } else {
        assert!((link, holders) == (0, 4), "{FOUND}not joined: link {link}, holders {holders:b}");
    }
}

#[test]
fn one_step_back_is_checked() {
    sound("reuse of a parent's position", || reuse_of_a_parent::<Version>(true));
}

#[test]
fn broken_without_the_step_back() {
    broken("reuse of a parent, no step back", || reuse_of_a_parent::<Version>(false));
}

#[test]
fn unlinked_or_joined() {
    sound("unlink against join", unlink_against_join::<Version>);
}

#[test]
fn broken_join_at_any_version() {
    broken("join at any version", unlink_against_join::<Faulty<LOCK_AT_ANY_VERSION>>);
}
