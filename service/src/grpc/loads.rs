//! Loads between messages and the service's own words.

use super::error::ServiceError;
use super::proto;
use crate::desks::Router;
use crate::fleet::{FleetError, WorkerEntry};
use crate::routing::{RankLoad, WorkerState};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// A worker's load records.
pub(super) fn from_proto(loads: Vec<proto::RankLoad>) -> Vec<RankLoad> {
    let load = |load: proto::RankLoad| RankLoad {
        rank: load.rank,
        running: load.running,
        waiting: load.waiting,
        waiting_uncached_tokens: load.waiting_uncached_tokens,
        prefill_remaining_tokens: load.prefill_remaining_tokens,
        used_tokens: load.used_tokens,
        max_total_tokens: load.max_total_tokens,
        token_usage: load.token_usage,
        utilization: load.utilization,
        gen_throughput: load.gen_throughput,
        cache_hit_rate: load.cache_hit_rate,
        max_running: load.max_running,
    };
    loads.into_iter().map(load).collect()
}

/// The loads of a model's workers, of every model for an empty name. Takes time in proportion to the workers.
pub(super) fn loads(router: &Router, model: &str) -> Result<proto::GetLoadsResponse, ServiceError> {
    let view = router.fleet().view();
    if !model.is_empty() && !view.models().any(|is| is == model) {
        return Err(FleetError::UnknownModel { model: model.to_owned() }.into());
    }
    let wanted = view.workers().filter(|w| model.is_empty() || w.registration.worker.model == model);
    let mut workers: Vec<&Arc<WorkerEntry>> = wanted.collect();
    let place = |w: &WorkerEntry| {
        let spec = &w.registration.worker;
        (spec.model.clone(), spec.routing_group.clone())
    };
    workers.sort_by_cached_key(|w| (place(w), w.registration.worker.id.clone()));
    let mut response = proto::GetLoadsResponse::default();
    for group in workers.chunk_by(|a, b| place(a) == place(b)) {
        let (model, name) = place(group[0]);
        let states = router.states(&model, &name).into_iter().map(|state| (state.worker.clone(), state));
        let states: HashMap<Arc<str>, WorkerState> = states.collect();
        response.workers.extend(group.iter().map(|w| load(w, states.get(w.registration.worker.id.as_str()))));
    }
    Ok(response)
}

/// `state` is missing where the desk has not heard of the worker yet: it was registered this moment.
fn load(worker: &WorkerEntry, state: Option<&WorkerState>) -> proto::WorkerLoad {
    let spec = &worker.registration.worker;
    let known = worker.loads.get();
    let mut load = proto::WorkerLoad {
        worker: spec.id.clone(),
        model: spec.model.clone(),
        routing_group: spec.routing_group.clone(),
        ..proto::WorkerLoad::default()
    };
    if let Some((at, report, _)) = &known.latest {
        load.age_ms = Some(at.elapsed().as_millis() as u64);
        load.source = report.source.name().to_owned();
        load.ranks = report.ranks.iter().map(to_proto).collect();
    }
    load.fresh = known.is_fresh(Instant::now());
    if let Some(state) = state {
        (load.overloaded, load.warming) = (state.overloaded, state.warming);
        (load.in_flight, load.unrecorded_tokens) = (state.in_flight, state.unrecorded_tokens);
    }
    let counter = |(reason, count): (&str, u64)| proto::Counter { reason: reason.to_owned(), count };
    load.counters = known.counters.into_iter().map(counter).collect();
    load
}

fn to_proto(load: &RankLoad) -> proto::RankLoad {
    proto::RankLoad {
        rank: load.rank,
        running: load.running,
        waiting: load.waiting,
        waiting_uncached_tokens: load.waiting_uncached_tokens,
        prefill_remaining_tokens: load.prefill_remaining_tokens,
        used_tokens: load.used_tokens,
        max_total_tokens: load.max_total_tokens,
        token_usage: load.token_usage,
        utilization: load.utilization,
        gen_throughput: load.gen_throughput,
        cache_hit_rate: load.cache_hit_rate,
        max_running: load.max_running,
    }
}
