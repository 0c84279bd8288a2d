//! Ranks with names of their own beside a first storer: stretches of private names that leave in one event, over runs, holes,
//! copies and twins, and along links that lead nowhere any more. Oracle and index must agree at every step.

#![expect(clippy::unwrap_used, reason = "a test may stop where its own scene is wrong")]

mod common;

use common::configurations::Configuration;
use common::pair::{Pair, copy};
use kvatlas_index::{ContentHash, EngineHash, Removed, Tier};
use std::ops::Range;

const DEVICE: Tier = Tier::Device;

/// Three ranks of one lane, the first of which stores everything first.
fn over_every_run_length(play: impl Fn(&mut Pair)) {
    for run_blocks_max in [512, 3, 1] {
        let name = "private names";
        let mut pair = Pair::new(&Configuration { name, ranks: 3, lanes: 1, shards: 1, run_blocks_max, tiny: false });
        (0..3).for_each(|rank| pair.open(rank).unwrap());
        play(&mut pair);
        pair.finish().unwrap();
    }
}

/// Name of a block of a rank.
fn name(rank: usize, block: u64) -> EngineHash {
    EngineHash(block + 1_000 * rank as u64)
}

/// A rank stores consecutive blocks behind a block, or from the root.
fn store(pair: &mut Pair, rank: usize, parent: Option<u64>, blocks: Range<u64>) {
    let names: Vec<_> = blocks.clone().map(|block| name(rank, block)).collect();
    let contents: Vec<_> = blocks.map(|block| ContentHash(block + 7)).collect();
    pair.store(rank, DEVICE, &copy(parent.map(|block| name(rank, block)), &names, &contents)).unwrap().unwrap();
}

fn remove(pair: &mut Pair, rank: usize, blocks: impl Iterator<Item = u64>) -> Removed {
    let names: Vec<_> = blocks.map(|block| name(rank, block)).collect();
    let did = pair.remove(rank, DEVICE, &names).unwrap().unwrap();
    pair.check().unwrap();
    pair.compare_names(rank).unwrap();
    did
}

#[test]
fn many_names_leave_in_one_event_over_runs_and_forks() {
    over_every_run_length(|pair| {
        store(pair, 0, None, 1..200);
        for rank in [1, 2] {
            store(pair, rank, None, 1..150);
            store(pair, rank, Some(90), 300..330);
        }
        // A fork, then the chain below it, in one event; the other rank keeps what it has.
        let gone = remove(pair, 1, (300..330).rev().chain((20..150).rev()));
        assert_eq!(gone, Removed { removed: 160, ..Removed::default() });
        // Head first, and a stretch from the middle.
        assert_eq!(remove(pair, 2, 1..40).removed, 39);
        assert_eq!(remove(pair, 2, (60..80).rev()).removed, 20);
        store(pair, 1, Some(19), 20..100);
        assert_eq!(remove(pair, 1, (1..100).rev()).removed, 99);
    });
}

#[test]
fn one_name_at_a_time_follows_the_links() {
    over_every_run_length(|pair| {
        store(pair, 0, None, 1..60);
        store(pair, 1, None, 1..60);
        store(pair, 2, None, 1..30);
        for block in (10..60).rev() {
            assert_eq!(remove(pair, 1, [block].into_iter()).removed, 1);
            // Granules that came free are another rank's at once.
            if block % 10 == 0 {
                store(pair, 2, Some(29), 500 + block..505 + block);
            }
        }
        assert_eq!(remove(pair, 1, [10, 9].into_iter()), Removed { removed: 1, unknown: 1, ..Removed::default() });
    });
}

#[test]
fn copies_and_twins_end_a_stretch() {
    over_every_run_length(|pair| {
        store(pair, 0, None, 1..40);
        store(pair, 1, None, 1..40);
        store(pair, 1, Some(14), 15..17);
        let twin = [EngineHash(9_999)];
        let parent = Some(name(1, 24));
        pair.store(1, DEVICE, &copy(parent, &twin, &[ContentHash(25 + 7)])).unwrap().unwrap();
        let did = remove(pair, 1, (10..40).rev());
        assert_eq!((did.removed, did.copies), (28, 2));
        let did = pair.remove(1, DEVICE, &[name(1, 16), twin[0], name(1, 15)]).unwrap().unwrap();
        assert_eq!(did.removed, 3);
    });
}

/// Freed granules are taken again, so the links of two of them can point at each other; an event that names a block twice
/// must not find it twice.
#[test]
fn links_in_a_circle_end() {
    over_every_run_length(|pair| {
        (1..4).for_each(|block| store(pair, 0, None, block..block + 1));
        store(pair, 1, None, 1..2);
        store(pair, 1, None, 2..3);
        assert_eq!(remove(pair, 1, 1..2).removed, 1);
        store(pair, 1, None, 3..4);
        let did = remove(pair, 1, [3, 2, 3, 2].into_iter());
        assert_eq!(did, Removed { removed: 2, unknown: 2, ..Removed::default() });
        // A granule that is taken again by its own rank has a link to itself.
        store(pair, 1, None, 1..2);
        assert_eq!(remove(pair, 1, 1..2).removed, 1);
        store(pair, 1, None, 2..3);
        let did = remove(pair, 1, [2, 2].into_iter());
        assert_eq!(did, Removed { removed: 1, unknown: 1, ..Removed::default() });
    });
}

/// A rank that stores new blocks under a name that it has privately elsewhere.
#[test]
fn a_private_name_moves_to_a_new_run() {
    over_every_run_length(|pair| {
        store(pair, 0, None, 1..30);
        store(pair, 1, None, 1..30);
        let names = [EngineHash(5_001), EngineHash(5_002), name(1, 12), EngineHash(5_003)];
        let contents = [801, 802, 803, 804].map(ContentHash);
        let did = pair.store(1, DEVICE, &copy(None, &names, &contents)).unwrap().unwrap();
        assert_eq!((did.stored, did.moved), (3, 1));
        let did = remove(pair, 1, (1..30).rev());
        assert_eq!((did.removed, did.copies), (28, 1));
    });
}

/// A name that comes a second time ends a stretch in the middle of a granule, of a batch, or where an earlier event stopped.
#[test]
fn a_stretch_ends_where_a_name_comes_again() {
    over_every_run_length(|pair| {
        store(pair, 0, None, 1..160);
        let mut block = 1;
        for (count, again) in [(3, 1), (13, 4), (70, 69), (20, 0), (1, 0), (9, 8)] {
            let mut names: Vec<_> = (block..block + count).map(|block| name(1, block)).collect();
            names.push(names[again as usize]);
            let contents: Vec<_> = (block..=block + count).map(|block| ContentHash(block + 7)).collect();
            let parent = (block > 1).then(|| block - 1);
            // What names itself as its parent is refused whole; anything else moves the name to its second place.
            let did = pair.store(1, DEVICE, &copy(parent.map(|block| name(1, block)), &names, &contents)).unwrap();
            assert_eq!(did.is_err(), again + 1 == count);
            pair.check().unwrap();
            pair.compare_names(1).unwrap();
            store(pair, 1, parent, block..block + count);
            pair.check().unwrap();
            block += count;
        }
        let did = remove(pair, 1, (1..block).rev());
        assert_eq!(did.removed + did.copies, block - 1);
        store(pair, 1, None, 1..160);
        pair.check().unwrap();
        pair.compare_names(1).unwrap();
    });
}
