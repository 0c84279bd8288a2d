//! Requests to be placed and where they go: between the messages of `RoutingService` and the service's own words.

use super::answers;
use super::error::ServiceError;
use super::{proto, questions};
use crate::desks::{CandidateReceipt, Evidence, Order, Receipt, Router, Selected};
use crate::lookup::RankChoice;
use crate::routing::{Ending, Outcome, PolicyName};

/// Finish reasons that mean a whole answer, as engines and their OpenAI faces write them.
const WHOLE: [&str; 7] = ["stop", "length", "eos", "eos_token", "stop_sequence", "tool_calls", "function_call"];

/// A request to be placed.
pub(super) fn order(router: &Router, request: proto::SelectRequest) -> Result<Order, ServiceError> {
    use proto::select_request::Prompt as Wire;
    if request.model.is_empty() {
        return Err(ServiceError::invalid("model", "required"));
    }
    let limits = router.limits();
    let (field, setting) = ("request_id", "routing.bookings.request_id_bytes_max");
    let (len, limit) = (request.request_id.len(), limits.request_id_bytes_max);
    if len > limit {
        return Err(ServiceError::TextTooLong { field, len, setting, limit });
    }
    let (len, limit) = (request.candidates.len(), limits.candidates_max);
    if len > limit {
        let (field, setting) = ("candidates", "routing.bookings.candidates_max");
        return Err(ServiceError::TooLong { field, len, setting, limit });
    }
    if request.candidates.iter().any(|candidate| candidate.worker.is_empty()) {
        return Err(ServiceError::invalid("candidates.worker", "required"));
    }
    let policy = match request.policy.as_str() {
        "" => None,
        name => Some(PolicyName::from_name(name).ok_or_else(|| {
            let known = PolicyName::ALL.map(PolicyName::name).join(", ");
            ServiceError::invalid("policy", format!("{:?} is none of {known}", short(name)))
        })?),
    };
    let prompt = request.prompt.map(|prompt| match prompt {
        Wire::ContentHashes(hashes) => proto::lookup_request::Prompt::ContentHashes(hashes),
        Wire::TokenIds(tokens) => proto::lookup_request::Prompt::TokenIds(tokens),
    });
    Ok(Order {
        model: request.model,
        routing_group: request.routing_group,
        prompt: questions::prompt(prompt, request.namespace)?,
        prompt_tokens: request.prompt_tokens,
        max_output_tokens: request.max_output_tokens,
        candidates: request.candidates.into_iter().map(|c| RankChoice { worker: c.worker, rank: c.rank }).collect(),
        policy,
        explain: request.explain,
        dry_run: request.dry_run,
    })
}

/// A caller's word in a message.
fn short(name: &str) -> &str {
    &name[..name.floor_char_boundary(64)]
}

/// Where a request goes.
pub(super) fn select_response(selected: Selected) -> proto::SelectResponse {
    proto::SelectResponse {
        reservation: selected.reservation,
        worker: selected.worker.to_string(),
        rank: selected.rank,
        generation: selected.generation,
        matched: selected
            .matched
            .into_iter()
            .map(|(tier, blocks)| proto::TierMatch { tier: answers::tier(tier).into(), blocks })
            .collect(),
        predicted_cached_tokens: selected.predicted_cached_tokens,
        predicted_wait_seconds: selected.predicted_wait,
        reason: selected.branch.name().to_owned(),
        detail: selected.detail.unwrap_or_default().to_owned(),
        policy: selected.policy.name().to_owned(),
        evidence: evidence(selected.evidence).into(),
        trust: answers::trust(selected.trust).into(),
        query_blocks: selected.query_blocks,
        candidates_unknown: selected.candidates_unknown,
        held_ms: selected.held.as_millis() as u64,
        receipt: selected.receipt.map(|receipt| wire_receipt(*receipt)),
    }
}

fn evidence(evidence: Evidence) -> proto::Evidence {
    match evidence {
        Evidence::Index => proto::Evidence::Index,
        Evidence::Approximate => proto::Evidence::Approximate,
        Evidence::LoadOnly => proto::Evidence::LoadOnly,
        Evidence::Predicted => proto::Evidence::Predicted,
    }
}

fn wire_receipt(receipt: Receipt) -> proto::Receipt {
    proto::Receipt {
        policy_version: receipt.policy_version,
        candidates: receipt.candidates.into_iter().map(candidate).collect(),
        gates: receipt.gates,
        decided_unix_ms: receipt.decided_unix_ms,
        hash_ns: receipt.hashed_in.as_nanos() as u64,
        lookup_ns: receipt.looked_up_in.as_nanos() as u64,
        choose_ns: receipt.chosen_in.as_nanos() as u64,
    }
}

fn candidate(candidate: CandidateReceipt) -> proto::CandidateReceipt {
    proto::CandidateReceipt {
        worker: candidate.worker.to_string(),
        excluded: candidate.excluded.to_owned(),
        matched_blocks: candidate.matched_blocks,
        certified: candidate.certified,
        in_flight: candidate.in_flight,
        load_age_ms: candidate.load_age.map(|age| age.as_millis() as u64),
        figures: candidate.figures.into_iter().map(|(what, value)| (what.to_owned(), value)).collect(),
    }
}

/// How a request ended.
pub(super) fn ending(request: &proto::CompleteRequest) -> Result<Ending, ServiceError> {
    let outcome = match proto::Outcome::try_from(request.outcome) {
        Ok(proto::Outcome::Ok) => Outcome::Ok,
        Ok(proto::Outcome::Failed) => Outcome::Failed,
        Ok(proto::Outcome::Cancelled) => Outcome::Cancelled,
        Ok(proto::Outcome::NotSent) => Outcome::NotSent,
        Ok(proto::Outcome::Unspecified) => return Err(ServiceError::invalid("outcome", "required")),
        Err(_) => return Err(ServiceError::invalid("outcome", format!("unknown value {}", request.outcome))),
    };
    Ok(Ending {
        outcome,
        finished: WHOLE.contains(&request.finish_reason.as_str()),
        prompt_tokens: request.prompt_tokens,
        cached_tokens: request.cached_tokens,
        output_tokens: request.output_tokens,
    })
}
