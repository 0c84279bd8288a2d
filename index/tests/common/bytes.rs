//! A history read from any bytes, for the fuzz target and for the seeded strings of `any_bytes.rs`: few ranks, names and
//! contents, so that everything meets everything, under tables so small that every limit is met.

use super::configurations::Configuration;
use super::pair::{Difference, Pair};
use kvatlas_index::{ContentHash, EngineHash, RankFilter, RankKey, Store, StoreKind, Tier};

/// Operations of one history: a longer string says no more.
const OPERATIONS_MAX: usize = 400;
/// Structural checks come after every so many operations.
const CHECK_EVERY: usize = 16;

/// The bytes as a source of small numbers; zeros when they are used up.
struct Bytes<'a> {
    left: &'a [u8],
}

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        match self.left.split_first() {
            Some((&first, rest)) => {
                self.left = rest;
                first
            }
            None => 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.byte() as usize % end
    }

    /// A stretch of consecutive numbers, upwards or downwards: engines store and free neighbours.
    fn stretch(&mut self) -> Vec<u64> {
        let (start, shape) = (u64::from(self.byte()), self.byte());
        let count = u64::from(shape & 0x3f).min(40);
        let up = (0..count).map(|i| 1 + (start + i) % 251);
        if shape & 0x40 == 0 { up.collect() } else { up.rev().collect() }
    }

    /// Contents along one of few paths. A block's content depends on its depth and its path, and paths share their heads.
    fn contents(&mut self, from: u64, count: usize) -> Vec<ContentHash> {
        let path = u64::from(self.byte());
        (from..from + count as u64).map(|depth| content(path, depth)).collect()
    }
}

fn content(path: u64, depth: u64) -> ContentHash {
    // Of eight paths, two part at every fourth block.
    let path = path & 7 & ((1 << (depth / 4).min(3)) - 1);
    ContentHash(1 + path * 1000 + depth % 900)
}

/// Plays the bytes on an index and on the oracle; what differs.
pub fn play(bytes: &[u8]) -> Result<(), Difference> {
    let mut bytes = Bytes { left: bytes };
    let first = bytes.byte();
    let configuration = Configuration {
        name: "any bytes",
        ranks: [3, 12, 40, 5][first as usize % 4],
        lanes: [1, 2, 1, 3][first as usize / 4 % 4],
        shards: [1, 1, 2, 1][first as usize / 16 % 4],
        run_blocks_max: [512, 8, 3, 1][first as usize / 64],
        tiny: true,
    };
    let mut pair = Pair::new(&configuration);
    for rank in 0..configuration.ranks {
        pair.open(rank)?;
    }
    let filter: RankFilter = (0..80).filter(|r| r % 3 != 1).map(RankKey).collect();
    for step in 0..OPERATIONS_MAX {
        if bytes.left.is_empty() {
            break;
        }
        operation(&mut pair, &mut bytes, configuration.ranks, &filter)?;
        if step % CHECK_EVERY == 0 {
            pair.check()?;
        }
    }
    for path in 0..8 {
        let query: Vec<ContentHash> = (0..64).map(|depth| content(path, depth)).collect();
        pair.compare_lookup(&query, &filter)?;
    }
    pair.finish()
}

fn operation(pair: &mut Pair, bytes: &mut Bytes<'_>, ranks: usize, filter: &RankFilter) -> Result<(), Difference> {
    let (kind, rank) = (bytes.byte(), bytes.below(ranks));
    let tier = if kind & 0x80 == 0 { Tier::Device } else { Tier::ALL[usize::from(kind >> 5) & 3] };
    match kind % 16 {
        0..=6 => {
            let names: Vec<EngineHash> = bytes.stretch().into_iter().map(EngineHash).collect();
            let shape = bytes.byte();
            let parent = (shape & 3 != 0).then(|| EngineHash(u64::from(bytes.byte())));
            let from = if parent.is_some() { u64::from(shape >> 2) } else { 0 };
            let contents = bytes.contents(from, names.len());
            let kind = if shape & 0xc0 == 0xc0 { StoreKind::Announce } else { StoreKind::Copy };
            pair.store(rank, tier, &Store { parent, names: &names, contents: &contents, kind })?.ok();
        }
        7..=9 => {
            let names: Vec<EngineHash> = bytes.stretch().into_iter().map(EngineHash).collect();
            pair.remove(rank, tier, &names)?.ok();
        }
        10 => {
            for name in bytes.stretch() {
                pair.remove(rank, tier, &[EngineHash(name)])?.ok();
            }
        }
        11 => {
            let names: Vec<EngineHash> = bytes.stretch().into_iter().map(EngineHash).collect();
            pair.adopt(rank, tier, &names)?.ok();
        }
        12 => {
            let (name, left) = (EngineHash(u64::from(bytes.byte())), u64::from(bytes.byte() % 4));
            pair.set_copies(rank, tier, name, left)?.ok();
        }
        13 => {
            let all = bytes.byte() & 1 == 0;
            pair.clear(rank, (!all).then_some(tier))?;
        }
        14 => {
            pair.close(rank)?;
            pair.open(rank)?;
        }
        _ => {
            let (count, path) = (bytes.below(64), bytes.byte());
            let query: Vec<ContentHash> = (0..count as u64).map(|depth| content(path.into(), depth)).collect();
            pair.compare_lookup(&query, filter)?;
            pair.compare_names(rank)?;
        }
    }
    pair.compare_counts(rank)
}
