//! A whole index of the product, tiny, as the models use it: lanes that store and remove, a reader that looks up, and what has
//! to be true of it in the end. A block's name is its content, unless a model says otherwise.

use crate::check::FOUND;
use kvatlas_index::model::tiny;
use kvatlas_index::watch::watch;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, HolderDepth, Index, Lane, LookupOptions, Outcome, RankKey, Reader, Store,
    StoreKind, Tier,
};
use loom::thread;
use std::sync::Arc;

/// Ranks of the largest model.
const RANKS: usize = 10;

/// A lane and its ranks.
pub struct Worker {
    /// The lane.
    pub lane: Box<Lane>,
    at: Vec<Holder>,
}

/// An index with so many lanes, and as many ranks on each: those of lane 0 have keys from 0 on, and so forth.
pub fn fleet<const LANES: usize>(ranks_per_lane: u32) -> (Arc<Index>, [Worker; LANES]) {
    fleet_with(ranks_per_lane, 4, 0)
}

/// The same with room for so many runs, and runs in set form.
pub fn fleet_with<const LANES: usize>(ranks_per_lane: u32, runs: u32, sets: u32) -> (Arc<Index>, [Worker; LANES]) {
    watch(0);
    let (index, lanes) = tiny(LANES as u32, ranks_per_lane, runs, sets);
    let mut key = 0;
    let workers = lanes.into_iter().map(|lane| {
        let mut worker = Worker { lane: Box::new(lane), at: Vec::new() };
        for _ in 0..ranks_per_lane {
            worker.open(key);
            key += 1;
        }
        worker
    });
    let workers: Vec<Worker> = workers.collect();
    let Ok(workers) = workers.try_into() else { panic!("as many lanes as asked for") };
    (index, workers)
}

impl Worker {
    /// Opens one more rank.
    pub fn open(&mut self, key: u32) {
        let rank = self.lane.open_rank(RankKey(key)).expect("there is room for another rank");
        self.at.push(Holder { rank, tier: Tier::Device });
    }

    /// Closes a rank, the `rank`th of this lane, and sweeps what it held.
    pub fn close(&mut self, rank: usize) {
        self.lane.close_rank(self.at.remove(rank).rank).expect("it is open");
        while self.lane.sweep(8) > 0 {}
    }

    /// Stores a chain from the root on, for the `rank`th rank of this lane.
    pub fn store(&mut self, rank: usize, chain: &[u64]) {
        self.store_named(rank, None, chain, chain);
    }

    /// Stores blocks behind another one.
    pub fn store_after(&mut self, rank: usize, parent: u64, blocks: &[u64]) {
        self.store_named(rank, Some(parent), blocks, blocks);
    }

    /// Stores blocks under names that are not their contents.
    pub fn store_named(&mut self, rank: usize, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let names: Vec<_> = names.iter().map(|&name| EngineHash(name)).collect();
        let contents: Vec<_> = contents.iter().map(|&content| ContentHash(content)).collect();
        let parent = parent.map(EngineHash);
        let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Announce };
        let did =
            self.lane.store(self.at[rank], &store).unwrap_or_else(|error| panic!("{FOUND}a store fails: {error}"));
        assert!(did.orphans_dropped == 0, "{FOUND}a parent that the rank holds is not found");
    }

    /// Removes blocks.
    pub fn remove(&mut self, rank: usize, names: &[u64]) {
        let names: Vec<_> = names.iter().map(|&name| EngineHash(name)).collect();
        let did = self.lane.remove(self.at[rank], &names).expect("removals need no room here");
        assert!(did.removed == names.len() as u64, "{FOUND}{} of {} blocks found", did.removed, names.len());
    }
}

/// How many leading blocks of a prompt each rank has, by key.
pub struct Asker {
    reader: Reader,
    prompt: Vec<ContentHash>,
    out: Vec<HolderDepth>,
}

impl Asker {
    /// Asks once, so that the reader knows everybody by name.
    pub fn new(index: &Arc<Index>, prompt: &[u64]) -> Self {
        let prompt = prompt.iter().map(|&content| ContentHash(content)).collect();
        let mut asker = Self { reader: index.reader(), prompt, out: Vec::with_capacity(RANKS) };
        asker.ask();
        asker.ask();
        asker
    }

    /// `None` when the walk met too many changes.
    pub fn ask(&mut self) -> Option<[u32; RANKS]> {
        self.out.clear();
        let outcome = self.reader.lookup(&self.prompt, &LookupOptions::default(), &mut self.out);
        let mut depths = [0; RANKS];
        for holder in &self.out {
            match depths.get_mut(holder.rank.0 as usize) {
                Some(depth) if *depth == 0 => *depth = holder.blocks,
                _ => panic!("{FOUND}rank {} is told twice, or there is none", holder.rank.0),
            }
        }
        (outcome == Outcome::Exact).then_some(depths)
    }
}

/// Runs one closure here and another one on a thread of its own.
pub fn race<A: 'static, B>(there: impl FnOnce() -> A + 'static, here: impl FnOnce() -> B) -> (A, B) {
    watch(2);
    let other = thread::spawn(there);
    let mine = here();
    let others = other.join().expect("a thread that panics ends the model");
    watch(0);
    (others, mine)
}

/// Runs one closure here and two on threads of their own, one after the other: the second thread knows what the first one did,
/// but no fence of the first is one of the second.
pub fn race_in_turn<A: 'static, B: 'static, C>(
    first: impl FnOnce() -> A + 'static,
    second: impl FnOnce() -> B + 'static,
    here: impl FnOnce() -> C,
) -> (A, B, C) {
    watch(3);
    let others = thread::spawn(move || {
        let first = first();
        let second = thread::spawn(second);
        (first, second.join().expect("a thread that panics ends the model"))
    });
    let mine = here();
    let (first, second) = others.join().expect("a thread that panics ends the model");
    watch(0);
    (first, second, mine)
}

/// Runs one closure here and two on threads of their own.
pub fn race_of_three<A: 'static, B: 'static, C>(
    first: impl FnOnce() -> A + 'static,
    second: impl FnOnce() -> B + 'static,
    here: impl FnOnce() -> C,
) -> (A, B, C) {
    watch(3);
    let (first, second) = (thread::spawn(first), thread::spawn(second));
    let mine = here();
    let first = first.join().expect("a thread that panics ends the model");
    let second = second.join().expect("a thread that panics ends the model");
    watch(0);
    (first, second, mine)
}

/// What has to hold when everything is at rest: every invariant of the structure, and these answers.
pub fn at_rest<'a>(index: &Arc<Index>, workers: impl IntoIterator<Item = &'a Worker>, answers: &[(&[u64], &[u32])]) {
    if let Err(broken) = index.check() {
        panic!("{FOUND}{broken}");
    }
    for worker in workers {
        if let Err(broken) = worker.lane.check() {
            panic!("{FOUND}{broken}");
        }
    }
    for (prompt, depths) in answers {
        let found = Asker::new(index, prompt).ask().expect("nobody changes anything");
        assert!(&found[..depths.len()] == *depths, "{FOUND}{prompt:?} is held {found:?}, not {depths:?}");
    }
}
