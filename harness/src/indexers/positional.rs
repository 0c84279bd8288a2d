//! The positional baseline: one entry for each (position, content) with the workers that hold it, and a lookup that jumps.
//!
//! A lookup looks at every [`JUMP`]th position only: whoever holds that one is taken to hold all before it. As it stands that
//! is wrong for workers with holes (evictions need not come from the tail). Made exact here: an entry keeps its holders apart
//! by the hash of the whole prefix, and each worker counts its *breaks*, blocks whose predecessor it does not hold. Only a
//! worker without breaks is jumped; the others are followed block by block.
//!
//! Entries lie in shards under reader-writer locks. A lane keeps the names of its workers to itself. Blocks whose parent is
//! unknown are dropped and counted. Harness only: a yardstick, not a product.

use super::{EventLane, QueryLane};
use crossbeam_utils::CachePadded;
use kvatlas_index::{ContentHash, EngineHash, HolderDepth, RankKey, Tier};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Positions that a lookup jumps.
pub const JUMP: usize = 64;
/// Locks of the entry map.
const SHARDS: usize = 256;
/// The prefix before position 0.
const ROOT: u64 = 0x6b76_6174_6c61_7301;

/// A set of workers, one bit each.
type Workers = SmallVec<[u64; 2]>;

/// Holders of one content at one position, by the hash of the prefix up to it.
type Entry = SmallVec<[(u64, Workers); 1]>;

type Place = (u32, u64);

/// Keys are hashes already, or are mixed by [`extend`]: one multiplication spreads them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// A part of the entry map, under its lock.
type Shard = CachePadded<RwLock<Map<Place, Entry>>>;

/// What lanes and readers share.
pub struct Positional {
    shards: Box<[Shard]>,
    /// For each worker its blocks without a held predecessor.
    breaks: Box<[AtomicU64]>,
    orphans: AtomicU64,
    held: AtomicU64,
}

/// The prefix that ends with `content`.
fn extend(prefix: u64, content: ContentHash) -> u64 {
    let mixed = u128::from(prefix ^ 0xd6e8_feb8_6659_fd93) * u128::from(content.0 ^ 0xa076_1d64_78bd_642f | 1);
    (mixed as u64 ^ (mixed >> 64) as u64).wrapping_add(content.0)
}

impl Positional {
    /// An empty one for workers below `workers`.
    pub fn new(workers: u32) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            breaks: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            orphans: AtomicU64::new(0),
            held: AtomicU64::new(0),
        })
    }

    /// A lane. Workers must not be on two.
    pub fn lane(self: &Arc<Self>) -> Lane {
        Lane { shared: self.clone(), workers: (0..self.breaks.len()).map(|_| WorkerBlocks::default()).collect() }
    }

    /// A reader.
    pub fn reader(self: &Arc<Self>) -> Reader {
        let words = self.breaks.len().div_ceil(64);
        Reader { shared: self.clone(), prefixes: Vec::new(), active: vec![0; words], trusted: vec![0; words] }
    }

    /// Memberships.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Blocks that were dropped since their parent was unknown.
    pub fn orphans(&self) -> u64 {
        self.orphans.load(Ordering::Relaxed)
    }

    fn shard(&self, place: Place) -> &RwLock<Map<Place, Entry>> {
        let mixed = (place.1 ^ u64::from(place.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 56) as usize % SHARDS]
    }

    fn hold(&self, worker: u32, place: Place, prefix: u64) {
        let mut shard = self.shard(place).write().unwrap_or_else(PoisonError::into_inner);
        let entry = shard.entry(place).or_default();
        let at = entry.iter().position(|(p, _)| *p == prefix).unwrap_or_else(|| {
            entry.push((prefix, Workers::new()));
            entry.len() - 1
        });
        let workers = &mut entry[at].1;
        let word = worker as usize / 64;
        if workers.len() <= word {
            workers.resize(word + 1, 0);
        }
        workers[word] |= 1 << (worker % 64);
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self, worker: u32, place: Place, prefix: u64) {
        let mut shard = self.shard(place).write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = shard.get_mut(&place) else { return };
        let Some(at) = entry.iter().position(|(p, _)| *p == prefix) else { return };
        if let Some(word) = entry[at].1.get_mut(worker as usize / 64) {
            *word &= !(1 << (worker % 64));
        }
        if entry[at].1.iter().all(|&w| w == 0) {
            entry.swap_remove(at);
        }
        if entry.is_empty() {
            shard.remove(&place);
        }
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a name stands.
#[derive(Clone, Copy)]
struct Named {
    prefix: u64,
    copies: u64,
}

/// One block of a worker, by prefix.
#[derive(Clone, Copy, Default)]
struct Block {
    before: u64,
    position: u32,
    content: u64,
    /// Names that stand here; the block is held while there are any.
    names: u32,
    /// Held blocks right after this one.
    after: u32,
}

/// What a worker holds.
#[derive(Default)]
struct WorkerBlocks {
    names: Map<u64, Named>,
    blocks: Map<u64, Block>,
    breaks: u64,
}

/// The writing side.
pub struct Lane {
    shared: Arc<Positional>,
    workers: Vec<WorkerBlocks>,
}

impl Lane {
    fn publish(&self, worker: u32) {
        self.shared.breaks[worker as usize].store(self.workers[worker as usize].breaks, Ordering::Release);
    }

    /// One more name at a block.
    fn enter(&mut self, worker: u32, block: Block, prefix: u64) {
        let mine = &mut self.workers[worker as usize];
        let known = mine.blocks.entry(prefix).or_insert(block);
        // A block that is here only for its successors is not complete yet.
        (known.before, known.position, known.content) = (block.before, block.position, block.content);
        known.names += 1;
        if known.names > 1 {
            return;
        }
        let followed = u64::from(known.after);
        mine.breaks -= followed;
        if block.position > 0 {
            let before = mine.blocks.entry(block.before).or_default();
            before.after += 1;
            mine.breaks += u64::from(before.names == 0);
        }
        self.shared.hold(worker, (block.position, block.content), prefix);
    }

    /// One name less at a block.
    fn leave(&mut self, worker: u32, prefix: u64) {
        let mine = &mut self.workers[worker as usize];
        let Some(block) = mine.blocks.get_mut(&prefix) else { return };
        block.names -= 1;
        if block.names > 0 {
            return;
        }
        let gone = *block;
        mine.breaks += u64::from(gone.after);
        if gone.after == 0 {
            mine.blocks.remove(&prefix);
        }
        if gone.position > 0
            && let Some(before) = mine.blocks.get_mut(&gone.before)
        {
            before.after -= 1;
            mine.breaks -= u64::from(before.names == 0);
            if before.names == 0 && before.after == 0 {
                mine.blocks.remove(&gone.before);
            }
        }
        self.shared.leave(worker, (gone.position, gone.content), prefix);
    }
}

impl EventLane for Lane {
    fn store(&mut self, worker: u32, parent: Option<EngineHash>, names: &[EngineHash], contents: &[ContentHash]) {
        let (mut before, mut position) = (ROOT, 0);
        if let Some(parent) = parent {
            let mine = &self.workers[worker as usize];
            let Some(named) = mine.names.get(&parent.0) else {
                self.shared.orphans.fetch_add(names.len() as u64, Ordering::Relaxed);
                return;
            };
            before = named.prefix;
            position = mine.blocks.get(&before).map_or(0, |b| b.position + 1);
        }
        for (&name, &content) in names.iter().zip(contents) {
            let prefix = extend(before, content);
            let named = self.workers[worker as usize].names.entry(name.0).or_insert(Named { prefix, copies: 0 });
            named.copies += 1;
            let (old, copies) = (std::mem::replace(&mut named.prefix, prefix), named.copies);
            // The latest store wins: a name that stood elsewhere is here now, with its copies.
            if copies == 1 || old != prefix {
                self.enter(worker, Block { before, position, content: content.0, names: 0, after: 0 }, prefix);
            }
            if copies > 1 && old != prefix {
                self.leave(worker, old);
            }
            (before, position) = (prefix, position + 1);
        }
        self.publish(worker);
    }

    fn remove(&mut self, worker: u32, names: &[EngineHash]) {
        for name in names {
            let mine = &mut self.workers[worker as usize].names;
            let Some(named) = mine.get_mut(&name.0) else { continue };
            named.copies -= 1;
            if named.copies == 0 {
                let prefix = named.prefix;
                mine.remove(&name.0);
                self.leave(worker, prefix);
            }
        }
        self.publish(worker);
    }

    fn clear(&mut self, worker: u32) {
        let gone = std::mem::take(&mut self.workers[worker as usize]);
        for (prefix, block) in gone.blocks.into_iter().filter(|(_, b)| b.names > 0) {
            self.shared.leave(worker, (block.position, block.content), prefix);
        }
        self.publish(worker);
    }
}

/// The reading side.
pub struct Reader {
    shared: Arc<Positional>,
    prefixes: Vec<u64>,
    active: Vec<u64>,
    trusted: Vec<u64>,
}

impl Reader {
    /// The holders of the query's block at `position`, handed to `judge`; without an entry, nobody.
    fn at<R>(&self, query: &[ContentHash], position: usize, judge: impl FnOnce(&[u64]) -> R) -> R {
        let place = (position as u32, query[position].0);
        let shard = self.shared.shard(place).read().unwrap_or_else(PoisonError::into_inner);
        let holders = shard.get(&place).and_then(|e| e.iter().find(|(p, _)| *p == self.prefixes[position]));
        judge(holders.map_or(&[], |(_, workers)| workers))
    }

    /// Keeps only workers that hold the block at `position`; those that do not end at that depth.
    fn follow(&mut self, query: &[ContentHash], position: usize, out: &mut Vec<HolderDepth>) {
        let mut active = std::mem::take(&mut self.active);
        self.at(query, position, |holders| {
            for (i, word) in active.iter_mut().enumerate() {
                let stay = holders.get(i).copied().unwrap_or(0);
                emit(i, *word & !stay, position, out);
                *word &= stay;
            }
        });
        self.active = active;
    }

    /// Whether everybody who is active holds the block at `position` and has no breaks.
    fn can_jump(&self, query: &[ContentHash], position: usize) -> bool {
        let active = &self.active;
        active.iter().zip(&self.trusted).all(|(a, t)| a & !t == 0)
            && self.at(query, position, |h| active.iter().enumerate().all(|(i, &a)| a & !h.get(i).unwrap_or(&0) == 0))
    }
}

/// Ends the workers of a word at a depth.
fn emit(word: usize, mut bits: u64, depth: usize, out: &mut Vec<HolderDepth>) {
    while bits != 0 && depth > 0 {
        let rank = RankKey((word * 64) as u32 + bits.trailing_zeros());
        out.push(HolderDepth { rank, tier: Tier::Device, blocks: depth as u32 });
        bits &= bits - 1;
    }
}

impl QueryLane for Reader {
    fn lookup(&mut self, query: &[ContentHash], out: &mut Vec<HolderDepth>) {
        if query.is_empty() {
            return;
        }
        self.prefixes.clear();
        self.prefixes.extend(query.iter().scan(ROOT, |prefix, &content| {
            *prefix = extend(*prefix, content);
            Some(*prefix)
        }));
        self.active.fill(!0);
        self.follow(query, 0, out);
        for (i, word) in self.trusted.iter_mut().enumerate() {
            let workers = self.shared.breaks.iter().skip(i * 64).take(64).enumerate();
            *word = workers.filter(|(_, b)| b.load(Ordering::Acquire) == 0).fold(0, |set, (bit, _)| set | 1 << bit);
        }
        let mut position = 0;
        while position + 1 < query.len() && self.active.iter().any(|&w| w != 0) {
            let target = (position + JUMP).min(query.len() - 1);
            if !self.can_jump(query, target) {
                (position + 1..=target).for_each(|p| self.follow(query, p, out));
            }
            position = target;
        }
        self.active.iter().enumerate().for_each(|(i, &word)| emit(i, word, query.len(), out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_corpora::Random;
    use kvatlas_index::reference::Reference;
    use kvatlas_index::{Residency, Store, StoreKind};

    const WORKERS: u32 = 70;

    /// A worker's chain that the engine would have: names with contents, in order.
    type Chain = Vec<(EngineHash, ContentHash)>;

    struct Pair {
        reference: Reference,
        lane: Lane,
        reader: Reader,
    }

    impl Pair {
        fn new() -> Self {
            let mut reference = Reference::new(0);
            (0..WORKERS).for_each(|w| reference.open_rank(RankKey(w)));
            let shared = Positional::new(WORKERS);
            Self { reference, lane: shared.lane(), reader: shared.reader() }
        }

        fn store(&mut self, worker: u32, parent: Option<EngineHash>, blocks: &[(EngineHash, ContentHash)]) {
            let (names, contents): (Vec<_>, Vec<_>) = blocks.iter().copied().unzip();
            let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Copy };
            self.reference.store(RankKey(worker), Tier::Device, &store).unwrap();
            self.lane.store(worker, parent, &names, &contents);
        }

        fn remove(&mut self, worker: u32, names: &[EngineHash]) {
            self.reference.remove(RankKey(worker), Tier::Device, names).unwrap();
            self.lane.remove(worker, names);
        }

        fn compare(&mut self, query: &[ContentHash]) {
            let mut found = Vec::new();
            self.reader.lookup(query, &mut found);
            found.sort_unstable();
            assert_eq!(found, self.reference.lookup(query, Residency::PerTier));
        }
    }

    /// Chains of up to 300 blocks that fork from each other, so that jumps are taken and refused.
    fn chain(random: &mut Random, seed: u64) -> Chain {
        let fork = random.below(300);
        let len = 1 + random.below(300);
        (0..len).map(|i| if i < fork { i } else { i + seed * 1000 }).map(|c| (EngineHash(c), ContentHash(c))).collect()
    }

    fn below(random: &mut Random, bound: usize) -> usize {
        random.below(bound as u64) as usize
    }

    fn history(seed: u64, remove_of_ten: u64) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut pair = Pair::new();
        let chains: Vec<Chain> = (1..12).map(|i| chain(&mut random, i)).collect();
        for step in 0..1500 {
            let worker = random.below(u64::from(WORKERS)) as u32;
            let chain = &chains[below(&mut random, chains.len())];
            match random.below(10) {
                n if n < remove_of_ten => {
                    // A stretch from anywhere: holes as well as tails.
                    let from = below(&mut random, chain.len());
                    let to = (from + 1 + below(&mut random, 8)).min(chain.len());
                    let names: Vec<_> = chain[from..to].iter().map(|b| b.0).collect();
                    pair.remove(worker, &names);
                }
                9 if step % 50 == 0 => {
                    pair.reference.clear(RankKey(worker), None).unwrap();
                    pair.lane.clear(worker);
                }
                _ => {
                    let from = below(&mut random, chain.len() + 1) / 3;
                    let parent = from.checked_sub(1).map(|i| chain[i].0);
                    pair.store(worker, parent, &chain[from..]);
                }
            }
            if step % 5 == 0 {
                let contents: Vec<_> = chains[below(&mut random, chains.len())].iter().map(|b| b.1).collect();
                pair.compare(&contents);
            }
        }
        (0..WORKERS).for_each(|w| pair.lane.clear(w));
        assert_eq!(pair.lane.shared.held(), 0);
        assert!(pair.lane.shared.shards.iter().all(|s| s.read().unwrap().is_empty()));
        assert!(pair.lane.workers.iter().all(|w| w.breaks == 0 && w.blocks.is_empty() && w.names.is_empty()));
    }

    #[test]
    fn random_histories_equal_the_oracle_with_few_and_with_many_holes() {
        for (seed, remove_of_ten) in [(1, 1), (2, 4), (3, 6)] {
            history(seed, remove_of_ten);
        }
    }

    #[test]
    fn a_hole_that_a_jump_would_miss() {
        let mut pair = Pair::new();
        let blocks: Chain = (0..200).map(|i| (EngineHash(i), ContentHash(i))).collect();
        let contents: Vec<_> = blocks.iter().map(|b| b.1).collect();
        (0..3).for_each(|w| pair.store(w, None, &blocks));
        pair.remove(1, &[EngineHash(70)]);
        assert_eq!(pair.lane.workers[1].breaks, 1);
        pair.compare(&contents);
        pair.store(1, Some(EngineHash(69)), &blocks[70..71]);
        assert_eq!(pair.lane.workers[1].breaks, 0);
        pair.compare(&contents);
    }

    #[test]
    fn equal_content_at_one_position_under_other_prefixes_is_kept_apart() {
        let mut pair = Pair::new();
        let block = |name, content| (EngineHash(name), ContentHash(content));
        pair.store(0, None, &[block(1, 1), block(2, 9)]);
        pair.store(1, None, &[block(3, 2), block(4, 9)]);
        pair.compare(&[1, 9].map(ContentHash));
        pair.compare(&[2, 9].map(ContentHash));
        pair.remove(0, &[EngineHash(1)]);
        pair.compare(&[1, 9].map(ContentHash));
    }

    #[test]
    fn copies_and_names_that_move() {
        let mut pair = Pair::new();
        let block = |name, content| (EngineHash(name), ContentHash(content));
        pair.store(0, None, &[block(1, 1), block(2, 2), block(3, 3)]);
        pair.store(0, Some(EngineHash(2)), &[block(3, 3)]);
        pair.remove(0, &[EngineHash(3)]);
        pair.compare(&[1, 2, 3].map(ContentHash));
        pair.store(0, Some(EngineHash(1)), &[block(3, 8)]);
        pair.compare(&[1, 2, 3].map(ContentHash));
        pair.compare(&[1, 8].map(ContentHash));
        pair.remove(0, &[EngineHash(3)]);
        pair.compare(&[1, 8].map(ContentHash));
        assert_eq!(pair.lane.workers[0].breaks, 0);
    }
}
