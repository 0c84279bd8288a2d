//! The service's own words into responses.

use super::facts::Waiting;
use super::proto;
use crate::fleet::{Feed, LogStatus, PushOutcome, PushVerdict, RankEntry, Registration, Veto, WorkerEntry};
use crate::ingest::{Engine, Trust, now_ms};
use crate::lanes::LaneHandle;
use crate::lease::LeasesStatus;
use crate::lookup::{Answer, Explained, Finding, FindingKind, Stop, Why};
use crate::replica::ProgressReport;
use crate::topology::{Pinned, ShardReport};
use kvatlas_index::{Granted, Tier};
use std::collections::HashMap;
use std::net::SocketAddr;

pub(super) fn trust(trust: Trust) -> proto::Trust {
    match trust {
        Trust::NeverSeen => proto::Trust::NeverSeen,
        Trust::Bootstrapping => proto::Trust::Bootstrapping,
        Trust::Exact => proto::Trust::Exact,
        Trust::Partial => proto::Trust::Partial,
        Trust::Degraded => proto::Trust::Degraded,
        Trust::Misconfigured => proto::Trust::Misconfigured,
    }
}

pub(super) fn veto(veto: Option<Veto>) -> proto::Veto {
    match veto {
        None => proto::Veto::Unspecified,
        Some(Veto::Unreachable) => proto::Veto::Unreachable,
        Some(Veto::Wedged) => proto::Veto::Wedged,
    }
}

pub(super) fn tier(tier: Tier) -> proto::Tier {
    match tier {
        Tier::Device => proto::Tier::Device,
        Tier::Host => proto::Tier::Host,
        Tier::Disk => proto::Tier::Disk,
        Tier::External => proto::Tier::External,
    }
}

/// A lookup's answer, in columns.
pub(super) fn lookup_response(answer: &Answer, with_positions: bool) -> proto::LookupResponse {
    let counts = answer.rank_counts();
    let mut response = proto::LookupResponse {
        block_size: answer.group.block_size,
        query_blocks: answer.query_blocks as u32,
        partial_tail_tokens: answer.tail_tokens as u32,
        truncated: answer.rows.len() < answer.rows_total,
        holders_total: answer.rows_total as u32,
        busy: answer.busy,
        ranks_total: answer.ranks().len() as u32,
        ranks_not_exact: counts.not_exact as u32,
        ranks_vetoed: counts.vetoed as u32,
        ..proto::LookupResponse::default()
    };
    // By generation: it names one registration of one worker.
    let mut places: HashMap<u64, u32> = HashMap::new();
    for row in &answer.rows {
        let Some(rank) = answer.rank(row) else { continue };
        let place = *places.entry(rank.generation).or_insert_with(|| {
            response.workers.push(rank.worker.to_string());
            response.workers.len() as u32 - 1
        });
        response.worker.push(place);
        response.rank.push(rank.rank);
        response.tier.push(tier(row.tier).into());
        response.matched_blocks.push(row.blocks);
        response.matched_tokens.push(answer.tokens(row));
        response.trust.push(trust(row.trust).into());
        response.upper_bound.push(row.upper_bound);
        if answer.vetoed_included {
            response.vetoed.push(row.vetoed);
        }
    }
    if with_positions {
        let now = now_ms();
        response.positions = answer.ranks().iter().map(|r| position(r, now)).collect();
    }
    response
}

fn position(rank: &RankEntry, now: u64) -> proto::RankPosition {
    let status = rank.status.full();
    proto::RankPosition {
        worker: rank.worker.to_string(),
        rank: rank.rank,
        cursor: status.cursor,
        last_event_age_ms: status.last_event_ms.map(|at| now.saturating_sub(at)),
        trust: trust(status.trust).into(),
        incarnation: status.incarnation,
    }
}

/// An explanation.
pub(super) fn explain_response(explained: &Explained) -> proto::ExplainResponse {
    proto::ExplainResponse {
        block_size: explained.block_size,
        query_blocks: explained.query_blocks as u32,
        partial_tail_tokens: explained.tail_tokens as u32,
        findings: explained.findings.iter().map(finding).collect(),
        ranks: explained.ranks.iter().map(|why| rank_explanation(why, explained.block_size)).collect(),
        truncated: explained.truncated,
    }
}

fn finding(finding: &Finding) -> proto::Finding {
    use proto::finding::Kind;
    let kind = match finding.kind {
        FindingKind::UnknownModel => Kind::UnknownModel,
        FindingKind::UnknownWorker => Kind::UnknownWorker,
        FindingKind::BlockSizeMismatch => Kind::BlockSizeMismatch,
        FindingKind::NamespaceMiss => Kind::NamespaceMiss,
        FindingKind::PromptTooShort => Kind::PromptTooShort,
        FindingKind::FirstBlockUnknown => Kind::FirstBlockUnknown,
        FindingKind::Invalid => Kind::Invalid,
    };
    proto::Finding { kind: kind.into(), message: finding.message.clone() }
}

fn rank_explanation(why: &Why, block_size: u32) -> proto::RankExplanation {
    use proto::rank_explanation::Stop as Wire;
    let stop = match why.stop {
        Stop::WholePrompt => Wire::WholePrompt,
        Stop::ContentUnknown => Wire::ContentUnknown,
        Stop::Vetoed(_) => Wire::Vetoed,
        Stop::NotHeld => Wire::NotHeld,
        Stop::Hole => Wire::Hole,
        Stop::Trust(Trust::NeverSeen) => Wire::NeverSeen,
        Stop::Trust(Trust::Bootstrapping) => Wire::Bootstrapping,
        Stop::Trust(Trust::Degraded) => Wire::Degraded,
        Stop::Trust(Trust::Misconfigured) => Wire::Misconfigured,
        Stop::Trust(Trust::Partial | Trust::Exact) => Wire::Partial,
    };
    let status = why.rank.status.full();
    proto::RankExplanation {
        worker: why.rank.worker.to_string(),
        rank: why.rank.rank,
        tier: tier(why.tier).into(),
        matched_blocks: why.matched_blocks,
        matched_tokens: u64::from(why.matched_blocks) * u64::from(block_size),
        stop: stop.into(),
        stopped_at_block: why.matched_blocks,
        message: why.message.clone(),
        trust: trust(status.trust).into(),
        trust_detail: status.detail.clone().unwrap_or_default(),
        upper_bound: status.upper_bound.unwrap_or_default().to_owned(),
        steps: why
            .steps
            .iter()
            .map(|s| proto::WalkStep {
                from_block: s.from,
                known_blocks: s.matched,
                held_blocks: s.held,
                holders: s.holders,
            })
            .collect(),
    }
}

/// The acknowledgement of a batch that the cursor saw.
pub(super) fn applied_ack(ack: proto::ApplyAck, outcome: &PushOutcome) -> proto::ApplyAck {
    use proto::apply_ack::Status;
    let applied = &outcome.applied;
    let status = match outcome.verdict {
        PushVerdict::Duplicate => Status::Duplicate,
        PushVerdict::Gap => Status::Gap,
        PushVerdict::Apply { .. } if applied.limit_reached > 0 => Status::LimitReached,
        PushVerdict::Apply { .. } => Status::Applied,
    };
    proto::ApplyAck {
        status: status.into(),
        cursor: outcome.cursor,
        expected_sequence: outcome.expected,
        trust: trust(outcome.trust).into(),
        stored: applied.stored + applied.moved,
        copies: applied.copies,
        removed: applied.removed,
        orphans: applied.orphans,
        unknown: applied.unknown_removals + applied.unknown_adoptions,
        cleared: applied.cleared,
        refused: applied.self_parent,
        ..ack
    }
}

/// The shared log.
pub(super) fn log_status(status: LogStatus) -> proto::LogStatus {
    let count = |(reason, count): (&str, u64)| proto::Counter { reason: reason.to_owned(), count };
    proto::LogStatus {
        server: status.server,
        connected: status.connected,
        detail: status.detail.unwrap_or_default(),
        ranks_writing: status.writing,
        ranks_standby: status.standby,
        ranks_reading: status.reading,
        counters: status.counters.into_iter().map(count).collect(),
    }
}

pub(super) fn lease_status(status: LeasesStatus) -> proto::LeaseStatus {
    let count = |(reason, count): (&str, u64)| proto::Counter { reason: reason.to_owned(), count };
    proto::LeaseStatus {
        store: status.store.name,
        connected: status.store.connected,
        detail: status.store.detail.unwrap_or_default(),
        watched: status.watched,
        swept: status.swept,
        counters: status.counters.into_iter().map(count).collect(),
    }
}

fn granted(granted: Granted) -> proto::Granted {
    match granted {
        Granted::NotAsked => proto::Granted::NotAsked,
        Granted::Yes => proto::Granted::Yes,
        Granted::Refused { .. } => proto::Granted::Refused,
    }
}

pub(super) fn shard_status(report: &ShardReport) -> proto::ShardStatus {
    proto::ShardStatus {
        shard: report.shard,
        memory_node: report.node,
        memory: granted(report.memory).into(),
        huge_pages: granted(report.huge_pages).into(),
        detail: report.detail.clone(),
    }
}

pub(super) fn lane_status(lane: &LaneHandle, ranks: u32) -> proto::LaneStatus {
    proto::LaneStatus {
        lane: lane.number(),
        shard: lane.shard(),
        place: Some(thread_place(lane.pinned())),
        ranks,
        queue_batches: lane.queue_len() as u64,
    }
}

pub(super) fn thread_place(pinned: Pinned) -> proto::ThreadPlace {
    let granted = match pinned {
        Pinned::NotAsked => proto::Granted::NotAsked,
        Pinned::Yes(_) => proto::Granted::Yes,
        Pinned::Refused(_) => proto::Granted::Refused,
    };
    let spot = pinned.spot();
    let (core, memory_node) = (spot.map(|s| s.core as u32), spot.and_then(|s| s.node));
    proto::ThreadPlace { pinned: granted.into(), core, memory_node }
}

/// What readiness waits for.
pub(super) fn waiting(waiting: &Waiting) -> proto::WaitingFor {
    let ranks = waiting.ranks.iter().map(|rank| proto::WaitingRank {
        worker: rank.worker.clone(),
        rank: rank.rank,
        trust: trust(rank.trust).into(),
        left_ms: rank.left.as_millis() as u64,
    });
    proto::WaitingFor { ranks: ranks.collect(), copy: waiting.copy }
}

/// The start from peers.
pub(super) fn copies(copies: &ProgressReport) -> proto::CopiesStatus {
    proto::CopiesStatus {
        asking: copies.asking.clone().unwrap_or_default(),
        copies: copies.passes,
        outcome: copies.outcome.map_or("", |outcome| outcome.name()).to_owned(),
        counters: counters(copies.counters.iter()),
    }
}

fn counters<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> Vec<proto::Counter> {
    counts.map(|(reason, count)| proto::Counter { reason: reason.to_owned(), count }).collect()
}

/// A worker as it is.
pub(super) fn worker_status(entry: &WorkerEntry, now: u64) -> proto::WorkerStatus {
    let vetoed = entry.veto.get();
    proto::WorkerStatus {
        spec: Some(worker_spec(&entry.registration)),
        generation: entry.generation,
        is_static: entry.is_static,
        ranks: entry.ranks.iter().map(|r| rank_status(r, now)).collect(),
        veto: veto(vetoed.map(|v| v.0)).into(),
        veto_since_unix_ms: vetoed.map(|v| v.1),
    }
}

pub(super) fn worker_spec(registration: &Registration) -> proto::WorkerSpec {
    let worker = &registration.worker;
    let ranks = registration.feeds().into_iter().map(|(rank, feed)| match feed {
        Feed::ZeroMq { events, replay } => {
            proto::RankSpec { rank, events_endpoint: events, replay_endpoint: replay.unwrap_or_default() }
        }
        Feed::Push => proto::RankSpec { rank, ..proto::RankSpec::default() },
    });
    let engine = match worker.engine {
        Engine::Auto => proto::Engine::Unspecified,
        Engine::Vllm => proto::Engine::Vllm,
        Engine::Sglang => proto::Engine::Sglang,
    };
    proto::WorkerSpec {
        id: worker.id.clone(),
        model: worker.model.clone(),
        routing_group: worker.routing_group.clone(),
        block_size: worker.block_size,
        engine: engine.into(),
        ranks: ranks.collect(),
        report_mode_full: worker.report_mode_full,
        topic: worker.topic.clone(),
        bigram: worker.bigram,
        hash_check_every: Some(worker.hash_check_every),
        hash_seed: worker.hash_seed.clone(),
        hash_scheme: worker.hash_scheme.setting().map(str::to_owned),
        snapshots: worker.snapshots.map(|dialect| dialect.setting().to_owned()),
        metrics: registration.metrics.as_ref().map(ToString::to_string),
        load_poll_ms: registration.metrics.as_ref().and_then(|m| m.every()).map(|every| every.as_millis() as u64),
    }
}

fn rank_status(rank: &RankEntry, now: u64) -> proto::RankStatus {
    let status = rank.status.full();
    let republished = rank.relay.wire().and_then(|wire| wire.addresses());
    let endpoint = |address: Option<SocketAddr>| address.map(|at| format!("tcp://{at}")).unwrap_or_default();
    proto::RankStatus {
        rank: rank.rank,
        trust: trust(status.trust).into(),
        detail: status.detail.clone().unwrap_or_default(),
        upper_bound: status.upper_bound.unwrap_or_default().to_owned(),
        incarnation: status.incarnation,
        cursor: status.cursor,
        connected: status.connected,
        last_event_age_ms: status.last_event_ms.map(|at| now.saturating_sub(at)),
        counters: counters(status.counters.iter().map(|(reason, count)| (*reason, *count))),
        lane: rank.lane.lane().number(),
        wire_events_endpoint: endpoint(republished.map(|r| r.events)),
        wire_replay_endpoint: endpoint(republished.map(|r| r.replay)),
    }
}
