//! `kvatlas workers` and `kvatlas status`.

use crate::client::{ANSWER_BYTES_MAX, ClientArgs, age, figure, refused, table, trust_name};
use clap::Args;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::index_service_client::IndexServiceClient;
use kvatlas_service::grpc::proto::worker_service_client::WorkerServiceClient;
use serde_json::{Map, json};
use std::error::Error;

#[derive(Args)]
pub(crate) struct WorkersArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only this model.
    #[arg(long, default_value = "")]
    model: String,
    /// Only this worker.
    #[arg(long, default_value = "")]
    worker: String,
}

#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) async fn workers(args: WorkersArgs) -> Result<(), Box<dyn Error>> {
    let mut client = WorkerServiceClient::new(args.client.channel().await?).max_decoding_message_size(ANSWER_BYTES_MAX);
    let request = proto::ListRequest { model: args.model, worker: args.worker };
    let answer = client.list(request).await.map_err(refused)?.into_inner();
    if args.client.json {
        let workers: Vec<_> = answer.workers.iter().map(worker_json).collect();
        println!("{:#}", json!({ "workers": workers }));
        return Ok(());
    }
    let mut rows = table(&[
        "worker",
        "model",
        "group",
        "block",
        "rank",
        "trust",
        "veto",
        "cursor",
        "newest event",
        "hashes",
        "detail",
    ]);
    for worker in &answer.workers {
        let spec = worker.spec.clone().unwrap_or_default();
        for rank in &worker.ranks {
            let cursor = rank.cursor.map_or_else(|| "-".to_owned(), |c| c.to_string());
            let detail = [rank.detail.as_str(), rank.upper_bound.as_str()].join(" ");
            rows.add_row([
                spec.id.as_str().into(),
                spec.model.as_str().into(),
                spec.routing_group.as_str().into(),
                figure(spec.block_size),
                figure(rank.rank),
                trust_name(rank.trust).into(),
                veto(worker).unwrap_or("-").into(),
                figure(cursor),
                figure(age(rank.last_event_age_ms)),
                hashes(rank).into(),
                detail.trim().into(),
            ]);
        }
    }
    println!("{rows}");
    println!("{} workers", answer.workers.len());
    Ok(())
}

/// Why a worker is left out of answers.
fn veto(worker: &proto::WorkerStatus) -> Option<&'static str> {
    match worker.veto() {
        proto::Veto::Unspecified => None,
        veto => Some(veto.as_str_name().trim_start_matches("VETO_")),
    }
}

/// What the sampled hash check found, in a table's cell; `-` if nothing was checked.
fn hashes(rank: &proto::RankStatus) -> String {
    let count = |reason| rank.counters.iter().find(|c| c.reason == reason).map_or(0, |c| c.count);
    match (count("hash_match"), count("hash_mismatch"), count("hash_unverifiable")) {
        (0, 0, 0) => "-".to_owned(),
        (0, 0, unverifiable) => format!("{unverifiable} unverifiable"),
        (agree, 0, _) => format!("{agree} agree"),
        (agree, differ, _) => format!("!! {differ} of {} differ", agree.saturating_add(differ)),
    }
}

fn worker_json(worker: &proto::WorkerStatus) -> serde_json::Value {
    let spec = worker.spec.clone().unwrap_or_default();
    let ranks = worker.ranks.iter().map(|rank| {
        let counters: Map<_, _> = rank.counters.iter().map(|c| (c.reason.clone(), c.count.into())).collect();
        let endpoint = spec.ranks.iter().find(|r| r.rank == rank.rank).cloned().unwrap_or_default();
        json!({
            "rank": rank.rank, "trust": trust_name(rank.trust), "detail": rank.detail, "upper_bound": rank.upper_bound,
            "incarnation": rank.incarnation, "cursor": rank.cursor, "connected": rank.connected,
            "last_event_age_ms": rank.last_event_age_ms, "counters": counters, "lane": rank.lane,
            "events_endpoint": endpoint.events_endpoint, "replay_endpoint": endpoint.replay_endpoint,
            "wire_events_endpoint": rank.wire_events_endpoint, "wire_replay_endpoint": rank.wire_replay_endpoint,
        })
    });
    json!({
        "id": spec.id, "model": spec.model, "routing_group": spec.routing_group, "block_size": spec.block_size,
        "hash_scheme": spec.hash_scheme, "hash_check_every": spec.hash_check_every,
        "snapshots": spec.snapshots,
        "metrics": spec.metrics,
        "load_poll_ms": spec.load_poll_ms,
        "generation": worker.generation, "static": worker.is_static,
        "veto": veto(worker), "veto_since_unix_ms": worker.veto_since_unix_ms, "ranks": ranks.collect::<Vec<_>>(),
    })
}

pub(crate) async fn status(args: StatusArgs) -> Result<(), Box<dyn Error>> {
    let mut client = IndexServiceClient::new(args.client.channel().await?);
    let status = client.get_status(proto::GetStatusRequest {}).await.map_err(refused)?.into_inner();
    let by_trust = status.ranks_by_trust.iter().map(|t| (trust_name(t.trust), t.ranks));
    if args.client.json {
        let by_trust: Map<_, _> = by_trust.map(|(name, ranks)| (name.to_owned(), ranks.into())).collect();
        let value = json!({
            "version": status.version, "uptime_ms": status.uptime_ms, "ready": status.ready, "draining": status.draining,
            "workers": status.workers, "ranks": status.ranks, "ranks_by_trust": by_trust, "lanes": status.lanes,
            "blocks_held": status.blocks_held, "blocks_distinct": status.blocks_distinct,
            "blocks_parked": status.blocks_parked, "bytes_live": status.bytes_live, "bytes_free": status.bytes_free,
            "lookups": status.lookups, "batches_applied": status.batches_applied,
            "waiting_for": waiting_json(&status), "copies": status.copies.as_ref().map(copies_json),
            "topology_source": status.topology_source, "memory_nodes": status.memory_nodes,
            "shards": status.shards.iter().map(shard_json).collect::<Vec<_>>(),
            "lane_threads": status.lane_threads.iter().map(lane_json).collect::<Vec<_>>(),
            "log": status.log.as_ref().map(log_json),
            "lookup_threads": status.lookup_threads.iter().map(place_json).collect::<Vec<_>>(),
        });
        println!("{value:#}");
        return Ok(());
    }
    let state = match (status.draining, status.ready) {
        (true, _) => "draining",
        (false, true) => "ready",
        (false, false) => "not ready",
    };
    let trust: Vec<_> = by_trust.map(|(name, ranks)| format!("{ranks} {name}")).collect();
    let mut rows = table(&["what", "figure"]);
    let lines = [
        ("version", status.version.clone()),
        ("state", state.to_owned()),
        ("uptime", format!("{:.1} s", status.uptime_ms as f64 / 1000.0)),
        ("workers", status.workers.to_string()),
        ("ranks", format!("{} ({})", status.ranks, trust.join(", "))),
        ("lanes", status.lanes.to_string()),
        ("memberships", status.blocks_held.to_string()),
        ("distinct blocks", status.blocks_distinct.to_string()),
        ("parked blocks", status.blocks_parked.to_string()),
        ("index bytes", format!("{} in use, {} free", status.bytes_live, status.bytes_free)),
        ("lookups", status.lookups.to_string()),
        ("batches applied", status.batches_applied.to_string()),
        ("memory nodes", format!("{} ({})", status.memory_nodes, status.topology_source)),
        ("other replicas", status.copies.as_ref().map_or_else(|| "-".to_owned(), copies_text)),
    ];
    let log = status.log.as_ref().map(|log| ("shared log", log_line(log)));
    for (what, value) in lines.into_iter().chain(log) {
        rows.add_row([what.into(), figure(value)]);
    }
    println!("{rows}");
    print_waiting(&status);
    print_places(&status);
    Ok(())
}

/// The ranks that readiness waits for.
fn print_waiting(status: &proto::GetStatusResponse) {
    let Some(waiting) = &status.waiting_for else { return };
    if waiting.copy {
        println!("waiting for the first copy of another replica");
    }
    if waiting.ranks.is_empty() {
        return;
    }
    let mut rows = table(&["waiting for", "rank", "trust", "at most"]);
    for rank in &waiting.ranks {
        let left = format!("{:.1} s", rank.left_ms as f64 / 1000.0);
        rows.add_row([rank.worker.as_str().into(), figure(rank.rank), trust_name(rank.trust).into(), figure(left)]);
    }
    println!("{rows}");
}

fn waiting_json(status: &proto::GetStatusResponse) -> serde_json::Value {
    let waiting = status.waiting_for.clone().unwrap_or_default();
    let rank = |rank: &proto::WaitingRank| {
        json!({
            "worker": rank.worker, "rank": rank.rank, "trust": trust_name(rank.trust), "left_ms": rank.left_ms,
        })
    };
    json!({ "copy": waiting.copy, "ranks": waiting.ranks.iter().map(rank).collect::<Vec<_>>() })
}

/// How far the start from other replicas is.
fn copies_text(copies: &proto::CopiesStatus) -> String {
    let count = |reason| copies.counters.iter().find(|c| c.reason == reason).map_or(0, |c| c.count);
    let told = format!("{} copies, {} ranks offered", copies.copies, count("ranks_offered"));
    match (copies.outcome.as_str(), copies.asking.as_str()) {
        ("", "") => format!("{told}; pausing"),
        ("", asking) => format!("{told}; asking {asking}"),
        (outcome, _) => format!("{told}; over: {outcome}"),
    }
}

fn copies_json(copies: &proto::CopiesStatus) -> serde_json::Value {
    let counters: Map<_, _> = copies.counters.iter().map(|c| (c.reason.clone(), c.count.into())).collect();
    json!({ "asking": copies.asking, "copies": copies.copies, "outcome": copies.outcome, "counters": counters })
}

/// The shared log in one line; the counters are in `--json` and the metrics.
fn log_line(log: &proto::LogStatus) -> String {
    let state = match (log.connected, log.detail.as_str()) {
        (true, _) => "connected",
        (false, "") => "not connected yet",
        (false, detail) => &format!("!! {detail}"),
    };
    let (writing, standby, reading) = (log.ranks_writing, log.ranks_standby, log.ranks_reading);
    format!("{}: {state}; {writing} ranks written, {standby} standing by, {reading} read", log.server)
}

fn log_json(log: &proto::LogStatus) -> serde_json::Value {
    let counters: Map<_, _> = log.counters.iter().map(|c| (c.reason.clone(), c.count.into())).collect();
    json!({
        "server": log.server, "connected": log.connected, "detail": log.detail, "ranks_writing": log.ranks_writing,
        "ranks_standby": log.ranks_standby, "ranks_reading": log.ranks_reading, "counters": counters,
    })
}

/// Where shards, lanes and lookup threads are, and which wishes the system refused.
fn print_places(status: &proto::GetStatusResponse) {
    let mut rows = table(&["place", "node", "core", "granted", "ranks", "detail"]);
    for s in &status.shards {
        let granted = format!("memory {}, huge pages {}", granted_name(s.memory), granted_name(s.huge_pages));
        let marked = if is_refused(s.memory) || is_refused(s.huge_pages) { "!! " } else { "" };
        rows.add_row([
            format!("shard {}", s.shard).into(),
            figure(number(s.memory_node)),
            figure("-"),
            granted.into(),
            figure("-"),
            format!("{marked}{}", s.detail).into(),
        ]);
    }
    for l in &status.lane_threads {
        let place = l.place.unwrap_or_default();
        let marked = if is_refused(place.pinned) { "!! not pinned" } else { "" };
        rows.add_row([
            format!("lane {} of shard {}", l.lane, l.shard).into(),
            figure(number(place.memory_node)),
            figure(number(place.core)),
            format!("pin {}", granted_name(place.pinned)).into(),
            figure(l.ranks),
            marked.into(),
        ]);
    }
    for place in &status.lookup_threads {
        let marked = if is_refused(place.pinned) { "!! not pinned" } else { "" };
        rows.add_row([
            "lookup thread".into(),
            figure(number(place.memory_node)),
            figure(number(place.core)),
            format!("pin {}", granted_name(place.pinned)).into(),
            figure("-"),
            marked.into(),
        ]);
    }
    println!("{rows}");
}

fn number(value: Option<u32>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

fn is_refused(granted: i32) -> bool {
    granted == i32::from(proto::Granted::Refused)
}

fn granted_name(granted: i32) -> &'static str {
    match proto::Granted::try_from(granted) {
        Ok(proto::Granted::NotAsked) => "not asked for",
        Ok(proto::Granted::Yes) => "granted",
        Ok(proto::Granted::Refused) => "REFUSED",
        Ok(proto::Granted::Unspecified) | Err(_) => "unknown",
    }
}

fn shard_json(shard: &proto::ShardStatus) -> serde_json::Value {
    json!({
        "shard": shard.shard, "memory_node": shard.memory_node, "memory": granted_name(shard.memory),
        "huge_pages": granted_name(shard.huge_pages), "detail": shard.detail,
    })
}

fn lane_json(lane: &proto::LaneStatus) -> serde_json::Value {
    json!({
        "lane": lane.lane, "shard": lane.shard, "ranks": lane.ranks, "queue_batches": lane.queue_batches,
        "place": place_json(&lane.place.unwrap_or_default()),
    })
}

fn place_json(place: &proto::ThreadPlace) -> serde_json::Value {
    json!({ "pinned": granted_name(place.pinned), "core": place.core, "memory_node": place.memory_node })
}

#[cfg(test)]
mod tests {
    use super::{copies_text, hashes, proto};

    #[test]
    fn a_start_from_other_replicas_is_one_line() {
        let counters = vec![proto::Counter { reason: "ranks_offered".into(), count: 7 }];
        let copies = proto::CopiesStatus { copies: 1, counters, ..proto::CopiesStatus::default() };
        assert_eq!(copies_text(&copies), "1 copies, 7 ranks offered; pausing");
        let asking = proto::CopiesStatus { asking: "http://h:1".into(), ..copies.clone() };
        assert_eq!(copies_text(&asking), "1 copies, 7 ranks offered; asking http://h:1");
        let over = proto::CopiesStatus { outcome: "complete".into(), ..copies };
        assert_eq!(copies_text(&over), "1 copies, 7 ranks offered; over: complete");
    }

    #[test]
    fn differing_hashes_are_marked() {
        let cell = |counts: [u64; 3]| {
            let reasons = ["hash_match", "hash_mismatch", "hash_unverifiable"];
            let counters = reasons.iter().zip(counts).filter(|(_, count)| *count > 0);
            let counters = counters.map(|(reason, count)| proto::Counter { reason: (*reason).into(), count }).collect();
            hashes(&proto::RankStatus { counters, ..proto::RankStatus::default() })
        };
        assert_eq!(cell([0, 0, 0]), "-");
        assert_eq!(cell([7, 0, 2]), "7 agree");
        assert_eq!(cell([0, 0, 2]), "2 unverifiable");
        assert_eq!(cell([7, 3, 2]), "!! 3 of 10 differ");
    }
}
