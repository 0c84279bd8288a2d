//! A subscriber's place in a rank's stream.

use super::rank::{Look, RankRelay};
use super::relayed::{Life, Relayed};
use crate::ingest::Trust;
use crate::ops::Op;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Why a subscription ended. After each but the first, another one from the start gives the rank's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum End {
    /// The rank is gone.
    #[error("the rank was removed")]
    Removed,
    /// The rank lives another life: nothing that was sent counts any more.
    #[error("the rank was emptied or its publisher restarted: subscribe from the start")]
    OtherLife,
    /// The history moved past the subscriber.
    #[error("the subscriber was too slow: batches that it has not read are gone")]
    Slow,
}

/// Which part of a snapshot an item is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its number, from 0. Part 0 begins with an empty rank.
    pub chunk: u32,
    /// Whether it is the last one: what follows are batches.
    pub last: bool,
}

/// What comes next.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// A part of the rank's state.
    Snapshot {
        /// Which.
        part: Part,
        /// A sequence of its own: parts count up to the last batch that is in the state, so that what follows joins on.
        sequence: u64,
        /// Stores, and removals of names that only lead to others.
        ops: Vec<Op>,
    },
    /// A batch.
    Batch {
        /// The batch.
        batch: Arc<Relayed>,
        /// It is the first one of all: what the subscriber had before counts no more.
        reset: bool,
    },
    /// Nothing but another trust.
    Trust,
}

/// An item, and what is believed of everything up to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// The life that it belongs to.
    pub life: Life,
    /// How far a copy that has everything up to this item can be believed. `None`: not known before the subscriber has caught up.
    pub trust: Option<Trust>,
    /// The item.
    pub item: Item,
}

/// A place in one rank's stream. It holds no batch back: what the history lets go, it has lost.
#[derive(Debug)]
pub struct Subscription {
    relay: Arc<RankRelay>,
    changes: watch::Receiver<()>,
    life: Life,
    next: u64,
    /// The next batch is the first one of all.
    reset: bool,
    parts: VecDeque<(Part, u64, Vec<Op>)>,
    /// What was said last.
    trust: Option<Trust>,
    _place: OwnedSemaphorePermit,
    /// Held until the snapshot was sent.
    room: Option<OwnedSemaphorePermit>,
}

impl Subscription {
    pub(super) fn new(relay: Arc<RankRelay>, life: Life, next: u64, place: OwnedSemaphorePermit) -> Self {
        let changes = relay.changes();
        let parts = VecDeque::new();
        Self { relay, changes, life, next, reset: false, parts, trust: None, _place: place, room: None }
    }

    /// From an empty rank on, by the history alone.
    pub(super) fn whole(relay: Arc<RankRelay>, life: Life, place: OwnedSemaphorePermit) -> Self {
        Self { reset: true, ..Self::new(relay, life, 0, place) }
    }

    /// From the rank's state right after batch `cut` on.
    pub(super) fn snapshot(
        relay: Arc<RankRelay>,
        life: Life,
        cut: u64,
        chunks: Vec<Vec<Op>>,
        (place, room): (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
    ) -> Self {
        let parts = numbered(cut, chunks);
        Self { parts, room, ..Self::new(relay, life, cut.saturating_add(1), place) }
    }

    /// The life that it follows.
    pub fn life(&self) -> Life {
        self.life
    }

    /// Sequence of the next batch; parts of a state come before it.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Waits for the next item. Safe to drop.
    pub async fn next(&mut self) -> Result<Message, End> {
        loop {
            // Before the look: a change after it is not missed.
            self.changes.borrow_and_update();
            if let Some(item) = self.poll()? {
                return Ok(item);
            }
            if self.changes.changed().await.is_err() {
                return Err(End::Removed);
            }
        }
    }

    /// Waits until the reader of an item has taken too long: its patience is over, or without one the history has moved past the
    /// next batch. The subscription is to be given up then. Safe to drop.
    pub async fn outwaited(&mut self, patience: Option<Duration>) -> End {
        match patience {
            Some(patience) => tokio::time::sleep(patience).await,
            None => self.overtaken().await,
        }
        self.relay.shared().note_cut_off();
        End::Slow
    }

    async fn overtaken(&mut self) {
        loop {
            self.changes.borrow_and_update();
            if matches!(self.relay.look(self.life, self.next), Look::Over(End::Slow)) {
                return;
            }
            if self.changes.changed().await.is_err() {
                // The rank is gone, and told so with the next item.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Time that a reader may take for an item. `None`: as long as the history reaches, since nothing waits for it.
    pub fn patience(&self, item: &Item) -> Option<Duration> {
        matches!(item, Item::Snapshot { .. }).then(|| self.relay.shared().limits().snapshot_stall_max)
    }

    /// The next item, if there is one now.
    pub fn poll(&mut self) -> Result<Option<Message>, End> {
        if let Some((part, sequence, ops)) = self.parts.pop_front() {
            if part.last {
                self.room = None;
            }
            return Ok(Some(self.message(None, Item::Snapshot { part, sequence, ops })));
        }
        match self.relay.look(self.life, self.next) {
            Look::Batch { batch, trust } => {
                self.next = batch.sequence.saturating_add(1);
                let reset = std::mem::take(&mut self.reset);
                Ok(Some(self.message(trust, Item::Batch { batch, reset })))
            }
            Look::UpToDate { trust } if trust.is_some() && trust != self.trust => {
                Ok(Some(self.message(trust, Item::Trust)))
            }
            Look::UpToDate { .. } => Ok(None),
            Look::Over(end) => {
                if end == End::Slow {
                    self.relay.shared().note_cut_off();
                }
                Err(end)
            }
        }
    }

    fn message(&mut self, trust: Option<Trust>, item: Item) -> Message {
        self.trust = trust.or(self.trust);
        Message { life: self.life, trust, item }
    }
}

/// Parts with sequences that rise by one and end at the cut. Where the stream is younger than the snapshot has chunks, chunks
/// are joined: a sequence below 0 does not exist.
fn numbered(cut: u64, mut chunks: Vec<Vec<Op>>) -> VecDeque<(Part, u64, Vec<Op>)> {
    if chunks.is_empty() {
        chunks.push(Vec::new());
    }
    let parts_max = usize::try_from(cut.saturating_add(1)).unwrap_or(usize::MAX).min(chunks.len());
    let joined = chunks.len().div_ceil(parts_max);
    let mut parts = VecDeque::with_capacity(parts_max);
    let mut rest = chunks.into_iter().peekable();
    while rest.peek().is_some() {
        let ops: Vec<Op> = rest.by_ref().take(joined).flatten().collect();
        parts.push_back(ops);
    }
    let first = cut - (parts.len() as u64 - 1);
    let count = parts.len();
    let number = |(i, ops)| (Part { chunk: i as u32, last: i + 1 == count }, first + i as u64, ops);
    parts.into_iter().enumerate().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(of: u32) -> Vec<Op> {
        vec![Op::Remove { tier: kvatlas_index::Tier::Device, names: vec![kvatlas_index::EngineHash(u64::from(of))] }]
    }

    #[test]
    fn parts_end_at_the_cut() {
        let parts = numbered(100, (0..3).map(chunk).collect());
        let seen: Vec<_> = parts.iter().map(|(part, sequence, _)| (part.chunk, part.last, *sequence)).collect();
        assert_eq!(seen, [(0, false, 98), (1, false, 99), (2, true, 100)]);
    }

    #[test]
    fn a_young_stream_gets_fewer_and_larger_parts() {
        for cut in 0..7 {
            let parts = numbered(cut, (0..5).map(chunk).collect());
            let sequences: Vec<_> = parts.iter().map(|(_, sequence, _)| *sequence).collect();
            assert_eq!(sequences.last(), Some(&cut));
            assert!(sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{sequences:?}");
            assert_eq!(parts.iter().map(|(_, _, ops)| ops.len()).sum::<usize>(), 5);
            assert!(parts.iter().enumerate().all(|(i, (part, ..))| part.last == (i + 1 == parts.len())));
        }
    }

    #[test]
    fn an_empty_state_is_one_part() {
        let parts = numbered(9, Vec::new());
        assert_eq!(parts.into_iter().collect::<Vec<_>>(), [(Part { chunk: 0, last: true }, 9, Vec::new())]);
    }
}
