//! The map against a standard one: through sweeps both ways and in the middle of them, with crowded homes and owners.

use crate::hash::HashKey;
use crate::lane::map::homes::Layout;
use crate::lane::map::line::{REACH, SLOTS};
use crate::lane::map::{EVERYBODY, Keys, LINES_MIN, LOAD_IDLE, LOAD_MAX, LOAD_MIN, LaneMap};
use crate::place::Site;
use std::collections::HashMap;

/// Slot s stands for `names[s]`; hashes keep the bits of `hash_mask` only.
struct Words {
    names: Vec<u64>,
    key: HashKey,
    hash_mask: u64,
}

impl Keys for Words {
    fn hash(&self, name: u64) -> u64 {
        self.key.one(name) & self.hash_mask
    }
    fn name(&self, slot: u32) -> u64 {
        self.names[slot as usize]
    }
    fn owner(&self, _slot: u32) -> u32 {
        EVERYBODY
    }
    fn ask(&self, _slot: u32) {}
}

struct Pair {
    map: LaneMap,
    model: HashMap<u64, u32>,
    words: Words,
    rng: u64,
}

impl Pair {
    fn new(slots: usize, hash_mask: u64) -> Self {
        let key = HashKey::new(Some([5, 6]));
        let words = Words { names: vec![0; slots], key, hash_mask };
        let map = LaneMap::new(slots, &mut Site::default()).unwrap();
        Self { map, model: HashMap::new(), words, rng: 3 }
    }
    fn random(&mut self, below: u64) -> u64 {
        self.rng = self.rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.rng >> 33) % below
    }
    fn store(&mut self, from: u32, names: &[u64]) {
        self.words.names[from as usize..][..names.len()].copy_from_slice(names);
        let mut want = 0;
        for &name in names {
            if self.model.contains_key(&name) {
                break;
            }
            self.model.insert(name, from + want);
            want += 1;
        }
        assert_eq!(self.map.insert_stretch(&self.words, names.iter().copied(), EVERYBODY, from), want);
    }
    fn remove(&mut self, from: u32, count: usize) {
        let names = self.words.names[from as usize..][..count].to_vec();
        for (slot, name) in (from..).zip(&names) {
            if self.model.get(name) == Some(&slot) {
                self.model.remove(name);
            }
        }
        self.map.remove_stretch(&self.words, names.into_iter(), from);
    }
    fn find(&self, name: u64) {
        assert_eq!(self.map.find(&self.words, name, EVERYBODY), self.model.get(&name).copied(), "name {name}");
    }
    fn check(&self) {
        let mut slots = self.map.check(&self.words).unwrap();
        let mut want: Vec<u32> = self.model.values().copied().collect();
        slots.sort_unstable();
        want.sort_unstable();
        assert_eq!(slots, want);
        assert_eq!(self.map.len(), self.model.len());
        self.model.keys().for_each(|&name| self.find(name));
    }
    fn load(&self) -> usize {
        self.map.len * 100 / (self.map.homes.new.lines * SLOTS)
    }
}

/// Stretches come and go, mostly come at first, then mostly go. Returns how often a sweep was seen at work.
fn history(pair: &mut Pair, steps: u64, names: u64, grow_for: u64) -> u32 {
    let slots = pair.words.names.len() as u64;
    let mut sweeps = 0;
    for step in 0..steps {
        let count = 1 + pair.random(if step % 3 == 0 { 150 } else { 6 });
        let from = 1 + pair.random(slots - count - 1) as u32;
        let growing = (step / grow_for).is_multiple_of(2);
        let free = (from..from + count as u32).all(|s| pair.model.get(&pair.words.names[s as usize]) != Some(&s));
        if free && pair.random(10) < if growing { 9 } else { 2 } {
            let stretch: Vec<u64> = (0..count).map(|_| 1 + pair.random(names)).collect();
            pair.store(from, &stretch);
        } else if !growing || pair.random(10) < 2 {
            pair.remove(from, count as usize);
        }
        let probe = 1 + pair.random(names);
        pair.find(probe);
        sweeps += u32::from(pair.map.homes.sweeping());
        if step % (steps / 40) == 0 {
            pair.check();
        }
    }
    pair.check();
    sweeps
}

#[test]
fn equals_a_standard_map_through_sweeps_both_ways() {
    let mut pair = Pair::new(60_000, u64::MAX);
    let sweeps = history(&mut pair, 40_000, 1 << 40, 10_000);
    println!("{sweeps} steps in the middle of a sweep");
    assert!(sweeps > 500);
}

/// Names drawn from a few, so that stretches stop at names that are there.
#[test]
fn equals_a_standard_map_where_names_return() {
    let mut pair = Pair::new(4_000, u64::MAX);
    history(&mut pair, 40_000, 900, 4_000);
}

/// What grew for a moment does not stay half empty while names only come and go.
#[test]
fn a_peak_is_forgotten_where_names_come_and_go() {
    let mut pair = Pair::new(60_000, u64::MAX);
    let names = |from: u32, round: u64| (0..10).map(move |i| (u64::from(from) + i) << 20 | round).collect::<Vec<_>>();
    let mut end = 1;
    while pair.map.homes.new.lines < 2000 {
        pair.store(end, &names(end, 0));
        end += 10;
    }
    while pair.map.homes.sweeping() {
        pair.store(end, &names(end, 0));
        end += 10;
    }
    let peak = pair.map.homes.new.lines;
    while pair.load() >= LOAD_IDLE - 2 {
        end -= 10;
        pair.remove(end, 10);
    }
    let mut sizes = vec![peak];
    for round in 1..8 {
        for from in (1..end).step_by(10) {
            pair.remove(from, 10);
            pair.store(from, &names(from, round));
            let lines = pair.map.homes.new.lines;
            if sizes.last() != Some(&lines) {
                sizes.push(lines);
            }
        }
        pair.check();
    }
    assert_eq!(sizes, [peak, peak - peak / 6], "once, and never back");
    assert!(pair.load() >= LOAD_IDLE);
}

/// Every state of every sweep, both ways: the whole map is checked after each small step.
#[test]
fn each_moment_of_a_sweep_is_consistent() {
    let (sweeping, crowd) = each_moment(u64::MAX);
    assert!(sweeping > 400 && crowd == 0, "{sweeping} moments inside sweeps, a crowd of {crowd}");
}

/// The same where homes are crowded: marks move with the names of the side map, and no others stay behind.
#[test]
fn each_moment_of_a_sweep_over_crowds_is_consistent() {
    let (sweeping, crowd) = each_moment(u64::MAX << 58);
    assert!(sweeping > 50 && crowd > 100, "{sweeping} moments inside sweeps, a crowd of {crowd}");
}

/// Moments inside sweeps, and the largest crowd.
fn each_moment(hash_mask: u64) -> (u32, usize) {
    let mut crowd = 0;
    let mut pair = Pair::new(6_000, hash_mask);
    let (mut sweeping, mut at) = (0, 1);
    while at + 7 < 6_000 {
        let names: Vec<u64> = (0..7).map(|i| u64::from(at) * 8 + i).collect();
        pair.store(at, &names);
        sweeping += u32::from(pair.map.homes.sweeping());
        pair.check();
        crowd = crowd.max(pair.map.crowd.len());
        at += 7;
    }
    while at > 1 {
        at -= 7;
        pair.remove(at, 7);
        sweeping += u32::from(pair.map.homes.sweeping());
        pair.check();
    }
    assert_eq!((pair.map.len(), pair.map.homes.new.lines), (0, LINES_MIN));
    (sweeping, crowd)
}

/// All names at one home, at the first or the last one, or in a few: what finds no room is in the side map.
#[test]
fn crowded_homes_are_exact() {
    for (mask, names) in [(0, 3_000), (u64::MAX << 62, 3_000), (u64::MAX << 57, 9_000), (0xff, 3_000)] {
        let mut pair = Pair::new(12_000, mask);
        history(&mut pair, 6_000, names, 2_000);
        assert!(pair.map.crowd.len() > 0 || mask.count_ones() > 6, "mask {mask:x}");
        pair.remove(1, 11_999);
        pair.check();
        assert_eq!((pair.map.len(), pair.map.crowd.len()), (0, 0));
    }
}

/// The last home's entries stand in the spare lines behind it.
#[test]
fn the_last_home_overflows_into_the_spare_lines() {
    let mut pair = Pair::new(100, u64::MAX);
    let last = |pair: &Pair, name| pair.map.homes.place(pair.words.hash(name)).0 == LINES_MIN - 1;
    let names: Vec<u64> = (1..).filter(|&name| last(&pair, name)).take(2 * SLOTS).collect();
    pair.store(1, &names);
    assert_eq!((pair.map.homes.new.lines, pair.map.lines[LINES_MIN - 1].passed()), (LINES_MIN, SLOTS as u32));
    assert_eq!(pair.map.lines[LINES_MIN].taken(), (1 << SLOTS) - 1);
    pair.check();
    pair.remove(1, names.len());
    pair.check();
    assert!(pair.map.lines.iter().take(LINES_MIN + REACH).all(|line| line.taken() == 0 && line.passed() == 0));
}

/// Equal homes and equal tags, other names: only the name itself tells.
#[test]
fn colliding_tags_are_told_apart_by_name() {
    let key = HashKey::new(Some([5, 6]));
    let layout = Layout::first(LINES_MIN);
    let place = |name| (layout.home(key.one(name)), layout.raw_tag(key.one(name)));
    let wanted = place(1);
    let twins: Vec<u64> = (2..).filter(|&name| place(name) == wanted).take(3).collect();
    let mut pair = Pair::new(100, u64::MAX);
    pair.store(10, &[1, twins[0], twins[1]]);
    pair.find(twins[2]);
    pair.remove(11, 1);
    pair.check();
    pair.find(twins[0]);
}

/// The load stays between its bounds while names come and go slowly, and memory goes back.
#[test]
fn memory_follows_the_number_of_names() {
    const SLOTS_MAX: u32 = 400_000;
    let mut pair = Pair::new(SLOTS_MAX as usize, u64::MAX);
    let stretch = |at: u32| (0..64).map(|i| u64::from(at + i) << 20).collect::<Vec<u64>>();
    let stops: Vec<u32> = (1..SLOTS_MAX - 64).step_by(64).collect();
    for &at in &stops {
        pair.store(at, &stretch(at));
        assert!(pair.map.len < 2_000 || (45..=76).contains(&pair.load()), "load {}", pair.load());
    }
    let full = pair.map.bytes();
    pair.check();
    for (i, &at) in stops.iter().rev().enumerate() {
        let before = pair.map.bytes();
        pair.remove(at, 64);
        assert!(before - pair.map.bytes() <= 17 * 4096, "no more than some pages go at once");
        assert!(pair.map.len < 2_000 || (LOAD_MIN - 8..=LOAD_MAX + 5).contains(&pair.load()), "load {}", pair.load());
        if i == stops.len() * 9 / 10 {
            pair.check();
            assert!(pair.map.bytes() < full / 6, "{} bytes of {full}", pair.map.bytes());
        }
    }
    assert!(pair.map.crowd.bytes() <= 8 * 4096, "spare chunks of what were a few strays");
    assert_eq!(pair.map.bytes() - pair.map.crowd.bytes(), ((LINES_MIN + REACH) * 64) as u64);
    let used = pair.map.lines.iter().take(40_000).filter(|line| **line != crate::lane::map::line::Line::EMPTY).count();
    assert_eq!(used, 0, "lines that are given back read as empty");
}
