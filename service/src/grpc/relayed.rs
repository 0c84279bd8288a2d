//! `EventService.Subscribe`: the relay's items into messages.

use super::admission::Admission;
use super::answers;
use super::error::ServiceError;
use super::proto;
use super::proto::blocks_stored::Content;
use super::proto::event::Event;
use crate::fleet::RankEntry;
use crate::ops::Op;
use crate::relay::{Item, Life, Message, Part, Relayed, Start, Subscription};
use kvatlas_index::{ContentHash, EngineHash, StoreKind};
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::Status;

/// Where a subscription is asked to begin.
pub(super) fn start(request: &proto::SubscribeRequest) -> Result<Start, ServiceError> {
    match (request.from_sequence, request.life) {
        (None, None) => Ok(Start::Zero),
        (Some(sequence), Some(life)) => Ok(Start::At { life: Life(life), sequence }),
        (Some(_), None) => Err(ServiceError::invalid("life", "required with from_sequence")),
        (None, Some(_)) => Err(ServiceError::invalid("life", "not allowed without from_sequence")),
    }
}

/// Sends items until the subscription or the service ends, or the client goes.
pub(super) async fn relay(
    rank: Arc<RankEntry>,
    mut subscription: Subscription,
    admission: Admission,
    to: mpsc::Sender<Result<proto::RelayedBatch, Status>>,
) {
    loop {
        let next = tokio::select! {
            next = subscription.next() => next.map_err(|end| Status::from(ServiceError::from(end))),
            () = admission.closing().cancelled() => Err(ServiceError::Draining.into()),
            () = to.closed() => return,
        };
        let message = match next {
            Ok(message) => message,
            Err(status) => return drop(to.send(Err(status)).await),
        };
        let patience = subscription.patience(&message.item);
        let end = tokio::select! {
            biased;
            sent = to.send(Ok(relayed_batch(&rank, message))) => match sent {
                Ok(()) => continue,
                Err(_gone) => return,
            },
            end = subscription.outwaited(patience) => end,
        };
        // Given up first, so that nothing waits for this reader while it is told.
        drop(subscription);
        return drop(to.send(Err(ServiceError::from(end).into())).await);
    }
}

/// A message of a subscription, on the wire.
pub(crate) fn relayed_batch(rank: &RankEntry, message: Message) -> proto::RelayedBatch {
    let Message { life, trust, item } = message;
    let trust = trust.map_or(proto::Trust::Unspecified, answers::trust).into();
    let relayed = proto::RelayedBatch { life: life.0, trust, ..proto::RelayedBatch::default() };
    match item {
        Item::Trust => relayed,
        Item::Batch { batch, reset } => {
            let batch = event_batch(rank, &batch, reset);
            proto::RelayedBatch { batch: Some(batch), ..relayed }
        }
        Item::Snapshot { part: Part { chunk, last }, sequence, ops } => {
            let part = Relayed { sequence, published_at: None, ops, lost_before: false };
            let batch = event_batch(rank, &part, chunk == 0);
            let snapshot = Some(proto::SnapshotPart { chunk, last });
            proto::RelayedBatch { batch: Some(batch), snapshot, ..relayed }
        }
    }
}

fn event_batch(rank: &RankEntry, batch: &Relayed, reset: bool) -> proto::EventBatch {
    proto::EventBatch {
        worker: rank.worker.to_string(),
        rank: rank.rank,
        sequence: batch.sequence,
        published_at: batch.published_at,
        events: batch.ops.iter().map(event).collect(),
        reset,
        lost_before: batch.lost_before && !reset,
        // The receiver has generations of its own.
        generation: None,
        loads: Vec::new(),
    }
}

/// An operation as an event that comes down to the same operation.
pub(super) fn event(op: &Op) -> proto::Event {
    let event = match op {
        Op::Store { tier, parent, names, contents, kind } => Event::Stored(proto::BlocksStored {
            tier: answers::tier(*tier).into(),
            parent: parent.map(|name| name.0),
            engine_hashes: hashes(names),
            content: Some(Content::ContentHashes(proto::ContentHashes { hashes: contents_of(contents) })),
            namespace: None,
            announced_again: *kind == StoreKind::Announce,
        }),
        Op::Adopt { tier, names } => Event::Stored(proto::BlocksStored {
            tier: answers::tier(*tier).into(),
            engine_hashes: hashes(names),
            ..proto::BlocksStored::default()
        }),
        Op::Remove { tier, names } => {
            Event::Removed(proto::BlocksRemoved { tier: answers::tier(*tier).into(), engine_hashes: hashes(names) })
        }
        Op::SetCopies { tier, name, left } => Event::CopiesLeft(proto::CopiesLeft {
            tier: answers::tier(*tier).into(),
            engine_hash: name.0,
            copies: *left,
        }),
        Op::Clear { tier } => {
            Event::Cleared(proto::BlocksCleared { tier: tier.map_or(proto::Tier::Unspecified, answers::tier).into() })
        }
    };
    proto::Event { event: Some(event) }
}

fn hashes(names: &[EngineHash]) -> Vec<u64> {
    names.iter().map(|name| name.0).collect()
}

fn contents_of(contents: &[ContentHash]) -> Vec<u64> {
    contents.iter().map(|content| content.0).collect()
}
