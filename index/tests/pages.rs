//! Huge pages are made of memory while a lane writes it, gives it back and fills it again, and a reader looks on: no answer changes.

use kvatlas_index::{
    ContentHash, EngineHash, Holder, HolderDepth, HugePages, Index, IndexConfig, LookupOptions, Outcome, PageFigures,
    RankKey, Store, StoreKind, Tier,
};
use std::sync::Arc;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// Blocks of the chain that stays, and of those that come and go: each fills stretches of 2 MiB of every region.
const STAYS: u64 = 300_000;
const GOES: u64 = 400_000;
const ROUNDS: u64 = 3;

/// Runs `work` again and again until its sender is gone; returns after it ran once.
fn until_dropped(mut work: impl FnMut() + Send + 'static) -> (Sender<()>, JoinHandle<()>) {
    let ((sender, ended), (ran, first)) = (channel::<()>(), channel());
    let run = move || {
        while ended.try_recv() == Err(TryRecvError::Empty) {
            work();
            let _ = ran.send(());
        }
    };
    let thread = std::thread::spawn(run);
    first.recv().expect("it runs once");
    (sender, thread)
}

fn chain(first: u64, blocks: u64) -> (Vec<EngineHash>, Vec<ContentHash>) {
    (first..first + blocks).map(|i| (EngineHash(i), ContentHash(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))).unzip()
}

fn look_up(index: &Arc<Index>, contents: &[ContentHash]) -> Vec<HolderDepth> {
    let mut found = Vec::new();
    assert_eq!(index.reader().lookup(contents, &LookupOptions::default(), &mut found), Outcome::Exact);
    found
}

#[test]
fn collapses_beside_a_lane_and_a_reader_change_no_answer() {
    let config = IndexConfig { huge_pages: HugePages::Collapse, ..IndexConfig::default() };
    let (index, mut lanes) = Index::new(config).unwrap();
    let mut lane = lanes.pop().unwrap();
    let ranks = [1, 2].map(|key| Holder { rank: lane.open_rank(RankKey(key)).unwrap(), tier: Tier::Device });
    let (names, contents) = chain(1, STAYS);
    let store = Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy };
    lane.store(ranks[0], &store).unwrap();

    let tended = index.clone();
    let (end_tending, tending) = until_dropped(move || {
        tended.tend_pages(3);
    });
    let (read, prompt) = (index.clone(), contents.clone());
    let (end_reading, reading) = until_dropped(move || {
        let found = look_up(&read, &prompt);
        assert_eq!((found.len(), found[0].rank, found[0].blocks), (1, RankKey(1), STAYS as u32));
    });
    for round in 0..ROUNDS {
        let (names, contents) = chain(1 << 32 | round << 24, GOES);
        let store = Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy };
        lane.store(ranks[1], &store).unwrap();
        assert_eq!(look_up(&index, &contents)[0].blocks, GOES as u32);
        let kept = (GOES / 3) as usize;
        lane.remove(ranks[1], &names[kept..]).unwrap();
        assert_eq!(look_up(&index, &contents)[0].blocks, kept as u32);
        lane.remove(ranks[1], &names[..kept]).unwrap();
        assert_eq!(look_up(&index, &contents), []);
    }
    drop((end_tending, end_reading));
    reading.join().unwrap();
    tending.join().unwrap();
    assert_eq!(index.stats().held, STAYS);
    let figures: PageFigures = index.page_figures().next().unwrap();
    // Elsewhere nothing is collapsed; a system may refuse.
    assert!(!cfg!(target_os = "linux") || figures.collapsed + figures.refused > 0, "{figures:?}");
}
