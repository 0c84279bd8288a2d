//! The metrics of the workers' loads. A worker's series go with its registration.

use super::metrics::Series;
use crate::fleet::{FleetView, WorkerLoads};
use std::fmt;
use tokio::time::Instant;

/// Writes the loads of every worker of which anything came.
pub(super) fn encode(view: &FleetView, out: &mut Series<'_, '_>) -> fmt::Result {
    let now = Instant::now();
    let workers = view.workers().map(|w| (w.registration.worker.id.clone(), w.loads.get()));
    let workers: Vec<(String, WorkerLoads)> = workers.filter(|(_, loads)| !loads.counters.is_empty()).collect();
    let label = |worker: &str| [("worker", worker.to_owned())];
    let counters = workers.iter().flat_map(|(worker, loads)| {
        let labels = move |reason: &str| [("worker", worker.clone()), ("reason", reason.to_owned())];
        loads.counters.iter().map(move |(reason, count)| (labels(reason), *count))
    });
    let help = "Loads of the worker: taken by source, refused by field, polls that failed by kind";
    out.counters("worker_load_events", help, counters)?;
    let fresh = workers.iter().map(|(worker, loads)| (label(worker), loads.is_fresh(now).into()));
    out.gauges("worker_load_fresh", "Whether the worker's load is known now", fresh)?;
    let known: Vec<_> = workers.iter().filter_map(|(worker, loads)| Some((worker, loads.latest.as_ref()?))).collect();
    let age = known.iter().map(|(worker, (at, _, _))| (label(worker), now.duration_since(*at).as_millis() as u64));
    out.gauges("worker_load_age_milliseconds", "Time since the latest valid load came", age)?;
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    let running = known.iter().map(|(worker, (_, _, load))| (label(worker), count(load.running)));
    out.gauges("worker_requests_running", "Requests that the engine ran, by the latest valid load", running)?;
    let waiting = known.iter().map(|(worker, (_, _, load))| (label(worker), count(load.waiting)));
    out.gauges("worker_requests_waiting", "Requests that waited in the engine, by the latest valid load", waiting)?;
    let usage = known.iter().map(|(worker, (_, _, load))| (label(worker), load.usage));
    out.ratios("worker_kv_usage_ratio", "Mean share of the KV pools in use, by the latest valid load", usage)
}
