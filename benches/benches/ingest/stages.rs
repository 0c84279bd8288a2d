//! The recorded streams by engine and block size, and the stages that run over them.

use super::peer::Peer;
use kvatlas_harness::recording::Recording;
use kvatlas_harness::sidecar;
use kvatlas_index::{ContentHash, EngineHash, Index, IndexConfig, Lane, RankKey, RankSlot};
use kvatlas_service::ingest::normalize::Normalizer;
use kvatlas_service::ingest::{Engine, HashChoice, IngestLimits, RankEndpoint, WorkerSpec};
use kvatlas_service::ops::{Applied, Op};
use kvatlas_service::wire::{ContentHasher, DecodeLimits, Event, HashMode, TokenRoom, decode_batch, decode_batch_in};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Peer,
    PeerAgain,
    Decode,
    First,
    Join,
}

/// In the order of their numbers.
pub const STAGES: [Stage; 5] = [Stage::Peer, Stage::PeerAgain, Stage::Decode, Stage::First, Stage::Join];

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Peer => "peer",
            Stage::PeerAgain => "peer again",
            Stage::Decode => "decode",
            Stage::First => "first",
            Stage::Join => "join",
        }
    }
}

/// The live payloads of one publisher.
struct Stream {
    spec: WorkerSpec,
    payloads: Vec<Vec<u8>>,
}

/// Recordings of one engine, wire form and block size.
pub struct Group {
    pub name: String,
    pub block_size: usize,
    /// Stored names, all streams together.
    pub blocks: usize,
    pub removed: usize,
    pub stores: usize,
    pub bytes: usize,
    streams: Vec<Stream>,
    peer: Peer,
    ours: Ours,
    lane: Lane,
    _index: std::sync::Arc<Index>,
    next_rank: u32,
}

/// Reads every recording below `directory`.
pub fn groups(directory: &Path) -> Vec<Group> {
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).expect("the recordings").map(|e| e.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "kvrec"));
    paths.sort();
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for path in paths {
        let recording = Recording::load(&path).expect("a sound recording");
        for publisher in 0..recording.publishers() as u8 {
            let meta = &recording.rank_truth(publisher, 0).expect("truth").meta;
            let payloads: Vec<Vec<u8>> = recording
                .live
                .iter()
                .filter(|live| live.publisher == publisher)
                .filter_map(|live| live.frames.last().cloned())
                .collect();
            let form =
                if payloads.iter().any(|p| p.windows(12).any(|w| w == b"block_hashes")) { "maps" } else { "arrays" };
            let engine = match meta.engine {
                sidecar::Engine::Vllm => "vllm",
                sidecar::Engine::Sglang => "sglang",
            };
            let name = format!("{engine}, {} tokens, {form}", meta.block_size);
            let group = groups.entry(name.clone()).or_insert_with(|| Group::new(name, meta.block_size as usize));
            group.add(Stream { spec: spec(meta), payloads });
        }
    }
    groups.into_values().collect()
}

fn spec(meta: &sidecar::Meta) -> WorkerSpec {
    WorkerSpec {
        id: "recorded".to_owned(),
        model: "recorded".to_owned(),
        routing_group: String::new(),
        block_size: meta.block_size,
        engine: match meta.engine {
            sidecar::Engine::Vllm => Engine::Vllm,
            sidecar::Engine::Sglang => Engine::Sglang,
        },
        ranks: vec![RankEndpoint { rank: 0, events: "tcp://recording:0".to_owned(), replay: None }],
        topic: String::new(),
        report_mode_full: false,
        bigram: false,
        hash_check_every: 0,
        hash_seed: None,
        hash_scheme: HashChoice::default(),
        snapshots: None,
    }
}

impl Group {
    fn new(name: String, block_size: usize) -> Self {
        let config = IndexConfig { hash_key: Some([11, 13]), ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config).expect("a valid configuration");
        Self {
            name,
            block_size,
            blocks: 0,
            removed: 0,
            stores: 0,
            bytes: 0,
            streams: Vec::new(),
            peer: Peer::default(),
            ours: Ours::new(block_size),
            lane: lanes.pop().expect("one lane"),
            _index: index,
            next_rank: 0,
        }
    }

    fn add(&mut self, stream: Stream) {
        for payload in &stream.payloads {
            self.bytes += payload.len();
            for event in &decode_batch(payload, &DecodeLimits::default()).expect("a recorded payload").events {
                match event {
                    Event::Stored(stored) => {
                        self.blocks += stored.hashes.len();
                        self.stores += 1;
                    }
                    Event::Removed(removed) => self.removed += removed.hashes.len(),
                    Event::Cleared(_) => {}
                }
            }
        }
        self.streams.push(stream);
    }

    /// Runs a stage once over all streams and says how long it took.
    pub fn run(&mut self, stage: Stage) -> Duration {
        match stage {
            Stage::Peer | Stage::PeerAgain => {
                let start = Instant::now();
                let payloads = self.streams.iter().flat_map(|stream| &stream.payloads);
                payloads.for_each(|payload| _ = black_box(self.peer.read(black_box(payload))));
                start.elapsed()
            }
            Stage::Decode => {
                let start = Instant::now();
                let payloads = self.streams.iter().flat_map(|stream| &stream.payloads);
                payloads.for_each(|payload| _ = black_box(self.ours.read(black_box(payload))));
                start.elapsed()
            }
            Stage::First => (0..self.streams.len()).map(|stream| self.apply(stream, false)).sum(),
            Stage::Join => (0..self.streams.len()).map(|stream| self.apply(stream, true)).sum(),
        }
    }

    /// Plays a stream for a rank on an empty index; with `join` a second rank follows batch by batch, and its time counts.
    fn apply(&mut self, stream: usize, join: bool) -> Duration {
        let limits = IngestLimits::default();
        let Stream { spec, payloads } = &self.streams[stream];
        self.next_rank += 2;
        let mut ranks = [0, 1].map(|n| Follower {
            slot: self.lane.open_rank(RankKey(self.next_rank + n)).expect("room"),
            normalizer: Normalizer::new(spec, &limits),
            room: TokenRoom::default(),
        });
        let mut spent = Duration::ZERO;
        if join {
            for payload in payloads {
                ranks[0].follow(&limits, payload, &mut self.lane);
                let start = Instant::now();
                ranks[1].follow(&limits, payload, &mut self.lane);
                spent += start.elapsed();
            }
        } else {
            let start = Instant::now();
            payloads.iter().for_each(|payload| ranks[0].follow(&limits, payload, &mut self.lane));
            spent = start.elapsed();
        }
        for rank in &ranks {
            self.lane.close_rank(rank.slot).expect("an open rank");
        }
        // What the ranks held goes now, as on a lane with nothing else to do: it is no part of the next stream's path.
        while self.lane.sweep(1024) > 0 {}
        spent
    }
}

/// Our decoder and hasher, with buffers that are used again.
struct Ours {
    hasher: ContentHasher,
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
    room: TokenRoom,
    limits: DecodeLimits,
}

impl Ours {
    fn new(block_size: usize) -> Self {
        Self {
            hasher: ContentHasher::new(HashMode::Plain, block_size),
            names: Vec::new(),
            contents: Vec::new(),
            room: TokenRoom::default(),
            limits: IngestLimits::default().decode,
        }
    }

    fn read(&mut self, payload: &[u8]) -> u64 {
        let batch = decode_batch_in(payload, &self.limits, &mut self.room).expect("a recorded payload");
        self.names.clear();
        self.contents.clear();
        for event in &batch.events {
            match event {
                Event::Stored(stored) => {
                    stored.hashes.append_to(usize::MAX, &mut self.names);
                    let _ = black_box(self.hasher.store(stored, &mut self.contents));
                }
                Event::Removed(removed) => removed.hashes.append_to(usize::MAX, &mut self.names),
                Event::Cleared(_) => {}
            }
        }
        self.names.iter().fold(0, |s, n| s ^ n.0) ^ self.contents.iter().fold(0, |s, c| s ^ c.0)
    }
}

/// A rank whose payloads go into the index.
struct Follower {
    slot: RankSlot,
    normalizer: Normalizer,
    room: TokenRoom,
}

impl Follower {
    fn follow(&mut self, limits: &IngestLimits, payload: &[u8], lane: &mut Lane) {
        let batch = decode_batch_in(payload, &limits.decode, &mut self.room).expect("a recorded payload");
        let mut ops: Vec<Op> = Vec::new();
        self.normalizer.normalize(&batch, &mut ops);
        let mut applied = Applied::default();
        for op in &ops {
            op.apply(lane, self.slot, &mut applied).expect("room");
        }
        black_box(applied);
    }
}
