//! The table against a map, and readers beside its growth.

use super::*;
use crate::hash::HashKey;
use std::collections::HashMap;

fn full(edge: &Edge) -> f64 {
    let at = edge.directory();
    let buckets = (edge.bytes() / (WORDS as u64 * 8)) as f64;
    assert!(at.moved < edge.classes[at.class].buckets);
    edge.len() as f64 / (buckets * SLOTS as f64)
}

fn found(edge: &Edge, hash: u64, run: u32) -> Option<u32> {
    match edge.find(hash, |r, g| if r == run { Check::Yes(g) } else { Check::No }) {
        Found::Hit(granule) => Some(granule),
        _ => None,
    }
}

fn all_zero(edge: &Edge) -> bool {
    edge.words.clamped(0, usize::MAX / 2).iter().all(|w| w.load(Ordering::Relaxed) == 0)
}

/// Adds and takes away, more of the one and then more of the other, and compares every answer with a map's.
fn against_a_map(keys: u32, steps: u32, rehash: &dyn Fn(u32, u32) -> u64) {
    let edge = Edge::reserve(1 << 16, 2, &mut Site::default()).unwrap();
    let mut map: HashMap<u32, u32> = HashMap::new();
    let mut x = 99u64;
    for step in 0..steps {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let run = (x >> 40) as u32 % keys;
        let grow = (step / (steps / 4)).is_multiple_of(2);
        let add = (x >> 30) % 10 < if grow { 8 } else { 1 };
        if add && !map.contains_key(&run) {
            edge.insert(step % 2, rehash(run, 0), run, run + 1, rehash);
            map.insert(run, run + 1);
        } else if !add {
            assert_eq!(edge.remove(step % 2, rehash(run, 0), run), map.remove(&run).is_some());
            edge.advance(rehash);
        }
        let probe = (x >> 20) as u32 % keys;
        assert_eq!(found(&edge, rehash(probe, 0), probe), map.get(&probe).copied(), "step {step}");
        assert!(full(&edge) <= 0.875, "{} full", full(&edge));
    }
    assert_eq!(edge.len(), map.len() as u64);
    map.drain().for_each(|(run, _)| {
        assert!(edge.remove(0, rehash(run, 0), run));
        edge.advance(rehash);
    });
    while edge.due(edge.directory()) != Move::None {
        edge.advance(rehash);
    }
    assert_eq!((edge.len(), edge.directory().class), (0, 0));
    assert!(all_zero(&edge), "a table that was emptied has no word set");
}

#[test]
fn equals_a_map_through_growth_and_shrinking() {
    let key = HashKey::new(Some([3, 4]));
    against_a_map(40_000, 300_000, &|run, _| key.one(u64::from(run)));
}

#[test]
fn equals_a_map_when_every_link_has_the_same_home() {
    for hash in [0, 77 << 50, u64::MAX] {
        against_a_map(300, 6_000, &|_, _| hash);
    }
    // The last homes: what overflows goes on at the first bucket.
    against_a_map(3_000, 40_000, &|run, _| u64::MAX - u64::from(run));
}

/// A step moves a bounded number of links, however large the table is.
#[test]
fn a_step_is_bounded() {
    let key = HashKey::new(Some([5, 6]));
    let rehash = |run: u32, _: u32| key.one(u64::from(run));
    let edge = Edge::reserve(1 << 20, 1, &mut Site::default()).unwrap();
    let (mut longest, calls) = (0, std::cell::Cell::new(0));
    let counted = |run: u32, granule: u32| {
        calls.set(calls.get() + 1);
        rehash(run, granule)
    };
    for run in 1..300_000 {
        calls.set(0);
        edge.insert(0, rehash(run, 0), run, run, &counted);
        longest = longest.max(calls.get());
        assert!(full(&edge) < 0.82, "{} full at {run}", full(&edge));
    }
    assert!((20..600).contains(&longest), "{longest} links looked at in one insert");
}

/// Whoever is there throughout is found at every moment of growth and shrinking.
#[test]
fn a_reader_never_misses_what_is_there() {
    let key = HashKey::new(Some([7, 8]));
    let rehash = |run: u32, _: u32| key.one(u64::from(run));
    let edge = Edge::reserve(1 << 18, 2, &mut Site::default()).unwrap();
    let steady = 1..200u32;
    steady.clone().for_each(|run| edge.insert(0, rehash(run, 0), run, run, &rehash));
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut lookups = 0u64;
                    while done.load(Ordering::Relaxed) == 0 {
                        for run in steady.clone() {
                            assert_eq!(found(&edge, rehash(run, 0), run), Some(run));
                        }
                        assert_eq!(found(&edge, rehash(1 << 20, 0), 1 << 20), None);
                        lookups += 200;
                    }
                    lookups
                })
            })
            .collect();
        let (edge, rehash) = (&edge, &rehash);
        let writers = [0u32, 1].map(|lane| {
            scope.spawn(move || {
                for round in 0..6 {
                    let mine = (1_000..if round % 2 == 0 { 60_000 } else { 3_000 }).filter(|r| r % 2 == lane);
                    mine.clone().for_each(|run| edge.insert(lane, rehash(run, 0), run, run, rehash));
                    mine.for_each(|run| {
                        assert!(edge.remove(lane, rehash(run, 0), run));
                        edge.advance(rehash);
                    });
                }
            })
        });
        let written = writers.map(|w| w.join());
        done.store(1, Ordering::Relaxed);
        let lookups: u64 = readers.into_iter().map(|r| r.join().expect("a reader found everything")).sum();
        written.into_iter().for_each(|w| w.expect("a writer took out what it had put in"));
        assert!(lookups > 0);
    });
    assert_eq!(edge.len(), steady.len() as u64);
}
