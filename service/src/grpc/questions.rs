//! Requests into the service's own words.

use super::error::ServiceError;
use super::limits::GrpcLimits;
use super::{proto, push_wire};
use crate::fleet::{MetricsSource, PushBatch, PushHeader, RankEntry, Registration};
use crate::ingest::{Engine, HashChoice, RankEndpoint, SnapshotDialectError, Trust, WorkerSpec};
use crate::lookup::{ItemText, NamespaceText, Prompt, Question, RankChoice, TierSet};
use crate::ops::Op;
use crate::wire::ContentHasher;
use kvatlas_index::{ContentHash, EngineHash, Residency, StoreKind, Tier};

/// A lookup's question.
pub(super) fn question(request: proto::LookupRequest) -> Result<Question, ServiceError> {
    if request.model.is_empty() {
        return Err(ServiceError::invalid("model", "required"));
    }
    let prompt = prompt(request.prompt, request.namespace)?
        .ok_or_else(|| ServiceError::invalid("prompt", "required: content_hashes or token_ids"))?;
    let tiers = request.tiers.iter().map(|t| named_tier("tiers", *t)).collect::<Result<Vec<_>, _>>()?;
    let residency = match proto::Residency::try_from(request.residency) {
        Ok(proto::Residency::Cumulative) => Residency::Cumulative,
        Ok(_) => Residency::PerTier,
        Err(_) => return Err(ServiceError::invalid("residency", format!("unknown value {}", request.residency))),
    };
    Ok(Question {
        model: request.model,
        routing_group: request.routing_group,
        prompt,
        holders: request.holders.into_iter().map(|h| RankChoice { worker: h.worker, rank: h.rank }).collect(),
        tiers: tiers.into_iter().collect::<TierSet>(),
        residency,
        max_holders: request.max_holders as usize,
        include_vetoed: request.include_vetoed,
    })
}

/// A prompt in its namespace, if there is one.
pub(super) fn prompt(
    prompt: Option<proto::lookup_request::Prompt>,
    of: Option<proto::Namespace>,
) -> Result<Option<Prompt>, ServiceError> {
    use proto::lookup_request::Prompt as Wire;
    let namespace = of.map(namespace).transpose()?.unwrap_or_default();
    Ok(match prompt {
        None => None,
        Some(Wire::ContentHashes(_)) if !namespace.is_base() => {
            return Err(ServiceError::invalid("namespace", "content_hashes contain the namespace already"));
        }
        Some(Wire::ContentHashes(hashes)) => Some(Prompt::ContentHashes(hashes.hashes)),
        Some(Wire::TokenIds(tokens)) => Some(Prompt::Tokens { ids: tokens.ids, namespace }),
    })
}

fn namespace(namespace: proto::Namespace) -> Result<NamespaceText, ServiceError> {
    let items = namespace.multimodal.into_iter().map(|item| {
        if item.identifier.is_empty() {
            return Err(ServiceError::invalid("namespace.multimodal.identifier", "required"));
        }
        Ok(ItemText {
            identifier: item.identifier,
            offset_tokens: item.offset_tokens as usize,
            length_tokens: item.length_tokens.max(1) as usize,
            at_offset: !item.without_offset,
        })
    });
    let items = items.collect::<Result<_, _>>()?;
    Ok(NamespaceText { lora_name: namespace.lora_name, cache_salt: namespace.cache_salt, items })
}

fn named_tier(field: &'static str, tier: i32) -> Result<Tier, ServiceError> {
    match proto::Tier::try_from(tier) {
        Ok(proto::Tier::Device) => Ok(Tier::Device),
        Ok(proto::Tier::Host) => Ok(Tier::Host),
        Ok(proto::Tier::Disk) => Ok(Tier::Disk),
        Ok(proto::Tier::External) => Ok(Tier::External),
        Ok(proto::Tier::Unspecified) | Err(_) => Err(ServiceError::invalid(field, format!("not a tier: {tier}"))),
    }
}

/// How far another replica believes a rank; `None`: it does not say.
pub(crate) fn trust_from_proto(trust: proto::Trust) -> Option<Trust> {
    Some(match trust {
        proto::Trust::Unspecified => return None,
        proto::Trust::NeverSeen => Trust::NeverSeen,
        proto::Trust::Bootstrapping => Trust::Bootstrapping,
        proto::Trust::Exact => Trust::Exact,
        proto::Trust::Partial => Trust::Partial,
        proto::Trust::Degraded => Trust::Degraded,
        proto::Trust::Misconfigured => Trust::Misconfigured,
    })
}

/// The tier of an event: absent is the device.
pub(super) fn event_tier(tier: i32) -> Result<Tier, ServiceError> {
    if tier == 0 { Ok(Tier::Device) } else { named_tier("events.tier", tier) }
}

/// A pushed batch's operations, for a rank's block size. Hashes tokens; takes time in proportion to them.
pub(crate) fn push_batch(
    rank: &RankEntry,
    batch: proto::EventBatch,
    limits: &GrpcLimits,
) -> Result<PushBatch, ServiceError> {
    let (len, limit) = (batch.events.len(), limits.events_per_batch_max);
    if len > limit {
        return Err(ServiceError::TooLong { field: "events", len, setting: "limits.events_per_batch_max", limit });
    }
    let words = push_wire::Words { rank: rank.rank, block_size: rank.block_size, mode: rank.mode };
    let payload = rank.relay.wire().and_then(|_| push_wire::payload(words, &batch));
    let header = PushHeader { sequence: batch.sequence, reset: batch.reset, lost_before: batch.lost_before };
    let mut ops = Vec::with_capacity(len);
    let mut item_blocks = 0;
    for event in batch.events {
        use proto::event::Event;
        match event.event {
            None => return Err(ServiceError::invalid("events.event", "required")),
            Some(Event::Stored(stored)) => ops.extend(stored_op(rank, stored, limits, &mut item_blocks)?),
            Some(Event::Removed(removed)) => {
                let names = names(removed.engine_hashes, limits)?;
                ops.push(Op::Remove { tier: event_tier(removed.tier)?, names });
            }
            Some(Event::CopiesLeft(left)) => {
                let (tier, name) = (event_tier(left.tier)?, EngineHash(left.engine_hash));
                ops.push(Op::SetCopies { tier, name, left: left.copies });
            }
            Some(Event::Cleared(cleared)) => {
                let tier = (cleared.tier != 0).then(|| event_tier(cleared.tier)).transpose()?;
                ops.push(Op::Clear { tier });
            }
        }
    }
    Ok(PushBatch { header, published_at: batch.published_at, ops, payload })
}

/// A store of no blocks is nothing.
fn stored_op(
    rank: &RankEntry,
    stored: proto::BlocksStored,
    limits: &GrpcLimits,
    item_blocks: &mut usize,
) -> Result<Option<Op>, ServiceError> {
    use proto::blocks_stored::Content;
    let tier = event_tier(stored.tier)?;
    let names = names(stored.engine_hashes, limits)?;
    let parent = stored.parent.map(EngineHash);
    let announced_again = stored.announced_again || rank.report_mode_full && parent.is_none();
    let kind = if announced_again { StoreKind::Announce } else { StoreKind::Copy };
    let namespace = stored.namespace.map(namespace).transpose()?.unwrap_or_default();
    if names.is_empty() {
        return match stored.content {
            Some(Content::TokenIds(tokens)) if !tokens.ids.is_empty() => {
                let reason = format!("{} tokens for 0 blocks", tokens.ids.len());
                Err(ServiceError::invalid("events.stored.token_ids", reason))
            }
            Some(Content::ContentHashes(hashes)) if !hashes.hashes.is_empty() => {
                let reason = format!("{} content hashes for 0 blocks", hashes.hashes.len());
                Err(ServiceError::invalid("events.stored.content_hashes", reason))
            }
            _ => Ok(None),
        };
    }
    let contents = match stored.content {
        None => return Ok(Some(Op::Adopt { tier, names })),
        Some(Content::ContentHashes(_)) if !namespace.is_base() => {
            return Err(ServiceError::invalid(
                "events.stored.namespace",
                "content_hashes contain the namespace already",
            ));
        }
        Some(Content::ContentHashes(hashes)) => hashes.hashes.into_iter().map(ContentHash).collect(),
        Some(Content::TokenIds(tokens)) => {
            *item_blocks = limits.items.check(&namespace, names.len(), rank.block_size, *item_blocks)?;
            store_contents(rank, parent.is_none(), names.len(), &tokens.ids, &namespace)?
        }
    };
    if contents.len() != names.len() {
        let reason = format!("{} content hashes for {} blocks", contents.len(), names.len());
        return Err(ServiceError::invalid("events.stored.content_hashes", reason));
    }
    Ok(Some(Op::Store { tier, parent, names, contents, kind }))
}

fn names(hashes: Vec<u64>, limits: &GrpcLimits) -> Result<Vec<EngineHash>, ServiceError> {
    let (len, limit) = (hashes.len(), limits.event_blocks_max);
    if len > limit {
        let (field, setting) = ("events.engine_hashes", "limits.event_blocks_max");
        return Err(ServiceError::TooLong { field, len, setting, limit });
    }
    Ok(hashes.into_iter().map(EngineHash).collect())
}

/// Content hashes of a store's tokens. The namespace seeds the chain's first block only: later blocks stand below it.
fn store_contents(
    rank: &RankEntry,
    at_root: bool,
    blocks: usize,
    ids: &[u32],
    namespace: &NamespaceText,
) -> Result<Vec<ContentHash>, ServiceError> {
    let block_size = rank.block_size as usize;
    // The unit at the end of a bigram block reaches into the next token.
    let tokens = (blocks - 1) * block_size + rank.mode.block_tokens(block_size);
    if ids.len() != tokens {
        let reason = format!("{} tokens for {blocks} blocks of {block_size}: {tokens} expected", ids.len());
        return Err(ServiceError::invalid("events.stored.token_ids", reason));
    }
    let mut contents = Vec::with_capacity(blocks);
    namespace.hash(ContentHasher::new(rank.mode, block_size), ids, at_root, &mut contents);
    Ok(contents)
}

/// A worker to register.
pub fn registration_from_proto(spec: proto::WorkerSpec) -> Result<Registration, ServiceError> {
    let engine = match proto::Engine::try_from(spec.engine) {
        Ok(proto::Engine::Unspecified) => Engine::Auto,
        Ok(proto::Engine::Vllm) => Engine::Vllm,
        Ok(proto::Engine::Sglang) => Engine::Sglang,
        Err(_) => return Err(ServiceError::invalid("worker.engine", format!("unknown value {}", spec.engine))),
    };
    let hash_scheme = HashChoice::from_setting(spec.hash_scheme.as_deref())
        .map_err(|error| ServiceError::invalid("worker.hash_scheme", error.to_string()))?;
    let snapshots = spec.snapshots.as_deref().map(str::parse).transpose();
    let snapshots = snapshots
        .map_err(|error: SnapshotDialectError| ServiceError::invalid("worker.snapshots", error.to_string()))?;
    let metrics = MetricsSource::from_setting(spec.metrics.as_deref(), spec.load_poll_ms).map_err(|error| {
        let field = if error.field() == "metrics" { "worker.metrics" } else { "worker.load_poll_ms" };
        ServiceError::invalid(field, error.to_string())
    })?;
    let mut pushed_ranks = Vec::new();
    let mut ranks = Vec::new();
    for rank in spec.ranks {
        if rank.events_endpoint.is_empty() {
            if !rank.replay_endpoint.is_empty() {
                let reason = "without an events_endpoint";
                return Err(ServiceError::invalid("worker.ranks.replay_endpoint", reason));
            }
            pushed_ranks.push(rank.rank);
        } else {
            let replay = (!rank.replay_endpoint.is_empty()).then_some(rank.replay_endpoint);
            ranks.push(RankEndpoint { rank: rank.rank, events: rank.events_endpoint, replay });
        }
    }
    if ranks.is_empty() && pushed_ranks.is_empty() {
        pushed_ranks.push(0);
    }
    // One specification has one form, however its ranks were listed.
    pushed_ranks.sort_unstable();
    ranks.sort_by_key(|r| r.rank);
    Ok(Registration {
        worker: WorkerSpec {
            id: spec.id,
            model: spec.model,
            routing_group: spec.routing_group,
            block_size: spec.block_size,
            engine,
            ranks,
            topic: spec.topic,
            report_mode_full: spec.report_mode_full,
            bigram: spec.bigram,
            hash_check_every: hash_scheme.every(spec.hash_check_every),
            hash_seed: spec.hash_seed,
            hash_scheme,
            snapshots,
        },
        pushed_ranks,
        metrics,
    })
}
