use super::super::push_cursor::{PushHeader, PushVerdict};
use super::super::registration::tests::pushed;
use super::*;
use crate::lanes::{LaneSettings, spawn_lanes};
use crate::ops::Op;
use crate::relay::RelayLimits;
use kvatlas_index::{ContentHash, EngineHash, Index, IndexConfig, LookupOptions, StoreKind, Tier};

fn fleet(lanes: u32, ranks_max: u32, workers_max: usize) -> (Arc<Index>, Arc<Fleet>) {
    let config = IndexConfig { lanes_per_shard: lanes, ranks_max, ..IndexConfig::default() };
    let (index, lanes) = Index::new(config).unwrap();
    let (handles, _threads) =
        spawn_lanes(lanes, LaneSettings { queue_batches_max: 8, look_ahead_batches: 8, spots: Vec::new() }).unwrap();
    let limits = FleetLimits { workers_max, ..FleetLimits::default() };
    let (ingest, relay, liveness) = (IngestLimits::default(), RelayLimits::default(), LivenessLimits::default());
    (index, Arc::new(Fleet::new(handles, ranks_max, limits, ingest, relay, liveness)))
}

fn batch(sequence: u64, name: u64) -> PushBatch {
    let (names, contents) = (vec![EngineHash(name)], vec![ContentHash(7)]);
    PushBatch {
        header: PushHeader { sequence, reset: false, lost_before: false },
        published_at: None,
        ops: vec![Op::Store { tier: Tier::Device, parent: None, names, contents, kind: StoreKind::Copy }],
        payload: None,
    }
}

fn holders(index: &Arc<Index>) -> Vec<u32> {
    let mut out = Vec::new();
    let _ = index.reader().lookup(&[ContentHash(7)], &LookupOptions::default(), &mut out);
    let mut keys: Vec<_> = out.iter().map(|h| h.rank.0).collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn a_removed_worker_is_gone_at_once_and_its_late_events_do_nothing() {
    let (index, fleet) = fleet(2, 4, 8);
    let first = fleet.register(pushed("w", "m", 4), false, false).await.unwrap();
    assert_eq!(
        fleet.register(pushed("w", "m", 4), false, false).await.unwrap(),
        Registered { unchanged: true, ..first }
    );
    let old = fleet.view().rank("w", 0).unwrap().clone();
    let outcome = fleet.push(&old, batch(0, 1)).await.unwrap().unwrap();
    assert_eq!((outcome.verdict, outcome.trust), (PushVerdict::Apply { clear_first: false }, Trust::Exact));
    assert_eq!(holders(&index), [0]);

    let stale = fleet.deregister("w", Some(99)).await;
    assert!(matches!(stale, Err(FleetError::StaleGeneration { asked: 99, current: 1, .. })), "{stale:?}");
    assert_eq!(fleet.deregister("w", Some(first.generation)).await, Ok(1));
    assert_eq!(holders(&index), [] as [u32; 0]);
    assert!(old.is_closed() && fleet.view().by_key(old.key).is_none());
    assert!(matches!(fleet.deregister("w", None).await, Err(FleetError::UnknownWorker { .. })));

    let again = fleet.register(pushed("w", "m", 4), false, false).await.unwrap();
    assert!(again.generation > first.generation);
    assert_eq!(fleet.push(&old, batch(1, 2)).await.unwrap(), Err(LaneError::Fenced { generation: 1 }));
    assert_eq!(holders(&index), [] as [u32; 0]);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_leaves_nothing_behind() {
    let (_index, fleet) = fleet(1, 2, 2);
    fleet.register(pushed("a", "m", 4), true, false).await.unwrap();
    let other_size = fleet.register(pushed("b", "m", 8), false, false).await;
    assert!(matches!(other_size, Err(FleetError::BlockSizeMismatch { registered: 4, asked: 8, .. })), "{other_size:?}");
    let mut bigram = pushed("b", "m", 4);
    bigram.worker.bigram = true;
    assert!(matches!(fleet.register(bigram, false, false).await, Err(FleetError::HashModeMismatch { .. })));
    let mut two = pushed("b", "m2", 8);
    two.pushed_ranks = vec![0, 1];
    assert!(matches!(fleet.register(two.clone(), false, false).await, Err(FleetError::Full { what: "ranks", .. })));
    let taken = fleet.register(pushed("a", "m", 8), false, false).await;
    assert!(matches!(taken, Err(FleetError::WorkerExists { .. })), "{taken:?}");
    // A replacement is judged as if the old worker were gone: the only one of its group may change its block size.
    fleet.register(pushed("a", "m", 8), false, true).await.unwrap();
    assert_eq!(fleet.view().group("m", "").unwrap().block_size, 8);
    fleet.register(pushed("b", "m", 8), false, false).await.unwrap();
    let full = fleet.register(pushed("c", "m", 8), false, false).await;
    assert!(matches!(full, Err(FleetError::Full { what: "workers", .. })), "{full:?}");
    fleet.deregister("b", None).await.unwrap();
    fleet.deregister("a", None).await.unwrap();
    assert!(matches!(fleet.view().group("m", ""), Err(FleetError::UnknownModel { .. })));
    fleet.register(two, false, false).await.unwrap();
    assert_eq!(fleet.view().ranks().count(), 2);
}

#[tokio::test]
async fn ranks_spread_over_the_lanes_and_watchers_hear_of_changes() {
    let (_index, fleet) = fleet(2, 8, 8);
    let mut watch = fleet.watch();
    let mut four = pushed("w", "m", 4);
    four.pushed_ranks = vec![3, 1, 2, 0];
    fleet.register(four, false, false).await.unwrap();
    let lanes: Vec<_> = fleet.view().ranks().map(|r| (r.rank, r.lane.lane().number())).collect();
    assert_eq!(lanes, [(0, 0), (1, 1), (2, 0), (3, 1)]);
    let rank = fleet.view().rank("w", 2).unwrap().clone();
    fleet.push(&rank, batch(5, 1)).await.unwrap().unwrap();
    fleet.deregister("w", None).await.unwrap();
    assert!(matches!(watch.recv().await, Ok(FleetEvent::Registered(_))));
    let changed = watch.recv().await.unwrap();
    assert!(
        matches!(changed, FleetEvent::TrustChanged { rank: 2, from: Trust::NeverSeen, to: Trust::Partial, .. }),
        "{changed:?}"
    );
    assert!(matches!(watch.recv().await, Ok(FleetEvent::Deregistered(_))));
}

#[tokio::test]
async fn the_default_number_of_workers_registers_and_leaves_again() {
    let workers_max = FleetLimits::default().workers_max;
    let (index, fleet) = fleet(2, workers_max as u32, workers_max);
    for i in 0..workers_max {
        fleet.register(pushed(&format!("w{i}"), "m", 4), false, false).await.unwrap();
    }
    let full = fleet.register(pushed("one more", "m", 4), false, false).await;
    assert!(matches!(full, Err(FleetError::Full { what: "workers", .. })), "{full:?}");
    for i in (0..workers_max).step_by(1000) {
        let rank = fleet.view().rank(&format!("w{i}"), 0).unwrap().clone();
        fleet.push(&rank, batch(0, 1)).await.unwrap().unwrap();
    }
    assert_eq!(holders(&index).len(), workers_max.div_ceil(1000));
    for i in 0..workers_max {
        fleet.deregister(&format!("w{i}"), None).await.unwrap();
    }
    assert_eq!((fleet.view().ranks().count(), holders(&index).len()), (0, 0));
    fleet.register(pushed("again", "m", 8), false, false).await.unwrap();
}
