//! Which of several holders: the best by score, or one drawn by score.
//!
//! All of them hold equally much, so that by itself everybody's score is 1. Queued work takes from it, where that is set: it is divided
//! by `1 + overlap_decay · x`, `x` being the queued tokens beyond those of the least busy holder, in prompts of this one's length. A worker
//! of which nothing is known loses nothing.

use crate::routing::columns::Slot;
use crate::routing::gate::CountGate;
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::View;
use rand::{Rng, RngExt};

/// Memory of a choice, kept from one to the next.
#[derive(Debug, Default)]
pub(super) struct Choice {
    scored: Vec<(Slot, f64)>,
    weights: Vec<f64>,
    tied: Vec<Slot>,
}

impl Choice {
    /// Chooses among those holders that the gate lets through; whether there are any. Then the expected wait decides among
    /// [`Choice::tied`].
    pub fn best(
        &mut self,
        view: &View<'_>,
        request: &Request<'_>,
        holders: &[Slot],
        gate: &CountGate,
        rng: &mut dyn Rng,
        trace: &mut Trace,
    ) -> bool {
        self.tied.clear();
        let settings = &view.settings.cache_aware;
        let (decay, temperature) = (setting(settings.overlap_decay), setting(settings.selection_temperature));
        if decay == 0.0 {
            // Equal scores: as good as each other, and drawn as likely as each other.
            self.tied.extend(holders.iter().copied().filter(|slot| !gate.gates(view, *slot)));
            if temperature > 0.0 && !self.tied.is_empty() {
                self.keep(rng.random_range(0..self.tied.len()));
            }
            return !self.tied.is_empty();
        }
        self.score(view, request, holders, decay, trace);
        let (least, most) = bounds(&self.scored);
        self.scored.retain(|(slot, _)| !gate.gates(view, *slot));
        if temperature > 0.0 {
            self.tied.extend(self.scored.iter().map(|(slot, _)| *slot));
            if let Some(place) = self.draw(least, most, temperature, rng) {
                self.keep(place);
            }
        } else {
            let (_, most) = bounds(&self.scored);
            let best = self.scored.iter().filter(|(_, score)| *score >= most);
            self.tied.extend(best.map(|(slot, _)| *slot));
        }
        !self.tied.is_empty()
    }

    /// Who is left.
    pub fn tied(&self) -> &[Slot] {
        &self.tied
    }

    fn keep(&mut self, place: usize) {
        let kept = self.tied[place];
        self.tied.clear();
        self.tied.push(kept);
    }

    fn score(&mut self, view: &View<'_>, request: &Request<'_>, holders: &[Slot], decay: f64, trace: &mut Trace) {
        let queued = |slot: Slot| (!view.is_dark(slot)).then(|| view.columns.queued[slot as usize]);
        let least = holders.iter().filter_map(|slot| queued(*slot)).fold(f64::INFINITY, f64::min);
        let prompt = f64::from(request.block_size.max(1)) * f64::from(request.blocks().max(1));
        self.scored.clear();
        for slot in holders.iter().copied() {
            let ahead = queued(slot).map_or(0.0, |queued| (queued - least) / prompt);
            let score = 1.0 / (1.0 + decay * ahead);
            trace.note(slot, "score", score);
            self.scored.push((slot, score));
        }
    }

    /// A place drawn by `exp(((score − least) / (most − least) − 1) / temperature)`; every one as likely where all scores are equal.
    fn draw(&mut self, least: f64, most: f64, temperature: f64, rng: &mut dyn Rng) -> Option<usize> {
        let range = most - least;
        let weight = |score: f64| if range > 0.0 { (((score - least) / range - 1.0) / temperature).exp() } else { 1.0 };
        self.weights.clear();
        self.weights.extend(self.scored.iter().map(|(_, score)| weight(*score)));
        let sum: f64 = self.weights.iter().sum();
        let mut left = rng.random_range(0.0..1.0) * sum;
        let drawn = self.weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        // Rounding may leave nothing for the last one, and a low temperature no weight for anybody but the one that is gated.
        drawn.or_else(|| self.best_place())
    }

    fn best_place(&self) -> Option<usize> {
        let scores = self.scored.iter().map(|(_, score)| *score).enumerate();
        scores.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place)
    }
}

/// A setting that is off where it is no positive number.
fn setting(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

fn bounds(scored: &[(Slot, f64)]) -> (f64, f64) {
    let scores = || scored.iter().map(|(_, score)| *score);
    (scores().fold(f64::INFINITY, f64::min), scores().fold(f64::NEG_INFINITY, f64::max))
}
