//! The receipt of a decision: everything that it was made of, for people and analysers.

use super::levels::Depths;
use crate::routing::{Columns, Decision, Slot, Status, Trace};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Everything that a decision was made of.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Receipt {
    /// Version of the policies' code and settings: equal only where both are.
    pub policy_version: String,
    /// The workers in question, by slot.
    pub candidates: Vec<CandidateReceipt>,
    /// What narrowed them, in order.
    pub gates: Vec<String>,
    /// Unix milliseconds of the decision.
    pub decided_unix_ms: u64,
    /// Time for hashing.
    pub hashed_in: Duration,
    /// Time for looking up.
    pub looked_up_in: Duration,
    /// Time for choosing and booking.
    pub chosen_in: Duration,
}

/// One worker in question.
#[derive(Clone, PartialEq, Debug)]
pub struct CandidateReceipt {
    /// The worker's id.
    pub worker: Arc<str>,
    /// Why it was not eligible; empty: it was.
    pub excluded: &'static str,
    /// Leading blocks that it was credited with.
    pub matched_blocks: u32,
    /// Whether they are certified: exact on every rank, and nothing of them a guess.
    pub certified: bool,
    /// Requests in flight before this one.
    pub in_flight: u32,
    /// Age of its load; `None`: none that can be believed.
    pub load_age: Option<Duration>,
    /// What the policy computed, by name.
    pub figures: BTreeMap<&'static str, f64>,
}

/// The candidates as they are before the decision. Allocates.
pub(super) fn candidates(columns: &Columns, only: Option<&[Slot]>, now: Duration) -> Vec<(Slot, CandidateReceipt)> {
    let all = 0..columns.len() as Slot;
    let in_question = all.filter(|slot| only.is_none_or(|only| only.binary_search(slot).is_ok()));
    in_question
        .filter_map(|slot| {
            let at = slot as usize;
            let fresh = now.as_nanos() <= u128::from(columns.fresh_until[at]);
            let candidate = CandidateReceipt {
                worker: columns.names[at].clone()?,
                excluded: "",
                matched_blocks: 0,
                certified: columns.certified[at],
                in_flight: columns.in_flight[at],
                load_age: fresh.then(|| now.saturating_sub(columns.received_at[at])),
                figures: BTreeMap::new(),
            };
            Some((slot, candidate))
        })
        .collect()
}

/// Adds what came of the decision. `status` of the columns as the decision saw it is still there: nothing came between.
pub(super) fn complete(
    mut candidates: Vec<(Slot, CandidateReceipt)>,
    columns: &Columns,
    depths: &Depths,
    decision: &Decision,
    trace: &Trace,
) -> (Vec<CandidateReceipt>, Vec<String>) {
    let gates = decision.gates;
    for (slot, candidate) in &mut candidates {
        let status = columns.status[*slot as usize];
        candidate.excluded = match status {
            s if s.has(Status::NOT_READY) => "not_ready",
            s if s.has(Status::VETOED) && !gates.all_vetoed => "vetoed",
            s if s.has(Status::OVERLOADED) && candidate.load_age.is_some() && !gates.all_overloaded => "overloaded",
            _ => "",
        };
        candidate.matched_blocks = depths.overlap.blocks[*slot as usize];
        candidate.certified &= candidate.matched_blocks == depths.overlap.confirmed(*slot);
    }
    for row in trace.rows() {
        if let Ok(at) = candidates.binary_search_by_key(&row.slot, |(slot, _)| *slot) {
            candidates[at].1.figures.insert(row.what, row.value);
        }
    }
    let mut words = Vec::new();
    let mut gate = |what: &str, count: u32| {
        if count > 0 {
            words.push(format!("{what}: {count} of {}", gates.workers));
        }
    };
    gate("not_ready", gates.not_ready);
    gate("vetoed", gates.vetoed);
    gate("overloaded", gates.overloaded);
    let fallbacks = [("all_vetoed", gates.all_vetoed), ("all_overloaded", gates.all_overloaded)];
    words.extend(fallbacks.iter().filter(|(_, is)| *is).map(|(word, _)| format!("{word}: the least loaded of them")));
    (candidates.into_iter().map(|(_, candidate)| candidate).collect(), words)
}
