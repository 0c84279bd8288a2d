//! One rank of a worker that is followed through `SubscribeKvEvents`: batches in, operations and a status out. Pure.

use super::convert::payload;
use super::cursor::{End, Header, StreamCursor, Verdict};
use super::proto::common::KvEventBatch;
use super::proto::common::kv_cache_event::Data;
use crate::ingest::normalize::Normalizer;
use crate::ingest::{Counters, Engine, IngestLimits, Now, RankStatus, Trust, WorkerSpec};
use crate::ops::{Applied, Op, OpBatch};
use crate::wire::{DecodeError, TokenRoom, decode_batch_in};
use bytes::Bytes;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The state of one rank.
pub struct SmgRank {
    number: u32,
    limits: IngestLimits,
    cursor: StreamCursor,
    normalizer: Normalizer,
    read_last: Option<u64>,
    last_event_ms: Option<u64>,
    last_event_engine_time: Option<f64>,
    counters: Counters,
    room: TokenRoom,
}

/// What a batch comes down to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Step {
    /// Apply these, in order.
    pub apply: Vec<OpBatch>,
    /// End the stream and ask for another one at once.
    pub again: bool,
}

impl SmgRank {
    /// A rank that has seen nothing.
    pub fn new(spec: &WorkerSpec, number: u32, limits: &IngestLimits) -> Self {
        Self {
            number,
            limits: *limits,
            cursor: StreamCursor::new(*limits, spec.engine == Engine::Sglang),
            normalizer: Normalizer::new(spec, limits),
            read_last: None,
            last_event_ms: None,
            last_event_engine_time: None,
            counters: Counters::default(),
            room: TokenRoom::default(),
        }
    }

    /// The last sequence that the server is told we have.
    pub fn start(&self) -> u64 {
        self.cursor.start()
    }

    /// Last sequence applied.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor.applied()
    }

    /// A stream was asked for.
    pub fn connected(&mut self) {
        self.cursor.connected();
    }

    /// A stream ended.
    pub fn ended(&mut self, end: End) -> Step {
        let clear = self.cursor.ended(end);
        Step { apply: clear.then(|| self.clear()).into_iter().collect(), again: false }
    }

    /// Time passed: whether to ask for everything again.
    pub fn tick(&mut self, now: Now) -> bool {
        self.cursor.tick(now.elapsed)
    }

    /// When [`Self::tick`] is due.
    pub fn next_tick(&self) -> Option<Duration> {
        self.cursor.next_tick()
    }

    /// Takes a batch.
    pub fn batch(&mut self, now: Now, batch: &KvEventBatch) -> Step {
        if batch.dp_rank.unwrap_or(0) != i32::try_from(self.number).unwrap_or(-1) {
            // Servicers put all ranks into one stream.
            self.counters.bump("other_rank_batches");
            return Step::default();
        }
        self.counters.bump("messages");
        let payload = payload(batch, self.number);
        let clears = batch.events.iter().any(|event| matches!(event.data, Some(Data::Cleared(_))));
        let header = Header { sequence: batch.sequence_number, hash: xxh3_64(&payload), clears };
        let verdict = self.cursor.batch(now.elapsed, header);
        let mut step = Step::default();
        match verdict {
            Verdict::Drop => {}
            Verdict::Again { clear } => {
                step.again = true;
                step.apply.extend(clear.then(|| self.clear()));
            }
            Verdict::Apply { clear_first } => {
                step.apply.extend(clear_first.then(|| self.clear()));
                step.apply.push(self.read(now, header.sequence, payload));
            }
        }
        step
    }

    /// Takes back what the index did with a batch.
    pub fn applied(&mut self, now: Now, did: &Applied) {
        self.counters.add_applied(did);
        if did.limit_reached > 0 {
            let why = "a memory limit of the index was reached: the rank was emptied";
            self.cursor.history_lost(now.elapsed, true, why);
        } else if did.orphans_dropped > 0 {
            let why = "blocks without a known parent were dropped: too many are waiting";
            self.cursor.history_lost(now.elapsed, false, why);
        }
    }

    /// Counts something that happened outside.
    pub fn count(&mut self, reason: &'static str, count: u64) {
        self.counters.add(reason, count);
    }

    /// How far answers about the rank can be believed.
    pub fn trust(&self) -> Trust {
        match self.normalizer.misconfigured() {
            Some(_) => Trust::Misconfigured,
            None => self.cursor.trust(),
        }
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
            connected: self.cursor.is_connected(),
            last_event_ms: self.last_event_ms,
            last_event_engine_time: self.last_event_engine_time,
            detail: words.filter(|_| self.trust() != Trust::Exact).map(str::to_owned),
            counters: counters.iter().collect(),
        }
    }

    fn clear(&mut self) -> OpBatch {
        self.normalizer.reset();
        self.read_last = None;
        OpBatch { ops: vec![Op::Clear { tier: None }], ..OpBatch::default() }
    }

    fn read(&mut self, now: Now, sequence: u64, payload: Bytes) -> OpBatch {
        let lost_before = self.read_last.is_some_and(|last| sequence > last.saturating_add(1));
        self.read_last = Some(sequence);
        self.last_event_ms = Some(now.unix_ms);
        let mut ops = Vec::new();
        let published_at = match self.normalize(now, &payload, &mut ops) {
            Ok(at) => at,
            Err(error) => {
                self.counters.bump("undecodable_batches");
                self.counters.bump(error.label());
                self.cursor.content_lost(now.elapsed, "a batch could not be read");
                None
            }
        };
        OpBatch { sequence: Some(sequence), published_at, ops, lost_before, payload: Some(payload) }
    }

    fn normalize(&mut self, now: Now, payload: &[u8], ops: &mut Vec<Op>) -> Result<Option<f64>, DecodeError> {
        let batch = decode_batch_in(payload, &self.limits.decode, &mut self.room)?;
        self.counters.bump("batches");
        self.counters.add("events", batch.events.len() as u64);
        self.last_event_engine_time = batch.timestamp.or(self.last_event_engine_time);
        if let Some(why) = self.normalizer.normalize(&batch, ops).lost {
            self.cursor.content_lost(now.elapsed, why);
        }
        Ok(batch.timestamp)
    }
}
