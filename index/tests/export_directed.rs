//! Exports case by case: what must survive the way into a fresh rank, each in the smallest history that shows it.

mod common;

use common::configurations::Configuration;
use common::copies::{Told, export, export_of, import, same_answers, same_state};
use common::pair::{Pair, copy};
use kvatlas_index::{ContentHash, EngineHash, ExportError, Holder, RankKey, Store, StoreKind, Tier};

const DEVICE: Tier = Tier::Device;
const HOST: Tier = Tier::Host;

fn e(names: &[u64]) -> Vec<EngineHash> {
    names.iter().copied().map(EngineHash).collect()
}
fn c(contents: &[u64]) -> Vec<ContentHash> {
    contents.iter().copied().map(ContentHash).collect()
}

/// Rank 0 is the original, rank 1 another one of the same lane, rank 2 the copy.
struct Bed {
    pair: Pair,
    told: Vec<Told>,
}

impl Bed {
    fn new(run_blocks_max: u32) -> Self {
        let configuration =
            Configuration { name: "export", ranks: 3, lanes: 1, shards: 1, run_blocks_max, tiny: false };
        let mut pair = Pair::new(&configuration);
        pair.open(0).expect("room");
        pair.open(1).expect("room");
        Self { pair, told: Vec::new() }
    }

    fn store(&mut self, rank: usize, tier: Tier, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let (names, contents) = (e(names), c(contents));
        let did = self.pair.store(rank, tier, &copy(parent.map(EngineHash), &names, &contents));
        did.expect("as the oracle").expect("no limit");
    }

    fn remove(&mut self, rank: usize, tier: Tier, names: &[u64]) {
        self.pair.remove(rank, tier, &e(names)).expect("as the oracle").expect("an open rank");
    }

    /// Makes the copy, of the index's export and, in an oracle and an index of its own, of the oracle's; compares both.
    fn copy(&mut self) -> &mut Self {
        let (lane, at) = self.pair.holder(0, DEVICE).expect("open");
        self.told = export(&self.pair.lanes[lane], at.rank);
        let of_oracle = export_of(&self.pair.oracle, self.pair.key(0));
        self.pair.close(2).expect("as the oracle");
        self.pair.open(2).expect("room");
        assert!(import(&mut self.pair, 2, &self.told).expect("as the oracle"));
        self.compare(&[]);
        let mut other = Bed::new(512).pair;
        assert!(import(&mut other, 0, &of_oracle).expect("as the oracle"));
        same_state(&self.pair.oracle, self.pair.key(0), &other.oracle, other.key(0)).expect("the oracle's own export");
        self.pair.check().expect("the invariants");
        self
    }

    /// Compares original and copy, and what they answer to a query.
    fn compare(&mut self, query: &[u64]) {
        let (oracle, original, copy) = (&self.pair.oracle, self.pair.key(0), self.pair.key(2));
        same_state(oracle, original, oracle, copy).expect("the same state");
        same_answers(&c(query), (oracle, original), (oracle, copy)).expect("the same answers");
        self.pair.compare_lookup(&c(query), &Default::default()).expect("as the oracle");
    }

    /// The same on original and copy.
    fn both(&mut self, play: impl Fn(&mut Self, usize)) -> &mut Self {
        play(self, 0);
        play(self, 2);
        self.compare(&[]);
        self
    }

    fn removals(&self) -> usize {
        let names = |told: &Told| if let Told::Remove { names, .. } = told { names.len() } else { 0 };
        self.told.iter().map(names).sum()
    }
}

#[test]
fn nothing_is_told_of_an_empty_rank() {
    let mut bed = Bed::new(512);
    bed.store(1, DEVICE, None, &[1, 2], &[10, 20]);
    bed.copy();
    assert_eq!(bed.told, []);
    bed.store(0, DEVICE, None, &[1], &[10]);
    bed.pair.clear(0, None).expect("as the oracle");
    bed.copy();
    assert_eq!(bed.told, [], "what stands on a retired slot is not the rank's");
}

#[test]
fn copies_by_tier_and_name() {
    let mut bed = Bed::new(512);
    for _ in 0..3 {
        bed.store(0, DEVICE, None, &[1, 2], &[10, 20]);
    }
    bed.store(0, HOST, None, &[1, 2, 3], &[10, 20, 30]);
    bed.pair.set_copies(0, HOST, EngineHash(3), u64::MAX).expect("as the oracle").expect("open");
    bed.copy();
    assert!(bed.told.contains(&Told::Copies { tier: HOST, name: EngineHash(3), left: u64::MAX }));
    bed.both(|bed, rank| bed.remove(rank, DEVICE, &[1, 2, 2, 2]));
    bed.compare(&[10, 20, 30]);
}

#[test]
fn twins_and_private_names() {
    let mut bed = Bed::new(512);
    // The other rank's names become the canonical ones; the original's are private, with twins at both ends.
    bed.store(1, DEVICE, None, &[1, 2, 3], &[10, 20, 30]);
    bed.store(0, DEVICE, None, &[101, 102, 103], &[10, 20, 30]);
    bed.store(0, DEVICE, None, &[111, 112], &[10, 20]);
    bed.store(0, DEVICE, Some(102), &[113], &[30]);
    bed.store(0, DEVICE, Some(113), &[4], &[40]);
    bed.store(0, DEVICE, Some(103), &[114], &[40]);
    bed.copy();
    bed.both(|bed, rank| bed.remove(rank, DEVICE, &[101, 112, 103]));
    bed.both(|bed, rank| bed.remove(rank, DEVICE, &[102]));
    bed.compare(&[10, 20, 30, 40]);
    bed.both(|bed, rank| bed.store(rank, DEVICE, Some(114), &[5], &[50]));
    bed.compare(&[10, 20, 30, 40, 50]);
}

#[test]
fn holes_in_one_run_and_between_runs() {
    for run_blocks_max in [512, 3, 1] {
        let mut bed = Bed::new(run_blocks_max);
        let (names, contents): (Vec<u64>, Vec<u64>) = ((1..=20).collect(), (101..=120).collect());
        bed.store(0, DEVICE, None, &names, &contents);
        bed.store(0, DEVICE, Some(7), &[71, 72], &[171, 172]);
        bed.remove(0, DEVICE, &[1, 7, 8, 9, 71, 19]);
        bed.copy();
        assert_eq!(bed.removals(), 6, "runs of {run_blocks_max}");
        bed.compare(&contents);
        // The holes are healed, and everything behind them counts again.
        bed.both(|bed, rank| bed.store(rank, DEVICE, None, &[1], &[101]));
        bed.both(|bed, rank| bed.store(rank, DEVICE, Some(6), &[7, 8, 9], &[107, 108, 109]));
        bed.compare(&contents);
    }
}

/// Only one block is held, at the end of ten thousand that are gone; nothing recurses, whatever the runs are.
#[test]
fn ten_thousand_deep() {
    for run_blocks_max in [512, 1] {
        let mut bed = Bed::new(run_blocks_max);
        let (names, contents): (Vec<u64>, Vec<u64>) = ((1..=10_000).collect(), (20_001..=30_000).collect());
        bed.store(0, DEVICE, None, &names, &contents);
        bed.copy();
        assert_eq!(bed.removals(), 0);
        bed.compare(&contents);
        bed.remove(0, DEVICE, &names[..9_999]);
        bed.copy();
        assert_eq!(bed.removals(), 9_999);
        bed.both(|bed, rank| bed.store(rank, DEVICE, None, &(1..=9_999).collect::<Vec<_>>(), &contents_of(9_999)));
        bed.compare(&contents);
    }
    fn contents_of(count: u64) -> Vec<u64> {
        (20_001..=20_000 + count).collect()
    }
}

#[test]
fn children_hang_at_any_position() {
    let mut bed = Bed::new(512);
    let (names, contents): (Vec<u64>, Vec<u64>) = ((1..=40).collect(), (101..=140).collect());
    bed.store(0, DEVICE, None, &names, &contents);
    for at in 1..=40 {
        bed.store(0, DEVICE, Some(at), &[1_000 + at, 2_000 + at], &[3_000 + at, 3_000]);
    }
    bed.copy();
    for at in 1..=40 {
        let path: Vec<u64> = (101..=100 + at).chain([3_000 + at, 3_000]).collect();
        bed.compare(&path);
    }
}

/// One name stands at another block in each tier, so that the tier's own name leads astray.
#[test]
fn a_name_of_several_blocks_in_several_tiers() {
    let mut bed = Bed::new(512);
    bed.store(0, DEVICE, None, &[1, 2], &[10, 20]);
    bed.store(0, HOST, None, &[2, 9], &[90, 91]);
    // Behind block 20, which the host tier does not hold, and whose only name is another block's there.
    bed.store(0, DEVICE, Some(2), &[3], &[30]);
    bed.store(0, HOST, Some(3), &[4], &[40]);
    bed.remove(0, DEVICE, &[3]);
    bed.store(0, Tier::Disk, None, &[5, 6], &[10, 20]);
    bed.store(0, HOST, Some(6), &[7, 8], &[70, 80]);
    bed.store(0, HOST, Some(5), &[17], &[27]);
    bed.remove(0, Tier::Disk, &[5, 6]);
    bed.copy();
    // One name for block 30, which nobody holds, and one more for block 20.
    assert_eq!(bed.removals(), 2, "{:?}", bed.told);
    for query in [&[10, 20, 70, 80][..], &[10, 20, 30, 40], &[10, 27], &[90, 91]] {
        bed.compare(query);
    }
    bed.both(|bed, rank| bed.store(rank, HOST, None, &[51, 52], &[10, 20]));
    for query in [&[10, 20, 70, 80][..], &[10, 20, 30, 40], &[10, 27], &[90, 91]] {
        bed.compare(query);
    }
}

#[test]
fn adopted_tiers() {
    let mut bed = Bed::new(512);
    bed.store(0, DEVICE, None, &[1, 2, 3], &[10, 20, 30]);
    bed.pair.adopt(0, HOST, &e(&[2, 3])).expect("as the oracle").expect("open");
    bed.pair.adopt(0, Tier::External, &e(&[3, 1])).expect("as the oracle").expect("open");
    bed.remove(0, DEVICE, &[3]);
    bed.copy();
    bed.both(|bed, rank| {
        let did = bed.pair.adopt(rank, DEVICE, &e(&[3])).expect("as the oracle");
        assert_eq!(did.expect("open").stored, 1);
    });
    bed.compare(&[10, 20, 30]);
}

#[test]
fn a_name_stored_again_under_another_parent() {
    let mut bed = Bed::new(512);
    bed.store(0, DEVICE, None, &[1, 2, 3, 4], &[10, 20, 30, 40]);
    bed.store(0, DEVICE, Some(1), &[3], &[77]);
    bed.store(0, DEVICE, None, &[4], &[88]);
    bed.copy();
    bed.both(|bed, rank| bed.store(rank, DEVICE, Some(3), &[5], &[50]));
    for query in [&[10, 20, 30, 40][..], &[10, 77, 50], &[88]] {
        bed.compare(query);
    }
}

#[test]
fn orphans_in_the_order_in_which_they_came() {
    let mut bed = Bed::new(512);
    // Two blocks of one name wait for one parent: the one that came first is attached first, so the second is where it stays.
    bed.store(0, DEVICE, Some(9), &[5, 6], &[50, 60]);
    bed.store(0, DEVICE, Some(9), &[5], &[51]);
    bed.store(0, HOST, Some(6), &[7], &[70]);
    bed.store(0, DEVICE, Some(8), &[5], &[52]);
    bed.copy();
    // A removal takes the latest of a name.
    bed.both(|bed, rank| bed.remove(rank, DEVICE, &[5]));
    bed.both(|bed, rank| bed.store(rank, DEVICE, None, &[9], &[90]));
    for query in [&[90, 51][..], &[90, 50], &[90, 50, 60, 70], &[52]] {
        bed.compare(query);
    }
}

/// An orphan can wait for a name that the rank holds: it came behind an orphan of that name, which was taken out.
#[test]
fn orphans_of_a_held_name_in_a_full_place() {
    for gone in [true, false] {
        let mut bed = Bed::new(512);
        bed.store(0, DEVICE, None, &[1, 2], &[10, 20]);
        bed.store(0, DEVICE, Some(99), &[1, 5, 2, 6], &[11, 50, 21, 60]);
        if gone {
            bed.remove(0, DEVICE, &[1]);
        }
        let more: Vec<u64> = (200..230).collect();
        bed.store(0, DEVICE, Some(98), &more, &more);
        assert_eq!(bed.pair.oracle.parked(bed.pair.key(0)), 24, "the place is full");
        bed.copy();
        // Both are stored again: only now what waits for them is attached.
        bed.both(|bed, rank| bed.store(rank, DEVICE, None, &[1, 2], &[10, 20]));
        for query in [&[10, 20, 60][..], &[10, 50, 21, 60], &[10, 20]] {
            bed.compare(query);
        }
    }
}

/// Names made up for holes are none that the rank holds or has parked.
#[test]
fn made_up_names_are_nobodys() {
    let mut bed = Bed::new(512);
    bed.store(0, DEVICE, None, &[1, 2, 3], &[10, 20, 30]);
    bed.remove(0, DEVICE, &[1, 2]);
    bed.copy();
    let made_up = |bed: &Bed| -> Vec<u64> {
        bed.told
            .iter()
            .flat_map(|told| if let Told::Remove { names, .. } = told { &names[..] } else { &[] })
            .map(|n| n.0)
            .collect()
    };
    let first = made_up(&bed);
    assert_eq!(first.len(), 2);
    bed.store(0, HOST, None, &first[..1], &[10]);
    bed.store(0, DEVICE, Some(first[1]), &[70], &[70]);
    bed.copy();
    let second = made_up(&bed);
    assert!(second.iter().all(|name| !first.contains(name)), "{first:x?} {second:x?}");
    bed.both(|bed, rank| bed.store(rank, DEVICE, None, &first, &[10, 20]));
    bed.compare(&[10, 20, 30]);
    bed.compare(&[10, 20, 70]);
}

/// Taken in the middle of a sweep and of the map's growth, an export tells the same.
#[test]
fn a_sweep_and_a_growing_map_change_nothing() {
    let mut bed = Bed::new(512);
    for chain in 0..300 {
        let names: Vec<u64> = (chain * 100..chain * 100 + 20).collect();
        bed.store((chain % 2) as usize, DEVICE, None, &names, &names);
    }
    let (lane, at) = bed.pair.holder(0, DEVICE).expect("open");
    let before = export(&bed.pair.lanes[lane], at.rank);
    bed.pair.clear(1, None).expect("as the oracle");
    let mut left = bed.pair.lanes[lane].sweep(1);
    assert!(left > 0);
    while left > 0 {
        assert_eq!(sorted(&export(&bed.pair.lanes[lane], at.rank)), sorted(&before));
        left = bed.pair.lanes[lane].sweep(40);
    }
    for chain in 0..200 {
        let names: Vec<u64> = (0..5).map(|i| 1_000_000 + chain * 10 + i).collect();
        bed.store(1, DEVICE, None, &names, &names);
        assert_eq!(sorted(&export(&bed.pair.lanes[lane], at.rank)), sorted(&before));
    }
    bed.copy();

    fn sorted(told: &[Told]) -> Vec<String> {
        let mut told: Vec<String> = told.iter().map(|t| format!("{t:?}")).collect();
        told.sort();
        told
    }
}

#[test]
fn a_change_in_between_ends_an_export() {
    let mut bed = Bed::new(512);
    bed.store(0, DEVICE, None, &[1, 2, 3], &[10, 20, 30]);
    let (lane, at) = bed.pair.holder(0, DEVICE).expect("open");
    let slot = at.rank;
    type Change = fn(&mut Bed, Holder);
    let changes: [Change; 4] = [
        |bed, _| bed.store(0, DEVICE, Some(3), &[4], &[40]),
        |bed, _| bed.remove(0, DEVICE, &[4]),
        |bed, _| drop(bed.pair.clear(0, None)),
        |bed, _| bed.pair.close(0).and_then(|()| bed.pair.open(0)).expect("as the oracle"),
    ];
    for change in changes {
        let mut export = bed.pair.lanes[lane].export(slot).expect("open");
        bed.pair.lanes[lane].export_some(&mut export, 1, &mut |_| {}).expect("nothing changed");
        bed.store(1, DEVICE, None, &[1, 2, 9], &[10, 20, 90]);
        let went_on = bed.pair.lanes[lane].export_some(&mut export, 1, &mut |_| {});
        assert!(went_on.is_ok(), "another rank's change is none of its");
        change(&mut bed, at);
        let ended = bed.pair.lanes[lane].export_some(&mut export, 1, &mut |_| {});
        assert!(matches!(ended, Err(ExportError::Changed { .. })), "{ended:?}");
    }
    bed.pair.close(0).expect("as the oracle");
    assert!(matches!(bed.pair.lanes[lane].export(slot), Err(ExportError::UnknownRank { .. })));
    assert_eq!(export_of(&bed.pair.oracle, RankKey(77)), []);
}

/// Announced orphans stay announced: a name that is held already gets no copy from them.
#[test]
fn kinds_of_orphans() {
    let mut bed = Bed::new(512);
    let (names, contents) = (e(&[5, 6]), c(&[50, 60]));
    for kind in [StoreKind::Announce, StoreKind::Copy, StoreKind::Announce] {
        let store = Store { parent: Some(EngineHash(1)), names: &names, contents: &contents, kind };
        bed.pair.store(0, DEVICE, &store).expect("as the oracle").expect("room");
    }
    // Of another kind than the one before it, and held elsewhere: it moves with one copy more.
    let store = Store { parent: Some(EngineHash(6)), names: &e(&[7]), contents: &c(&[70]), kind: StoreKind::Copy };
    bed.store(0, DEVICE, None, &[7], &[77]);
    bed.pair.store(0, DEVICE, &store).expect("as the oracle").expect("room");
    bed.copy();
    bed.both(|bed, rank| bed.store(rank, DEVICE, None, &[1], &[10]));
    assert_eq!(bed.pair.oracle.names(bed.pair.key(0), DEVICE)[3], (EngineHash(7), 2));
    bed.compare(&[10, 50, 60, 70]);
}
