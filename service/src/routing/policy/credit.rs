//! Bounded cache credit: whether a request leaves the worker of the least wait for one that holds more of its prompt.
//!
//! It does only where the prefill that is saved there is more than the wait that is added, both in seconds and both of this one
//! request. The waits are those that made the base pick; no other model of work is mixed in, since a small saving could then
//! reorder the whole fleet.

use crate::routing::columns::Slot;
use crate::routing::request::Request;
use crate::routing::settings::CreditMode;
use crate::routing::trace::Trace;
use crate::routing::view::View;
use crate::routing::wait::{Waits, least};
use rand::Rng;

/// What became of the credit of a request: exactly one for each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CreditReason {
    /// Nothing is done with it.
    ModeOff,
    /// The length of the prompt is not known.
    IneligibleRequest,
    /// Nobody holds anything of the prompt.
    NoOwner,
    /// Nobody holds more than the base pick.
    OwnerIsBase,
    /// Nothing is known of the base pick's load, so no wait can be compared with its.
    BaseDark,
    /// Whoever holds more is not known to do so by its own events, exact ones.
    OwnerUncertified,
    /// Nothing is known of the load of whoever holds more, ...
    OwnerDark,
    /// ... since its last record was refused.
    OwnerMalformed,
    /// Nowhere is more saved than waited for.
    SavingBelowCost,
    /// It would have moved the request.
    ShadowWouldMove,
    /// It moved the request.
    Moved,
}

impl CreditReason {
    /// Every reason.
    pub const ALL: [CreditReason; 11] = [
        CreditReason::ModeOff,
        CreditReason::IneligibleRequest,
        CreditReason::NoOwner,
        CreditReason::OwnerIsBase,
        CreditReason::BaseDark,
        CreditReason::OwnerUncertified,
        CreditReason::OwnerDark,
        CreditReason::OwnerMalformed,
        CreditReason::SavingBelowCost,
        CreditReason::ShadowWouldMove,
        CreditReason::Moved,
    ];

    /// The name in metrics, JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            CreditReason::ModeOff => "mode_off",
            CreditReason::IneligibleRequest => "ineligible_request",
            CreditReason::NoOwner => "no_owner",
            CreditReason::OwnerIsBase => "owner_is_base",
            CreditReason::BaseDark => "base_dark",
            CreditReason::OwnerUncertified => "owner_uncertified",
            CreditReason::OwnerDark => "owner_dark",
            CreditReason::OwnerMalformed => "owner_malformed",
            CreditReason::SavingBelowCost => "saving_below_cost",
            CreditReason::ShadowWouldMove => "shadow_would_move",
            CreditReason::Moved => "moved",
        }
    }
}

/// The base pick among compared workers: its place, and the waits by which it was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base<'a> {
    pub slots: &'a [Slot],
    pub waits: &'a Waits,
    pub place: usize,
}

/// The judge, with the memory that it uses again.
#[derive(Clone, Debug, Default)]
pub(super) struct Credit {
    /// What each worker costs beyond the base: infinite for one that is not in question.
    costs: Vec<f64>,
}

impl Credit {
    /// Where the request goes, by its place, and why.
    pub fn judge(
        &mut self,
        view: &View<'_>,
        request: &Request<'_>,
        base: Base<'_>,
        rng: &mut dyn Rng,
        trace: &mut Trace,
    ) -> (usize, CreditReason) {
        if let Some(reason) = no_question(view, request, base) {
            return (base.place, reason);
        }
        let kept = self.price(view, request, base, trace);
        let best = least(&self.costs, |_| 0.0, rng).filter(|place| self.costs[*place] < 0.0);
        match (best, view.settings.credit.mode) {
            (None, _) => (base.place, kept),
            (Some(place), CreditMode::Enforce) => (place, CreditReason::Moved),
            (Some(_), _) => (base.place, CreditReason::ShadowWouldMove),
        }
    }

    /// Prices everybody who holds more than the base. Returns the reason for staying, if nobody is worth it: of several the one that
    /// came closest.
    fn price(&mut self, view: &View<'_>, request: &Request<'_>, base: Base<'_>, trace: &mut Trace) -> CreditReason {
        let base_tokens = held(view, request, base.slots[base.place]);
        let base_wait = base.waits.prices()[base.place];
        let mut reason = CreditReason::OwnerUncertified;
        self.costs.clear();
        for (slot, wait) in base.slots.iter().copied().zip(base.waits.prices().iter().copied()) {
            let mut cost = f64::INFINITY;
            if held(view, request, slot) > base_tokens {
                match certified(view, request, slot, base_tokens, wait) {
                    Ok(more) => {
                        let saved = view.settings.credit.seconds(more as f64);
                        cost = (wait - base_wait).max(0.0) - saved;
                        trace.note(slot, "net_saving", -cost);
                        reason = reason.max(CreditReason::SavingBelowCost);
                    }
                    Err(excluded) => reason = reason.max(excluded),
                }
            }
            self.costs.push(cost);
        }
        reason
    }
}

/// Why nobody has to be priced.
fn no_question(view: &View<'_>, request: &Request<'_>, base: Base<'_>) -> Option<CreditReason> {
    if view.settings.credit.mode == CreditMode::Off {
        return Some(CreditReason::ModeOff);
    }
    if request.tokens.is_none() {
        return Some(CreditReason::IneligibleRequest);
    }
    let own = base.slots[base.place];
    let most = base.slots.iter().map(|slot| held(view, request, *slot)).max().unwrap_or(0);
    if most == 0 {
        Some(CreditReason::NoOwner)
    } else if most == held(view, request, own) {
        Some(CreditReason::OwnerIsBase)
    } else {
        view.is_dark(own).then_some(CreditReason::BaseDark)
    }
}

/// Tokens of the prompt that a worker may hold, by events, guess or prediction. The base is credited with all of them, so that no
/// saving over it is taken for more than it is.
fn held(view: &View<'_>, request: &Request<'_>, slot: Slot) -> u64 {
    request.cached_tokens(view.overlap.blocks[slot as usize])
}

/// Tokens that a worker holds beyond the base's by its own events, exact ones, if its wait can be compared.
fn certified(
    view: &View<'_>,
    request: &Request<'_>,
    slot: Slot,
    base_tokens: u64,
    wait: f64,
) -> Result<u64, CreditReason> {
    let at = slot as usize;
    let tokens = request.cached_tokens(view.overlap.confirmed(slot));
    let more = tokens.checked_sub(base_tokens).filter(|more| *more > 0 && view.columns.certified[at]);
    let more = more.ok_or(CreditReason::OwnerUncertified)?;
    if view.columns.malformed[at] || !wait.is_finite() {
        Err(CreditReason::OwnerMalformed)
    } else if view.is_dark(slot) {
        Err(CreditReason::OwnerDark)
    } else {
        Ok(more)
    }
}
