//! Metrics of routing. Labels are names of the code, so their number is bounded whatever callers ask.

use super::metrics::Series;
use crate::desks::Router;
use crate::routing::{DIFFERENCE_BOUNDS, DeskCounters, Refusal, ReleasedBy};
use std::fmt;

pub(super) fn encode(router: &Router, out: &mut Series<'_, '_>) -> fmt::Result {
    let totals = router.totals();
    out.times("select_seconds", "Time of a selection inside the service", &router.times().sum())?;
    out.gauge("desks", "Models and routing groups that requests are routed to", totals.desks as u64)?;
    out.gauge("reservations_open", "Reservations that are not released", totals.open as u64)?;
    encode_decisions(&totals.counters, out)?;
    encode_reservations(&totals.counters, out)?;
    encode_cached(&totals.counters, out)
}

fn encode_decisions(counters: &DeskCounters, out: &mut Series<'_, '_>) -> fmt::Result {
    let decisions = counters.decisions.iter().map(|((policy, branch, detail), count)| {
        ([("policy", policy.name()), ("reason", branch.name()), ("detail", *detail)], *count)
    });
    out.counters("decisions", "Requests placed, by policy and the way to the decision", decisions)?;
    let refused = Refusal::ALL.iter().zip(counters.refused).map(|(why, count)| ([("reason", why.name())], count));
    out.counters("decisions_refused", "Requests for which nobody was chosen, by reason", refused)?;
    let vetoed = "Requests placed although every ready worker was vetoed";
    out.counter("decisions_all_vetoed", vetoed, counters.all_vetoed)?;
    let overloaded = "Requests placed although every worker was overloaded";
    out.counter("overload_fallback", overloaded, counters.all_overloaded)
}

fn encode_reservations(counters: &DeskCounters, out: &mut Series<'_, '_>) -> fmt::Result {
    out.counter("reservations_made", "Reservations made", counters.booked)?;
    let full =
        "Requests placed without the reservation that was asked for, since routing.bookings.bookings_max was reached";
    out.counter("reservations_full", full, counters.book_full)?;
    let released = ReleasedBy::ALL.iter().zip(counters.released).map(|(by, count)| ([("by", by.name())], count));
    out.counters("reservations_released", "Reservations released, by what", released)?;
    let unknown = "Messages about reservations that were released before";
    out.counter("reservations_late", unknown, counters.unknown_bookings)
}

fn encode_cached(counters: &DeskCounters, out: &mut Series<'_, '_>) -> fmt::Result {
    let cached = &counters.cached;
    let tokens = [
        ([("what", "predicted")], cached.predicted),
        ([("what", "actual")], cached.actual),
        ([("what", "missing")], cached.missing),
        ([("what", "beyond")], cached.beyond),
    ];
    let help = "Cached tokens of requests whose end told them: predicted, found, predicted and not found, found and not predicted";
    out.counters("cached_tokens", help, tokens.into_iter())?;
    let bounds = DIFFERENCE_BOUNDS.iter().map(|bound| *bound as f64).chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(cached.differences).collect();
    let help = "Difference between predicted and found cached tokens of a request, in blocks";
    out.histogram("cached_difference_blocks", help, cached.difference_sum as f64, &buckets)
}
