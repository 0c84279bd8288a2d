//! The slice of requests that fills workers with few blocks. A policy that prefers holders would leave them empty for ever.
//!
//! A worker is warming while it is new and holds little, or whenever it holds far less than the others do: *thin*. The level that it
//! is held against is the mean of those that are not warming, so the two are found together: nobody old is taken for thin at first,
//! and the level rises with each one that falls out, until nobody does.
//!
//! Requests of which nobody holds anything go to warming workers with a fixed share. Where such requests are too rare for that, a few
//! of the others go there too: a bucket of what hits earn, and one of what may be diverted at all, both emptied by whatever the slice
//! gets.

use super::columns::Slot;
use super::policy::News;
use super::request::Request;
use super::settings::WarmupSettings;
use super::trace::Trace;
use super::view::{Branch, Pick, View};
use super::wait::Waits;
use rand::{Rng, RngExt};
use std::time::Duration;

/// The slice of one fleet.
#[derive(Clone, Debug, Default)]
pub struct Warmup {
    /// The warming candidates of the decision at hand.
    warming: Vec<Slot>,
    waits: Waits,
    /// Diverted hits that hits have earned.
    earned: f64,
    /// Diverted hits that so many requests allow.
    allowed: f64,
    /// The diversion that was decided last, until its dispatch is heard of.
    decided: Option<(u64, Slot)>,
    /// Diverted hits in flight: booking and worker.
    in_flight: Vec<(u64, Slot)>,
}

impl Warmup {
    /// Gives a request to a warming worker, the one with the least expected wait, if it is the slice's turn; before the policy is
    /// asked. `None`: the policy decides. Allocates only where its lists have to grow.
    pub fn divert(
        &mut self,
        view: &View<'_>,
        request: &Request<'_>,
        rng: &mut dyn Rng,
        trace: &mut Trace,
    ) -> Option<Pick> {
        let settings = &view.settings.warmup;
        self.decided = None;
        find_warming(view, &mut self.warming);
        if self.warming.is_empty() {
            return None;
        }
        self.warming.iter().for_each(|slot| trace.note(*slot, "warming", 1.0));
        let counts = view.settings.cache_aware.event_min_overlap_blocks.max(1);
        let is_hit = view.overlap.deepest(view.candidates) >= counts;
        self.fill(settings, is_hit);
        let branch = if is_hit { self.admit_hit(settings)? } else { admit_miss(settings, rng)? };
        let pick = self.waits.choose(view, &self.warming, branch, rng, trace)?;
        // Misses may leave a debt, so that what they bring is counted in full; it is as bounded as the credit is.
        let most_debt = -f64::from(settings.hits_in_flight);
        self.earned = (self.earned - 1.0).max(most_debt);
        self.allowed = (self.allowed - 1.0).max(most_debt);
        self.decided = is_hit.then_some((request.booking, pick.slot));
        Some(pick)
    }

    /// Takes notice of what became of diverted hits.
    pub fn news(&mut self, news: News<'_>) {
        match news {
            News::Dispatched { request, slot, .. } => {
                let diverted = self.decided.take().filter(|decided| *decided == (request.booking, slot));
                self.in_flight.extend(diverted);
            }
            News::Ended { booking, .. } => self.in_flight.retain(|(diverted, _)| *diverted != booking),
            News::Emptied { slot, gone: true } => self.in_flight.retain(|(_, worker)| *worker != slot),
            _ => {}
        }
    }

    fn fill(&mut self, settings: &WarmupSettings, is_hit: bool) {
        let most = f64::from(settings.hits_in_flight);
        self.allowed = (self.allowed + settings.hit_share).min(most);
        if is_hit {
            self.earned = (self.earned + settings.share).min(most);
        }
    }

    /// Admits a hit, and leaves only the workers that may get it.
    fn admit_hit(&mut self, settings: &WarmupSettings) -> Option<Branch> {
        if self.earned < 1.0 || self.allowed < 1.0 {
            return None;
        }
        let in_flight = &self.in_flight;
        let of = |slot: Slot| in_flight.iter().filter(|(_, worker)| *worker == slot).count();
        self.warming.retain(|slot| of(*slot) < settings.hits_in_flight as usize);
        (!self.warming.is_empty()).then_some(Branch::WarmupDiverted)
    }
}

/// Lists the warming candidates; nobody where everybody is warming, since there is no level then.
pub(super) fn find_warming(view: &View<'_>, warming: &mut Vec<Slot>) {
    warming.clear();
    let settings = &view.settings.warmup;
    if !settings.enabled {
        return;
    }
    let fleet = Fleet { view, old_from: view.now.checked_sub(settings.duration), enough: settings.blocks };
    let Some(thin) = fleet.thin_below(settings.thin_ratio) else { return };
    warming.extend(view.candidates.iter().copied().filter(|slot| fleet.is_new(*slot) || fleet.blocks(*slot) < thin));
}

fn admit_miss(settings: &WarmupSettings, rng: &mut dyn Rng) -> Option<Branch> {
    (rng.random::<f64>() < settings.share).then_some(Branch::Warmup)
}

/// The candidates' blocks and ages.
struct Fleet<'a> {
    view: &'a View<'a>,
    /// Who may be chosen since this time or earlier is not new. `None`: everybody is.
    old_from: Option<Duration>,
    /// Blocks with which a new worker is warm.
    enough: u64,
}

impl Fleet<'_> {
    fn blocks(&self, slot: Slot) -> u64 {
        self.view.columns.blocks[slot as usize]
    }

    fn is_new(&self, slot: Slot) -> bool {
        let since = self.view.columns.routable_since[slot as usize];
        self.blocks(slot) < self.enough && self.old_from.is_none_or(|old_from| since > old_from)
    }

    /// The number of blocks below which a worker is thin. `None` where everybody is warming.
    fn thin_below(&self, ratio: f64) -> Option<u64> {
        let mut thin = 0;
        loop {
            let (mut sum, mut warm, mut least) = (0_u64, 0_u64, u64::MAX);
            for slot in self.view.candidates.iter().copied() {
                let blocks = self.blocks(slot);
                if blocks >= thin && !self.is_new(slot) {
                    sum = sum.saturating_add(blocks);
                    warm += 1;
                    least = least.min(blocks);
                }
            }
            if warm == 0 {
                return None;
            }
            // Blocks are whole: fewer than 2.5 is fewer than 3. Never less than before, so that it ends.
            thin = thin.max((ratio * (sum as f64 / warm as f64)).ceil() as u64);
            if least >= thin {
                return Some(thin);
            }
        }
    }
}
