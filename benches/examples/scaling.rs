//! Counters of lanes and readers at work together: what each block of events makes its lane write where others read, how often
//! lanes wait for each other, and how often readers have to walk again. They do not depend on how many cores there are to run on,
//! which is why they, and not times, carry the argument of NUMA.md.
//!
//! `cargo run --release -p kvatlas-benches --example scaling [events a rank [transparent]]`: 1, 2 and 4 lanes of one shard, then 2 shards of 2
//! lanes, each with 2 readers; 16 ranks that share prompts, once kept together and once dealt over the lanes one by one.

use kvatlas_index::{
    ContentHash, EngineHash, Holder, HugePages, Index, IndexConfig, Lane, LookupOptions, Outcome, RankKey, RankSlot,
    Stats, Store, StoreKind, Tier,
};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const RANKS: usize = 16;
const READERS: usize = 2;
/// Conversations: a system prompt, then turns that follow each other.
const SYSTEMS: u64 = 4;
const SYSTEM_BLOCKS: u64 = 16;
const CONVERSATIONS: u64 = 600;
const TURNS: u64 = 6;
const TURN_BLOCKS: u64 = 24;
/// Prompts that a rank keeps; the oldest goes when another comes.
const PROMPTS_KEPT: usize = 40;

/// What the lanes of one run did.
#[derive(Default)]
struct Done {
    stored: u64,
    removed: u64,
}

#[derive(Default)]
struct Read {
    lookups: u64,
    busy: u64,
}

/// A small random generator (SplitMix64).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

fn mix(value: u64) -> u64 {
    SplitMix(value).next()
}

/// Contents of a conversation up to a turn, and the names that every engine gives them.
fn prompt(kind: u64, conversation: u64, turns: u64) -> (Vec<EngineHash>, Vec<ContentHash>) {
    let system = conversation % SYSTEMS;
    let blocks = SYSTEM_BLOCKS + turns * TURN_BLOCKS;
    let block = |i: u64| {
        let part = if i < SYSTEM_BLOCKS { system } else { 1000 + conversation };
        mix(kind << 60 ^ part << 20 ^ i)
    };
    let contents: Vec<_> = (0..blocks).map(|i| ContentHash(block(i))).collect();
    let mut chain = kind;
    let names = contents.iter().map(|c| {
        chain = mix(chain ^ c.0);
        EngineHash(chain)
    });
    (names.collect(), contents)
}

/// Applies events to the ranks of one lane in turn.
fn write(mut lane: Lane, ranks: Vec<(RankSlot, u64)>, events: usize, seed: u64) -> Result<Done, String> {
    let mut done = Done::default();
    let mut random = SplitMix(seed);
    let mut kept: Vec<VecDeque<Vec<EngineHash>>> = vec![VecDeque::new(); ranks.len()];
    for _ in 0..events {
        for (at, (rank, kind)) in ranks.iter().enumerate() {
            let holder = Holder { rank: *rank, tier: Tier::Device };
            let conversation = random.next() % CONVERSATIONS;
            let (names, contents) = prompt(*kind, conversation, 1 + random.next() % TURNS);
            let store = Store { parent: None, names: &names, contents: &contents, kind: StoreKind::Copy };
            let stored = lane.store(holder, &store).map_err(|error| error.to_string())?;
            done.stored += stored.stored + stored.copies;
            if random.next().is_multiple_of(50) {
                // Now and then from the middle, which leaves a hole.
                let removed = lane.remove(holder, &names[8..12]).map_err(|error| error.to_string())?;
                done.removed += removed.removed + removed.copies;
            }
            kept[at].push_back(names);
            if kept[at].len() > PROMPTS_KEPT
                && let Some(mut oldest) = kept[at].pop_front()
            {
                // Engines evict from the end of a prompt.
                oldest.reverse();
                let removed = lane.remove(holder, &oldest).map_err(|error| error.to_string())?;
                done.removed += removed.removed + removed.copies;
            }
        }
    }
    Ok(done)
}

fn read(index: &Arc<Index>, stop: &AtomicBool, seed: u64) -> Read {
    let mut reader = index.reader();
    let mut random = SplitMix(seed);
    let mut found = Vec::new();
    let mut read = Read::default();
    while !stop.load(Ordering::Relaxed) {
        let (_, contents) = prompt(random.next() % 2, random.next() % CONVERSATIONS, TURNS);
        found.clear();
        let outcome = reader.lookup(&contents, &LookupOptions::default(), &mut found);
        read.lookups += 1;
        read.busy += u64::from(outcome == Outcome::Busy);
    }
    read
}

/// Which lane each rank goes to. Ranks alternate between two kinds that share nothing.
fn lane_of(rank: usize, lanes: usize, together: bool) -> usize {
    if together && lanes > 1 { (rank % 2) * (lanes / 2) + rank / 2 % (lanes / 2) } else { rank / 2 % lanes }
}

fn run(
    shards: u32,
    lanes_per_shard: u32,
    together: bool,
    events: usize,
    huge_pages: HugePages,
) -> Result<(Stats, Done, Read), Box<dyn Error>> {
    let config = IndexConfig {
        shards,
        lanes_per_shard,
        blocks_max: 1 << 23,
        runs_max: 1 << 20,
        exts_max: 1 << 18,
        hash_key: Some([11, 13]),
        huge_pages,
        ..IndexConfig::default()
    };
    let (index, mut lanes) = Index::new(config)?;
    let mut ranks: Vec<Vec<(RankSlot, u64)>> = vec![Vec::new(); lanes.len()];
    for rank in 0..RANKS {
        let lane = lane_of(rank, lanes.len(), together);
        ranks[lane].push((lanes[lane].open_rank(RankKey(rank as u32))?, rank as u64 % 2));
    }
    let stop = AtomicBool::new(false);
    let (done, read) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|i| {
                scope.spawn({
                    let (index, stop) = (&index, &stop);
                    move || read(index, stop, 77 + i as u64)
                })
            })
            .collect();
        let writers: Vec<_> = lanes
            .drain(..)
            .zip(ranks)
            .enumerate()
            .map(|(i, (lane, ranks))| scope.spawn(move || write(lane, ranks, events, 5 + i as u64)))
            .collect();
        let done = writers.into_iter().map(|w| w.join().map_err(|_| "a lane failed".to_owned())?).try_fold(
            Done::default(),
            |sum, done: Result<Done, String>| {
                let done = done?;
                Ok::<_, String>(Done { stored: sum.stored + done.stored, removed: sum.removed + done.removed })
            },
        );
        stop.store(true, Ordering::Relaxed);
        let read = readers.into_iter().filter_map(|r| r.join().ok()).fold(Read::default(), |sum, read| Read {
            lookups: sum.lookups + read.lookups,
            busy: sum.busy + read.busy,
        });
        (done, read)
    });
    if huge_pages != HugePages::Off {
        println!("huge pages in this process now: {}", huge_pages_kept().unwrap_or_else(|| "unknown".to_owned()));
    }
    Ok((index.stats(), done?, read))
}

/// What the kernel says of this process's anonymous huge pages.
fn huge_pages_kept() -> Option<String> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    Some(rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?.trim().to_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let events = std::env::args().nth(1).map_or(Ok(2000), |text| text.parse())?;
    let huge_pages = match std::env::args().nth(2).as_deref() {
        Some("transparent") => HugePages::Transparent,
        Some(other) => return Err(format!("{other:?} is not transparent").into()),
        None => HugePages::Off,
    };
    println!("{RANKS} ranks of two kinds, {READERS} readers, {events} prompts stored a rank, {PROMPTS_KEPT} kept");
    println!(
        "{:>6} {:>5} {:>9} {:>11} {:>10} {:>10} {:>10} {:>11} {:>12} {:>12} {:>10}",
        "shards",
        "lanes",
        "ranks",
        "block ops",
        "locks/1k",
        "waits/1k",
        "opened/1k",
        "splits/1k",
        "lines/block",
        "bytes/held",
        "busy/1M"
    );
    for (shards, lanes, together) in
        [(1, 1, true), (1, 2, true), (1, 2, false), (1, 4, true), (1, 4, false), (2, 2, true), (2, 2, false)]
    {
        let (stats, done, read) = run(shards, lanes, together, events, huge_pages)?;
        let ops = done.stored + done.removed;
        let per_thousand = |count: u64| count as f64 * 1000.0 / ops as f64;
        println!(
            "{shards:>6} {:>5} {:>9} {ops:>11} {:>10.2} {:>10.4} {:>10.2} {:>11.3} {:>12.4} {:>12.2} {:>10.2}",
            shards * lanes,
            if together { "together" } else { "dealt" },
            per_thousand(stats.locks),
            per_thousand(stats.lock_waits),
            per_thousand(stats.opened),
            per_thousand(stats.splits),
            stats.shared_lines_written() as f64 / ops as f64,
            stats.bytes_live as f64 / stats.held as f64,
            read.busy as f64 * 1e6 / read.lookups.max(1) as f64,
        );
    }
    Ok(())
}
