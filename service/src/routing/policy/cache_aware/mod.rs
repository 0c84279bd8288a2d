//! `cache_aware`: a holder of the prompt's beginning, as long as loads allow.
//!
//! The order of a decision, whatever says who the holders are:
//!
//! 1. under KV pressure the least expected wait of all candidates; the count gate has no say, as it could steer to a full pool;
//! 2. the best holder that has not far more requests than the mean;
//! 3. a spill, where every holder has, and a miss, where there is none: the least expected wait of those who have not.
//!
//! Holders come from events, or are guessed from routed prompts (then a match counts from a share of the prompt on), or, with
//! boundaries set, from exact heads that were sent before.

mod choice;
#[cfg(test)]
mod replication;
#[cfg(test)]
mod tests;

use super::{News, Policy, PolicyName, holders, kv_pressure};
use crate::routing::columns::Slot;
use crate::routing::gate::CountGate;
use crate::routing::hash_heads::HashHeads;
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use crate::routing::wait::Waits;
use choice::Choice;
use rand::Rng;
use std::time::Duration;

/// A holder, as long as loads allow. Remembers heads in hash mode, and nothing otherwise.
#[derive(Default)]
pub struct CacheAware {
    heads: HashHeads,
    holders: Vec<Slot>,
    ungated: Vec<Slot>,
    choice: Choice,
    waits: Waits,
}

impl Policy for CacheAware {
    fn name(&self) -> PolicyName {
        PolicyName::CacheAware
    }

    fn pick(&mut self, view: &View<'_>, request: &Request<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        if kv_pressure::is_pressed(view) {
            return self.waits.choose(view, view.candidates, Branch::KvPressureMinWait, rng, trace);
        }
        let gate = CountGate::of(view);
        note_gated(view, &gate, trace);
        self.find_holders(view, request, rng);
        if self.choice.best(view, request, &self.holders, &gate, rng, trace) {
            return self.waits.choose(view, self.choice.tied(), Branch::Hit, rng, trace);
        }
        let branch = if self.holders.is_empty() { Branch::Miss } else { Branch::Spill };
        self.waits.choose(view, gate.ungated(view, &mut self.ungated), branch, rng, trace)
    }

    fn news(&mut self, view: &View<'_>, now: Duration, news: News<'_>) {
        match news {
            News::Dispatched { request, slot, .. } => {
                self.heads.record(now, request.token_ids, slot, &view.settings.hash_mode);
            }
            News::Emptied { slot, .. } => self.heads.forget(slot),
            News::FirstToken { .. } | News::Ended { .. } | News::Recorded { .. } => {}
        }
    }
}

impl CacheAware {
    /// The holders that count, at most so many as a selection looks at.
    fn find_holders(&mut self, view: &View<'_>, request: &Request<'_>, rng: &mut dyn Rng) {
        let settings = view.settings;
        if settings.hash_mode.boundaries.is_empty() {
            matching(view, request, &view.overlap.blocks, &mut self.holders);
        } else {
            self.heads.probe(view.now, request.token_ids, &settings.hash_mode, view.candidates, &mut self.holders);
        }
        holders::sample(&mut self.holders, settings.holders_max, rng);
    }
}

/// Puts the candidates in `out` that hold most of a prompt by these figures, if it is enough to count, and says how much that is.
pub(super) fn matching(view: &View<'_>, request: &Request<'_>, figures: &[u32], out: &mut Vec<Slot>) -> u32 {
    let settings = &view.settings.cache_aware;
    if !view.overlap.approximate {
        return holders::deepest(view.candidates, figures, settings.event_min_overlap_blocks, out);
    }
    let depth = holders::deepest(view.candidates, figures, 1, out);
    let share = f64::from(depth) / f64::from(request.blocks().max(1));
    if share > settings.cache_threshold {
        return depth;
    }
    out.clear();
    0
}

fn note_gated(view: &View<'_>, gate: &CountGate, trace: &mut Trace) {
    if trace.is_on() {
        let gated = view.candidates.iter().filter(|slot| gate.gates(view, **slot));
        gated.for_each(|slot| trace.note(*slot, "gated", 1.0));
    }
}
