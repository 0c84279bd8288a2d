//! Plays a recording through the product: frames into [`Rank`] (cursor, decoder, normalizer), its operations into the real
//! index, and every checkpoint of the truth against both.
//!
//! Messages go in as they were received, in that order; replays are answered from the recording, when the cursor asks and
//! with what was published by then. The player never tells the product about a restart.

use super::apply::apply;
use super::checker::{Checker, Indexed};
use super::fold::Fold;
use super::report::{Report, Rule};
use super::{Faults, Settings};
use crate::recording::{Live, Recording};
use bytes::Bytes;
use kvatlas_index::{
    ConfigError, ContentHash, Holder, HolderDepth, Index, IndexConfig, IndexError, Lane, LookupOptions, Outcome,
    RankFilter, RankKey, RankSlot, Reader, Residency, Tier,
};
use kvatlas_service::ingest::{IngestLimits, Now, Rank, RankInput, RankOutput, Trust};
use kvatlas_service::ops::OpBatch;
use kvatlas_service::wire::{ContentHasher, DecodeLimits, Event, HashMode, Namespace, Prompt, decode_batch};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Why a recording could not be played.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// The index refused its settings.
    #[error("index: {0}")]
    Config(#[from] ConfigError),
    /// The index refused an operation.
    #[error("index: {0}")]
    Index(#[from] IndexError),
    /// The recording has a publisher without truth.
    #[error("publisher {0} has no truth")]
    NoTruth(u8),
}

/// Payloads by sequence, as the publisher sent them: for the side fold, which sees none of the product's decisions.
type Payloads = BTreeMap<u64, Bytes>;

/// Everything about one publisher.
struct Stream<'a> {
    rank: Rank,
    slot: RankSlot,
    lane: usize,
    connected: bool,
    /// The life that the recorder saw last, and its newest batch: what a replay can deliver.
    source: u32,
    newest: Option<u64>,
    /// The life that the product is in, by its own decisions.
    life: usize,
    applied: Option<u64>,
    checker: Checker<'a>,
    fold: Fold,
}

/// The player of one recording.
pub struct Player<'a> {
    recording: &'a Recording,
    settings: Settings,
    faults: Faults,
    index: Parts,
    streams: Vec<Stream<'a>>,
    payloads: BTreeMap<(u8, usize), Payloads>,
    report: Report,
}

/// The index and what reads it.
struct Parts {
    lanes: Vec<Lane>,
    reader: Reader,
    hasher: ContentHasher,
    contents: Vec<ContentHash>,
    answer: Vec<HolderDepth>,
}

impl<'a> Player<'a> {
    /// A fresh index with one rank for each publisher, on lanes of their own where there are several.
    pub fn new(recording: &'a Recording, settings: Settings, faults: Faults) -> Result<Self, PlayError> {
        let config = IndexConfig { shards: 1, lanes_per_shard: 2, ..IndexConfig::default() };
        let (index, mut lanes) = Index::new(config)?;
        let mut streams = Vec::new();
        for publisher in 0..recording.publishers() as u8 {
            let truth = recording.rank_truth(publisher, 0).ok_or(PlayError::NoTruth(publisher))?;
            let spec = settings.worker(&truth.meta, publisher);
            let lane = usize::from(publisher) % lanes.len();
            streams.push(Stream {
                rank: Rank::new(&spec, &spec.ranks[0], &IngestLimits::default()),
                slot: lanes[lane].open_rank(RankKey(publisher.into()))?,
                lane,
                connected: false,
                source: 0,
                newest: None,
                life: 0,
                applied: None,
                checker: Checker::new(truth),
                fold: Fold::new(settings.report_mode_full),
            });
        }
        let block_size = recording.rank_truth(0, 0).map_or(1, |truth| truth.meta.block_size.max(1));
        let hasher = ContentHasher::new(HashMode::Plain, block_size as usize);
        let index = Parts { lanes, reader: index.reader(), hasher, contents: Vec::new(), answer: Vec::new() };
        let payloads = payloads_of(recording);
        let report = Report { name: recording.name.clone(), ..Report::default() };
        Ok(Self { recording, settings, faults, index, streams, payloads, report })
    }

    /// Plays everything and compares everything.
    pub fn play(mut self) -> Result<Report, PlayError> {
        for (i, live) in self.recording.live.iter().enumerate() {
            let now = Now { elapsed: Duration::from_micros(live.t_us), unix_ms: live.t_us / 1000 };
            self.connect(live, now)?;
            self.tick(live.publisher, now)?;
            let stream = self.stream(live.publisher);
            stream.newest = Some(live.sequence);
            for _ in 0..self.faults.deliveries(i, live, self.recording) {
                let frames = live.frames.iter().map(|f| Bytes::copy_from_slice(f)).collect();
                self.step(live.publisher, now, RankInput::Live(frames))?;
            }
        }
        for publisher in 0..self.streams.len() as u8 {
            self.end_life(publisher);
            self.end_stream(publisher);
        }
        Ok(self.report)
    }

    fn stream(&mut self, publisher: u8) -> &mut Stream<'a> {
        &mut self.streams[usize::from(publisher)]
    }

    /// Connects at the first message; with [`Faults::reconnects`], again when the publisher's process is another one.
    fn connect(&mut self, live: &Live, now: Now) -> Result<(), PlayError> {
        let reconnects = self.faults.reconnects;
        let stream = self.stream(live.publisher);
        let replaced = stream.source != live.incarnation;
        if replaced {
            (stream.source, stream.newest) = (live.incarnation, None);
        }
        let first = !std::mem::replace(&mut stream.connected, true);
        if replaced && reconnects {
            self.step(live.publisher, now, RankInput::Disconnected)?;
        }
        if first || (replaced && reconnects) {
            self.step(live.publisher, now, RankInput::Connected)?;
        }
        Ok(())
    }

    fn tick(&mut self, publisher: u8, now: Now) -> Result<(), PlayError> {
        let due = self.stream(publisher).rank.next_tick();
        match due.filter(|due| *due <= now.elapsed) {
            Some(_) => self.step(publisher, now, RankInput::Tick),
            None => Ok(()),
        }
    }

    /// One input, and whatever follows from it: operations, and replays that are answered at once.
    fn step(&mut self, publisher: u8, now: Now, input: RankInput) -> Result<(), PlayError> {
        let mut todo = VecDeque::from([input]);
        let mut outputs = Vec::new();
        while let Some(input) = todo.pop_front() {
            self.stream(publisher).rank.step(now, input, &mut outputs);
            for output in outputs.drain(..) {
                match output {
                    RankOutput::Apply(batch) => self.apply(publisher, &batch)?,
                    RankOutput::RequestReplay { request, from } => {
                        todo.clear();
                        todo.extend(self.replay(publisher, request, from));
                    }
                    RankOutput::CancelReplay => todo.clear(),
                    // Recorded engines were not asked for their state, and no registration here says that they can be.
                    RankOutput::RequestSnapshot { .. } | RankOutput::CancelSnapshot | RankOutput::Load { .. } => {}
                }
            }
        }
        Ok(())
    }

    fn replay(&mut self, publisher: u8, request: u64, from: u64) -> Vec<RankInput> {
        let recording = self.recording;
        let stream = self.stream(publisher);
        match recording.replays.get(&(publisher, stream.source)) {
            None => vec![RankInput::ReplayFailed { request }],
            Some(replay) => replay
                .answer(from, stream.newest)
                .map(|frames| frames.iter().map(|f| Bytes::copy_from_slice(f)).collect())
                .map(|frames| RankInput::Replay { request, frames })
                .collect(),
        }
    }

    fn apply(&mut self, publisher: u8, batch: &OpBatch) -> Result<(), PlayError> {
        match batch.sequence {
            // Only a new life of the publisher, or a loss beyond repair, empties a rank without a batch that says so.
            None => {
                self.end_life(publisher);
                self.next_life(publisher);
            }
            Some(sequence) => self.checkpoints(publisher, sequence),
        }
        let stream = &mut self.streams[usize::from(publisher)];
        let did = apply(&mut self.index.lanes[stream.lane], stream.slot, batch)?;
        stream.rank.applied(batch.sequence, &did);
        let Some(sequence) = batch.sequence else { return Ok(()) };
        stream.applied = Some(sequence);
        match self.payloads.get(&(publisher, stream.life)).and_then(|p| p.get(&sequence)) {
            Some(payload) => match decode_batch(payload, &DecodeLimits::default()) {
                Ok(decoded) => stream.fold.apply(&decoded),
                Err(error) => self.report.difference(|| format!("batch {sequence} cannot be decoded: {error}")),
            },
            None => self.report.difference(|| format!("batch {sequence} was never recorded")),
        }
        Ok(())
    }

    /// Compares every checkpoint whose state is the present one, before batch `next` changes it.
    fn checkpoints(&mut self, publisher: u8, next: u64) {
        let stream = &mut self.streams[usize::from(publisher)];
        let payload = self.payloads.get(&(publisher, stream.life)).and_then(|p| p.get(&next));
        let clear_next = payload.is_some_and(|payload| begins_with_clear(payload));
        while let Some(checkpoint) = stream.checker.due(next) {
            let mut view = View { parts: &mut self.index, lane: stream.lane, slot: stream.slot, rank: publisher };
            stream.checker.compare(checkpoint, &stream.fold, clear_next, &mut view, &mut self.report);
        }
    }

    /// The life of a publisher is over: all its checkpoints have to be reached.
    fn end_life(&mut self, publisher: u8) {
        let next = self.stream(publisher).applied.map_or(0, |applied| applied + 1);
        self.checkpoints(publisher, next);
        let stream = &self.streams[usize::from(publisher)];
        let left = stream.checker.left();
        if left > 0 {
            self.report.checkpoints += left;
            self.report
                .difference(|| format!("publisher {publisher}: {left} checkpoints from batch {next} on not reached"));
        }
        self.report.rule(Rule::ReportModeFull, stream.fold.announced());
        self.report.rule(Rule::ByteHashes, stream.fold.byte_names());
    }

    fn next_life(&mut self, publisher: u8) {
        let fold = Fold::new(self.settings.report_mode_full);
        let recording = self.recording;
        let stream = self.stream(publisher);
        stream.life += 1;
        stream.applied = None;
        stream.fold = fold;
        match recording.rank_truth(publisher, stream.life) {
            Some(truth) => stream.checker = Checker::new(truth),
            None => self.report.difference(|| format!("publisher {publisher}: a restart that never was")),
        }
        self.report.rule(Rule::Restart, 1);
    }

    /// What only shows at the end: the lives, the trust, the marks on answers.
    fn end_stream(&mut self, publisher: u8) {
        let lives = self.recording.truth.incarnations.len();
        let report_mode = self.settings.report_mode_full;
        let stream = &self.streams[usize::from(publisher)];
        let status = stream.rank.status();
        if status.trust != Trust::Exact {
            self.report.difference(|| format!("publisher {publisher} is {}: {:?}", status.trust.name(), status.detail));
        }
        if status.incarnation != lives as u64 || stream.life + 1 != lives {
            let seen = status.incarnation;
            self.report.difference(|| format!("publisher {publisher}: {seen} lives seen, there were {lives}"));
        }
        if status.upper_bound.is_some() != (stream.fold.is_hybrid() || report_mode) {
            self.report.difference(|| format!("publisher {publisher}: marked upper_bound: {:?}", status.upper_bound));
        }
        let live = self.recording.live.iter().filter(|l| l.publisher == publisher).count() as u64;
        let sent =
            (0..lives).filter_map(|life| self.payloads.get(&(publisher, life))).map(BTreeMap::len).sum::<usize>();
        self.report.rule(Rule::FirstFromReplay, (sent as u64).saturating_sub(live));
    }
}

/// One rank of the index.
struct View<'p> {
    parts: &'p mut Parts,
    lane: usize,
    slot: RankSlot,
    rank: u8,
}

impl Indexed for View<'_> {
    fn names(&self, tier: Tier) -> Vec<(u64, u64)> {
        let names = self.parts.lanes[self.lane].names(Holder { rank: self.slot, tier });
        names.into_iter().map(|(name, copies)| (name.0, copies)).collect()
    }

    fn depths(&mut self, tokens: &[u32], namespace: Namespace) -> [u64; 2] {
        let Parts { reader, hasher, contents, answer, .. } = &mut *self.parts;
        contents.clear();
        answer.clear();
        hasher.prompt(&Prompt { tokens, namespace, items: &[] }, contents);
        let filter = RankFilter::from_iter([RankKey(self.rank.into())]);
        let options = LookupOptions { filter: Some(&filter), residency: Residency::Cumulative };
        if reader.lookup(contents, &options, answer) == Outcome::Busy {
            // Nothing writes while the player looks up: reaching the retry bound is a bug, and no answer shows it.
            answer.clear();
        }
        let depth = |tier| answer.iter().filter(|d| d.tier <= tier).map(|d| d.blocks).max().unwrap_or(0).into();
        [depth(Tier::Device), depth(Tier::External)]
    }
}

/// Every batch of every life, from the live stream and the replay together.
fn payloads_of(recording: &Recording) -> BTreeMap<(u8, usize), Payloads> {
    let mut payloads: BTreeMap<(u8, usize), Payloads> = BTreeMap::new();
    for live in &recording.live {
        let payload = live.frames.last().map_or_else(Bytes::new, |payload| Bytes::copy_from_slice(payload));
        payloads.entry((live.publisher, live.incarnation as usize)).or_default().insert(live.sequence, payload);
    }
    for ((publisher, incarnation), replay) in &recording.replays {
        let of_life = payloads.entry((*publisher, *incarnation as usize)).or_default();
        of_life.extend(replay.payloads().map(|(sequence, payload)| (sequence, Bytes::copy_from_slice(payload))));
    }
    payloads
}

fn begins_with_clear(payload: &[u8]) -> bool {
    let batch = decode_batch(payload, &DecodeLimits::default());
    batch.is_ok_and(|batch| matches!(batch.events.first(), Some(Event::Cleared(c)) if c.medium.is_none()))
}
