//! Every form of coverage against a map.

use crate::config::IndexConfig;
use crate::cover::image::Drafts;
use crate::layout::{CROWD, Entry, Fields, slot_of};
use crate::shard::Shard;
use crate::types::Tier;
use crate::version::Locked;
use std::collections::BTreeMap;

const LEN: u32 = 200;

struct Model<'a> {
    shard: &'a Shard,
    drafts: Drafts,
    lock: Locked<'a>,
    f: Fields,
    map: BTreeMap<u32, (u32, bool)>,
    x: u64,
}

impl Model<'_> {
    fn below(&mut self, end: u32) -> u32 {
        self.x = self.x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.x >> 33) % u64::from(end)) as u32
    }

    /// One change; whether there was a block for it.
    fn set(&mut self, slot: u32, cut: u32, private: bool) -> bool {
        let header = self.shard.header(1);
        let done =
            self.shard.set_cut(&mut self.drafts, &mut self.lock, header, &mut self.f, Entry { slot, cut, private });
        assert!(done.is_ok() || cut > 0, "taking a holder out needs no memory");
        match (done.is_ok(), cut) {
            (true, 0) => drop(self.map.remove(&slot)),
            (true, _) => drop(self.map.insert(slot, (cut, private))),
            _ => {}
        }
        let (cut, private) = self.map.get(&slot).copied().unwrap_or_default();
        let now = self.shard.cut(header, &self.f, slot);
        assert_eq!(now.0, cut, "slot {slot}");
        assert!(cut == 0 || now.1 == private, "slot {slot}");
        done.is_ok()
    }

    fn check(&self) {
        let header = self.shard.header(1);
        assert_eq!(header.load(), self.f, "the header says what the lane knows");
        let mut all = BTreeMap::new();
        self.shard.each_holder(header, &self.f, |e| {
            assert!(all.insert(e.slot, (e.cut, e.private)).is_none(), "slot {} stands twice", e.slot);
        });
        assert_eq!(all, self.map);
        assert_eq!(self.shard.furthest(header, &self.f), self.map.values().map(|v| v.0).max().unwrap_or(0));
        if self.f.set_form() {
            assert_eq!(self.f.holders as usize, self.map.len());
        }
        self.shard.check_set(header, &self.f).unwrap();
        let mut blocks = 0;
        self.shard.each_block(&self.f, &mut |_| blocks += 1);
        assert_eq!(self.shard.alloc.lock().usage().exts_live, blocks, "no block is lost");
    }
}

fn forms_equal_a_map(exts_max: u32, ranks: u32, steps: u32) -> (u32, bool) {
    let config = IndexConfig { exts_max, blocks_max: 512, runs_max: 64, ..IndexConfig::default() };
    let shard = Shard::new(&config, 0).unwrap();
    let (base, len) = (8, LEN);
    let f = Fields { base, parent: 0, next: 0, ext: 0, len, cap: len, holders: 0, flags: 0 };
    let header = shard.header(1);
    header.store(&f);
    let lock = header.version().revive();
    let mut model = Model { shard: &shard, drafts: Drafts::default(), lock, f, map: BTreeMap::new(), x: 77 };
    let (mut refused, mut crowded) = (0, false);
    for step in 0..steps {
        // Grows, is full and crowded at one cutoff, shrinks to nothing; again.
        let phase = step * 8 / steps % 4;
        let tier = Tier::ALL[(model.below(12) / 9) as usize];
        let slot = slot_of(model.below(ranks), tier);
        let cut = match (phase, model.below(10)) {
            (0, 0..2) | (1 | 2, 0..5) | (3, 0..9) => 0,
            (1, _) => LEN,
            (2, 5..8) => 17,
            _ => 1 + model.below(LEN),
        };
        let private = model.below(3) == 0;
        refused += u32::from(!model.set(slot, cut, private));
        crowded |= model.f.flags & CROWD != 0;
        if step % (steps / 60) == 0 {
            model.check();
        }
    }
    for slot in model.map.keys().copied().collect::<Vec<_>>() {
        assert!(model.set(slot, 0, false));
    }
    model.check();
    assert_eq!(model.f.ext, 0);
    (refused, crowded)
}

#[test]
fn forms_of_few_and_of_many_equal_a_map() {
    for (ranks, steps) in [(6, 6_000), (30, 12_000), (150, 24_000), (2_000, 60_000), (10_000, 120_000)] {
        let (refused, crowded) = forms_equal_a_map(1 << 16, ranks, steps);
        assert_eq!((refused, crowded), (0, ranks > 6), "{ranks} ranks");
    }
}

#[test]
fn without_blocks_a_change_is_refused_whole() {
    let (refused, crowded) = forms_equal_a_map(64, 2_000, 40_000);
    assert!(refused > 0 && crowded);
}
