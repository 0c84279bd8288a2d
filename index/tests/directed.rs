//! Each meaning of the index as a small example with its literal answer. Oracle and index must both give it, under runs of
//! one, three and 512 blocks and with one and two lanes.

#![expect(clippy::unwrap_used, reason = "a test may stop where its own scene is wrong")]

mod common;

use common::configurations::Configuration;
use common::pair::{Pair, copy};
use kvatlas_index::{
    Cleared, ContentHash, EngineHash, IndexError, RankFilter, RankKey, Removed, Residency, Store, StoreKind, Stored,
    Tier,
};

const DEVICE: Tier = Tier::Device;
const HOST: Tier = Tier::Host;
const DISK: Tier = Tier::Disk;

fn names(list: &[u64]) -> Vec<EngineHash> {
    list.iter().copied().map(EngineHash).collect()
}

fn contents(list: &[u64]) -> Vec<ContentHash> {
    list.iter().copied().map(ContentHash).collect()
}

/// Four open ranks on an index and an oracle.
struct Scene(Pair);

impl Scene {
    /// Plays a scene over every layout.
    fn over_every_layout(play: impl Fn(&mut Scene)) {
        for (run_blocks_max, lanes) in [(512, 1), (512, 2), (3, 1), (1, 2)] {
            let name = "directed";
            let configuration = Configuration { name, ranks: 4, lanes, shards: 1, run_blocks_max, tiny: false };
            let mut pair = Pair::new(&configuration);
            (0..4).for_each(|rank| pair.open(rank).unwrap());
            let mut scene = Scene(pair);
            play(&mut scene);
            scene.0.finish().unwrap();
        }
    }

    #[track_caller]
    fn try_store(&mut self, rank: usize, tier: Tier, store: &Store<'_>) -> Result<Stored, IndexError> {
        self.0.store(rank, tier, store).unwrap()
    }

    #[track_caller]
    fn store_in(&mut self, rank: usize, tier: Tier, parent: Option<u64>, n: &[u64], c: &[u64]) -> Stored {
        self.try_store(rank, tier, &copy(parent.map(EngineHash), &names(n), &contents(c))).unwrap()
    }

    /// A copy store on the device.
    #[track_caller]
    fn store(&mut self, rank: usize, parent: Option<u64>, n: &[u64], c: &[u64]) -> Stored {
        self.store_in(rank, DEVICE, parent, n, c)
    }

    #[track_caller]
    fn announce(&mut self, rank: usize, parent: Option<u64>, n: &[u64], c: &[u64]) -> Stored {
        let (names, contents) = (names(n), contents(c));
        let parent = parent.map(EngineHash);
        let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Announce };
        self.try_store(rank, DEVICE, &store).unwrap()
    }

    #[track_caller]
    fn adopt(&mut self, rank: usize, tier: Tier, n: &[u64]) -> Stored {
        self.0.adopt(rank, tier, &names(n)).unwrap().unwrap()
    }

    #[track_caller]
    fn remove(&mut self, rank: usize, n: &[u64]) -> Removed {
        self.0.remove(rank, DEVICE, &names(n)).unwrap().unwrap()
    }

    #[track_caller]
    fn remove_in(&mut self, rank: usize, tier: Tier, n: &[u64]) -> Removed {
        self.0.remove(rank, tier, &names(n)).unwrap().unwrap()
    }

    #[track_caller]
    fn set_copies(&mut self, rank: usize, name: u64, left: u64) -> Removed {
        self.0.set_copies(rank, DEVICE, EngineHash(name), left).unwrap().unwrap()
    }

    /// Both sides answer exactly these (rank, tier, blocks).
    #[track_caller]
    fn answers(&mut self, residency: Residency, query: &[u64], want: &[(usize, Tier, u32)]) {
        let query = contents(query);
        self.0.compare_lookup(&query, &RankFilter::new()).unwrap();
        let mut want: Vec<_> = want.iter().map(|&(rank, tier, blocks)| (self.0.key(rank), tier, blocks)).collect();
        want.sort_unstable();
        let got = self.0.lookup(&query, residency, None).unwrap();
        assert_eq!(got.iter().map(|h| (h.rank, h.tier, h.blocks)).collect::<Vec<_>>(), want);
    }

    /// Device-tier answer as (rank, blocks).
    #[track_caller]
    fn device(&mut self, query: &[u64], want: &[(usize, u32)]) {
        let want: Vec<_> = want.iter().map(|&(rank, blocks)| (rank, DEVICE, blocks)).collect();
        self.answers(Residency::PerTier, query, &want);
    }
}

fn stored(stored: u64) -> Stored {
    Stored { stored, ..Stored::default() }
}

fn removed(removed: u64) -> Removed {
    Removed { removed, ..Removed::default() }
}

#[test]
fn a_chain_its_prefixes_and_its_forks() {
    Scene::over_every_layout(|s| {
        assert_eq!(s.store(0, None, &[10, 11, 12], &[1, 2, 3]), stored(3));
        assert_eq!(s.store(1, None, &[10, 11], &[1, 2]), stored(2));
        s.device(&[1, 2, 3], &[(0, 3), (1, 2)]);
        s.device(&[1, 2, 3, 4], &[(0, 3), (1, 2)]);
        s.device(&[1], &[(0, 1), (1, 1)]);
        s.device(&[1, 3], &[(0, 1), (1, 1)]);
        s.device(&[2], &[]);
        s.device(&[], &[]);
        assert_eq!(s.store(1, Some(10), &[20], &[9]), stored(1));
        s.device(&[1, 9], &[(0, 1), (1, 2)]);
        s.device(&[1, 2, 3], &[(0, 3), (1, 2)]);
    });
}

#[test]
fn copies_are_counted() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11, 12], &[1, 2, 3]);
        assert_eq!(s.store(0, Some(11), &[12], &[3]), Stored { copies: 1, ..Stored::default() });
        assert_eq!(s.remove(0, &[12]), Removed { copies: 1, ..Removed::default() });
        s.device(&[1, 2, 3], &[(0, 3)]);
        assert_eq!(s.remove(0, &[12]), removed(1));
        s.device(&[1, 2, 3], &[(0, 2)]);
        assert_eq!(s.remove(0, &[12]), Removed { unknown: 1, ..Removed::default() });
        assert_eq!(s.store(0, Some(11), &[12], &[3]), stored(1));
        s.device(&[1, 2, 3], &[(0, 3)]);
    });
}

#[test]
fn an_announcement_is_no_copy() {
    Scene::over_every_layout(|s| {
        assert_eq!(s.announce(0, None, &[10, 11], &[1, 2]), stored(2));
        assert_eq!(s.announce(0, None, &[10, 11], &[1, 2]), Stored::default());
        assert_eq!(s.remove(0, &[11]), removed(1));
        s.device(&[1, 2], &[(0, 1)]);
    });
}

#[test]
fn the_engine_may_set_the_count() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11], &[1, 2]);
        assert_eq!(s.set_copies(0, 11, 3), Removed { copies: 1, ..Removed::default() });
        assert_eq!(s.remove(0, &[11, 11]), Removed { copies: 2, ..Removed::default() });
        assert_eq!(s.set_copies(0, 11, 0), removed(1));
        assert_eq!(s.set_copies(0, 11, 0), Removed { unknown: 1, ..Removed::default() });
        s.device(&[1, 2], &[(0, 1)]);
    });
}

#[test]
fn twins_are_two_names_of_one_position() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11], &[1, 2]);
        assert_eq!(s.store(0, Some(10), &[21], &[2]), stored(1));
        assert_eq!(s.0.oracle.held(RankKey(0), DEVICE), 2);
        assert_eq!(s.remove(0, &[11]), removed(1));
        s.device(&[1, 2], &[(0, 2)]);
        assert_eq!(s.store(0, Some(21), &[30], &[3]), stored(1));
        s.device(&[1, 2, 3], &[(0, 3)]);
        assert_eq!(s.remove(0, &[21]), removed(1));
        s.device(&[1, 2, 3], &[(0, 1)]);
    });
}

#[test]
fn ranks_may_name_the_same_content_differently() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11, 12], &[1, 2, 3]);
        s.store(1, None, &[110, 111, 112], &[1, 2, 3]);
        s.device(&[1, 2, 3], &[(0, 3), (1, 3)]);
        assert_eq!(s.remove(1, &[12]), Removed { unknown: 1, ..Removed::default() });
        assert_eq!(s.remove(1, &[112]), removed(1));
        assert_eq!(s.remove(0, &[12]), removed(1));
        s.device(&[1, 2, 3], &[(0, 2), (1, 2)]);
        assert_eq!(s.store(1, Some(111), &[113], &[4]), stored(1));
        s.device(&[1, 2, 4], &[(0, 2), (1, 3)]);
    });
}

#[test]
fn one_name_may_mean_different_content_on_different_ranks() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11], &[1, 2]);
        s.store(1, None, &[10, 11], &[7, 8]);
        s.store(2, None, &[11, 10], &[1, 2]);
        s.device(&[1, 2], &[(0, 2), (2, 2)]);
        s.device(&[7, 8], &[(1, 2)]);
        assert_eq!(s.remove(1, &[11]), removed(1));
        assert_eq!(s.remove(2, &[11]), removed(1));
        s.device(&[1, 2], &[(0, 2)]);
        s.device(&[7, 8], &[(1, 1)]);
        assert_eq!(s.remove(0, &[10]), removed(1));
        s.device(&[1, 2], &[]);
    });
}

#[test]
fn the_latest_store_of_a_name_wins() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11, 12], &[1, 2, 3]);
        s.store(0, Some(11), &[12], &[3]);
        assert_eq!(s.store(0, Some(10), &[12], &[5]), Stored { moved: 1, ..Stored::default() });
        s.device(&[1, 2, 3], &[(0, 2)]);
        s.device(&[1, 5], &[(0, 2)]);
        // Three stores arrived: two removals leave it held.
        assert_eq!(s.remove(0, &[12, 12]), Removed { copies: 2, ..Removed::default() });
        s.device(&[1, 5], &[(0, 2)]);
        assert_eq!(s.remove(0, &[12]), removed(1));
        s.device(&[1, 5], &[(0, 1)]);
    });
}

#[test]
fn a_name_may_repeat_within_one_event() {
    Scene::over_every_layout(|s| {
        // The same name at three places of one chain: it ends at the last one.
        let did = s.store(0, None, &[10, 11, 10, 12, 10], &[1, 2, 3, 4, 5]);
        assert_eq!(did, Stored { stored: 3, moved: 2, ..Stored::default() });
        s.device(&[1, 2, 3, 4, 5], &[]);
        assert_eq!(
            s.0.oracle.names(RankKey(0), DEVICE),
            [(EngineHash(10), 3), (EngineHash(11), 1), (EngineHash(12), 1)]
        );
        assert_eq!(s.store(0, None, &[20], &[1]), stored(1));
        s.device(&[1, 2, 3, 4, 5], &[(0, 2)]);
    });
}

#[test]
fn equal_tokens_in_a_row_are_blocks_of_their_own() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[5, 6], &[7, 7]);
        s.device(&[7, 7], &[(0, 2)]);
        s.device(&[7, 7, 7], &[(0, 2)]);
        let refused = s.try_store(0, DEVICE, &copy(Some(EngineHash(6)), &names(&[6]), &contents(&[7])));
        assert_eq!(refused, Err(IndexError::SelfParent { name: EngineHash(6) }));
        let refused = s.try_store(0, DEVICE, &copy(Some(EngineHash(6)), &names(&[8, 8]), &contents(&[7, 7])));
        assert_eq!(refused, Err(IndexError::SelfParent { name: EngineHash(8) }));
        s.device(&[7, 7, 7], &[(0, 2)]);
    });
}

#[test]
fn lengths_must_match() {
    Scene::over_every_layout(|s| {
        let refused = s.try_store(0, DEVICE, &copy(None, &names(&[1, 2]), &contents(&[1])));
        assert_eq!(refused, Err(IndexError::LengthMismatch { names: 2, contents: 1 }));
        assert_eq!(s.store(0, None, &[], &[]), Stored::default());
        s.device(&[1], &[]);
    });
}

#[test]
fn a_hole_is_exact_and_heals() {
    Scene::over_every_layout(|s| {
        for rank in 0..2 {
            s.store(rank, None, &[10, 11, 12, 13], &[1, 2, 3, 4]);
        }
        assert_eq!(s.remove(0, &[11]), removed(1));
        s.device(&[1, 2, 3, 4], &[(0, 1), (1, 4)]);
        assert_eq!(s.store(0, Some(10), &[11], &[2]), stored(1));
        s.device(&[1, 2, 3, 4], &[(0, 4), (1, 4)]);
        assert_eq!(s.remove(0, &[11, 12]), removed(2));
        assert_eq!(s.store(0, Some(10), &[11], &[2]), stored(1));
        s.device(&[1, 2, 3, 4], &[(0, 2), (1, 4)]);
        assert_eq!(s.store(0, Some(11), &[12], &[3]), stored(1));
        s.device(&[1, 2, 3, 4], &[(0, 4), (1, 4)]);
    });
}

#[test]
fn a_hole_beside_a_fork() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11, 12, 13], &[1, 2, 3, 4]);
        s.store(1, None, &[10, 11, 12, 23], &[1, 2, 3, 9]);
        s.store(0, Some(12), &[24, 25], &[9, 8]);
        assert_eq!(s.remove(0, &[10, 11, 12]), removed(3));
        s.device(&[1, 2, 3, 4], &[(1, 3)]);
        s.device(&[1, 2, 3, 9, 8], &[(1, 4)]);
        s.store(0, None, &[10, 11, 12], &[1, 2, 3]);
        s.device(&[1, 2, 3, 4], &[(0, 4), (1, 3)]);
        s.device(&[1, 2, 3, 9, 8], &[(0, 5), (1, 4)]);
    });
}

#[test]
fn the_whole_chain_head_first() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11, 12, 13], &[1, 2, 3, 4]);
        for (i, name) in [10, 11, 12, 13].into_iter().enumerate() {
            assert_eq!(s.remove(0, &[name]), removed(1));
            s.device(&[1, 2, 3, 4], &[]);
            assert_eq!(s.0.oracle.held(RankKey(0), DEVICE), 3 - i as u64);
        }
    });
}

#[test]
fn orphans_wait_for_their_parent() {
    Scene::over_every_layout(|s| {
        assert_eq!(s.store(0, Some(14), &[15, 16], &[5, 6]), Stored { orphans: 2, ..Stored::default() });
        s.device(&[5], &[]);
        s.device(&[1, 2, 3, 4, 5, 6], &[]);
        let did = s.store(0, None, &[11, 12, 13, 14], &[1, 2, 3, 4]);
        assert_eq!(did, Stored { stored: 6, attached: 2, ..Stored::default() });
        s.device(&[1, 2, 3, 4, 5, 6], &[(0, 6)]);
        s.device(&[5], &[]);
    });
}

#[test]
fn a_parked_block_can_be_removed() {
    Scene::over_every_layout(|s| {
        s.store(0, Some(14), &[15, 16], &[5, 6]);
        assert_eq!(s.remove(0, &[15]), Removed { parked: 1, ..Removed::default() });
        assert_eq!(s.store(0, None, &[14], &[4]), stored(1));
        s.device(&[4, 5, 6], &[(0, 1)]);
        // Block 16 still waits for 15.
        let did = s.store(0, Some(14), &[15], &[5]);
        assert_eq!(did, Stored { stored: 2, attached: 1, ..Stored::default() });
        s.device(&[4, 5, 6], &[(0, 3)]);
    });
}

#[test]
fn orphans_are_bounded() {
    Scene::over_every_layout(|s| {
        let list: Vec<u64> = (100..140).collect();
        let did = s.store(0, Some(99), &list, &list);
        assert_eq!(did, Stored { orphans: 24, orphans_dropped: 16, ..Stored::default() });
        assert_eq!(s.store(1, Some(99), &[100], &[100]), Stored { orphans: 1, ..Stored::default() });
        let did = s.store(0, None, &[99], &[99]);
        assert_eq!(did, Stored { stored: 25, attached: 24, ..Stored::default() });
        let query: Vec<u64> = (99..140).collect();
        s.device(&query, &[(0, 25)]);
    });
}

#[test]
fn orphans_are_of_one_rank_and_leave_with_it() {
    Scene::over_every_layout(|s| {
        s.store(0, Some(10), &[11], &[2]);
        s.store(1, None, &[10], &[1]);
        s.device(&[1, 2], &[(1, 1)]);
        assert_eq!(s.0.clear(0, Some(HOST)).unwrap(), Cleared::default());
        assert_eq!(s.0.clear(0, Some(DEVICE)).unwrap(), Cleared { blocks: 0, parked: 1 });
        assert_eq!(s.store(0, None, &[10], &[1]), stored(1));
        s.device(&[1, 2], &[(0, 1), (1, 1)]);
    });
}

#[test]
fn an_unknown_removal_does_not_stop_its_event() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11, 12], &[1, 2, 3]);
        assert_eq!(s.remove(0, &[12, 404, 11]), Removed { removed: 2, unknown: 1, ..Removed::default() });
        s.device(&[1, 2, 3], &[(0, 1)]);
    });
}

#[test]
fn tiers_hold_by_themselves_and_together() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11], &[1, 2]);
        assert_eq!(s.adopt(0, HOST, &[10, 11, 99]), Stored { stored: 2, unknown: 1, ..Stored::default() });
        s.answers(Residency::PerTier, &[1, 2], &[(0, DEVICE, 2), (0, HOST, 2)]);
        s.answers(Residency::Cumulative, &[1, 2], &[(0, DEVICE, 2)]);
        assert_eq!(s.remove(0, &[11, 10]), removed(2));
        s.answers(Residency::PerTier, &[1, 2], &[(0, HOST, 2)]);
        s.answers(Residency::Cumulative, &[1, 2], &[(0, HOST, 2)]);
        s.store(0, None, &[10], &[1]);
        assert_eq!(s.remove_in(0, HOST, &[10]), removed(1));
        // Block 1 on the device, block 2 on the host: neither tier has both, together they do.
        s.answers(Residency::PerTier, &[1, 2], &[(0, DEVICE, 1)]);
        s.answers(Residency::Cumulative, &[1, 2], &[(0, DEVICE, 1), (0, HOST, 2)]);
        assert_eq!(s.0.clear(0, Some(DEVICE)).unwrap(), Cleared { blocks: 1, parked: 0 });
        s.answers(Residency::Cumulative, &[1, 2], &[]);
    });
}

#[test]
fn a_parent_is_sought_in_its_own_tier_first() {
    Scene::over_every_layout(|s| {
        s.store_in(0, DEVICE, None, &[10], &[1]);
        assert_eq!(s.store_in(0, HOST, Some(10), &[11], &[2]), stored(1));
        s.answers(Residency::PerTier, &[1, 2], &[(0, DEVICE, 1)]);
        s.answers(Residency::Cumulative, &[1, 2], &[(0, DEVICE, 1), (0, HOST, 2)]);
        // The disk knows the same name at another place: its own children go there.
        s.store_in(0, DISK, None, &[10], &[7]);
        s.store_in(0, DISK, Some(10), &[12], &[8]);
        s.answers(Residency::PerTier, &[7, 8], &[(0, DISK, 2)]);
        // The host does not: the nearest other tier's place counts.
        s.store_in(0, HOST, Some(10), &[13], &[8]);
        s.answers(Residency::Cumulative, &[1, 8], &[(0, DEVICE, 1), (0, HOST, 2)]);
    });
}

#[test]
fn closing_forgets_and_opening_starts_anew() {
    Scene::over_every_layout(|s| {
        s.store(0, None, &[10, 11], &[1, 2]);
        s.store(1, None, &[10, 11], &[1, 2]);
        s.0.close(0).unwrap();
        s.device(&[1, 2], &[(1, 2)]);
        s.0.open(0).unwrap();
        s.device(&[1, 2], &[(1, 2)]);
        assert_eq!(s.store(0, Some(10), &[11], &[2]), Stored { orphans: 1, ..Stored::default() });
        assert_eq!(s.store(0, None, &[10], &[1]), Stored { stored: 2, attached: 1, ..Stored::default() });
        s.device(&[1, 2], &[(0, 2), (1, 2)]);
    });
}

#[test]
fn a_filter_leaves_the_others_out() {
    Scene::over_every_layout(|s| {
        for rank in 0..4 {
            s.store(rank, None, &[10, 11], &[1, 2]);
        }
        let only: RankFilter = [RankKey(1), RankKey(3), RankKey(900)].into_iter().collect();
        let got = s.0.lookup(&contents(&[1, 2]), Residency::PerTier, Some(&only)).unwrap();
        assert_eq!(got.iter().map(|h| (h.rank.0, h.blocks)).collect::<Vec<_>>(), [(1, 2), (3, 2)]);
        let none = s.0.lookup(&contents(&[1, 2]), Residency::Cumulative, Some(&RankFilter::new())).unwrap();
        assert!(none.is_empty());
    });
}

#[test]
fn a_slot_is_good_on_its_own_lane_only() {
    let configuration =
        Configuration { name: "directed", ranks: 2, lanes: 2, shards: 1, run_blocks_max: 512, tiny: false };
    let mut pair = Pair::new(&configuration);
    pair.open(0).unwrap();
    let (lane, at) = pair.holder(0, DEVICE).unwrap();
    let other = &mut pair.lanes[1 - lane];
    let store = copy(None, &[EngineHash(1)], &[ContentHash(1)]);
    assert!(matches!(other.store(at, &store), Err(IndexError::UnknownRank { .. })));
    assert!(matches!(other.remove(at, &[]), Err(IndexError::UnknownRank { .. })));
    assert!(matches!(other.adopt(at, &[]), Err(IndexError::UnknownRank { .. })));
    assert!(matches!(other.set_copies(at, EngineHash(1), 0), Err(IndexError::UnknownRank { .. })));
    assert!(matches!(other.clear(at.rank, None), Err(IndexError::UnknownRank { .. })));
    assert!(matches!(other.close_rank(at.rank), Err(IndexError::UnknownRank { .. })));
    assert_eq!((other.held(at), other.parked(at.rank), other.names(at)), (0, 0, Vec::new()));
    pair.finish().unwrap();
}
