//! `owner_pressure`: the workers that hold a prefix own it, and while the best of them is not pressured it gets every request of the
//! prefix. Under pressure a prefix gets another owner, one at a time, and only where that helps.
//!
//! Owners are the candidates that hold the prefix, which ends with the deepest block that anybody holds, to its end: by their events,
//! or by guesses where no events come. So all owners hold equally much. Provisional ones are on their way: they were sent the prefix and
//! have not shown it yet ([`prefixes`]).
//!
//! The count gate says who may be a first owner; whether an owner is kept is up to its pressure alone.

mod prefixes;
mod pressure;
#[cfg(test)]
mod tests;

use super::{News, Policy, PolicyName, cache_aware, holders, kv_pressure};
use crate::routing::columns::Slot;
use crate::routing::gate::CountGate;
use crate::routing::prefix::PrefixKey;
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use crate::routing::wait::{self, Waits};
use prefixes::{Prefix, Prefixes};
use pressure::Pressure;
use rand::Rng;
use std::time::Duration;

/// Pressures this close are equal.
const PRESSURE_TIE: f64 = 1e-9;

/// A new owner that is one only if its request is dispatched.
#[derive(Clone, Copy, Debug)]
struct Pending {
    booking: u64,
    slot: Slot,
    prefix: Prefix,
    /// Whether the prefix had an owner already.
    expands: bool,
}

/// Owners, and new ones under pressure. Remembers prefixes that have owners on their way or got one lately.
#[derive(Default)]
pub struct OwnerPressure {
    /// Drawn at the first decision.
    key: Option<PrefixKey>,
    prefixes: Prefixes,
    pending: Option<Pending>,
    owners: Vec<Slot>,
    provisional: Vec<Slot>,
    /// Owners by proof, which are among the owners, too.
    proven: Vec<Slot>,
    slots: Vec<Slot>,
    pressures: Vec<f64>,
    waits: Waits,
}

/// What one decision is about.
struct Case<'a> {
    view: &'a View<'a>,
    pressure: Pressure<'a>,
    prefix: Prefix,
    booking: u64,
    /// Blocks of each slot.
    figures: &'a [u32],
    /// Owners of every kind, also those that are not looked at since there are too many.
    owners: usize,
}

impl Policy for OwnerPressure {
    fn name(&self) -> PolicyName {
        PolicyName::OwnerPressure
    }

    fn pick(&mut self, view: &View<'_>, request: &Request<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        self.pending = None;
        if kv_pressure::is_pressed(view) {
            return self.waits.choose(view, view.candidates, Branch::KvPressureMinWait, rng, trace);
        }
        if request.contents.is_empty() {
            return self.ungated(view, Branch::Miss, rng, trace);
        }
        let figures = if view.overlap.predicted { &view.overlap.unraised } else { &view.overlap.blocks };
        let depth = cache_aware::matching(view, request, figures, &mut self.owners);
        let key = *self.key.get_or_insert_with(|| PrefixKey::new(rng.next_u64()));
        // Where nobody holds anything, the prefix is the whole prompt: who else sends it is told from those who share its beginning.
        let blocks = if depth > 0 { depth } else { request.blocks() };
        let prefix = Prefix::of(key, &request.contents[..blocks as usize]);
        let shown = |slot: Slot| figures[slot as usize] >= blocks;
        self.prefixes.owners(view, prefix, shown, &mut self.provisional, &mut self.proven);
        let owners = self.owners.len() + self.provisional.len() + self.proven.len();
        holders::sample(&mut self.owners, view.settings.holders_max, rng);
        self.owners.extend(&self.proven);
        let pressure = Pressure::of(view, self.owners.iter().chain(&self.provisional));
        note(view, &pressure, &self.owners, &self.provisional, trace);
        let case = Case { view, pressure, prefix, booking: request.booking, figures, owners };
        self.decide(&case, rng, trace)
    }

    fn news(&mut self, view: &View<'_>, now: Duration, news: News<'_>) {
        let settings = &view.settings.owner_pressure;
        match news {
            News::Dispatched { request, slot, .. } => {
                let Some((pending, key)) = self.pending.take().zip(self.key) else { return };
                let is_it = pending.booking == request.booking && pending.slot == slot;
                if is_it && pending.prefix.is_of(key, request.contents) {
                    self.prefixes.add(now, pending.prefix, slot, request.booking, pending.expands, settings);
                }
            }
            News::Ended { booking, clean, .. } => self.prefixes.ended(now, booking, clean),
            News::Emptied { slot, .. } => self.prefixes.forget(slot),
            News::FirstToken { .. } | News::Recorded { .. } => {}
        }
    }
}

impl OwnerPressure {
    fn decide(&mut self, case: &Case<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        let (view, settings) = (case.view, &case.view.settings.owner_pressure);
        let watermark = settings.watermark;
        if self.owners.is_empty() && self.provisional.is_empty() {
            let pick = self.ungated(view, Branch::OwnerBootstrap, rng, trace)?;
            self.pending = Some(case.pending(pick.slot, false));
            return Some(pick);
        }
        let mut most = f64::INFINITY;
        if !self.owners.is_empty() {
            let pick = self.best_owner(case, rng, trace)?;
            most = case.pressure.of_owner(pick.slot);
            if most < watermark {
                return Some(pick);
            }
        }
        if let Some(slot) = self.least_pressured(case, false, rng)
            && case.pressure.of_owner(slot) < watermark
        {
            return self.chosen(case, slot, Branch::OwnerPressureCoalesce, rng, trace);
        }
        let least = self.least_pressured(case, true, rng)?;
        if self.owners.is_empty() {
            most = case.pressure.of_owner(least);
        }
        if case.owners >= settings.owners_max || self.prefixes.is_cooling(view.now, case.prefix, settings) {
            return self.chosen(case, least, Branch::ReplicationHold, rng, trace);
        }
        self.find_newcomers(case, most - settings.slack);
        let Some(pick) = self.waits.choose(view, &self.slots, Branch::OwnerPressureSpill, rng, trace) else {
            return self.chosen(case, least, Branch::NoSafeSpillHold, rng, trace);
        };
        self.pending = Some(case.pending(pick.slot, true));
        Some(pick)
    }

    /// Among the owners that are not much more pressured than the least one, the least expected wait.
    fn best_owner(&mut self, case: &Case<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        let pressure = |slot: &Slot| case.pressure.of_owner(*slot);
        let least = self.owners.iter().map(pressure).fold(f64::INFINITY, f64::min);
        let most = least + case.view.settings.owner_pressure.slack;
        self.slots.clear();
        self.slots.extend(self.owners.iter().filter(|slot| pressure(slot) <= most));
        // A slack that is no number leaves nobody.
        let slots = if self.slots.is_empty() { &self.owners } else { &self.slots };
        self.waits.choose(case.view, slots, Branch::CachedOwnerHold, rng, trace)
    }

    /// The least pressured of the provisional owners, or of all.
    fn least_pressured(&mut self, case: &Case<'_>, all: bool, rng: &mut dyn Rng) -> Option<Slot> {
        self.slots.clear();
        self.slots.extend(&self.provisional);
        if all {
            self.slots.extend(&self.owners);
        }
        self.pressures.clear();
        self.pressures.extend(self.slots.iter().map(|slot| case.pressure.of_owner(*slot)));
        wait::least(&self.pressures, |_| PRESSURE_TIE, rng).map(|place| self.slots[place])
    }

    /// The candidates that own nothing and are below the watermark and this pressure. One of which nothing is known is not among
    /// them: dark is not idle.
    fn find_newcomers(&mut self, case: &Case<'_>, most: f64) {
        let Self { slots, provisional, proven, .. } = self;
        let watermark = case.view.settings.owner_pressure.watermark;
        let helps = |slot: &Slot| case.pressure.known(*slot).is_some_and(|is| is < watermark && is <= most);
        let shows = |slot: &Slot| case.figures[*slot as usize] >= case.prefix.blocks();
        let owns = |slot: &Slot| shows(slot) || provisional.contains(slot) || proven.contains(slot);
        slots.clear();
        slots.extend(case.view.candidates.iter().filter(|slot| helps(slot) && !owns(slot)));
    }

    fn ungated(&mut self, view: &View<'_>, branch: Branch, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        let slots = CountGate::of(view).ungated(view, &mut self.slots);
        self.waits.choose(view, slots, branch, rng, trace)
    }

    fn chosen(
        &mut self,
        case: &Case<'_>,
        slot: Slot,
        branch: Branch,
        rng: &mut dyn Rng,
        trace: &mut Trace,
    ) -> Option<Pick> {
        self.waits.choose(case.view, &[slot], branch, rng, trace)
    }
}

impl Case<'_> {
    fn pending(&self, slot: Slot, expands: bool) -> Pending {
        Pending { booking: self.booking, slot, prefix: self.prefix, expands }
    }
}

fn note(view: &View<'_>, pressure: &Pressure<'_>, owners: &[Slot], provisional: &[Slot], trace: &mut Trace) {
    if !trace.is_on() {
        return;
    }
    for slot in view.candidates.iter().copied() {
        if let Some(value) = pressure.known(slot) {
            trace.note(slot, "pressure", value);
        }
    }
    owners.iter().for_each(|slot| trace.note(*slot, "owner", 1.0));
    provisional.iter().for_each(|slot| trace.note(*slot, "provisional_owner", 1.0));
}
