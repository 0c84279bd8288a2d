//! Looking ahead is a hint: whatever a lane is told about its queue, it answers and holds the same.

#![expect(clippy::unwrap_used, reason = "a test may stop where its own scene is wrong")]

use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, RankKey, RankSlot, Store, StoreKind, Tier, Upcoming,
};

struct Event {
    rank: usize,
    store: bool,
    parent: Option<EngineHash>,
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
}

impl Event {
    fn upcoming(&self, ranks: &[RankSlot]) -> Upcoming<'_> {
        let at = Holder { rank: ranks[self.rank], tier: Tier::Device };
        let (parent, names, contents) = (self.parent, &self.names[..], &self.contents[..]);
        let store = Store { parent, names, contents, kind: StoreKind::Copy };
        if self.store { Upcoming::Store(at, store) } else { Upcoming::Remove(at, names) }
    }
}

/// Stores and removals of few names, many of them unknown, empty, or of a rank that is closed.
fn events(seed: u64) -> Vec<Event> {
    let mut x = seed;
    let mut random = |below: u64| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) % below
    };
    let event = |_| {
        let (chain, from, count) = (random(6), random(20), random(9));
        let name = |b: u64| EngineHash(1 + chain + 6 * b);
        let blocks = || from..from + count;
        let mut names: Vec<_> = blocks().map(name).collect();
        let store = random(2) == 0;
        if !store {
            names.reverse();
        }
        let parent = (from > 0).then(|| name(from - 1));
        let contents = blocks().map(|b| ContentHash(if b < 3 { b } else { chain + 100 * b })).collect();
        Event { rank: random(4) as usize, store, parent, names, contents }
    };
    (0..4_000).map(event).collect()
}

fn open() -> (std::sync::Arc<Index>, Lane, Vec<RankSlot>) {
    let config = IndexConfig { hash_key: Some([3, 5]), run_blocks_max: 7, ..IndexConfig::default() };
    let (index, mut lanes) = Index::new(config).unwrap();
    let mut lane = lanes.remove(0);
    let ranks: Vec<_> = (0..4).map(|r| lane.open_rank(RankKey(r)).unwrap()).collect();
    lane.close_rank(ranks[3]).unwrap();
    (index, lane, ranks)
}

fn apply(lane: &mut Lane, event: Upcoming<'_>) -> String {
    match event {
        Upcoming::Store(at, store) => format!("{:?}", lane.store(at, &store)),
        Upcoming::Remove(at, names) => format!("{:?}", lane.remove(at, names)),
    }
}

#[test]
fn answers_and_holdings_are_the_same_with_it_and_without() {
    for seed in 0..8 {
        let events = events(seed);
        let ((plain_index, mut plain, ranks), (ahead_index, mut ahead, _)) = (open(), open());
        ahead.look_ahead_first(|n| events.get(n).map(|e| e.upcoming(&ranks)));
        for (i, event) in events.iter().enumerate() {
            // Every third time the queue looks other than what comes.
            let skew = if i % 3 == 0 { 1_000 } else { 0 };
            ahead.look_ahead(|n| events.get(i + n + skew).map(|e| e.upcoming(&ranks)));
            let event = event.upcoming(&ranks);
            assert_eq!(apply(&mut plain, event), apply(&mut ahead, event), "seed {seed}, event {i}");
        }
        for &rank in &ranks[..3] {
            let at = Holder { rank, tier: Tier::Device };
            assert!(plain.held(at) > 0, "seed {seed}: something is held in the end");
            assert_eq!(plain.names(at), ahead.names(at), "seed {seed}");
        }
        assert_eq!(plain_index.stats(), ahead_index.stats());
        ahead_index.check().unwrap();
        ahead.check().unwrap();
    }
}
