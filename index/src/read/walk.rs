//! The walk of a lookup: from run to run along the query's contents, keeping the holders that have everything so far.
//!
//! Each run is read under its version, and believed only if the run before it is still the one that was accepted (hand over
//! hand): a child is verified by value, and its parent's position cannot have been used again while the parent's version
//! stands. A walk that meets a change starts again at the root; after [`RESTARTS_MAX`] restarts it gives up with what it has.
//!
//! What a run says is taken in before the run is confirmed, since most are: a restart forgets everything, and the last
//! attempt's answer is cut off at the depth that was accepted.

use crate::compare::common;
use crate::edge::Found;
use crate::layout::{Fields, Header, ROOT};
use crate::prefetch::read_soon;
use crate::shard::{Shard, Sight};
use crate::types::{ContentHash, Outcome};
use crate::version::Unreadable;

/// Restarts of a lookup before it answers Busy.
pub(crate) const RESTARTS_MAX: u32 = 16;
/// Turns of waiting for one version to come to rest: 64 spins and 8 yields.
pub(crate) const TURNS_MAX: u32 = 72;

/// A run that continues the walk: a rumour until its version is confirmed.
pub(crate) struct Stretch<'a> {
    pub shard: &'a Shard,
    pub header: Header<'a>,
    pub fields: &'a Fields,
    /// Blocks of the query that the run has, at least 1.
    pub matched: u32,
    /// Blocks of the query before it; 0 for the first run.
    pub depth: u32,
}

/// Who has everything so far. Each holder is either among them or was found at a depth, and never both or twice.
pub(crate) trait Survivors {
    /// Forgets everything.
    fn begin(&mut self);
    /// Keeps who has the whole stretch and puts the others where they end.
    fn enter(&mut self, stretch: &Stretch<'_>);
    /// Whether nobody is left.
    fn none_left(&self) -> bool;
    /// Puts everyone who is left at this depth.
    fn finish(&mut self, depth: u32);
    /// How many have ended so far.
    fn ended(&self) -> usize;
    /// Puts those who ended after the first `ended` at this depth, at most any of theirs.
    fn cut_off(&mut self, ended: usize, depth: u32);
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
pub(crate) struct Walk<'a, S> {
    shard: &'a Shard,
    query: &'a [ContentHash],
    survivors: &'a mut S,
    /// Blocks matched so far.
    depth: u32,
    /// Position of the last matched block.
    at: u32,
    /// The run accepted last.
    last: Option<Sight>,
    /// How many had ended by then.
    mark: usize,
    /// Runs read so far.
    runs: u32,
}

/// What a walk was.
#[derive(Clone, Copy)]
pub(crate) struct Walked {
    pub outcome: Outcome,
    /// How often it was started again.
    pub restarts: u32,
    /// Runs read, on all attempts.
    pub runs: u32,
}

impl<'a, S: Survivors> Walk<'a, S> {
    pub fn new(shard: &'a Shard, query: &'a [ContentHash], survivors: &'a mut S) -> Self {
        Self { shard, query, survivors, depth: 0, at: ROOT, last: None, mark: 0, runs: 0 }
    }

    /// Walks; the answer is what the survivors found.
    #[inline]
    pub fn run(mut self) -> Walked {
        for restarts in 0..RESTARTS_MAX {
            (self.depth, self.at, self.last, self.mark) = (0, ROOT, None, 0);
            self.survivors.begin();
            if self.attempt() {
                return Walked { outcome: Outcome::Exact, restarts, runs: self.runs };
            }
        }
        // What was accepted on the last attempt holds up to its depth.
        if self.depth == 0 {
            self.survivors.begin();
        } else {
            self.survivors.cut_off(self.mark, self.depth);
            self.survivors.finish(self.depth);
        }
        Walked { outcome: Outcome::Busy, restarts: RESTARTS_MAX, runs: self.runs }
    }

    /// One attempt from the root; false when it has to be started again.
    #[inline]
    fn attempt(&mut self) -> bool {
        let mut step = Step::Child(ROOT);
        loop {
            step = match step {
                Step::Done => return true,
                Step::Restart => return false,
                Step::Follow(run) => match self.shard.begin(run, TURNS_MAX) {
                    Ok(sight) => self.enter(sight, false),
                    Err(Unreadable::Dead | Unreadable::Moving) => Step::Restart,
                },
                Step::Child(parent) => {
                    match self.shard.child_rumour(parent, self.query[self.depth as usize], TURNS_MAX) {
                        Found::Hit(sight) => self.enter(sight, true),
                        Found::Busy => Step::Restart,
                        Found::Miss => {
                            self.finish();
                            Step::Done
                        }
                    }
                }
            };
        }
    }

    fn finish(&mut self) {
        if self.depth > 0 {
            self.survivors.finish(self.depth);
        }
    }

    /// Reads a run that continues the walk, and accepts it if nothing changed meanwhile.
    #[inline]
    fn enter(&mut self, sight: Sight, child: bool) -> Step {
        let (shard, f) = (self.shard, &sight.fields);
        self.runs += 1;
        let header = shard.header(sight.run);
        if f.parent != self.at {
            return Step::Restart;
        }
        let rest = &self.query[self.depth as usize..];
        // Asked for now, read after the contents: who holds it, and what follows it.
        shard.expect_holders(f);
        if let Some(beyond) = rest.get(f.len as usize) {
            match f.next {
                0 => shard.expect_child(f.end().wrapping_sub(1), *beyond),
                next => read_soon(shard.header(next).version()),
            }
        }
        let matched = common(rest, shard.arena.contents(f.base, f.len));
        if matched > 0 {
            self.survivors.enter(&Stretch { shard, header, fields: f, matched, depth: self.depth });
        }
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
            // Only a physical successor can differ in its first block: a child was found by it, so it is another by now.
            return if child { Step::Restart } else { Step::Child(self.at) };
        }
        self.depth += matched;
        self.at = f.base + matched - 1;
        self.last = Some(sight);
        self.mark = self.survivors.ended();
        self.after(f, matched)
    }

    #[inline]
    fn after(&mut self, f: &Fields, matched: u32) -> Step {
        if self.survivors.none_left() {
            return Step::Done;
        }
        if self.depth as usize == self.query.len() {
            self.finish();
            return Step::Done;
        }
        if matched == f.len && f.next != 0 { Step::Follow(f.next) } else { Step::Child(self.at) }
    }
}
