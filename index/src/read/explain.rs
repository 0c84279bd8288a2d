//! The walk of one query for one holder, told step by step. Not for the hot path.

use crate::compare::common;
use crate::edge::Found;
use crate::layout::ROOT;
use crate::read::walk::{RESTARTS_MAX, TURNS_MAX};
use crate::shard::{Shard, Sight};
use crate::types::{ContentHash, Outcome, WalkStep};

/// Appends the steps of a walk as far as the content is known. Reads as a lookup does: each run under its version, hand over
/// hand, from the root again when something changes.
pub(crate) fn walk(shard: &Shard, query: &[ContentHash], slot: u32, out: &mut Vec<WalkStep>) -> Outcome {
    let start = out.len();
    for _ in 0..RESTARTS_MAX {
        out.truncate(start);
        if attempt(shard, query, slot, out).is_some() {
            return Outcome::Exact;
        }
    }
    Outcome::Busy
}

fn attempt(shard: &Shard, query: &[ContentHash], slot: u32, out: &mut Vec<WalkStep>) -> Option<()> {
    let (mut at, mut depth) = (ROOT, 0u32);
    let mut last: Option<Sight> = None;
    let mut follow = 0;
    while (depth as usize) < query.len() {
        let sight = match follow {
            0 => match shard.child(at, query[depth as usize], TURNS_MAX) {
                Found::Hit(sight) => sight,
                Found::Miss => return Some(()),
                Found::Busy => return None,
            },
            next => shard.sight(next, TURNS_MAX).ok()?,
        };
        let (header, f) = (shard.header(sight.run), &sight.fields);
        let matched = common(&query[depth as usize..], shard.arena.contents(f.base, f.len));
        let (cut, _) = shard.cut(header, f, slot);
        let mut holders = 0;
        shard.each_holder(header, f, |_| holders += 1);
        let current = f.parent == at && header.version().confirm(sight.seen);
        if !current || last.is_some_and(|l| !shard.header(l.run).version().confirm(l.seen)) {
            return None;
        }
        if matched == 0 {
            // A physical successor that differs: a child may hang at the same place.
            follow = 0;
            continue;
        }
        out.push(WalkStep { from: depth, matched, held: cut.min(matched), holders });
        depth += matched;
        at = f.base + matched - 1;
        follow = if matched == f.len { f.next } else { 0 };
        last = Some(sight);
    }
    Some(())
}
