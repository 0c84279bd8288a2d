//! The walk of a lookup: from run to run along the query's contents, keeping the set of holders that have everything so far.
//!
//! Each run is read under its version, and believed only if the run before it is still the one that was accepted (hand over
//! hand): a child is verified by value, and its parent's position cannot have been used again while the parent's version
//! stands. A walk that meets a change starts again at the root; after [`RESTARTS_MAX`] restarts it gives up with what it has.

use crate::edge::Found;
use crate::layout::{Fields, Header, PAGE_WORDS, ROOT, common};
use crate::shard::{Shard, Sight};
use crate::sync::{AtomicU64, Ordering};
use crate::types::{ContentHash, Outcome, Tier};
use crate::version::Unreadable;

const TIERS: u32 = Tier::COUNT as u32;

/// Restarts of a lookup before it answers Busy.
pub(crate) const RESTARTS_MAX: u32 = 16;
/// Turns of waiting for one version to come to rest: 64 spins and 8 yields.
pub(crate) const TURNS_MAX: u32 = 72;

/// Memory of a walk, reused. Sets are words of 64 holder slots.
pub(crate) struct Scratch {
    /// Holders that have every block so far.
    alive: Vec<u64>,
    /// Holders that have all matched blocks of the run at hand.
    covering: Vec<u64>,
    /// Holders that have only a part of the run at hand: (slot, cutoff).
    partial: Vec<(u32, u32)>,
    /// The answer: (slot, blocks).
    pub found: Vec<(u32, u32)>,
}

impl Scratch {
    pub fn new(words: usize) -> Self {
        Self {
            alive: Vec::with_capacity(words),
            covering: Vec::with_capacity(words),
            partial: Vec::with_capacity(64),
            found: Vec::with_capacity(256),
        }
    }

    /// Sizes the sets for a shard; within the capacity reserved at the start.
    pub fn begin(&mut self, words: usize) {
        self.alive.clear();
        self.alive.resize(words, 0);
        self.covering.clear();
        self.covering.resize(words, 0);
        self.found.clear();
    }
}

/// How a step ended.
enum Step {
    /// The walk is over.
    Done,
    /// The next run, reached by `next`.
    Follow(u32),
    /// The child at this position comes next.
    Child(u32),
    /// Something changed: start again.
    Restart,
}

/// One lookup in one shard.
pub(crate) struct Walk<'a> {
    shard: &'a Shard,
    query: &'a [ContentHash],
    cumulative: bool,
    scratch: &'a mut Scratch,
    /// Blocks matched so far.
    depth: u32,
    /// Position of the last matched block.
    at: u32,
    /// The run accepted last.
    last: Option<Sight>,
}

impl<'a> Walk<'a> {
    pub fn new(shard: &'a Shard, query: &'a [ContentHash], cumulative: bool, scratch: &'a mut Scratch) -> Self {
        Self { shard, query, cumulative, scratch, depth: 0, at: ROOT, last: None }
    }

    /// Walks; the answer is in `scratch.found`.
    pub fn run(mut self) -> Outcome {
        for _ in 0..RESTARTS_MAX {
            self.depth = 0;
            self.at = ROOT;
            self.last = None;
            self.scratch.found.clear();
            self.scratch.alive.fill(0);
            if self.attempt() {
                return Outcome::Exact;
            }
        }
        // What was accepted on the last attempt holds up to its depth.
        self.emit_alive();
        Outcome::Busy
    }

    /// One attempt from the root; false when it has to be started again.
    fn attempt(&mut self) -> bool {
        let mut step = Step::Child(ROOT);
        loop {
            step = match step {
                Step::Done => return true,
                Step::Restart => return false,
                Step::Follow(run) => match self.shard.sight(run, TURNS_MAX) {
                    Ok(sight) => self.enter(sight),
                    Err(Unreadable::Dead | Unreadable::Moving) => Step::Restart,
                },
                Step::Child(parent) => match self.shard.child(parent, self.query[self.depth as usize], TURNS_MAX) {
                    Found::Hit(sight) => self.enter(sight),
                    Found::Busy => Step::Restart,
                    Found::Miss => {
                        self.emit_alive();
                        Step::Done
                    }
                },
            };
        }
    }

    /// Reads a run that continues the walk, and accepts it if nothing changed meanwhile.
    fn enter(&mut self, sight: Sight) -> Step {
        let (shard, f) = (self.shard, &sight.fields);
        let header = shard.header(sight.run);
        if f.parent != self.at {
            return Step::Restart;
        }
        let rest = &self.query[self.depth as usize..];
        let matched = common(rest, shard.arena.contents(f.base, f.len));
        self.read_cover(header, f, matched);
        if !header.version().confirm(sight.seen) {
            return Step::Restart;
        }
        // Hand over hand: ordered by the Acquire load of this run's version.
        if let Some(last) = self.last
            && !shard.header(last.run).version().confirm(last.seen)
        {
            return Step::Restart;
        }
        if matched == 0 {
            // Only a physical successor can differ in its first block: a child was found by it.
            return Step::Child(self.at);
        }
        self.accept(matched);
        self.at = f.base + matched - 1;
        self.last = Some(sight);
        self.after(f, matched)
    }

    /// Which holders have the first `matched` blocks of a run, and which have only some of them.
    fn read_cover(&mut self, header: Header<'_>, f: &Fields, matched: u32) {
        let Scratch { covering, partial, .. } = &mut *self.scratch;
        covering.fill(0);
        partial.clear();
        if !f.set_form() {
            self.shard.each_holder(header, f, |e| {
                if e.cut >= matched {
                    set(covering, e.slot);
                } else {
                    partial.push((e.slot, e.cut));
                }
            });
            return;
        }
        copy_words(covering, 0, header.holder_words());
        for (_, block) in self.shard.blocks(f.ext) {
            copy_words(covering, block.head().0, block.full());
            for entry in block.entries().filter(|e| e.cut > 0) {
                if entry.cut >= matched {
                    set(covering, entry.slot);
                } else {
                    partial.push((entry.slot, entry.cut));
                }
            }
        }
    }

    /// The run's first `matched` blocks count from now on.
    fn accept(&mut self, matched: u32) {
        let first = self.at == ROOT;
        let Scratch { alive, covering, partial, found } = &mut *self.scratch;
        if self.cumulative {
            covering.iter_mut().for_each(|w| *w = with_nearer_tiers(*w));
            let n = partial.len();
            for i in 0..n {
                let (slot, cut) = partial[i];
                let farther = slot + 1..(slot / TIERS + 1) * TIERS;
                partial.extend(farther.map(|farther| (farther, cut)));
            }
        }
        // The root's candidates are those with a part of the first run.
        if first {
            partial.iter().for_each(|p| set(alive, p.0));
        }
        for &(slot, cut) in partial.iter() {
            if has(covering, slot) || !has(alive, slot) {
                continue;
            }
            found.push((slot, self.depth + cut));
            // An entry that went and came back at another place meanwhile was read twice: it is named once. Cumulative tiers
            // are there several times by right, and the deepest is kept later.
            if !self.cumulative {
                unset(alive, slot);
            }
        }
        if first {
            alive.copy_from_slice(covering);
        } else {
            partial.iter().filter(|p| !has(covering, p.0)).for_each(|p| unset(alive, p.0));
            for (i, (alive, covering)) in alive.iter_mut().zip(covering.iter()).enumerate() {
                each_set(i, *alive & !covering, |slot| found.push((slot, self.depth)));
                *alive &= covering;
            }
        }
        self.depth += matched;
    }

    /// Whoever has everything so far ends here.
    fn emit_alive(&mut self) {
        if self.depth == 0 {
            return;
        }
        let Scratch { alive, found, .. } = &mut *self.scratch;
        alive.iter().enumerate().for_each(|(i, &w)| each_set(i, w, |slot| found.push((slot, self.depth))));
    }

    fn after(&mut self, f: &Fields, matched: u32) -> Step {
        if self.scratch.alive.iter().all(|&w| w == 0) {
            return Step::Done;
        }
        if self.depth as usize == self.query.len() {
            self.emit_alive();
            return Step::Done;
        }
        if matched == f.len && f.next != 0 { Step::Follow(f.next) } else { Step::Child(self.at) }
    }
}

#[inline]
fn has(words: &[u64], slot: u32) -> bool {
    words.get(slot as usize / 64).is_some_and(|w| w >> (slot % 64) & 1 == 1)
}

#[inline]
fn set(words: &mut [u64], slot: u32) {
    // A slot beyond the set is a rumour: the run's version will say so.
    if let Some(word) = words.get_mut(slot as usize / 64) {
        *word |= 1 << (slot % 64);
    }
}

#[inline]
fn unset(words: &mut [u64], slot: u32) {
    if let Some(word) = words.get_mut(slot as usize / 64) {
        *word &= !(1 << (slot % 64));
    }
}

/// Adds a page of full holders to a set.
#[inline]
fn copy_words(words: &mut [u64], page: u32, from: &[AtomicU64]) {
    let start = (page as usize).saturating_mul(PAGE_WORDS);
    for (to, from) in words.iter_mut().skip(start).zip(from) {
        *to |= from.load(Ordering::Relaxed);
    }
}

#[inline]
fn each_set(word: usize, mut bits: u64, mut see: impl FnMut(u32)) {
    while bits != 0 {
        see(word as u32 * 64 + bits.trailing_zeros());
        bits &= bits - 1;
    }
}

/// A tier's bit is set where that of a nearer tier of the same rank is: four tiers a rank, nearest first.
#[inline]
fn with_nearer_tiers(mut bits: u64) -> u64 {
    const _: () = assert!(Tier::COUNT == 4);
    bits |= bits << 1 & 0xEEEE_EEEE_EEEE_EEEE;
    bits | bits << 2 & 0xCCCC_CCCC_CCCC_CCCC
}

#[cfg(test)]
mod tests {
    use super::{Scratch, Walk, set};
    use crate::config::IndexConfig;
    use crate::shard::Shard;
    use crate::types::ContentHash;

    /// A reader can meet an entry, be put aside while the entry goes and comes back at a later place, and meet it again.
    #[test]
    fn an_entry_read_twice_is_named_once() {
        let config = IndexConfig { blocks_max: 512, runs_max: 64, exts_max: 64, ..IndexConfig::default() };
        let shard = Shard::new(&config, 0).expect("a small shard");
        let query = [ContentHash(1); 8];
        let mut scratch = Scratch::new(1);
        scratch.begin(1);
        let mut walk = Walk::new(&shard, &query, false, &mut scratch);
        walk.scratch.partial.extend([(5, 3), (6, 1), (5, 2)]);
        set(&mut walk.scratch.covering, 7);
        set(&mut walk.scratch.covering, 8);
        walk.accept(4);
        assert_eq!(walk.scratch.found, [(5, 3), (6, 1)]);
        // The run after it: whoever ended before is not named again, whoever did not is named once.
        walk.at = 12;
        walk.scratch.partial.clear();
        walk.scratch.partial.extend([(7, 1), (5, 4), (7, 2)]);
        walk.scratch.covering.fill(0);
        set(&mut walk.scratch.covering, 8);
        walk.accept(4);
        walk.emit_alive();
        assert_eq!(walk.scratch.found, [(5, 3), (6, 1), (7, 5), (8, 8)]);
    }
}
