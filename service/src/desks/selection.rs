//! One selection: what the index said, joined with the desk under its lock, and the decision in the service's own words.

use super::cell::DeskState;
use super::levels::{Depths, Seat};
use super::order::{Evidence, Order, RouteError, Selected};
use super::receipt::{self, Receipt};
use super::registry::reservation;
use super::router::Router;
use crate::fleet::{FleetView, Group};
use crate::ingest::{Trust, now_ms};
use crate::lookup::PromptLevels;
use crate::routing::{Ask, Decision, Dispatch, PolicyVersion, Request, Slot, Trace};
use kvatlas_index::Tier;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a selection works in. Buffers to be used again.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    depths: Depths,
    only: Vec<Slot>,
    only_ranks: Vec<(Slot, u32)>,
}

/// A selection on its way.
pub(super) struct Selection<'a> {
    pub order: &'a Order,
    /// Tokens of the prompt, where they are known.
    pub tokens: Option<u64>,
    /// The fleet before the index was asked, and the group in it.
    pub view: &'a FleetView,
    pub group: &'a Arc<Group>,
    pub found: PromptLevels<'a>,
    pub buffers: &'a mut Buffers,
}

impl Selection<'_> {
    pub fn make(mut self, router: &Router) -> Result<Selected, RouteError> {
        let (model, group) = (&self.order.model, &self.order.routing_group);
        let block_size = self.group.block_size;
        router.at_desk_of(model, group, block_size, |state, now, desk| self.choose(router, state, now, desk))?
    }

    fn choose(
        &mut self,
        router: &Router,
        state: &mut DeskState,
        now: Duration,
        desk: u32,
    ) -> Result<Selected, RouteError> {
        let start = Instant::now();
        let order = self.order;
        let candidates_unknown = self.name_candidates(state);
        let has_events = self.take_depths(state);
        let Buffers { depths, only, only_ranks } = &mut *self.buffers;
        let only = (!order.candidates.is_empty()).then_some(&only[..]);
        let before = order.explain.then(|| receipt::candidates(state.desk.columns(), only, now));
        let mut trace = if order.explain { Trace::on() } else { Trace::off() };
        let book = !order.dry_run;
        let others_open = if book { router.open.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let ask = Ask {
            request: Request {
                tokens: self.tokens,
                block_size: self.group.block_size,
                contents: self.found.contents,
                token_ids: order.plain_token_ids(),
                booking: 0,
            },
            policy: order.policy,
            only,
            only_ranks,
            deepest_ranks: &depths.ranks,
            events: has_events,
            book,
            others_open: others_open.saturating_sub(state.desk.open()),
            max_output_tokens: order.max_output_tokens,
        };
        let decision = state.desk.select(now, &ask, &mut depths.overlap, &mut trace);
        if book && decision.as_ref().map_or(0, |decision| decision.booking) == 0 {
            router.open.fetch_sub(1, Ordering::Relaxed);
        }
        let decision = decision?;
        if let Some(prefill) = decision.watched_prefill
            && let Some(rank) = state.rank(&decision.worker, decision.rank)
        {
            rank.veto.dispatched(prefill);
        }
        self.tell_peers(router, desk, now, &decision);
        let mut selected = self.selected(state, desk, &decision, has_events);
        selected.candidates_unknown = candidates_unknown;
        if let Some(before) = before {
            let (columns, depths) = (state.desk.columns(), &self.buffers.depths);
            let (candidates, gates) = receipt::complete(before, columns, depths, &decision, &trace);
            selected.receipt = Some(Box::new(Receipt {
                policy_version: PolicyVersion::new(state.desk.settings()).to_string(),
                candidates,
                gates,
                decided_unix_ms: now_ms(),
                hashed_in: self.found.hashed_in,
                looked_up_in: self.found.looked_up_in,
                chosen_in: start.elapsed(),
            }));
        }
        Ok(selected)
    }

    /// Tells other replicas of a booking.
    fn tell_peers(&self, router: &Router, desk: u32, now: Duration, decision: &Decision) {
        let Some(exchange) = router.exchange.as_ref().filter(|_| decision.booking != 0) else { return };
        let dispatch = Dispatch {
            model: self.order.model.as_str().into(),
            routing_group: self.order.routing_group.as_str().into(),
            worker: decision.worker.clone(),
            tokens: self.tokens,
            cached_tokens: decision.predicted_tokens.unwrap_or(0),
            dispatched_at: now,
        };
        exchange.dispatched(desk, decision.booking, dispatch);
    }

    /// The named candidates as slots; returns how many of them are not there.
    fn name_candidates(&mut self, state: &DeskState) -> u32 {
        let Buffers { only, only_ranks, .. } = &mut *self.buffers;
        only.clear();
        only_ranks.clear();
        let mut unknown = 0;
        for candidate in &self.order.candidates {
            match (state.find(&candidate.worker, candidate.rank), candidate.rank) {
                (None, _) => unknown += 1,
                (Some(slot), None) => only.push(slot),
                (Some(slot), Some(rank)) => only_ranks.push((slot, rank)),
            }
        }
        only.sort_unstable();
        // Who is named as a whole is not narrowed by one of its ranks.
        only_ranks.retain(|(slot, _)| only.binary_search(slot).is_err());
        only_ranks.sort_unstable();
        only.extend(only_ranks.iter().map(|(slot, _)| *slot));
        only.sort_unstable();
        only.dedup();
        unknown
    }

    /// What the index said, by slot; returns whether it speaks of this group at all.
    fn take_depths(&mut self, state: &DeskState) -> bool {
        let Buffers { depths, only_ranks, .. } = &mut *self.buffers;
        depths.reset(state.desk.columns().len());
        if self.found.busy {
            return true;
        }
        let is_same = state.is_as(self.group);
        let any = depths.credit(&state.seats, self.found.levels, |key, seat| {
            // A number stands for the same rank as when the index was asked, as long as that rank is not closed.
            let is_same = is_same || self.view.by_key(key).is_some();
            let from = only_ranks.partition_point(|(slot, _)| *slot < seat.slot);
            let named = &only_ranks[from..];
            let narrowed = named.first().is_some_and(|(slot, _)| *slot == seat.slot);
            is_same && (!narrowed || only_ranks.binary_search(&(seat.slot, seat.rank)).is_ok())
        });
        let has_events = any || state.has_events && state.has_blocks;
        depths.overlap.approximate = !has_events;
        has_events
    }

    fn selected(&self, state: &DeskState, desk: u32, decision: &Decision, has_events: bool) -> Selected {
        let rank = state.rank(&decision.worker, decision.rank);
        Selected {
            reservation: if decision.booking == 0 { 0 } else { reservation(desk, decision.booking) },
            worker: decision.worker.clone(),
            rank: decision.rank,
            generation: decision.generation,
            matched: self.matched(state, decision, has_events),
            predicted_cached_tokens: decision.predicted_tokens.unwrap_or(0),
            predicted_wait: decision.pick.wait,
            branch: decision.pick.branch,
            detail: decision.pick.detail,
            policy: decision.policy,
            evidence: self.evidence(decision, has_events),
            trust: rank.map_or(Trust::NeverSeen, |rank| rank.status.brief().trust),
            query_blocks: self.found.contents.len() as u32,
            candidates_unknown: 0,
            held: Duration::ZERO,
            receipt: None,
        }
    }

    fn evidence(&self, decision: &Decision, has_events: bool) -> Evidence {
        match (has_events, decision.matched_blocks > 0) {
            _ if self.found.contents.is_empty() || self.found.busy => Evidence::LoadOnly,
            (true, _) if decision.predicted => Evidence::Predicted,
            (true, _) => Evidence::Index,
            (false, true) => Evidence::Approximate,
            (false, false) => Evidence::LoadOnly,
        }
    }

    /// What the chosen rank holds, by tier.
    fn matched(
        &self,
        state: &DeskState,
        decision: &Decision,
        has_events: bool,
    ) -> SmallVec<[(Tier, u32); Tier::COUNT]> {
        if !has_events {
            // A guess knows no tiers.
            return if decision.matched_blocks > 0 {
                smallvec![(Tier::Device, decision.matched_blocks)]
            } else {
                SmallVec::new()
            };
        }
        let slot = decision.pick.slot;
        if self.buffers.depths.ranks.get(slot as usize) != Some(&decision.rank) {
            return SmallVec::new();
        }
        state.seats.tiers(self.found.levels, Seat { slot, rank: decision.rank })
    }
}
