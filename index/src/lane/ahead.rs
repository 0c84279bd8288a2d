//! Looking ahead: a lane that sees its queue asks for the cache lines of events before it applies them.
//!
//! An event reads lines that depend on each other, and each may be cold: the map's line of its first name, the candidate's
//! name and owner, the run's header, then what follows the position and what is written. A stage asks for one of them, guessing
//! from what the stage before brought in. Nothing is verified and nothing is changed: a wrong guess costs its few instructions.

use crate::alloc::GRANULE;
use crate::edge::Check;
use crate::lane::Lane;
use crate::layout::ROOT;
use crate::prefetch::read_soon;
use crate::shard::Shard;
use crate::sync::Ordering;
use crate::types::{EngineHash, Holder, Store};

/// Events between the one applied next and the one a stage looks at, by stage: far enough for a line to arrive meanwhile.
const DISTANCES: [usize; 4] = [8, 6, 4, 2];
/// Blocks of an event whose lines are asked for.
const BLOCKS: u32 = 64;
/// Names of an event whose lines in the map are asked for; the map itself works ahead after that.
const NAMES: usize = 16;

/// An event that a lane is about to apply.
#[derive(Clone, Copy, Debug)]
pub enum Upcoming<'a> {
    /// A store, as [`Lane::store`] takes it.
    Store(Holder, Store<'a>),
    /// A removal, as [`Lane::remove`] takes it.
    Remove(Holder, &'a [EngineHash]),
}

impl Lane {
    /// Asks for the memory of events in the queue. `event(n)` says the n-th one from the one that is applied next (0); to be
    /// called once before each is applied. A hint: answers and figures stay the same, whatever it says. Never blocks or
    /// allocates.
    #[inline]
    pub fn look_ahead<'a>(&self, event: impl Fn(usize) -> Option<Upcoming<'a>>) {
        for (stage, &distance) in DISTANCES.iter().enumerate() {
            if let Some(event) = event(distance) {
                self.look(stage, &event);
            }
        }
    }

    /// Asks for the memory of the first events of a queue, stage by stage, where nothing was asked for before.
    pub fn look_ahead_first<'a>(&self, event: impl Fn(usize) -> Option<Upcoming<'a>>) {
        for (stage, &distance) in DISTANCES.iter().enumerate() {
            (0..distance).map_while(&event).for_each(|event| self.look(stage, &event));
        }
    }

    fn look(&self, stage: usize, event: &Upcoming<'_>) {
        let shard = self.shard_ref();
        let (name, content) = match event {
            Upcoming::Store(_, store) => (store.parent, store.contents.first()),
            Upcoming::Remove(_, names) => (names.first().copied(), None),
        };
        let Some(name) = name else {
            if let Some(content) = content {
                look_at_child(shard, stage, ROOT, content.0);
            }
            if stage == 3 {
                self.look_at_names(event);
            }
            return;
        };
        let position = self.hinted(event, name).or_else(|| match stage {
            0 => {
                self.lane_names().expect(&shard.arena, name.0);
                None
            }
            _ => self.lane_names().candidate(&shard.arena, name.0),
        });
        let Some(position) = position else { return };
        match stage {
            0 | 1 => {
                read_soon(shard.arena.owner(position / GRANULE));
                look_at_line(shard, position);
            }
            2 => {
                let run = shard.arena.owner(position / GRANULE).load(Ordering::Relaxed);
                read_soon(shard.header(run).version());
                if let Some(content) = content {
                    look_at_line(shard, position.wrapping_add(1));
                    shard.edge.expect(shard.edge_hash(position, content.0));
                }
            }
            _ => self.look_at_written(event, position),
        }
    }

    /// Where the holder expects the name, as [`Lane::store`] and [`Lane::remove`] will.
    fn hinted(&self, event: &Upcoming<'_>, name: EngineHash) -> Option<u32> {
        let (at, remove) = match event {
            Upcoming::Store(at, _) => (at, false),
            Upcoming::Remove(at, _) => (at, true),
        };
        let names = &self.ranks.get(at.rank.0 as usize)?.as_deref()?.holders[at.tier.index()];
        let hint = if remove { names.below } else { names.latest };
        (hint.name == name.0 && hint.position != ROOT).then_some(hint.position)
    }

    /// The last stage: what the event writes, or reads on.
    fn look_at_written(&self, event: &Upcoming<'_>, position: u32) {
        let shard = self.shard_ref();
        let Upcoming::Store(_, store) = event else {
            let run = shard.arena.owner(position / GRANULE).load(Ordering::Relaxed);
            // Names leave the map with their last holder: with one entry, or two of them, that may be this one.
            if shard.header(run).holder_words()[1..].iter().all(|word| word.load(Ordering::Relaxed) == 0) {
                self.look_at_names(event);
            }
            return;
        };
        let Some(content) = store.contents.first() else { return };
        let follows = shard.arena.contents(position.wrapping_add(1), 1);
        if follows.first().is_some_and(|word| word.load(Ordering::Relaxed) == content.0) {
            look_at_stretch(shard, position + 1, store.contents.len() as u32);
            return;
        }
        look_at_child(shard, 3, position, content.0);
        self.look_at_names(event);
    }

    /// The map's lines of the first names.
    fn look_at_names(&self, event: &Upcoming<'_>) {
        let (Upcoming::Store(_, Store { names, .. }) | Upcoming::Remove(_, names)) = event;
        let arena = &self.shard_ref().arena;
        names.iter().take(NAMES).for_each(|name| self.lane_names().expect(arena, name.0));
    }
}

/// A child link, and what it leads to.
fn look_at_child(shard: &Shard, stage: usize, parent: u32, content: u64) {
    let hash = shard.edge_hash(parent, content);
    if stage == 0 {
        shard.edge.expect(hash);
        return;
    }
    // No candidate is the one looked for: each is only asked for.
    let _ = shard.edge.find(hash, |run, granule| {
        if stage == 1 {
            read_soon(shard.header(run).version());
            look_at_line(shard, granule * GRANULE);
        } else {
            look_at_stretch(shard, granule * GRANULE, BLOCKS);
        }
        Check::<()>::No
    });
}

/// Content and name of a position.
fn look_at_line(shard: &Shard, position: u32) {
    shard.arena.contents(position, 1).iter().for_each(read_soon);
    shard.arena.names(position, 1).iter().for_each(read_soon);
}

/// Contents and names of a stretch.
fn look_at_stretch(shard: &Shard, from: u32, count: u32) {
    (0..count.min(BLOCKS)).step_by(GRANULE as usize).for_each(|i| look_at_line(shard, from.wrapping_add(i)));
}
