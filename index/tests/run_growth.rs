//! A run grows where its only holder goes on: prompts stored in several events lie in few runs, and what is removed comes
//! back granule by granule.

#![expect(clippy::unwrap_used, reason = "a test may stop where its own scene is wrong")]

use kvatlas_index::{ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, RankKey, Store, StoreKind, Tier};
use std::sync::Arc;

/// A prompt of blocks `0..len`; each of its names is its content plus one.
struct Prompt {
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
}

impl Prompt {
    fn new(seed: u64, len: u64) -> Self {
        let contents: Vec<_> = (0..len).map(|i| ContentHash(seed << 32 | i << 1)).collect();
        Self { names: contents.iter().map(|c| EngineHash(c.0 | 1)).collect(), contents }
    }

    /// Stores blocks `from..to` after what is before them.
    fn store(&self, lane: &mut Lane, at: Holder, from: usize, to: usize) {
        let parent = from.checked_sub(1).map(|i| self.names[i]);
        let (names, contents) = (&self.names[from..to], &self.contents[from..to]);
        let did = lane.store(at, &Store { parent, names, contents, kind: StoreKind::Copy }).unwrap();
        assert_eq!(did.stored, (to - from) as u64);
    }
}

fn scene() -> (Arc<Index>, Lane, [Holder; 2]) {
    let config = IndexConfig { blocks_max: 1 << 16, runs_max: 1 << 12, exts_max: 64, ..IndexConfig::default() };
    let (index, mut lanes) = Index::new(config).unwrap();
    let mut lane = lanes.pop().unwrap();
    let holders = [1, 2].map(|r| Holder { rank: lane.open_rank(RankKey(r)).unwrap(), tier: Tier::Device });
    (index, lane, holders)
}

#[test]
fn a_prompt_stored_in_several_events_is_one_run() {
    for step in [1, 7, 8, 64] {
        let (index, mut lane, [one, _]) = scene();
        let prompt = Prompt::new(1, 500);
        for from in (0..500).step_by(step) {
            prompt.store(&mut lane, one, from, 500.min(from + step));
        }
        index.check().unwrap();
        assert_eq!((index.stats().runs, index.stats().blocks), (1, 500), "{step} blocks an event");
        let tail_first: Vec<_> = prompt.names.iter().rev().copied().collect();
        for (i, some) in tail_first.chunks(3).enumerate() {
            assert_eq!(lane.remove(one, some).unwrap().removed, some.len() as u64);
            if i % 16 == 0 {
                index.check().unwrap();
            }
        }
        index.check().unwrap();
        assert_eq!((index.stats().runs, index.stats().blocks), (0, 0));
    }
}

#[test]
fn a_run_ends_at_its_limit_and_where_the_next_granule_is_taken() {
    let (index, mut lane, [one, two]) = scene();
    let (first, second) = (Prompt::new(1, 1_200), Prompt::new(2, 64));
    first.store(&mut lane, one, 0, 600);
    assert_eq!(index.stats().runs, 2, "512 blocks and the rest");
    second.store(&mut lane, two, 0, 64);
    first.store(&mut lane, one, 600, 1_200);
    index.check().unwrap();
    assert_eq!(index.stats().blocks, 1_264);
    for rank in [one, two] {
        lane.clear(rank.rank, None).unwrap();
    }
}

#[test]
fn what_others_hold_to_its_end_stays_a_run_of_its_own() {
    let (index, mut lane, [one, two]) = scene();
    let prompt = Prompt::new(1, 128);
    prompt.store(&mut lane, one, 0, 64);
    prompt.store(&mut lane, two, 0, 64);
    prompt.store(&mut lane, one, 64, 128);
    index.check().unwrap();
    assert_eq!(index.stats().runs, 2);
    prompt.store(&mut lane, two, 64, 128);
    index.check().unwrap();
    assert_eq!((index.stats().runs, lane.held(two)), (2, 128));
}
