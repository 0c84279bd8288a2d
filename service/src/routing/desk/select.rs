//! A selection: candidates, the policy's pick, the booking. One call, so that nothing comes between them.

use super::Desk;
use super::bookings::Booking;
use super::words::{Ask, Decision, Refusal};
use crate::routing::candidates::{Gates, candidates};
use crate::routing::overlap::Overlap;
use crate::routing::policy::{News, PolicyName};
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Pick, View};
use std::time::Duration;

impl Desk {
    /// Chooses a worker and books it. Never blocks; allocates nothing once its buffers and book are warm, but what a trace keeps.
    ///
    /// `overlap` is what the index said of the prompt, by slot; it is made as long as the columns, and may be credited with guesses.
    pub fn select(
        &mut self,
        now: Duration,
        ask: &Ask<'_>,
        overlap: &mut Overlap,
        trace: &mut Trace,
    ) -> Result<Decision, Refusal> {
        overlap.blocks.resize(self.columns.len(), 0);
        if let Some(approximate) = &mut self.approximate {
            approximate.complete(now, ask.events, ask.request.contents, overlap);
        }
        let request = Request { booking: self.bookings.next_number(), ..ask.request };
        let chosen = self.choose(now, ask, &request, overlap, trace);
        let chosen = chosen.inspect_err(|refusal| self.counters.refused_for(*refusal))?;
        Ok(self.decided(now, ask, request, chosen, overlap))
    }

    fn choose(
        &mut self,
        now: Duration,
        ask: &Ask<'_>,
        request: &Request<'_>,
        overlap: &Overlap,
        trace: &mut Trace,
    ) -> Result<(Pick, Gates), Refusal> {
        let shed = self.settings.overload.shed;
        let gates = candidates(&self.columns, now, ask.only, shed, &mut self.rng, &mut self.candidates)?;
        let view = View {
            now,
            columns: &self.columns,
            candidates: &self.candidates,
            overlap,
            settings: &self.settings,
            routers: self.routers,
        };
        let name = ask.policy.unwrap_or(self.settings.policy);
        if name.prefers_holders()
            && let Some(pick) = self.warmup.divert(&view, request, &mut self.rng, trace)
        {
            return Ok((pick, gates));
        }
        let pick = self.policies.get(name).pick(&view, request, &mut self.rng, trace);
        Ok((pick.ok_or(Refusal::AllCapped)?, gates))
    }

    fn decided(
        &mut self,
        now: Duration,
        ask: &Ask<'_>,
        request: Request<'_>,
        (pick, gates): (Pick, Gates),
        overlap: &Overlap,
    ) -> Decision {
        let slot = pick.slot;
        let matched_blocks = overlap.blocks[slot as usize];
        let policy = ask.policy.unwrap_or(self.settings.policy);
        let is_known = request.blocks() > 0 || request.tokens.is_some();
        let predicted_tokens = is_known.then(|| request.cached_tokens(matched_blocks));
        let tokens = request.tokens_or(self.settings.load.mean_prefill()) as u64;
        let booking = Booking {
            number: request.booking,
            slot,
            rank: self.workers.choose_rank(slot, ask),
            dispatched_at: now,
            touched_at: now,
            tokens,
            prompt_tokens: request.tokens,
            predicted_tokens,
            prefill: self.prefill(tokens.saturating_sub(predicted_tokens.unwrap_or(0))),
            begun: false,
            watched: self.callers_speak,
        };
        let open = self.bookings.len().saturating_add(ask.others_open);
        let book_full = ask.book && open >= self.settings.bookings.bookings_max;
        let books = ask.book && !book_full;
        if books {
            self.book(booking, request, matched_blocks);
        }
        self.count(policy, &pick, gates, book_full);
        Decision {
            pick,
            worker: self.workers.name(slot),
            generation: self.workers.generation(slot),
            rank: booking.rank,
            booking: if books { booking.number } else { 0 },
            book_full,
            matched_blocks,
            predicted_tokens,
            approximate: overlap.approximate,
            predicted: overlap.predicted && matched_blocks > overlap.confirmed(slot),
            watched_prefill: (books && booking.watched).then_some(booking.prefill),
            policy,
            gates,
        }
    }

    fn book(&mut self, booking: Booking, request: Request<'_>, blocks: u32) {
        let Booking { slot, rank, dispatched_at, tokens, .. } = booking;
        self.bookings.take_number();
        self.columns.dispatched(dispatched_at, slot, tokens, &self.settings.load);
        self.workers.dispatched(slot, rank);
        self.bookings.open(booking);
        self.counters.booked += 1;
        self.tell(dispatched_at, News::Dispatched { request, slot, blocks });
    }

    /// The time that so many tokens take to compute, as long as nothing better is known of the engine.
    fn prefill(&self, tokens: u64) -> Duration {
        let seconds = self.settings.credit.seconds(tokens as f64);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
    }

    fn count(&mut self, policy: PolicyName, pick: &Pick, gates: Gates, book_full: bool) {
        let labels = (policy, pick.branch, pick.detail.unwrap_or_default());
        *self.counters.decisions.entry(labels).or_default() += 1;
        self.counters.all_vetoed += u64::from(gates.all_vetoed);
        self.counters.all_overloaded += u64::from(gates.all_overloaded);
        self.counters.book_full += u64::from(book_full);
    }
}
