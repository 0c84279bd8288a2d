//! A tiny msgpack writer for engine events, and one worker followed by the real rank into the real index.
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(dead_code, reason = "each test file uses its part")]

use bytes::Bytes;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, HolderDepth, Index, IndexConfig, IndexError, Lane, LookupOptions, RankKey,
    RankSlot, Reader, Residency, Store, Tier,
};
use kvatlas_service::ingest::{
    Engine, HashChoice, IngestLimits, Now, Rank, RankEndpoint, RankInput, RankOutput, RankStatus, WorkerSpec,
};
use kvatlas_service::ops::{Applied, Op, OpBatch};
use kvatlas_service::wire::{ContentHasher, HashMode, MultimodalItem, Namespace, Prompt};
use std::collections::BTreeMap;
use std::time::Duration;

/// One msgpack value, written.
pub type Value = Vec<u8>;

pub fn nil() -> Value {
    vec![0xc0]
}

pub fn int(value: i128) -> Value {
    match value {
        0..=0x7f => vec![value as u8],
        0x80.. => [&[0xcf][..], &u64::try_from(value).unwrap().to_be_bytes()].concat(),
        _ => [&[0xd3][..], &i64::try_from(value).unwrap().to_be_bytes()].concat(),
    }
}

pub fn text(value: &str) -> Value {
    [&[0xd9, value.len() as u8][..], value.as_bytes()].concat()
}

pub fn bin(value: &[u8]) -> Value {
    [&[0xc4, value.len() as u8][..], value].concat()
}

pub fn list(items: impl IntoIterator<Item = Value>) -> Value {
    let items: Vec<Value> = items.into_iter().collect();
    [&[0xdd][..], &(items.len() as u32).to_be_bytes(), &items.concat()].concat()
}

pub fn map(fields: &[(&str, Value)]) -> Value {
    let body: Vec<u8> = fields.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [&[0xdf][..], &(fields.len() as u32).to_be_bytes(), &body].concat()
}

pub fn ints(values: impl IntoIterator<Item = u64>) -> Value {
    list(values.into_iter().map(|v| int(i128::from(v))))
}

/// A batch with a time stamp that makes the payloads of one worker distinct.
pub fn batch(time: f64, events: Vec<Value>) -> Bytes {
    let stamp = [&[0xcb][..], &time.to_be_bytes()].concat();
    list([stamp, list(events), int(0)]).into()
}

/// A `BlockStored` on the device, as a map. `more` adds or replaces fields.
pub fn stored(parent: Option<u64>, hashes: &[u64], tokens: &[u32], size: u64, more: &[(&str, Value)]) -> Value {
    let mut fields = vec![
        ("type", text("BlockStored")),
        ("block_hashes", ints(hashes.iter().copied())),
        ("parent_block_hash", parent.map_or(nil(), |p| int(i128::from(p)))),
        ("token_ids", ints(tokens.iter().map(|&t| u64::from(t)))),
        ("block_size", int(i128::from(size))),
        ("medium", text("GPU")),
    ];
    for (key, value) in more {
        match fields.iter_mut().find(|(known, _)| known == key) {
            Some(field) => field.1 = value.clone(),
            None => fields.push((key, value.clone())),
        }
    }
    map(&fields)
}

pub fn removed(hashes: &[u64], more: &[(&str, Value)]) -> Value {
    let mut fields = vec![("type", text("BlockRemoved")), ("block_hashes", ints(hashes.iter().copied()))];
    if !more.iter().any(|(key, _)| *key == "medium") {
        fields.push(("medium", text("GPU")));
    }
    fields.extend(more.iter().cloned());
    map(&fields)
}

pub fn cleared() -> Value {
    map(&[("type", text("AllBlocksCleared"))])
}

/// The registration of a worker with one rank.
pub fn spec(block_size: u32) -> WorkerSpec {
    WorkerSpec {
        id: "w".into(),
        model: "m".into(),
        routing_group: "default".into(),
        block_size,
        engine: Engine::Auto,
        ranks: vec![RankEndpoint { rank: 0, events: "tcp://127.0.0.1:1".into(), replay: None }],
        topic: String::new(),
        report_mode_full: false,
        bigram: false,
        hash_check_every: 0,
        hash_seed: None,
        hash_scheme: HashChoice::default(),
        snapshots: None,
    }
}

/// The operations of a batch on a lane.
pub fn apply(lane: &mut Lane, slot: RankSlot, batch: &OpBatch) -> Applied {
    let mut did = Applied::default();
    for op in &batch.ops {
        apply_op(lane, slot, op, &mut did);
    }
    did
}

fn apply_op(lane: &mut Lane, slot: RankSlot, op: &Op, did: &mut Applied) {
    let at = |tier: Tier| Holder { rank: slot, tier };
    let stored = match op {
        Op::Store { tier, parent, names, contents, kind } => {
            lane.store(at(*tier), &Store { parent: *parent, names, contents, kind: *kind })
        }
        Op::Adopt { tier, names } => {
            let found = lane.adopt(at(*tier), names);
            did.unknown_adoptions += found.as_ref().map_or(0, |f| f.unknown);
            found
        }
        Op::Remove { tier, names } => {
            did.unknown_removals += lane.remove(at(*tier), names).unwrap().unknown;
            return;
        }
        Op::SetCopies { tier, name, left } => {
            lane.set_copies(at(*tier), *name, *left).unwrap();
            return;
        }
        Op::Clear { tier } => {
            lane.clear(slot, *tier).unwrap();
            return;
        }
    };
    match stored {
        Ok(stored) => {
            did.stored += stored.stored;
            did.copies += stored.copies;
            did.orphans += stored.orphans;
        }
        Err(IndexError::SelfParent { .. }) => did.self_parent += 1,
        Err(other) => panic!("{other}"),
    }
}

/// What a lookup asks for beside tokens.
#[derive(Clone, Copy, Default)]
pub struct Ask<'a> {
    pub lora: Option<&'a str>,
    pub salt: Option<&'a str>,
    pub items: &'a [MultimodalItem<'a>],
    pub cumulative: bool,
}

/// Workers with one rank each, followed into one index.
pub struct World {
    block_size: usize,
    bigram: bool,
    lane: Lane,
    reader: Reader,
    workers: Vec<(Rank, RankSlot)>,
    time: f64,
    now: Duration,
    /// Replay requests that were made, by worker.
    pub asked: Vec<(usize, u64, u64)>,
}

impl World {
    pub fn new(specs: &[WorkerSpec]) -> Self {
        let (index, mut lanes) = Index::new(IndexConfig::default()).unwrap();
        let mut lane = lanes.remove(0);
        let workers = specs
            .iter()
            .enumerate()
            .map(|(i, spec)| {
                let mut rank = Rank::new(spec, &spec.ranks[0], &IngestLimits::default());
                let now = Now::default();
                let mut out = Vec::new();
                rank.step(now, RankInput::Connected, &mut out);
                (rank, lane.open_rank(RankKey(i as u32)).unwrap())
            })
            .collect();
        let reader = index.reader();
        let (block_size, bigram) = (specs[0].block_size as usize, specs[0].bigram);
        Self { block_size, bigram, lane, reader, workers, time: 0.0, now: Duration::ZERO, asked: Vec::new() }
    }

    /// One worker of block size 4.
    pub fn one() -> Self {
        Self::new(&[spec(4)])
    }

    pub fn step(&mut self, worker: usize, input: RankInput) {
        let (rank, slot) = &mut self.workers[worker];
        let mut out = Vec::new();
        rank.step(Now { elapsed: self.now, unix_ms: 0 }, input, &mut out);
        for output in out {
            match output {
                RankOutput::Apply(batch) => {
                    let did = apply(&mut self.lane, *slot, &batch);
                    rank.applied(batch.sequence, &did);
                }
                RankOutput::RequestReplay { request, from } => self.asked.push((worker, request, from)),
                RankOutput::CancelReplay | RankOutput::RequestSnapshot { .. } | RankOutput::CancelSnapshot => {}
                RankOutput::Load { .. } => panic!("no state was told"),
            }
        }
    }

    /// A live batch, and its payload.
    pub fn live(&mut self, worker: usize, seq: u64, events: Vec<Value>) -> Bytes {
        self.time += 1.0;
        let payload = batch(self.time, events);
        self.live_payload(worker, seq, payload.clone());
        payload
    }

    pub fn live_payload(&mut self, worker: usize, seq: u64, payload: Bytes) {
        let frames = vec![Bytes::new(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        self.step(worker, RankInput::Live(frames));
    }

    pub fn replay(&mut self, worker: usize, seq: u64, payload: Bytes) {
        let request = self.asked.last().unwrap().1;
        let frames = vec![Bytes::new(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        self.step(worker, RankInput::Replay { request, frames });
    }

    pub fn replay_end(&mut self, worker: usize) {
        self.replay(worker, u64::MAX, Bytes::new());
    }

    /// Blocks of each worker on each tier for a prompt.
    pub fn lookup_all(&mut self, tokens: &[u32], ask: Ask<'_>) -> BTreeMap<(u32, Tier), u32> {
        let mode = if self.bigram { HashMode::Bigram } else { HashMode::Plain };
        let mut query: Vec<ContentHash> = Vec::new();
        let namespace = Namespace::new(ask.lora, ask.salt);
        ContentHasher::new(mode, self.block_size).prompt(&Prompt { tokens, namespace, items: ask.items }, &mut query);
        let residency = if ask.cumulative { Residency::Cumulative } else { Residency::PerTier };
        let mut found: Vec<HolderDepth> = Vec::new();
        let _ = self.reader.lookup(&query, &LookupOptions { filter: None, residency }, &mut found);
        found.into_iter().map(|h| ((h.rank.0, h.tier), h.blocks)).collect()
    }

    /// Blocks of each worker on the device.
    pub fn lookup(&mut self, tokens: &[u32]) -> Vec<(u32, u32)> {
        self.lookup_in(tokens, Ask::default())
    }

    pub fn lookup_in(&mut self, tokens: &[u32], ask: Ask<'_>) -> Vec<(u32, u32)> {
        let all = self.lookup_all(tokens, ask);
        all.into_iter().filter(|((_, tier), _)| *tier == Tier::Device).map(|((worker, _), n)| (worker, n)).collect()
    }

    pub fn names(&self, worker: usize, tier: Tier) -> Vec<(EngineHash, u64)> {
        self.lane.names(Holder { rank: self.workers[worker].1, tier })
    }

    pub fn status(&self, worker: usize) -> RankStatus {
        self.workers[worker].0.status()
    }

    pub fn count(&self, worker: usize, reason: &str) -> u64 {
        self.status(worker).counters.get(reason).copied().unwrap_or(0)
    }
}
