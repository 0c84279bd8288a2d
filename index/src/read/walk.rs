//! The walk of a lookup: from run to run along the query's contents, keeping the holders that have everything so far.
//!
//! Each run is read under its version, and believed only if the run before it is still the one that was accepted (hand over
//! hand): a child is verified by value, and its parent's position cannot have been used again while the parent's version
//! stands. A walk that meets a change starts again at the root; after [`RESTARTS_MAX`] restarts it gives up with what it has.
//!
//! What a run says is taken in before the run is confirmed, since most are: a restart forgets everything, and the last
//! attempt's answer is cut off at the depth that was accepted.

use crate::alloc::GRANULE;
use crate::compare::common_of;
use crate::edge;
use crate::fault::{Fault, injected};
use crate::layout::{Fields, Header, ROOT};
use crate::prefetch::read_soon;
use crate::read::found::Found;
use crate::shard::Shard;
use crate::types::{ContentHash, Outcome};
use crate::version::Seen;

/// Restarts of a lookup before it answers Busy. Loom's models have few: each is one more walk to explore.
pub(crate) const RESTARTS_MAX: u32 = if cfg!(loom) { 2 } else { 16 };
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
    /// Keeps who has the whole stretch and puts the others where they end; whether anybody is left.
    fn enter(&mut self, stretch: &Stretch<'_>, found: &mut Found) -> bool;
    /// Puts everyone who is left at this depth.
    fn finish(&mut self, depth: u32, found: &mut Found);
    /// How many have ended so far.
    fn ended(&self, found: &Found) -> usize;
    /// Puts those who ended after the first `ended` at this depth, at most any of theirs.
    fn cut_off(&mut self, ended: usize, depth: u32, found: &mut Found);
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

/// Walks; the answer is what was found. `query` is not empty.
///
/// One copy for each kind of survivors, and all that most lookups need in one piece: what a lookup costs after another
/// program has used the caches is the lines of its code.
#[inline(never)]
pub(crate) fn walk(shard: &Shard, query: &[ContentHash], survivors: &mut impl Survivors, found: &mut Found) -> Walked {
    let mut walk = Walk { shard, query, depth: 0, mark: 0, runs: 0 };
    for restarts in 0..RESTARTS_MAX {
        survivors.begin();
        found.clear();
        if walk.attempt(survivors, found) {
            return Walked { outcome: Outcome::Exact, restarts, runs: walk.runs };
        }
    }
    walk.give_up(survivors, found)
}

/// One lookup in one shard.
struct Walk<'a> {
    shard: &'a Shard,
    query: &'a [ContentHash],
    /// Blocks matched by the runs accepted so far.
    depth: u32,
    /// How many had ended by then.
    mark: usize,
    /// Runs read so far.
    runs: u32,
}

impl Walk<'_> {
    /// What was accepted on the last attempt holds up to its depth.
    #[cold]
    #[inline(never)]
    fn give_up(&self, survivors: &mut impl Survivors, found: &mut Found) -> Walked {
        if self.depth == 0 {
            survivors.begin();
            found.clear();
        } else {
            survivors.cut_off(self.mark, self.depth, found);
            survivors.finish(self.depth, found);
        }
        Walked { outcome: Outcome::Busy, restarts: RESTARTS_MAX, runs: self.runs }
    }

    /// One attempt from the root; false when it has to be started again.
    #[inline(always)]
    fn attempt(&mut self, survivors: &mut impl Survivors, found: &mut Found) -> bool {
        let (shard, query) = (self.shard, self.query);
        (self.depth, self.mark) = (0, 0);
        let mut rest = query;
        // Position of the last matched block, the run accepted last, and its physical successor if the walk reached its end.
        let (mut at, mut last, mut follow) = (ROOT, None::<(Header<'_>, Seen)>, 0);
        let mut hash = shard.edge_hash(at, rest[0].0);
        loop {
            let sight = if follow != 0 {
                match shard.begin(follow, TURNS_MAX) {
                    Ok(sight) if sight.fields.parent == at || injected(Fault::SuccessorBelieved) => sight,
                    _ => return false,
                }
            } else {
                match shard.child_rumour(hash, at, rest[0], TURNS_MAX) {
                    edge::Found::Hit(sight) => sight,
                    edge::Found::Busy => return false,
                    edge::Found::Miss => {
                        if self.depth > 0 {
                            survivors.finish(self.depth, found);
                        }
                        return true;
                    }
                }
            };
            let (header, f) = (shard.header(sight.run), &sight.fields);
            self.runs += 1;
            // Asked for now, read after the contents: who holds it, and what follows it.
            shard.expect_holders(f);
            if let Some(beyond) = rest.get(f.len as usize) {
                if f.next == 0 {
                    hash = shard.edge_hash(f.end().wrapping_sub(1), beyond.0);
                    shard.edge.expect(hash);
                } else {
                    read_soon(shard.header(f.next).version());
                }
            }
            // With what is behind it, so that a short run is compared at once, too.
            let matched = common_of(rest, shard.arena.contents(f.base, f.len + GRANULE), f.len);
            let mut left = true;
            if matched > 0 {
                left = survivors.enter(&Stretch { shard, header, fields: f, matched, depth: self.depth }, found);
            }
            // Hand over hand: the second is ordered by the Acquire load of this run's version.
            let changed =
                |(last, seen): (Header<'_>, Seen)| !last.version().confirm(seen) && !injected(Fault::NoStepBack);
            if !header.version().confirm(sight.seen) || last.is_some_and(changed) {
                return false;
            }
            if matched == 0 {
                if follow == 0 {
                    // A child was found by its first content, so it is another by now.
                    return false;
                }
                // Only a physical successor can differ there: a child may hang at the same place.
                follow = 0;
                hash = shard.edge_hash(at, rest[0].0);
                continue;
            }
            self.depth += matched;
            self.mark = survivors.ended(found);
            if !left {
                return true;
            }
            rest = rest.get(matched as usize..).unwrap_or_default();
            let Some(next) = rest.first() else {
                survivors.finish(self.depth, found);
                return true;
            };
            at = f.base + matched - 1;
            last = Some((header, sight.seen));
            follow = if matched == f.len { f.next } else { 0 };
            if matched < f.len {
                hash = shard.edge_hash(at, next.0);
            }
        }
    }
}
