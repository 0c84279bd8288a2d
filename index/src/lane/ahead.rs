//! Looking ahead: a lane that sees its queue asks for the cache lines of events before it applies them.
//!
//! An event reads lines that depend on each other, and each may be cold: the map's lines of its parent's and its first name, the
//! candidates' names and owners, their runs' headers, then what follows and what is written. A stage asks for one of them, guessing
//! from what the stage before brought in. Nothing is verified and nothing is changed: a wrong guess costs its few instructions.
//!
//! The parent's name alone would not do: of the pieces of one prompt all but the first have a parent that the event before
//! them stores. Where names are shared, the first name of a piece tells where it stands as soon as anybody has stored it.

use crate::alloc::GRANULE;
use crate::edge::Check;
use crate::lane::Lane;
use crate::layout::ROOT;
use crate::prefetch::read_soon;
use crate::shard::Shard;
use crate::sync::Ordering;
use crate::types::{EngineHash, Holder, Store};
use std::cell::Cell;

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

impl<'a> Upcoming<'a> {
    fn names(&self) -> &'a [EngineHash] {
        match *self {
            Upcoming::Store(_, store) => store.names,
            Upcoming::Remove(_, names) => names,
        }
    }
}

/// Where an event probably stands. The root is no guess.
#[derive(Clone, Copy, Default)]
struct Guess {
    /// The parent of a store.
    parent: u32,
    /// The first name.
    first: u32,
}

/// Guesses about events in the queue, from one stage to the next.
#[derive(Default)]
pub(crate) struct Guesses {
    of: [Cell<Guess>; 2 * DISTANCES[0]],
    /// Events looked ahead of so far.
    applied: Cell<usize>,
}

impl Guesses {
    fn of(&self, distance: usize) -> &Cell<Guess> {
        &self.of[self.applied.get().wrapping_add(distance) % (2 * DISTANCES[0])]
    }
}

impl Lane {
    /// Asks for the memory of events in the queue. `event(n)` says the n-th one from the one that is applied next (0); to be
    /// called once before each is applied. A hint: answers and figures stay the same, whatever it says. Never blocks or
    /// allocates.
    #[inline]
    pub fn look_ahead<'a>(&self, event: impl Fn(usize) -> Option<Upcoming<'a>>) {
        for (stage, &distance) in DISTANCES.iter().enumerate() {
            if let Some(event) = event(distance) {
                self.look(stage, &event, self.guesses.of(distance));
            }
        }
        self.guesses.applied.set(self.guesses.applied.get().wrapping_add(1));
    }

    /// Asks for the memory of the first events of a queue, stage by stage, where nothing was asked for before.
    pub fn look_ahead_first<'a>(&self, event: impl Fn(usize) -> Option<Upcoming<'a>>) {
        for (stage, &distance) in DISTANCES.iter().enumerate() {
            for n in 0..distance {
                let Some(event) = event(n) else { break };
                self.look(stage, &event, self.guesses.of(n));
            }
        }
    }

    fn look(&self, stage: usize, event: &Upcoming<'_>, guess: &Cell<Guess>) {
        match stage {
            0 => self.look_for_names(event),
            1 => guess.set(self.look_at_candidates(event)),
            2 => self.look_at_runs(event, guess.get()),
            _ => self.look_at_written(event, guess.get()),
        }
    }

    /// The map's lines of the names that tell where the event stands.
    fn look_for_names(&self, event: &Upcoming<'_>) {
        let shard = self.shard_ref();
        let expect = |name: &EngineHash| self.lane_names().expect(&shard.arena, name.0);
        event.names().first().into_iter().for_each(expect);
        if let Upcoming::Store(_, store) = event {
            match (store.parent, store.contents.first()) {
                (Some(parent), _) => expect(&parent),
                (None, Some(content)) => shard.edge.expect(shard.edge_hash(ROOT, content.0)),
                (None, None) => {}
            }
        }
    }

    /// What has these names, and which runs that is in.
    fn look_at_candidates(&self, event: &Upcoming<'_>) -> Guess {
        let shard = self.shard_ref();
        let candidate = |name: EngineHash| {
            let position = self.lane_names().candidate(&shard.arena, name.0).unwrap_or(ROOT);
            if position != ROOT {
                read_soon(shard.arena.owner(position / GRANULE));
            }
            position
        };
        let names = event.names();
        let first = names.first().map_or(ROOT, |&name| candidate(name));
        let count = (names.len() as u32).min(BLOCKS);
        let parent = match event {
            Upcoming::Store(_, store) => {
                if first != ROOT {
                    look_at_stretch(shard, first, count);
                }
                store.parent.map_or(ROOT, candidate)
            }
            Upcoming::Remove(..) => {
                // Engines free tails first: the names go down from here.
                look_at_names(shard, (first + 1).saturating_sub(count), count.min(first + 1));
                ROOT
            }
        };
        if parent != ROOT {
            look_at_names(shard, parent, 1);
        }
        Guess { parent, first }
    }

    /// The headers of these runs, and the child link that a store looks for.
    fn look_at_runs(&self, event: &Upcoming<'_>, guess: Guess) {
        let shard = self.shard_ref();
        for position in [guess.first, guess.parent] {
            if position != ROOT {
                let run = shard.arena.owner(position / GRANULE).load(Ordering::Relaxed);
                read_soon(shard.header(run).version());
                read_soon(shard.arena.kids(position / GRANULE));
            }
        }
        if let Upcoming::Store(_, store) = event
            && let Some(content) = store.contents.first()
            && guess.parent != ROOT
            && guess.first != guess.parent + 1
        {
            look_at_stretch(shard, guess.parent + 1, 1);
            shard.edge.expect(shard.edge_hash(guess.parent, content.0));
        }
    }

    /// What the event writes, or reads on.
    fn look_at_written(&self, event: &Upcoming<'_>, guess: Guess) {
        let shard = self.shard_ref();
        let names = event.names();
        match event {
            Upcoming::Store(_, store) => {
                let Some(content) = store.contents.first().filter(|_| guess.first == ROOT) else { return };
                if store.parent.is_none() || guess.parent != ROOT {
                    look_at_child(shard, guess.parent, content.0, store.contents.len() as u32);
                }
            }
            Upcoming::Remove(..) => {
                let run = shard.arena.owner(guess.first / GRANULE).load(Ordering::Relaxed);
                // Names leave the map with their last holder: with one entry, or two of them, that may be this one.
                let few = |words: &[crate::sync::AtomicU64]| words.iter().all(|word| word.load(Ordering::Relaxed) == 0);
                if guess.first != ROOT && !few(&shard.header(run).holder_words()[1..]) {
                    return;
                }
            }
        }
        names.iter().take(NAMES).skip(1).for_each(|name| self.lane_names().expect(&shard.arena, name.0));
    }
}

/// What a child link probably leads to. No candidate is the one looked for: each is only asked for.
fn look_at_child(shard: &Shard, parent: u32, content: u64, count: u32) {
    let _ = shard.edge.find(shard.edge_hash(parent, content), |run, granule| {
        read_soon(shard.header(run).version());
        look_at_stretch(shard, granule * GRANULE, count.min(BLOCKS));
        Check::<()>::No
    });
}

/// Contents and names of a stretch.
fn look_at_stretch(shard: &Shard, from: u32, count: u32) {
    for position in (from..from.saturating_add(count)).step_by(GRANULE as usize) {
        shard.arena.contents(position, 1).iter().for_each(read_soon);
    }
    look_at_names(shard, from, count);
}

/// Names of a stretch.
fn look_at_names(shard: &Shard, from: u32, count: u32) {
    for position in (from..from.saturating_add(count)).step_by(GRANULE as usize) {
        shard.arena.names(position, 1).iter().for_each(read_soon);
    }
}
