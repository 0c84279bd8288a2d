//! How pressured a worker is: the largest of its KV use, its own busy figure, and its requests over those that it runs at once.
//!
//! Requests over the cap count only where every candidate has a fresh and valid record with caps on all ranks. Otherwise nobody's do, for
//! the whole decision: two scales are never compared. Between two records own dispatches are added.

use crate::routing::columns::Slot;
use crate::routing::view::View;

/// The scale of one decision.
pub(super) struct Pressure<'a> {
    view: &'a View<'a>,
    with_requests: bool,
    /// What an owner is taken for of which nothing is known.
    dark: f64,
}

impl<'a> Pressure<'a> {
    /// The scale of these candidates. An owner of which nothing is known is taken to be as pressured as the others are on the mean, and
    /// not pressured where nothing is known of any.
    pub fn of<'s>(view: &'a View<'a>, owners: impl Iterator<Item = &'s Slot>) -> Self {
        let capped = |slot: &Slot| !view.is_dark(*slot) && cap(view, *slot).is_some();
        let mut pressure = Self { view, with_requests: view.candidates.iter().all(capped), dark: 0.0 };
        let (mut sum, mut known) = (0.0, 0_u32);
        for value in owners.filter_map(|slot| pressure.known(*slot)) {
            sum += value;
            known += 1;
        }
        pressure.dark = sum / f64::from(known.max(1));
        pressure
    }

    /// A worker's pressure; `None`: nothing is known of it.
    pub fn known(&self, slot: Slot) -> Option<f64> {
        if self.view.is_dark(slot) {
            return None;
        }
        let load = &self.view.columns.load[slot as usize];
        let busy = load.usage.max(load.utilization);
        let cap = cap(self.view, slot).filter(|_| self.with_requests);
        Some(cap.map_or(busy, |cap| busy.max(self.requests(slot) / cap)))
    }

    /// An owner's pressure.
    pub fn of_owner(&self, slot: Slot) -> f64 {
        self.known(slot).unwrap_or(self.dark)
    }

    fn requests(&self, slot: Slot) -> f64 {
        let (load, tally) = (&self.view.columns.load[slot as usize], &self.view.columns.tallies[slot as usize]);
        load.running as f64 + load.waiting as f64 + f64::from(tally.requests())
    }
}

/// Requests that a worker runs at once.
fn cap(view: &View<'_>, slot: Slot) -> Option<f64> {
    view.columns.load[slot as usize].running_max.filter(|cap| *cap > 0).map(|cap| cap as f64)
}
