//! The ranks of one worker on the engines' own wire.

use super::view::WorkerEntry;
use crate::republish::{Rank, WireSettings, serve};
use tokio_util::sync::CancellationToken;

/// Serves every rank of a worker that a rule is for, until `stop` is cancelled. Their sockets are bound when this returns, unless
/// the system refused that: then it is tried again.
pub(super) async fn republish(entry: &WorkerEntry, settings: &WireSettings, stop: &CancellationToken) {
    let worker = &entry.registration.worker;
    let Some(rule) = settings.rule(&worker.id) else { return };
    for rank in &entry.ranks {
        let Some(log) = rank.relay.wire() else { continue };
        let name = format!("{} rank {}", worker.id, rank.rank);
        let Some(ports) = rule.ports(rank.rank) else {
            tracing::error!(rank = %name, "not republished: a port beyond 65535");
            continue;
        };
        let topic = rule.topic_of(&worker.id, &worker.model);
        let rank = Rank::new(name, log.clone(), rule.host, ports, topic, rule.layout);
        serve(rank, settings.limits, stop.clone()).await;
    }
}
