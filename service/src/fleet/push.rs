//! Events that are pushed over gRPC: cursor, lane and status of one rank, one batch at a time.

use super::push_cursor::{PushCursor, PushHeader, PushVerdict};
use super::registry::FleetEvents;
use super::view::RankEntry;
use crate::ingest::{RankStatus, Trust, now_ms};
use crate::lanes::LaneError;
use crate::ops::{Applied, Op, OpBatch};
use bytes::Bytes;
use std::collections::BTreeMap;

/// What a rank with pushed events remembers between batches.
#[derive(Debug, Default)]
pub(super) struct PushState {
    cursor: PushCursor,
    counters: BTreeMap<&'static str, u64>,
    /// Content for which the index had no room, since the last clear: why.
    lost: Option<&'static str>,
    last_event_ms: Option<u64>,
    last_event_engine_time: Option<f64>,
}

/// One batch for one rank, its events turned into operations already.
#[derive(Clone, Debug)]
pub struct PushBatch {
    /// What the cursor looks at.
    pub header: PushHeader,
    /// The publisher's time, Unix seconds.
    pub published_at: Option<f64>,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The batch as the engines' wire carries it, where the rank is republished and that wire has words for it.
    pub payload: Option<Bytes>,
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushOutcome {
    /// What the cursor said.
    pub verdict: PushVerdict,
    /// What the index did; zeros when nothing was applied.
    pub applied: Applied,
    /// Last sequence applied for the rank.
    pub cursor: Option<u64>,
    /// The sequence that the cursor waits for.
    pub expected: u64,
    /// How far the rank can be believed now.
    pub trust: Trust,
}

/// Judges and applies one batch. Batches of one rank are serialised, also when they come over several streams. `None`: the rank
/// is fed by its engine's own publisher. The lane's [`LaneError::Fenced`] means that the registration is over.
pub(super) async fn push(
    rank: &RankEntry,
    batch: PushBatch,
    events: &FleetEvents,
) -> Option<Result<PushOutcome, LaneError>> {
    let mut state = rank.push.as_ref()?.lock().await;
    rank.pulse.contact();
    let verdict = state.cursor.judge(batch.header);
    let applied = match verdict {
        PushVerdict::Apply { clear_first } => match apply(rank, batch, clear_first, &mut state).await {
            Ok(applied) => applied,
            Err(error) => return Some(Err(error)),
        },
        PushVerdict::Duplicate => {
            state.count("duplicate_batches", 1);
            Applied::default()
        }
        PushVerdict::Gap => {
            state.count("gap_batches", 1);
            state.cursor.refused(batch.header);
            Applied::default()
        }
    };
    rank.relay.settled(state.cursor.trust());
    events.publish_status(rank, state.status(rank));
    let cursor = &state.cursor;
    Some(Ok(PushOutcome {
        verdict,
        applied,
        cursor: cursor.cursor,
        expected: cursor.expected(),
        trust: cursor.trust(),
    }))
}

impl PushState {
    fn count(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            let sum = self.counters.entry(reason).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn status(&self, rank: &RankEntry) -> RankStatus {
        let trust = self.cursor.trust();
        let detail = match trust {
            Trust::Partial => Some("the first batch was not the publisher's first".to_owned()),
            Trust::Degraded if self.lost.is_some() => self.lost.map(str::to_owned),
            Trust::Degraded if self.cursor.waits() => {
                Some(format!("later batches were refused until batch {} comes", self.cursor.expected()))
            }
            Trust::Degraded => Some("batches were lost".to_owned()),
            _ => None,
        };
        RankStatus {
            trust,
            upper_bound: rank.report_mode_full.then_some("report mode full: reused blocks are announced like new ones"),
            incarnation: self.cursor.incarnation,
            cursor: self.cursor.cursor,
            connected: false,
            last_event_ms: self.last_event_ms,
            last_event_engine_time: self.last_event_engine_time,
            detail,
            counters: self.counters.clone(),
        }
    }
}

async fn apply(
    rank: &RankEntry,
    batch: PushBatch,
    clear_first: bool,
    state: &mut PushState,
) -> Result<Applied, LaneError> {
    let PushBatch { header, published_at, mut ops, payload } = batch;
    let cleared_all = ops.iter().any(|op| matches!(op, Op::Clear { tier: None }));
    if clear_first {
        ops.insert(0, Op::Clear { tier: None });
    }
    let lost_before = header.lost_before && !header.reset;
    let op_batch = OpBatch { sequence: Some(header.sequence), published_at, ops, lost_before, payload };
    let applied = rank.relay.admit(&rank.lane, op_batch).await?;
    let lost = match applied {
        Applied { limit_reached: 1.., .. } => Some("a memory limit was reached and the rank cleared"),
        Applied { orphans_dropped: 1.., .. } => {
            Some("blocks without a known parent were dropped: too many are waiting")
        }
        _ => None,
    };
    state.cursor.applied(header, cleared_all, lost.is_some());
    if lost.is_some() || header.reset || cleared_all {
        state.lost = lost;
    }
    state.last_event_ms = Some(now_ms());
    state.last_event_engine_time = published_at.filter(|at| at.is_finite());
    add_counters(state, &applied);
    Ok(applied)
}

fn add_counters(state: &mut PushState, applied: &Applied) {
    let did = [
        ("batches", 1),
        ("stored", applied.stored),
        ("copies", applied.copies),
        ("moved", applied.moved),
        ("orphans", applied.orphans),
        ("orphans_dropped", applied.orphans_dropped),
        ("attached", applied.attached),
        ("removed", applied.removed),
        ("copies_removed", applied.copies_removed),
        ("unknown_removals", applied.unknown_removals),
        ("unknown_adoptions", applied.unknown_adoptions),
        ("self_parent", applied.self_parent),
        ("limit_reached", applied.limit_reached),
        ("cleared", applied.cleared),
    ];
    for (reason, count) in did {
        state.count(reason, count);
    }
}
