//! Lookups of known shapes, for a stop watch or an instruction counter.
//!
//! `cargo run --release -p kvatlas-index --example lookups -- SHAPE [HOLDERS] [LOOKUPS]` prints the median time of a lookup as
//! levels and as pairs. Under `valgrind --tool=callgrind --toggle-collect='*one_lookup*'` give few lookups and divide.

use kvatlas_index::{
    ContentHash, EngineHash, Holder, Index, IndexConfig, Lane, Levels, LookupOptions, Outcome, RankKey, Reader, Store,
    StoreKind, Tier,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// Lookups timed together: a clock reading costs as much as a short lookup.
const BATCH: usize = 8;

fn mix(seed: u64, x: u64) -> u64 {
    let x = (seed.rotate_left(32) ^ x).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 31).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

struct Fleet {
    index: Arc<Index>,
    lane: Lane,
    holders: Vec<Holder>,
    prompts: Vec<Vec<ContentHash>>,
    seed: u64,
}

impl Fleet {
    fn new(ranks: u32) -> Self {
        let config = IndexConfig { hash_key: Some([11, 13]), ranks_max: ranks.max(4096), ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        let mut lane = lanes.pop().expect("one lane");
        let open = |r| Holder { rank: lane.open_rank(RankKey(r)).expect("room"), tier: Tier::Device };
        let holders = (0..ranks).map(open).collect();
        Self { index, lane, holders, prompts: Vec::new(), seed: 1 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.seed += 1;
        (mix(99, self.seed) >> 11) as usize % end
    }

    fn store(&mut self, holder: usize, contents: &[ContentHash]) {
        for (i, part) in contents.chunks(64).enumerate() {
            let names: Vec<_> = part.iter().map(|c| EngineHash(mix(7, c.0))).collect();
            let parent = (i > 0).then(|| EngineHash(mix(7, contents[i * 64 - 1].0)));
            let store = Store { parent, names: &names, contents: part, kind: StoreKind::Copy };
            self.lane.store(self.holders[holder], &store).expect("room");
        }
    }

    /// `chains` chains of `blocks` blocks; every group of four shares its first half. Each is held by `holders` ranks.
    fn shared(&mut self, chains: usize, blocks: usize, holders: usize) {
        for i in 0..chains {
            let content = |b: usize| mix(if b < blocks / 2 { i as u64 / 4 } else { i as u64 | 1 << 32 }, b as u64);
            let chain: Vec<_> = (0..blocks).map(|b| ContentHash(content(b))).collect();
            let first = self.below(self.holders.len());
            for h in 0..holders {
                self.store((first + h * 5) % self.holders.len(), &chain);
            }
            self.prompts.push(chain);
        }
    }

    /// One head of `blocks` blocks that `holders` ranks hold, and prompts that go on where nobody has been.
    fn head(&mut self, holders: usize, blocks: u64) {
        let head: Vec<_> = (0..blocks).map(|b| ContentHash(mix(3, b))).collect();
        (0..holders).for_each(|h| self.store(h, &head));
        // Others went on from it, too.
        for i in 0..4_096 {
            let tail = |i: u64| (0..20).map(move |b| ContentHash(mix(i | 1 << 33, b)));
            let known: Vec<_> = head.iter().copied().chain(tail(i)).collect();
            self.store(i as usize % holders, &known);
            self.prompts.push(head.iter().copied().chain(tail(i | 1 << 40)).collect());
        }
    }

    /// One chain of 256 blocks that everyone holds to a depth of its own.
    fn random_depths(&mut self) {
        let chain: Vec<_> = (0..256).map(|b| ContentHash(mix(5, b))).collect();
        for h in 0..self.holders.len() {
            let depth = 1 + self.below(256);
            self.store(h, &chain[..depth]);
        }
        self.prompts.push(chain);
    }
}

fn shape(name: &str, holders: usize) -> Fleet {
    let mut fleet = Fleet::new(match name {
        "random" => holders as u32,
        "low" | "shared" | "missing" | "head" => 128,
        _ => 16,
    });
    match name {
        "one" => fleet.shared(4_096, 64, 1),
        "shared" => fleet.shared(2_048, 64, holders),
        "low" => fleet.shared(32_768, 88, 1),
        "random" => fleet.random_depths(),
        "head" => fleet.head(holders, 4),
        "long" => fleet.shared(8, 8_192, 2),
        "missing" => {
            fleet.shared(4_096, 64, 1);
            fleet.prompts.iter_mut().for_each(|p| p[0].0 ^= 1);
        }
        _ => panic!("shapes: one, shared, head, low, random, long, missing"),
    }
    fleet
}

#[inline(never)]
fn one_lookup(reader: &mut Reader, prompt: &[ContentHash], levels: &mut Levels) -> Outcome {
    reader.lookup_levels(black_box(prompt), &LookupOptions::default(), levels)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "shared".into());
    let number = |text: Option<String>, default| text.map_or(default, |t| t.parse().expect("a number"));
    let holders = number(arguments.next(), 14);
    let lookups = number(arguments.next(), 200_000);
    let mut fleet = shape(&name, holders);
    let mut reader = fleet.index.reader();
    let (mut levels, mut pairs) = (Levels::new(), Vec::new());
    let (mut by_level, mut by_pair, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    // Twice, so that buffers have their size; then the first lookup that counts.
    for _ in 0..2 {
        let _ = reader.lookup_levels(&fleet.prompts[0], &LookupOptions::default(), &mut levels);
    }
    let copies: Vec<_> = if name == "long" { fleet.prompts.clone() } else { Vec::new() };
    for _ in 0..lookups.div_ceil(BATCH) {
        let chosen: Vec<usize> = (0..BATCH).map(|_| fleet.below(fleet.prompts.len())).collect();
        let start = Instant::now();
        for &i in &chosen {
            assert_eq!(one_lookup(&mut reader, &fleet.prompts[i], &mut levels), Outcome::Exact);
            black_box(&levels);
        }
        by_level.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
        if lookups < 1000 {
            continue;
        }
        let chosen: Vec<usize> = (0..BATCH).map(|_| fleet.below(fleet.prompts.len())).collect();
        let start = Instant::now();
        for &i in &chosen {
            pairs.clear();
            let outcome = reader.lookup(&fleet.prompts[i], &LookupOptions::default(), &mut pairs);
            assert_eq!(outcome, Outcome::Exact);
            black_box(&pairs);
        }
        by_pair.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
        if let Some(copy) = chosen.iter().map(|&i| i % copies.len().max(1)).next().and_then(|i| copies.get(i)) {
            let start = Instant::now();
            black_box(black_box(copy) == black_box(&fleet.prompts[chosen[0]]));
            raw.push(start.elapsed().as_nanos() as f64);
        }
    }
    print!("{name} {holders}: levels {:.0} ns", median(by_level));
    if !by_pair.is_empty() {
        print!(", pairs {:.0} ns", median(by_pair));
    }
    if !raw.is_empty() {
        print!(", comparing the raw arrays {:.0} ns", median(raw));
    }
    println!();
}
