//! One rank, from frames to index operations: cursor, decoder and normalizer in a row. Pure, like its parts.
//!
//! A message that is none of a publisher's is counted and ignored. A payload that cannot be read costs itself: the cursor
//! goes on, and the rank is no longer exact. An event that cannot be read costs itself, likewise.

use super::counters::Counters;
use super::cursor::{Cursor, Input, Output};
use super::normalize::Normalizer;
use super::snapshot::Staged;
use super::spec::{Engine, IngestLimits, RankEndpoint, WorkerSpec};
use super::status::{RankStatus, Trust};
use crate::ops::{Applied, Op, OpBatch};
use crate::seed::{Cut, Identity, Learned, NoSeed, Seed, Stores};
use crate::wire::{FrameLimits, ReplayReply, TokenRoom, decode_batch_in, parse_live, parse_replay};
use bytes::Bytes;
use std::time::Duration;

/// What a rank's sockets have to tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RankInput {
    /// The event connection was made.
    Connected,
    /// The event connection ended.
    Disconnected,
    /// A message of the live stream, all frames.
    Live(Vec<Bytes>),
    /// A message from the replay endpoint, all frames as a DEALER receives them.
    Replay {
        /// Number of the request that it answers.
        request: u64,
        /// The frames.
        frames: Vec<Bytes>,
    },
    /// The replay cannot be carried on.
    ReplayFailed {
        /// Number of the request.
        request: u64,
    },
    /// A part of the state that was asked for, all frames as a DEALER receives them.
    SnapshotPart {
        /// Number of the request.
        request: u64,
        /// The frames.
        frames: Vec<Bytes>,
    },
    /// All parts have come.
    SnapshotEnd {
        /// Number of the request.
        request: u64,
    },
    /// The state does not come.
    SnapshotFailed {
        /// Number of the request.
        request: u64,
    },
    /// A state of the rank from elsewhere, to be taken if its publisher proves it. It takes the place of one that waits.
    Seed(Box<Seed>),
    /// The socket refused to read a message, live or replayed, and the connection ended. Whatever was in it is lost.
    Unreadable,
    /// Time passed.
    Tick,
}

/// What has to be done, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum RankOutput {
    /// Apply these operations.
    Apply(OpBatch),
    /// Ask the replay endpoint; give an earlier request up.
    RequestReplay {
        /// Number of the request.
        request: u64,
        /// First sequence asked for.
        from: u64,
    },
    /// Give the request in flight up.
    CancelReplay,
    /// Ask the engine for its state.
    RequestSnapshot {
        /// Number of the request.
        request: u64,
    },
    /// Give that up.
    CancelSnapshot,
    /// Empty the rank and apply these operations, in order: its state as of batch `sequence`.
    Load {
        /// The last batch that is in the state.
        sequence: u64,
        /// The state, in parts.
        parts: Vec<Vec<Op>>,
    },
}

/// The present, passed in: nothing here looks at a clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Time since any fixed origin; never falls.
    pub elapsed: Duration,
    /// Unix time in milliseconds.
    pub unix_ms: u64,
}

/// The state of one rank.
pub struct Rank {
    number: u32,
    identity: Identity,
    limits: IngestLimits,
    frame_limits: FrameLimits,
    cursor: Cursor,
    normalizer: Normalizer,
    incarnation: u64,
    /// The batch before, in this life.
    read_last: Option<u64>,
    connected: bool,
    last_event_ms: Option<u64>,
    last_event_engine_time: Option<f64>,
    counters: Counters,
    outputs: Vec<Output>,
    room: TokenRoom,
    /// What was told of a state that was asked for.
    staged: Option<Staged>,
    /// The state, read and ready.
    state: Vec<Vec<Op>>,
    /// What comes with the seed that waits for its proof.
    seed: Option<(Stores, Learned)>,
}

impl Rank {
    /// A rank that has seen nothing.
    pub fn new(spec: &WorkerSpec, endpoint: &RankEndpoint, limits: &IngestLimits) -> Self {
        Self {
            number: endpoint.rank,
            identity: Identity::of(spec, endpoint.rank),
            limits: *limits,
            frame_limits: FrameLimits { payload_bytes_max: limits.message_bytes_max, ..FrameLimits::default() },
            cursor: Cursor::new(*limits, endpoint.replay.is_some(), spec.engine == Engine::Sglang)
                .with_snapshots(spec.snapshots.is_some() && endpoint.replay.is_some()),
            normalizer: Normalizer::new(spec, limits),
            incarnation: 0,
            read_last: None,
            connected: false,
            last_event_ms: None,
            last_event_engine_time: None,
            counters: Counters::default(),
            outputs: Vec::new(),
            room: TokenRoom::default(),
            staged: None,
            state: Vec::new(),
            seed: None,
        }
    }

    /// Takes one input and appends what has to be done.
    pub fn step(&mut self, now: Now, input: RankInput, out: &mut Vec<RankOutput>) {
        let input = match input {
            RankInput::Connected => {
                self.connected = true;
                Input::Connected
            }
            RankInput::Disconnected => {
                self.connected = false;
                Input::Disconnected
            }
            RankInput::Live(frames) => match self.live(&frames) {
                Some(input) => input,
                None => return,
            },
            RankInput::Replay { request, frames } => match self.replayed(request, &frames) {
                Some(input) => input,
                None => return,
            },
            RankInput::ReplayFailed { request } => Input::ReplayFailed { request },
            RankInput::SnapshotPart { request, frames } => match self.told(request, &frames) {
                Some(input) => input,
                None => return,
            },
            RankInput::SnapshotEnd { request } => match self.told_all(request) {
                Some(input) => input,
                None => return,
            },
            RankInput::SnapshotFailed { request } => Input::SnapshotFailed { request },
            RankInput::Seed(seed) => match self.offered(*seed) {
                Some(input) => input,
                None => return,
            },
            RankInput::Unreadable => {
                self.counters.bump("unreadable_messages");
                self.cursor.unreadable("a message was too large to be read");
                return;
            }
            RankInput::Tick => Input::Tick,
        };
        let mut outputs = std::mem::take(&mut self.outputs);
        self.cursor.step(now.elapsed, input, &mut outputs);
        for output in outputs.drain(..) {
            self.carry_out(now, output, out);
        }
        self.outputs = outputs;
        // A state that the cursor did not take is not kept.
        self.state = Vec::new();
    }

    /// Takes back what the index did with the batch of this sequence.
    pub fn applied(&mut self, sequence: Option<u64>, did: &Applied) {
        self.counters.add_applied(did);
        if did.limit_reached > 0 {
            self.cursor.history_lost("a memory limit of the index was reached: the rank was emptied");
        } else if let Some(sequence) = sequence
            && did.orphans_dropped > 0
        {
            self.cursor.content_dropped(sequence, "blocks without a known parent were dropped: too many are waiting");
        }
    }

    /// Counts something that happened outside: connections refused, messages dropped, ...
    pub fn count(&mut self, reason: &'static str, count: u64) {
        self.counters.add(reason, count);
    }

    /// When [`RankInput::Tick`] is due, on the scale of [`Now::elapsed`]; `None` if nothing waits for time to pass.
    pub fn next_tick(&self) -> Option<Duration> {
        self.cursor.next_tick()
    }

    /// How far answers about the rank can be believed.
    pub fn trust(&self) -> Trust {
        match self.normalizer.misconfigured() {
            Some(_) => Trust::Misconfigured,
            None => self.cursor.trust(),
        }
    }

    /// Whether the event connection is there.
    pub fn connected(&self) -> bool {
        self.connected
    }

    /// Lives of the publisher seen so far.
    pub fn incarnation(&self) -> u64 {
        self.cursor.incarnation()
    }

    /// Why answers about the rank may be off although every event was applied.
    pub fn upper_bound(&self) -> Option<&'static str> {
        self.normalizer.upper_bound()
    }

    /// Whose state [`Self::cut`] is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What a seed of the rank says beside its blocks, as of everything that was put out so far. Allocates.
    pub fn cut(&self) -> Result<(Cut, Learned), NoSeed> {
        if self.upper_bound().is_some() {
            return Err(NoSeed::UpperBound);
        }
        let fits = self.normalizer.misconfigured().is_none();
        let cut = self.cursor.cut().filter(|_| fits).ok_or(NoSeed::Unproven { trust: self.trust() })?;
        Ok((cut, self.normalizer.learned()))
    }

    /// A seed that nobody has proven or disproved yet, where there is nothing else to tell of the rank. Allocates.
    pub fn waiting_seed(&self) -> Option<Seed> {
        let cut = self.cursor.waiting_cut().filter(|_| self.cursor.applied().is_none())?.clone();
        let (stores, learned) = self.seed.clone()?;
        Some(Seed { identity: self.identity.clone(), cut, learned, stores })
    }

    /// A snapshot for status pages. Allocates.
    pub fn status(&self) -> RankStatus {
        let mut counters = self.counters.clone();
        for (reason, count) in self.cursor.counters().iter().chain(self.normalizer.counters().iter()) {
            counters.add(reason, count);
        }
        let words = self.normalizer.misconfigured().or(self.cursor.why());
        RankStatus {
            trust: self.trust(),
            upper_bound: self.normalizer.upper_bound(),
            incarnation: self.cursor.incarnation(),
            cursor: self.cursor.applied(),
            connected: self.connected,
            last_event_ms: self.last_event_ms,
            last_event_engine_time: self.last_event_engine_time,
            detail: words.filter(|_| self.trust() != Trust::Exact).map(str::to_owned),
            counters: counters.iter().collect(),
        }
    }

    fn live(&mut self, frames: &[Bytes]) -> Option<Input> {
        match parse_live(frames, &self.frame_limits) {
            Ok(message) => {
                self.counters.bump("messages");
                // The payload is the last frame, whole.
                frames.last().map(|payload| Input::Live { seq: message.sequence, payload: payload.clone() })
            }
            Err(error) => {
                self.counters.bump("bad_messages");
                self.counters.bump(error.label());
                None
            }
        }
    }

    fn replayed(&mut self, request: u64, frames: &[Bytes]) -> Option<Input> {
        match parse_replay(frames, &self.frame_limits) {
            Ok(ReplayReply::Batch { sequence, .. }) => {
                let payload = frames.last()?.clone();
                Some(Input::ReplayBatch { request, seq: sequence, payload })
            }
            Ok(ReplayReply::End) => Some(Input::ReplayEnd { request }),
            Err(error) => {
                self.counters.bump("bad_replies");
                self.counters.bump(error.label());
                None
            }
        }
    }

    fn carry_out(&mut self, now: Now, output: Output, out: &mut Vec<RankOutput>) {
        match output {
            Output::Apply { seq, payload } => {
                self.incarnation = self.cursor.incarnation();
                let batch = self.read(now, seq, payload);
                out.push(RankOutput::Apply(batch));
            }
            Output::Clear => {
                if self.incarnation != self.cursor.incarnation() {
                    self.incarnation = self.cursor.incarnation();
                    self.normalizer.reset();
                }
                self.read_last = None;
                let ops = vec![Op::Clear { tier: None }];
                out.push(RankOutput::Apply(OpBatch { ops, ..OpBatch::default() }));
            }
            Output::RequestReplay { request, from } => out.push(RankOutput::RequestReplay { request, from }),
            Output::CancelReplay => out.push(RankOutput::CancelReplay),
            Output::RequestSnapshot { request } => {
                self.staged = Some(Staged::new(request));
                out.push(RankOutput::RequestSnapshot { request });
            }
            Output::CancelSnapshot => {
                self.staged = None;
                out.push(RankOutput::CancelSnapshot);
            }
            Output::Load { seq } => {
                self.read_last = Some(seq);
                out.push(RankOutput::Load { sequence: seq, parts: std::mem::take(&mut self.state) });
            }
            Output::LoadSeed { seq } => {
                let (stores, learned) = self.seed.take().expect("the cursor loads a seed that waits, once");
                self.incarnation = self.cursor.incarnation();
                self.normalizer.restore(learned);
                self.read_last = Some(seq);
                out.push(RankOutput::Load { sequence: seq, parts: stores.into_parts() });
            }
            Output::DropSeed => self.seed = None,
        }
    }

    /// Takes a seed, if it may be of use.
    fn offered(&mut self, seed: Seed) -> Option<Input> {
        self.counters.bump("seeds_offered");
        if let Err(refusal) = seed.check(&self.identity) {
            self.counters.bump(refusal.label());
            return None;
        }
        self.seed = Some((seed.stores, seed.learned));
        Some(Input::Seed(seed.cut))
    }

    /// Takes a part of a state. What cannot be one gives the state up.
    fn told(&mut self, request: u64, frames: &[Bytes]) -> Option<Input> {
        let staged = self.staged.as_mut().filter(|staged| staged.request == request)?;
        let put = match parse_replay(frames, &self.frame_limits) {
            Ok(ReplayReply::Batch { sequence, .. }) => {
                let payload = frames.last()?.clone();
                staged.put(sequence, payload, self.limits.snapshot_bytes_max).map_err(|misfit| misfit.label())
            }
            Ok(ReplayReply::End) => return None,
            Err(error) => Err(error.label()),
        };
        let reason = put.err()?;
        self.counters.bump(reason);
        self.staged = None;
        Some(Input::SnapshotFailed { request })
    }

    /// Reads a state that has come whole. One event that cannot be read makes it none.
    fn told_all(&mut self, request: u64) -> Option<Input> {
        let staged = self.staged.take_if(|staged| staged.request == request)?;
        let failed = Some(Input::SnapshotFailed { request });
        let Some(next) = staged.next else {
            self.counters.bump("snapshot_not_offered");
            return failed;
        };
        let mut state = Vec::with_capacity(staged.payloads.len());
        for payload in &staged.payloads {
            let mut ops = Vec::new();
            let batch = match decode_batch_in(payload, &self.limits.decode, &mut self.room) {
                Ok(batch) => batch,
                Err(error) => {
                    self.counters.bump(error.label());
                    self.counters.bump("snapshot_unreadable");
                    return failed;
                }
            };
            if self.normalizer.normalize(&batch, &mut ops).lost.is_some() {
                self.counters.bump("snapshot_unreadable");
                return failed;
            }
            state.push(ops);
        }
        self.state = state;
        Some(Input::SnapshotReady { request, next })
    }

    fn read(&mut self, now: Now, seq: u64, payload: Bytes) -> OpBatch {
        let mut ops = Vec::new();
        let lost_before = self.read_last.is_some_and(|last| seq > last.saturating_add(1));
        self.read_last = Some(seq);
        self.last_event_ms = Some(now.unix_ms);
        let batch = match decode_batch_in(&payload, &self.limits.decode, &mut self.room) {
            Ok(batch) => batch,
            Err(error) => {
                self.counters.bump("undecodable_batches");
                self.counters.bump(error.label());
                self.cursor.content_lost(seq, "a batch could not be read");
                return OpBatch { sequence: Some(seq), published_at: None, ops, lost_before, payload: Some(payload) };
            }
        };
        self.counters.bump("batches");
        self.counters.add("events", batch.events.len() as u64);
        if batch.rank.is_some_and(|rank| rank != self.number) {
            self.counters.bump("rank_mismatch");
        }
        self.last_event_engine_time = batch.timestamp.or(self.last_event_engine_time);
        let published_at = batch.timestamp;
        let effect = self.normalizer.normalize(&batch, &mut ops);
        if effect.cleared {
            self.cursor.cleared(seq);
        }
        if let Some(why) = effect.lost {
            self.cursor.content_lost(seq, why);
        }
        OpBatch { sequence: Some(seq), published_at, ops, lost_before, payload: Some(payload) }
    }
}
