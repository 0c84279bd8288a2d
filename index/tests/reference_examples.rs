//! The oracle by itself, against answers worked out by hand: it defines what the index means, so nothing else may.

use kvatlas_index::reference::Reference;
use kvatlas_index::{
    Cleared, ContentHash, EngineHash, HolderDepth, IndexError, RankKey, Removed, Residency, Store, StoreKind, Stored,
    Tier,
};

const W1: RankKey = RankKey(1);
const W2: RankKey = RankKey(2);

fn store(oracle: &mut Reference, key: RankKey, parent: Option<u64>, blocks: &[(u64, u64)]) -> Stored {
    let names: Vec<_> = blocks.iter().map(|b| EngineHash(b.0)).collect();
    let contents: Vec<_> = blocks.iter().map(|b| ContentHash(b.1)).collect();
    let store = Store { parent: parent.map(EngineHash), names: &names, contents: &contents, kind: StoreKind::Copy };
    oracle.store(key, Tier::Device, &store).expect("a well-formed store of an open rank")
}

fn remove(oracle: &mut Reference, key: RankKey, names: &[u64]) -> Removed {
    let names: Vec<_> = names.iter().copied().map(EngineHash).collect();
    oracle.remove(key, Tier::Device, &names).expect("an open rank")
}

fn depths(oracle: &Reference, query: &[u64]) -> Vec<(u32, u32)> {
    let query: Vec<_> = query.iter().copied().map(ContentHash).collect();
    oracle.lookup(&query, Residency::PerTier).iter().map(|h| (h.rank.0, h.blocks)).collect()
}

fn two_workers() -> Reference {
    let mut oracle = Reference::new(3);
    oracle.open_rank(W1);
    oracle.open_rank(W2);
    oracle
}

#[test]
fn the_longest_unbroken_prefix_on_that_content() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, None, &[(10, 1), (11, 2), (12, 3)]);
    store(&mut oracle, W2, None, &[(20, 1), (21, 9)]);
    assert_eq!(depths(&oracle, &[1, 2, 3]), [(1, 3), (2, 1)]);
    assert_eq!(depths(&oracle, &[1, 9, 3]), [(1, 1), (2, 2)]);
    assert_eq!(depths(&oracle, &[2, 3]), []);
    assert_eq!(depths(&oracle, &[]), []);
    remove(&mut oracle, W1, &[11]);
    assert_eq!(depths(&oracle, &[1, 2, 3]), [(1, 1), (2, 1)]);
    assert_eq!(oracle.held(W1, Tier::Device), 2);
}

/// The first adversarial input, as the contract writes it.
#[test]
fn duplicate_physical_copies() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, None, &[(10, 1), (11, 2), (12, 3)]);
    store(&mut oracle, W1, Some(11), &[(12, 3)]);
    remove(&mut oracle, W1, &[12]);
    assert_eq!(depths(&oracle, &[1, 2, 3]), [(1, 3)]);
    remove(&mut oracle, W1, &[12]);
    assert_eq!(depths(&oracle, &[1, 2, 3]), [(1, 2)]);
    assert_eq!(remove(&mut oracle, W1, &[12]), Removed { unknown: 1, ..Removed::default() });
    store(&mut oracle, W1, Some(11), &[(12, 3)]);
    assert_eq!(depths(&oracle, &[1, 2, 3]), [(1, 3)]);
}

/// Counts belong to names: taking one twin away as often as it came leaves the other alone.
#[test]
fn twins_are_counted_apart() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, None, &[(10, 1)]);
    store(&mut oracle, W1, None, &[(20, 1)]);
    store(&mut oracle, W1, None, &[(20, 1)]);
    assert_eq!(remove(&mut oracle, W1, &[20, 20, 20]), Removed { removed: 1, copies: 1, unknown: 1, parked: 0 });
    assert_eq!(depths(&oracle, &[1]), [(1, 1)]);
    assert_eq!(remove(&mut oracle, W1, &[10]), Removed { removed: 1, ..Removed::default() });
    assert_eq!(depths(&oracle, &[1]), []);
}

#[test]
fn parking_is_bounded_and_first_come_first_served() {
    let mut oracle = two_workers();
    let did = store(&mut oracle, W1, Some(9), &[(10, 1), (11, 2)]);
    assert_eq!(did, Stored { orphans: 2, ..Stored::default() });
    let did = store(&mut oracle, W1, Some(9), &[(20, 5), (21, 6)]);
    assert_eq!(did, Stored { orphans: 1, orphans_dropped: 1, ..Stored::default() });
    assert_eq!(oracle.parked(W1), 3);
    assert_eq!(depths(&oracle, &[1]), []);
    let did = store(&mut oracle, W1, None, &[(9, 0)]);
    assert_eq!(did, Stored { stored: 4, attached: 3, ..Stored::default() });
    assert_eq!(depths(&oracle, &[0, 1, 2]), [(1, 3)]);
    assert_eq!(depths(&oracle, &[0, 5, 6]), [(1, 2)]);
    assert_eq!(oracle.parked(W1), 0);
}

/// The latest of two parked blocks of one name goes first.
#[test]
fn a_removal_takes_the_latest_parked_block() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, Some(8), &[(10, 1)]);
    store(&mut oracle, W1, Some(9), &[(10, 2)]);
    assert_eq!(remove(&mut oracle, W1, &[10]), Removed { parked: 1, ..Removed::default() });
    store(&mut oracle, W1, None, &[(9, 5)]);
    assert_eq!(depths(&oracle, &[5, 2]), [(1, 1)]);
    store(&mut oracle, W1, None, &[(8, 6)]);
    assert_eq!(depths(&oracle, &[6, 1]), [(1, 2)]);
}

#[test]
fn a_moved_name_takes_its_copies_along() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, None, &[(10, 1), (11, 2)]);
    let did = store(&mut oracle, W1, None, &[(11, 7)]);
    assert_eq!(did, Stored { moved: 1, ..Stored::default() });
    assert_eq!(oracle.names(W1, Tier::Device), [(EngineHash(10), 1), (EngineHash(11), 2)]);
    assert_eq!(depths(&oracle, &[1, 2]), [(1, 1)]);
    assert_eq!(depths(&oracle, &[7]), [(1, 1)]);
}

#[test]
fn clears_and_closing() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, None, &[(10, 1), (11, 2)]);
    store(&mut oracle, W1, Some(99), &[(12, 3)]);
    store(&mut oracle, W2, None, &[(10, 1)]);
    assert_eq!(oracle.clear(W1, Some(Tier::Host)), Ok(Cleared::default()));
    assert_eq!(oracle.clear(W1, None), Ok(Cleared { blocks: 2, parked: 1 }));
    assert_eq!(depths(&oracle, &[1, 2]), [(2, 1)]);
    oracle.close_rank(W2);
    assert_eq!(depths(&oracle, &[1, 2]), []);
    assert_eq!(oracle.clear(W2, None), Err(IndexError::UnknownRank { slot: 2 }));
}

/// Cumulative: a tier is named only where it reaches further than the nearer ones together.
#[test]
fn residency_across_tiers() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, None, &[(10, 1), (11, 2), (12, 3)]);
    let adopted = oracle.adopt(W1, Tier::Disk, &[EngineHash(11), EngineHash(12), EngineHash(7)]);
    assert_eq!(adopted, Ok(Stored { stored: 2, unknown: 1, ..Stored::default() }));
    remove(&mut oracle, W1, &[12]);
    let query = [ContentHash(1), ContentHash(2), ContentHash(3)];
    let line = |tier, blocks| HolderDepth { rank: W1, tier, blocks };
    assert_eq!(oracle.lookup(&query, Residency::PerTier), [line(Tier::Device, 2)]);
    let both = [line(Tier::Device, 2), line(Tier::Disk, 3)];
    assert_eq!(oracle.lookup(&query, Residency::Cumulative), both);
}

#[test]
fn a_store_of_oneself_is_refused_whole() {
    let mut oracle = two_workers();
    store(&mut oracle, W1, None, &[(6, 7)]);
    let refused = |names: &[EngineHash], oracle: &mut Reference| {
        let contents = vec![ContentHash(7); names.len()];
        let store = Store { parent: Some(EngineHash(6)), names, contents: &contents, kind: StoreKind::Copy };
        oracle.store(W1, Tier::Device, &store)
    };
    assert_eq!(refused(&[EngineHash(6)], &mut oracle), Err(IndexError::SelfParent { name: EngineHash(6) }));
    let twice = [EngineHash(8), EngineHash(9), EngineHash(9)];
    assert_eq!(refused(&twice, &mut oracle), Err(IndexError::SelfParent { name: EngineHash(9) }));
    assert_eq!(oracle.held(W1, Tier::Device), 1);
}
