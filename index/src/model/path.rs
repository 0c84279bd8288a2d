//! Chains that die, and whose ids and positions are another chain's then.

use super::{CONTENTS, Who, depth_of, shard, write_run};
use crate::alloc::GRANULE;
use crate::lane::work::Counts;
use crate::layout::{Entry, Fields, ROOT};
use crate::shard::Shard;
use crate::sync::Ordering;
use crate::types::ContentHash;
use crate::version::reuse_fence;

/// Runs of one block each, a granule apart: run 1 below the root, run 2 below run 1, and run 3, dead at first, below run 2.
pub struct Path {
    shard: Shard,
}

impl Path {
    /// The first two blocks of the chain that lookups ask for, held by holder 0.
    pub fn new() -> Self {
        let path = Self { shard: shard() };
        path.write(1, CONTENTS[0], 0);
        path.write(2, CONTENTS[1], 0);
        path.write(3, CONTENTS[2], 1);
        path.kill(3);
        path
    }

    fn parent(run: u32) -> u32 {
        if run == 1 { ROOT } else { (run - 1) * GRANULE }
    }

    /// A run below the one before it, and the link to it.
    fn write(&self, run: u32, content: ContentHash, holder: u32) {
        let (shard, base, parent) = (&self.shard, run * GRANULE, Self::parent(run));
        let f = Fields { base, parent, next: 0, ext: 0, len: 1, cap: GRANULE, holders: 0, flags: 0 };
        write_run(shard, run, f, content, &[holder]);
        let hash = shard.edge_hash(parent, content.0);
        shard.edge.insert(0, hash, run, run, &|run, granule| shard.rehash(run, granule));
    }

    fn kill(&self, run: u32) {
        let sight = self.shard.sight(run, 0).expect("it is alive, and nobody else moves it");
        let mut held = self.shard.lock_at(&sight, &mut Counts::default()).expect("nobody else changes it");
        held.lock.kill();
    }

    /// The lane of holder 0 takes the chain out, its end first. Links stay: a stale one is harmless.
    pub fn die(&self) {
        self.kill(2);
        self.kill(1);
    }

    /// Another lane stores another chain of holder 1 in the same place: the first block differs, the second and third are what
    /// lookups ask for. Only what is new is written.
    pub fn use_again(&self) {
        reuse_fence();
        let entry = Entry { slot: 1, cut: 1, private: false }.pack();
        self.shard.arena.contents(GRANULE, 1)[0].store(6, Ordering::Relaxed);
        for run in [1, 2] {
            self.shard.header(run).holder_words()[0].store(entry.into(), Ordering::Relaxed);
        }
        for run in [1, 2, 3] {
            drop(self.shard.header(run).version().revive());
        }
    }

    /// How many blocks of the chain anybody has, to a lookup, with the sum of the slots that it saw there; `None` when it gave up.
    pub fn depth(&self) -> Option<(u32, u32)> {
        depth_of(&self.shard, &CONTENTS, Who::Anybody)
    }
}

impl Default for Path {
    fn default() -> Self {
        Self::new()
    }
}

/// A run of one block and its physical successor, another one. Holder 0 has both blocks, holder 1 the first.
pub struct Successor {
    shard: Shard,
}

impl Successor {
    const FIRST: Fields = Fields { base: GRANULE, parent: ROOT, next: 2, ext: 0, len: 1, cap: 1, holders: 0, flags: 0 };
    const SECOND: Fields = Fields { base: GRANULE + 1, parent: GRANULE, next: 0, ..Self::FIRST };

    /// As they are at first.
    pub fn new() -> Self {
        let shard = shard();
        write_run(&shard, 1, Self::FIRST, CONTENTS[0], &[0, 1]);
        write_run(&shard, 2, Self::SECOND, CONTENTS[1], &[0]);
        shard.arena.contents(2 * GRANULE, 1)[0].store(CONTENTS[1].0, Ordering::Relaxed);
        let hash = shard.edge_hash(ROOT, CONTENTS[0].0);
        shard.edge.insert(0, hash, 1, 1, &|run, granule| shard.rehash(run, granule));
        Self { shard }
    }

    /// The successor dies, and its id is used again at once: holder 1 has the content of the second block below another one.
    pub fn die_and_use_again(&self) {
        let shard = &self.shard;
        let [mut first, mut second] = [1, 2].map(|run| {
            let sight = shard.sight(run, 0).expect("it is alive, and nobody else moves it");
            shard.lock_at(&sight, &mut Counts::default()).expect("nobody else changes it")
        });
        first.f.next = 0;
        first.header.store_links(&first.f);
        second.lock.kill();
        drop((first, second));
        reuse_fence();
        let header = shard.header(2);
        header.store(&Fields { base: 2 * GRANULE, parent: 3 * GRANULE, ..Self::SECOND });
        let entry = Entry { slot: 1, cut: 1, private: false }.pack();
        header.holder_words()[0].store(entry.into(), Ordering::Relaxed);
        drop(header.version().revive());
    }

    /// How many of the two blocks holder 1 has, to a lookup; `None` when it gave up.
    pub fn depth(&self) -> Option<u32> {
        depth_of(&self.shard, &CONTENTS[..2], Who::Slot(1)).map(|(depth, _)| depth)
    }
}

impl Default for Successor {
    fn default() -> Self {
        Self::new()
    }
}
