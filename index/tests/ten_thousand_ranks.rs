//! Ten thousand ranks in one index: opened, holding shared chains to different depths, replaced; the next one is refused.

mod common;

use common::configurations::Configuration;
use common::pair::{Pair, copy};
use common::rng::{Rng, mix};
use kvatlas_index::{ContentHash, EngineHash, IndexError, RankFilter, RankKey, Tier};

const RANKS: usize = 10_000;
const BLOCKS: usize = 64;
/// Closing or naming a rank looks at every run of the shard, and each run here has thousands of holders: milliseconds each.
const CHANGES: usize = 600;

#[test]
fn ten_thousand_ranks() {
    let configuration =
        Configuration { name: "many", ranks: RANKS, lanes: 4, shards: 1, run_blocks_max: 512, tiny: false };
    let mut pair = Pair::new(&configuration);
    let mut rng = Rng::new(10_000);
    let contents: Vec<_> = (0..BLOCKS as u64).map(|i| ContentHash(mix(i, 1))).collect();
    let names = |rank: usize| -> Vec<_> {
        let seed = if rank.is_multiple_of(5) { rank as u64 } else { 0 };
        (0..BLOCKS as u64).map(|i| EngineHash(mix(i, 2 + seed))).collect()
    };
    let check = |result: Result<(), String>| result.unwrap_or_else(|difference| panic!("{difference}"));
    for rank in 0..RANKS {
        check(pair.open(rank));
        let blocks = if rank.is_multiple_of(3) { BLOCKS } else { 1 + rng.below(BLOCKS) };
        let stored = pair.store(rank, Tier::Device, &copy(None, &names(rank)[..blocks], &contents[..blocks]));
        check(stored.map(|did| assert_eq!(did.map(|d| d.stored), Ok(blocks as u64))));
    }
    let next = pair.lanes[0].open_rank(RankKey(RANKS as u32));
    assert_eq!(next, Err(IndexError::RanksFull { limit: RANKS as u32 }));
    let some: RankFilter = (0..RANKS as u32).filter(|r| r.is_multiple_of(97)).map(RankKey).collect();
    check(pair.compare_lookup(&contents, &some));
    for _ in 0..CHANGES {
        let rank = rng.below(RANKS);
        match rng.below(3) {
            0 => {
                check(pair.close(rank));
                check(pair.open(rank));
            }
            1 => {
                let stored = pair.store(rank, Tier::Device, &copy(None, &names(rank)[..9], &contents[..9]));
                check(stored.map(|did| assert!(did.is_ok(), "{did:?}")));
            }
            _ => {
                let at = rng.below(BLOCKS);
                let removed = pair.remove(rank, Tier::Device, &names(rank)[at..]);
                check(removed.map(|did| assert!(did.is_ok(), "{did:?}")));
            }
        }
    }
    for blocks in [1, 9, 40, BLOCKS] {
        check(pair.compare_lookup(&contents[..blocks], &some));
    }
    check(pair.check());
    for rank in (0..RANKS).step_by(101) {
        check(pair.compare_counts(rank));
        check(pair.compare_names(rank));
    }
}
