//! Every limit is a typed error: the caller clears the rank, and everything is exact again.

mod common;

use common::configurations::Configuration;
use common::history::run_one;
use common::profiles::PROFILES;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, IndexError, Lane, LookupOptions, RankKey, Store, StoreKind,
    Stored, Tier,
};
use std::sync::Arc;

fn small() -> IndexConfig {
    IndexConfig {
        ranks_max: 4,
        blocks_max: 512,
        runs_max: 64,
        exts_max: 64,
        names_max_per_holder: 100_000,
        hash_key: Some([1, 2]),
        ..IndexConfig::default()
    }
}

fn one_rank(config: IndexConfig) -> (Arc<Index>, Lane, Holder) {
    let (index, mut lanes) = Index::new(config).expect("a valid configuration");
    let mut lane = lanes.remove(0);
    let rank = lane.open_rank(RankKey(0)).expect("room for one rank");
    (index, lane, Holder { rank, tier: Tier::Device })
}

fn store(lane: &mut Lane, at: Holder, first: u64, blocks: u64) -> Result<Stored, IndexError> {
    let names: Vec<_> = (first..first + blocks).map(EngineHash).collect();
    let contents: Vec<_> = (first..first + blocks).map(ContentHash).collect();
    lane.store(at, &Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy })
}

/// Stores chains until the limit, clears, and finds the whole room again.
fn fill_clear_fill(config: IndexConfig, blocks: u64, is_limit: impl Fn(&IndexError) -> bool) {
    let (index, mut lane, at) = one_rank(config);
    let mut fill = || {
        for chain in 0..10_000 {
            if let Err(error) = store(&mut lane, at, chain * 1000, blocks) {
                assert!(is_limit(&error), "{error}");
                return chain;
            }
        }
        panic!("no limit after 10,000 chains");
    };
    let first = fill();
    assert!(first > 0);
    lane.clear(at.rank, None).expect("a clear needs no memory");
    assert_eq!(index.stats().held, 0);
    store(&mut lane, at, 7_000_000, blocks).expect("room after a clear");
    let query: Vec<_> = (7_000_000..7_000_000 + blocks).map(ContentHash).collect();
    let mut answer = Vec::new();
    let _exact = index.reader().lookup(&query, &LookupOptions::default(), &mut answer);
    assert_eq!(answer.iter().map(|h| h.blocks.into()).collect::<Vec<u64>>(), [blocks]);
}

#[test]
fn distinct_blocks() {
    fill_clear_fill(small(), 60, |e| matches!(e, IndexError::BlocksFull { limit: 512 }));
}

#[test]
fn runs() {
    let config = IndexConfig { blocks_max: 1 << 16, ..small() };
    fill_clear_fill(config, 1, |e| matches!(e, IndexError::RunsFull { limit: 64 }));
}

#[test]
fn names_of_a_holder() {
    let config = IndexConfig { blocks_max: 1 << 16, names_max_per_holder: 50, ..small() };
    fill_clear_fill(config, 20, |e| matches!(e, IndexError::NamesFull { limit: 50 }));
}

#[test]
fn private_names_of_a_lane() {
    const LIMIT: u32 = 512;
    let config = IndexConfig { blocks_max: 1 << 16, runs_max: 4096, private_names_max_per_lane: LIMIT, ..small() };
    let (index, mut lane, first) = one_rank(config);
    let second = Holder { rank: lane.open_rank(RankKey(1)).expect("room for two ranks"), tier: Tier::Device };
    let contents = |chain: u64| (0..20).map(|i| ContentHash(chain * 100 + i)).collect::<Vec<_>>();
    let under_own_names = |lane: &mut Lane, at: Holder, chain: u64, seed: u64| {
        let names: Vec<_> = (0..20).map(|i| EngineHash(seed + chain * 100 + i)).collect();
        lane.store(at, &Store { parent: None, names: &names, contents: &contents(chain), kind: StoreKind::Copy })
    };
    for round in 0..2 {
        let mut full = None;
        for chain in 0..100 {
            under_own_names(&mut lane, first, chain, 1 << 40).expect("canonical names have no such limit");
            full = full.or(under_own_names(&mut lane, second, chain, 1 << 41).err().map(|error| (chain, error)));
        }
        let (chain, error) = full.expect("a limit");
        assert_eq!(error, IndexError::PrivateNamesFull { limit: LIMIT }, "round {round}");
        assert!(chain > 10, "{chain} chains of three granules in {LIMIT} places");
        lane.clear(second.rank, None).expect("a clear needs no memory");
    }
    assert!(index.stats().held > 0);
    lane.check().expect("a consistent lane");
}

#[test]
fn ranks() {
    let (_index, mut lane, _) = one_rank(small());
    let more: Vec<_> = (1..4).map(|key| lane.open_rank(RankKey(key)).expect("room for four ranks")).collect();
    assert_eq!(lane.open_rank(RankKey(4)), Err(IndexError::RanksFull { limit: 4 }));
    lane.close_rank(more[0]).expect("an open rank");
    lane.open_rank(RankKey(5)).expect("room for one more");
}

/// The tiny configuration really runs into its limits, so the histories over it say something about what follows.
#[test]
fn the_tiny_configuration_reaches_its_limits() {
    let tiny = Configuration::named("tiny");
    let reached: u64 = PROFILES.iter().map(|profile| run_one(profile, &tiny, 0).full_errors).sum();
    assert!(reached > 20, "limits reached {reached} times");
}
