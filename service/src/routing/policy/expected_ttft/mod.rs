//! `expected_ttft`: the worker with the least price in seconds of the engine's own timing.
//!
//! ```text
//! own    = kp·u + ka·u·(cached + u/2) + passes·base      u = max(1, tokens − cached)
//! infl   = 1 + (base + kd·decodes + kc·context) / (kp·budget)
//! score  = backlog + own·infl + beta·own + memory
//! memory = residence · max(0, booked + tokens + output − share·pool) / booked
//! ```
//!
//! The backlog is a busy-until clock of what was dispatched from here, or what the worker reports and dispatches that the report
//! cannot contain; of a worker whose load is not known the clock alone. Without a calibration the expected wait decides.

mod book;
mod clock;
#[cfg(test)]
mod tests;

use super::{News, Policy, PolicyName};
use crate::routing::columns::Slot;
use crate::routing::hold::Prices;
use crate::routing::request::Request;
use crate::routing::settings::Timing;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use crate::routing::wait::{Waits, least, tie_width};
use book::{Book, Figures};
use rand::Rng;
use std::time::Duration;

/// The policy, and what it remembers of each worker.
#[derive(Debug, Default)]
pub struct ExpectedTtft {
    book: Book,
    /// Of the decision at hand, by candidate.
    scores: Vec<f64>,
    waits: Waits,
}

impl ExpectedTtft {
    /// The prices of the moment, for prompts in blocks of so many tokens. `None`: there is no calibration, or none that makes sense.
    /// Allocates nothing once it has seen the fleet.
    pub fn prices<'a>(&'a mut self, view: &'a View<'a>, block_size: u32) -> Option<TtftPrices<'a>> {
        let timing = self.book.ready(view)?;
        Some(TtftPrices::new(view, timing, self.book.figures(), block_size))
    }
}

impl Policy for ExpectedTtft {
    fn name(&self) -> PolicyName {
        PolicyName::ExpectedTtft
    }

    fn pick(&mut self, view: &View<'_>, request: &Request<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick> {
        let Self { book, scores, waits } = self;
        let Some(timing) = book.ready(view) else {
            return waits.choose(view, view.candidates, Branch::MinWait, rng, trace);
        };
        let prices = TtftPrices::new(view, timing, book.figures(), request.block_size);
        let tokens = prices.tokens(request.tokens);
        // Whoever holds nothing has the same work, and holders mostly hold the same: what a price takes is one product and sums.
        let mut work = (0, prices.own(tokens, 0));
        let miss = work.1;
        scores.clear();
        for slot in view.candidates {
            let blocks = view.overlap.blocks[*slot as usize];
            if blocks > 0 && blocks != work.0 {
                work = (blocks, prices.own(tokens, blocks));
            }
            let own = if blocks == 0 { miss } else { work.1 };
            scores.push(prices.price(*slot, own, tokens));
            if trace.is_on() {
                prices.note(*slot, own, tokens, trace);
            }
        }
        let place = least(scores, |least| tie_width(view, least), rng)?;
        let slot = view.candidates[place];
        Some(Pick { wait: Some(prices.backlog(slot)), ..Pick::new(slot, Branch::ExpectedTtft) })
    }

    fn news(&mut self, view: &View<'_>, now: Duration, news: News<'_>) {
        self.book.news(view, now, news);
    }
}

/// What everything costs at one moment.
#[derive(Clone, Copy, Debug)]
pub struct TtftPrices<'a> {
    view: &'a View<'a>,
    timing: Timing,
    figures: &'a [Figures],
    block_size: u32,
    now: f64,
    routers: f64,
    beta: f64,
    output: f64,
    reported: bool,
}

impl<'a> TtftPrices<'a> {
    fn new(view: &'a View<'a>, timing: Timing, figures: &'a [Figures], block_size: u32) -> Self {
        let settings = &view.settings.expected_ttft;
        Self {
            view,
            timing,
            figures,
            block_size,
            now: view.now.as_secs_f64(),
            routers: f64::from(view.routers.max(1)),
            beta: settings.beta,
            output: settings.mean_output_tokens,
            reported: settings.use_reported_work,
        }
    }

    fn tokens(&self, tokens: Option<u64>) -> f64 {
        tokens.map_or(self.view.settings.load.mean_prefill(), |tokens| tokens as f64)
    }

    /// Seconds that an idle engine takes for a prompt that has so many leading blocks cached.
    fn own(&self, tokens: f64, blocks: u32) -> f64 {
        let cached = f64::from(blocks) * f64::from(self.block_size);
        self.timing.prefill_seconds(tokens, cached.min(tokens))
    }

    #[inline]
    fn backlog_of(&self, slot: Slot, figures: &Figures) -> f64 {
        if self.reported && !self.view.is_dark(slot) {
            // What other routers do without telling is taken to be what this one does.
            (figures.reported_until - self.now).max(0.0) + figures.unrecorded * self.routers
        } else {
            (figures.clock_until - self.now).max(0.0)
        }
    }

    #[inline]
    fn memory(&self, figures: &Figures, tokens: f64) -> f64 {
        (figures.memory_base + figures.memory_slope * (tokens + self.output)).max(0.0)
    }

    #[inline]
    fn price(&self, slot: Slot, own: f64, tokens: f64) -> f64 {
        let figures = &self.figures[slot as usize];
        self.backlog_of(slot, figures) + own * (figures.inflation + self.beta) + self.memory(figures, tokens)
    }

    fn note(&self, slot: Slot, own: f64, tokens: f64, trace: &mut Trace) {
        let figures = &self.figures[slot as usize];
        trace.note(slot, "backlog", self.backlog_of(slot, figures));
        trace.note(slot, "own", own);
        trace.note(slot, "inflation", figures.inflation);
        trace.note(slot, "memory", self.memory(figures, tokens));
        trace.note(slot, "score", self.price(slot, own, tokens));
    }
}

impl Prices for TtftPrices<'_> {
    fn backlog(&self, slot: Slot) -> f64 {
        self.backlog_of(slot, &self.figures[slot as usize])
    }

    fn score(&self, tokens: Option<u64>, blocks: u32, slot: Slot) -> f64 {
        let tokens = self.tokens(tokens);
        self.price(slot, self.own(tokens, blocks), tokens)
    }

    fn width(&self, least: f64) -> f64 {
        tie_width(self.view, least)
    }
}
