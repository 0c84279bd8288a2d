//! Memory stays flat: chains come and go, and what is left costs what a fresh index with the same chains costs.

use kvatlas_index::{ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, RankKey, Store, StoreKind, Tier};
use std::collections::VecDeque;
use std::sync::Arc;

const BLOCKS: u64 = 64;
const KEPT: usize = 200;
const RANKS: u64 = 8;

fn index() -> (Arc<Index>, Lane, Vec<Holder>) {
    let config = IndexConfig { ranks_max: 64, hash_key: Some([3, 4]), ..IndexConfig::default() };
    let (index, mut lanes) = Index::new(config).expect("a valid configuration");
    let mut lane = lanes.remove(0);
    let open = |key| Holder { rank: lane.open_rank(RankKey(key)).expect("room for every rank"), tier: Tier::Device };
    let holders = (0..RANKS as u32).map(open).collect();
    (index, lane, holders)
}

/// Names and contents of a chain that no other chain shares a block with.
fn chain(number: u64) -> (Vec<EngineHash>, Vec<ContentHash>) {
    let first = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let block = |i: u64| (first ^ (i << 17)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    ((0..BLOCKS).map(|i| EngineHash(block(i))).collect(), (0..BLOCKS).map(|i| ContentHash(!block(i))).collect())
}

fn store(lane: &mut Lane, holders: &[Holder], number: u64) {
    let (names, contents) = chain(number);
    let at = holders[(number % RANKS) as usize];
    let did = lane.store(at, &Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy });
    assert_eq!(did.expect("room for a chain").stored, BLOCKS);
}

/// Removes a chain tail first, as engines evict: at once, in two parts, or block by block.
fn remove(lane: &mut Lane, holders: &[Holder], number: u64) {
    let (mut names, _) = chain(number);
    names.reverse();
    let at = holders[(number % RANKS) as usize];
    let event_len = [BLOCKS, BLOCKS / 2, 1][(number % 3) as usize] as usize;
    let removed: u64 = names.chunks(event_len).map(|event| lane.remove(at, event).expect("a removal").removed).sum();
    assert_eq!(removed, BLOCKS);
}

/// A sliding window of live chains over `count` unique ones; then the same live chains in a fresh index.
fn churn(count: u64) {
    let (churned, mut lane, holders) = index();
    let mut live = VecDeque::new();
    let mut peak = 0;
    for number in 0..count {
        store(&mut lane, &holders, number);
        live.push_back(number);
        // Mostly the oldest one goes, sometimes one from the middle.
        if live.len() > KEPT {
            let at = if number % 7 == 0 { KEPT / 2 } else { 0 };
            remove(&mut lane, &holders, live.remove(at).expect("a live chain"));
        }
        if number % (count / 20) == 0 {
            let stats = churned.stats();
            peak = peak.max(stats.bytes_live + stats.bytes_free);
        }
    }
    let (fresh, mut fresh_lane, fresh_holders) = index();
    live.iter().for_each(|&number| store(&mut fresh_lane, &fresh_holders, number));
    let (churned, fresh) = (churned.stats(), fresh.stats());
    println!(
        "{count} chains of {BLOCKS} blocks, {KEPT} kept: live {} bytes, free {}, peak {peak}; fresh index {} and {}",
        churned.bytes_live, churned.bytes_free, fresh.bytes_live, fresh.bytes_free
    );
    assert_eq!((churned.held, churned.blocks), (KEPT as u64 * BLOCKS, KEPT as u64 * BLOCKS));
    assert_eq!((fresh.held, fresh.blocks, fresh.runs), (churned.held, churned.blocks, churned.runs));
    assert!(fresh.bytes_live > KEPT as u64 * BLOCKS * 8, "an index that counts its bytes");
    let (lowest, highest) = (fresh.bytes_live * 9 / 10, fresh.bytes_live * 11 / 10);
    assert!(
        (lowest..=highest).contains(&churned.bytes_live),
        "{} live bytes after the churn, {} in a fresh index",
        churned.bytes_live,
        fresh.bytes_live
    );
}

#[test]
fn fifty_thousand_chains() {
    churn(50_000);
}

#[test]
#[ignore = "minutes without optimisation: cargo xtask churn"]
fn a_million_chains() {
    churn(1_000_000);
}
