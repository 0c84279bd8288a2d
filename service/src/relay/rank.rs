//! The relay of one rank: admission of its batches, and the cut at which a subscription begins.
//!
//! Two locks. `turn` is held by whoever applies a batch or cuts a snapshot, over the wait for the lane: so a snapshot lies between
//! two batches. `state` is held for moments, never over a wait.

use super::history::{History, Place};
use super::limits::{RelayFull, RelayShared};
use super::relayed::{Life, Relayed};
use super::snapshot::SnapshotLimits;
use super::subscription::{End, Subscription};
use super::wire_log::WireLog;
use crate::ingest::Trust;
use crate::lanes::{LaneError, RankLane};
use crate::ops::{Applied, Op, OpBatch};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Where a subscription begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With everything that the rank holds.
    Zero,
    /// The same, told as a state also where the history alone would do.
    State,
    /// With this batch, of this life.
    At {
        /// The life that the subscriber knows.
        life: Life,
        /// One more than the last sequence that it has applied.
        sequence: u64,
    },
}

/// Why a subscription did not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubscribeError {
    /// Too many are open.
    #[error(transparent)]
    Full(#[from] RelayFull),
    /// The history does not reach back that far.
    #[error("sequence {asked} is not in the history any more (oldest {oldest:?}): subscribe from the start")]
    Gone {
        /// What was asked for.
        asked: u64,
        /// The oldest that is left.
        oldest: Option<u64>,
    },
    /// Such a batch does not exist yet.
    #[error("sequence {asked} is beyond the next one, {next}: subscribe from the start")]
    Ahead {
        /// What was asked for.
        asked: u64,
        /// The one that comes next.
        next: u64,
    },
    /// The rank lives another life by now.
    #[error("the rank was emptied or its publisher restarted since: subscribe from the start")]
    OtherLife,
    /// The rank is gone.
    #[error("the rank was removed")]
    Removed,
    /// Its lane is.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

/// A rank's relay as status pages show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayStatus {
    /// Batches in the history.
    pub batches: usize,
    /// Bytes in the history.
    pub bytes: u64,
    /// Batches that went out of the history since registration.
    pub gone: u64,
    /// Lives of the stream since registration, as the relay counts them.
    pub lives: u64,
}

/// The relay of one (worker, rank). Any thread may call it.
#[derive(Debug)]
pub struct RankRelay {
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    changed: watch::Sender<()>,
    shared: Arc<RelayShared>,
    wire: Option<Arc<WireLog>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) life: Life,
    pub(super) history: History,
    /// What is believed of everything admitted so far; `None` between a batch and the judgement of it.
    pub(super) trust: Option<Trust>,
    pub(super) closed: bool,
    lives: u64,
}

impl RankRelay {
    /// A relay that has seen nothing.
    pub fn new(shared: Arc<RelayShared>) -> Self {
        let limits = shared.limits();
        let state = State {
            life: Life(shared.next_life()),
            history: History::new(limits.history_batches_max, limits.history_bytes_max),
            trust: None,
            closed: false,
            lives: 1,
        };
        let (turn, state, changed) = (tokio::sync::Mutex::new(()), Mutex::new(state), watch::Sender::new(()));
        Self { turn, state, changed, shared, wire: None }
    }

    /// Keeps payloads in this log, too.
    pub fn with_wire(mut self, wire: Option<Arc<WireLog>>) -> Self {
        self.wire = wire;
        self
    }

    /// A place among the subscribers of all ranks, for a stream of another protocol.
    pub fn place(&self) -> Result<OwnedSemaphorePermit, RelayFull> {
        self.shared.subscribe()
    }

    /// The payloads, where the rank is republished on the engines' wire.
    pub fn wire(&self) -> Option<&Arc<WireLog>> {
        self.wire.as_ref()
    }

    /// Applies a batch to the rank's lane and passes it on. Waits for a snapshot that is being cut, and for the lane. To be
    /// awaited to its end: a batch that is applied but not passed on would be a hole.
    pub async fn admit(&self, lane: &RankLane, batch: OpBatch) -> Result<Applied, LaneError> {
        let _turn = self.turn.lock().await;
        let (applied, batch) = lane.apply(batch).await?;
        self.note(&applied, batch);
        Ok(applied)
    }

    /// Empties the rank and applies its state as of batch `cursor`, told in parts: another life, whose history goes on after it.
    /// To be awaited to its end.
    pub async fn load(&self, lane: &RankLane, cursor: u64, parts: Vec<Vec<Op>>) -> Result<Applied, LaneError> {
        let _turn = self.turn.lock().await;
        let mut sum = Applied::default();
        for ops in std::iter::once(vec![Op::Clear { tier: None }]).chain(parts) {
            sum.add(&lane.import(ops).await?);
        }
        let mut state = self.state();
        state.trust = None;
        self.begin_life(&mut state);
        state.history.continue_after(cursor);
        drop(state);
        if let Some(wire) = &self.wire {
            wire.restart();
        }
        self.changed.send_replace(());
        Ok(sum)
    }

    /// Tells what is believed of everything admitted so far.
    pub fn settled(&self, trust: Trust) {
        let mut state = self.state();
        let before = state.trust.replace(trust);
        state.history.settle(trust);
        drop(state);
        if before != Some(trust) {
            self.changed.send_replace(());
        }
    }

    /// The rank is gone: every subscription ends.
    pub fn close(&self) {
        let mut state = self.state();
        self.shared.take_bytes(state.history.bytes());
        state.history.restart();
        state.closed = true;
        drop(state);
        if let Some(wire) = &self.wire {
            wire.restart();
        }
        self.changed.send_replace(());
    }

    /// Begins a subscription. One from the start may wait for room for a snapshot, for the batch that is being applied and for
    /// the lane; the rank's feed waits while its snapshot is cut.
    pub async fn subscribe(self: &Arc<Self>, lane: &RankLane, start: Start) -> Result<Subscription, SubscribeError> {
        let place = self.shared.subscribe()?;
        match start {
            Start::At { life, sequence } => {
                self.check(life, sequence)?;
                Ok(Subscription::new(self.clone(), life, sequence, place))
            }
            Start::Zero | Start::State => {
                let as_state = start == Start::State;
                if let Some(life) = self.whole(as_state)? {
                    return Ok(Subscription::whole(self.clone(), life, place));
                }
                let room = self.shared.snapshot_room().await;
                self.shared.note_snapshot();
                let _turn = self.turn.lock().await;
                // Looked at again: the rank may have begun another life while this one waited.
                if let Some(life) = self.whole(as_state)? {
                    return Ok(Subscription::whole(self.clone(), life, place));
                }
                let chunks = lane.export(self.shared.limits().snapshot).await?;
                let (life, cut) = {
                    let state = self.state();
                    (state.life, state.history.newest().unwrap_or(0))
                };
                Ok(Subscription::snapshot(self.clone(), life, cut, chunks, (place, room)))
            }
        }
    }

    /// The history as it is.
    pub fn status(&self) -> RelayStatus {
        let state = self.state();
        let history = &state.history;
        RelayStatus { batches: history.len(), bytes: history.bytes(), gone: history.gone(), lives: state.lives }
    }

    /// How the rank's state is cut into parts.
    pub fn snapshot_limits(&self) -> SnapshotLimits {
        self.shared.limits().snapshot
    }

    pub(super) fn shared(&self) -> &RelayShared {
        &self.shared
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with it in hand left whole numbers behind: every change below is a few plain stores.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life, where the history alone leads to the rank's state, and it is not to be told as one. Before the first batch there is
    /// none to tell.
    fn whole(&self, as_state: bool) -> Result<Option<Life>, SubscribeError> {
        let state = self.state();
        if state.closed {
            return Err(SubscribeError::Removed);
        }
        let history = &state.history;
        let told = as_state && history.newest().is_some();
        Ok((history.is_whole() && !told).then_some(state.life))
    }

    fn check(&self, life: Life, asked: u64) -> Result<(), SubscribeError> {
        let state = self.state();
        if state.closed {
            return Err(SubscribeError::Removed);
        }
        if state.life != life {
            return Err(SubscribeError::OtherLife);
        }
        match state.history.place(asked) {
            Place::At(_) | Place::Next => Ok(()),
            Place::Gone(oldest) => Err(SubscribeError::Gone { asked, oldest }),
            Place::Ahead(next) => Err(SubscribeError::Ahead { asked, next }),
        }
    }

    fn note(&self, applied: &Applied, batch: OpBatch) {
        let OpBatch { sequence, published_at, ops, lost_before, payload } = batch;
        if let Some(wire) = &self.wire {
            // What the engine said is passed on whatever became of it here.
            wire.admit(sequence, payload.as_ref());
        }
        let mut state = self.state();
        state.trust = None;
        let newest = state.history.newest();
        match sequence {
            // Nothing on the stream says what happened: the subscribers' copies are over.
            None => self.begin_life(&mut state),
            // The lane was emptied in the midst of this batch: what is left of it no batch says.
            Some(sequence) if applied.limit_reached > 0 => {
                self.begin_life(&mut state);
                state.history.continue_after(sequence);
            }
            // The publisher went back without a clear: a pushed reset.
            Some(sequence) if newest.is_some_and(|newest| sequence <= newest) => {
                self.begin_life(&mut state);
                self.keep(&mut state, Relayed { sequence, published_at, ops, lost_before });
            }
            Some(sequence) => self.keep(&mut state, Relayed { sequence, published_at, ops, lost_before }),
        }
        drop(state);
        self.changed.send_replace(());
    }

    fn keep(&self, state: &mut State, batch: Relayed) {
        let before = state.history.bytes();
        state.history.push(Arc::new(batch));
        let after = state.history.bytes();
        self.shared.add_bytes(after);
        self.shared.take_bytes(before);
        while self.shared.is_over() {
            let before = state.history.bytes();
            if !state.history.shed() {
                break;
            }
            self.shared.take_bytes(before - state.history.bytes());
        }
    }

    fn begin_life(&self, state: &mut State) {
        self.shared.take_bytes(state.history.bytes());
        state.history.restart();
        state.life = Life(self.shared.next_life());
        state.lives += 1;
    }
}

impl Drop for RankRelay {
    fn drop(&mut self) {
        let bytes = self.state().history.bytes();
        self.shared.take_bytes(bytes);
    }
}

/// What a subscription finds when it looks.
pub(super) enum Look {
    Batch { batch: Arc<Relayed>, trust: Option<Trust> },
    UpToDate { trust: Option<Trust> },
    Over(End),
}

impl RankRelay {
    /// The batch at `sequence` or the next one after it, in this life.
    pub(super) fn look(&self, life: Life, sequence: u64) -> Look {
        let state = self.state();
        if state.closed {
            return Look::Over(End::Removed);
        }
        if state.life != life {
            return Look::Over(End::OtherLife);
        }
        match state.history.place(sequence) {
            Place::At(at) => match state.history.get(at) {
                // It is passed on with what is believed of it, which is known in a moment.
                Some((batch, None)) if state.history.newest() == Some(batch.sequence) => Look::UpToDate { trust: None },
                Some((batch, trust)) => Look::Batch { batch: batch.clone(), trust },
                None => Look::UpToDate { trust: state.trust },
            },
            Place::Next => Look::UpToDate { trust: state.trust },
            Place::Gone(_) => Look::Over(End::Slow),
            // A life's sequences only rise, so nobody is ahead of it.
            Place::Ahead(_) => Look::Over(End::OtherLife),
        }
    }
}
