//! Random peers in virtual time: copies that break off, stall, move on under the reader, and contradict themselves. Whatever happens,
//! what is offered is the whole of one state that a peer had, under the cursor of that very state; nobody is called without a pause
//! for ever; and it ends.

use super::assembly::tests::{identity, not_exact};
use super::*;
use crate::ingest::Trust;
use crate::ops::Op;
use crate::seed::{Cut, Learned, Proof, Seed};
use kvatlas_index::{EngineHash, Tier};
use std::time::Duration;

const SEEDS: u64 = 2_000;
const RANKS: u32 = 4;
const MS: Duration = Duration::from_millis(1);

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The state of a rank at a peer after so many changes. Its first chunks stay the same over some of them.
fn state(rank: u32, version: u64) -> Vec<Vec<Op>> {
    let chunk = |number: u64| {
        let since = if number < 2 { version / 3 } else { version };
        let name = u64::from(rank) << 48 | number << 32 | since;
        vec![Op::SetCopies { tier: Tier::Device, name: EngineHash(name), left: 2 }]
    };
    (0..version % 5).map(chunk).collect()
}

fn sum(chunks: &[Vec<Op>]) -> u64 {
    let mut sum = ChunksSum::default();
    chunks.iter().for_each(|chunk| sum.add(chunk));
    sum.value()
}

/// A peer's ranks: the version of each, or that it is not exact.
type Ranks = Vec<Option<u64>>;

/// What a peer that does as it should tells of its ranks, as they are when each is reached.
struct Telling {
    peer: usize,
    call: u64,
    resume: Option<Resume>,
    rank: u32,
    pieces: std::collections::VecDeque<Piece>,
}

impl Telling {
    fn next(&mut self, ranks: &Ranks) -> Piece {
        if let Some(piece) = self.pieces.pop_front() {
            return piece;
        }
        let resume = self.resume.take();
        if let Some(resume) = &resume {
            self.rank = resume.rank;
        }
        let Some(version) = ranks.get(self.rank as usize) else { return Piece::All { ranks: RANKS } };
        let rank = self.rank;
        self.rank += 1;
        let Some(version) = *version else { return not_exact("w", rank) };
        let chunks = state(rank, version);
        let there = resume.map_or(0, |resume| {
            let known = chunks.get(..resume.chunks as usize).is_some_and(|chunks| sum(chunks) == resume.checksum);
            if known { resume.chunks as usize } else { 0 }
        });
        let chunk = |(number, ops): (usize, &Vec<Op>)| Piece::Chunk { number: number as u32, ops: ops.clone() };
        self.pieces = chunks.iter().enumerate().skip(there).map(chunk).collect();
        self.pieces.push_back(Piece::End { chunks: chunks.len() as u32, blocks: 0, checksum: sum(&chunks) });
        let proofs = vec![Proof { sequence: version, payload_hash: version }];
        Piece::Head(Box::new(RankHead {
            identity: identity("w", rank),
            trust: Trust::Exact,
            cut: Some(Cut { cursor: version, incarnation: 1, trust: Trust::Exact, proofs }),
            learned: Learned::default(),
            first_chunk: there as u32,
        }))
    }
}

struct World {
    random: Random,
    bootstrap: Bootstrap,
    now: Duration,
    peers: Vec<Ranks>,
    telling: Option<Telling>,
    /// Peers that said what does not fit.
    liars: Vec<bool>,
    /// Ranks of ours that want a seed.
    wanting: Vec<bool>,
    offered: u64,
    calls: Vec<Duration>,
    outcome: Option<Outcome>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 1 + random.below(3) as usize;
        let ranks = |random: &mut Random| {
            let version = |random: &mut Random| (random.below(4) > 0).then(|| random.below(12));
            (0..RANKS).map(|_| version(random)).collect()
        };
        let peers: Vec<Ranks> = (0..count).map(|_| ranks(&mut random)).collect();
        let settings = ReplicaSettings {
            peers: vec![String::new(); count],
            deadline: 3_000 * MS,
            silence_max: 200 * MS,
            pause_min: 10 * MS,
            pause_max: 100 * MS,
            ..ReplicaSettings::default()
        };
        Self {
            random,
            bootstrap: Bootstrap::new(settings),
            now: Duration::ZERO,
            liars: vec![false; count],
            peers,
            telling: None,
            wanting: vec![true; RANKS as usize],
            offered: 0,
            calls: Vec::new(),
            outcome: None,
        }
    }

    fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        let left = self.wanting.iter().filter(|wanting| **wanting).count();
        self.bootstrap.step(self.now, left, input, &mut out);
        for output in out {
            assert_eq!(self.outcome, None, "nothing comes after the end");
            match output {
                Output::Call { call, peer, resume } => {
                    assert!(!self.liars[peer], "a peer that contradicted itself is called again");
                    let pieces = std::collections::VecDeque::new();
                    self.telling = Some(Telling { peer, call, resume, rank: 0, pieces });
                    self.calls.push(self.now);
                }
                Output::HangUp => self.telling = None,
                Output::Offer(seed) => self.offer(*seed),
                Output::Done(outcome) => self.outcome = Some(outcome),
            }
        }
    }

    fn offer(&mut self, seed: Seed) {
        let (rank, version) = (seed.identity.rank, seed.cut.cursor);
        assert_eq!(seed.stores.into_parts(), state(rank, version), "rank {rank} as of its cursor, and nothing else");
        self.offered += 1;
        // The publisher proves it, mostly.
        self.wanting[rank as usize] &= self.random.below(4) == 0;
    }

    /// One thing that happens.
    fn happen(&mut self) {
        self.now += MS * self.random.below(4) as u32;
        match self.random.below(32) {
            0 => self.fail(Failure::Broken),
            1 if self.random.below(8) == 0 => self.fail(Failure::Useless),
            2 if self.random.below(4) == 0 => self.lie(),
            3 => {
                // Long enough for a silent call, or for a pause.
                self.now += 100 * MS;
                self.step(Input::Tick);
            }
            4..8 => {
                let peer = self.random.below(self.peers.len() as u64) as usize;
                let rank = self.random.below(RANKS.into()) as usize;
                self.peers[peer][rank] = match self.peers[peer][rank] {
                    Some(version) if self.random.below(4) > 0 => Some(version + 1),
                    Some(_) => None,
                    None => Some(self.random.below(12)),
                };
            }
            8 if self.random.below(16) == 0 => {
                let rank = self.random.below(RANKS.into()) as usize;
                self.wanting[rank] = false;
            }
            _ => self.tell(),
        }
        if self.bootstrap.next_tick().is_some_and(|due| self.now >= due) {
            self.step(Input::Tick);
        }
    }

    fn tell(&mut self) {
        let Some(telling) = &mut self.telling else { return };
        let (call, piece) = (telling.call, telling.next(&self.peers[telling.peer]));
        let wanted = matches!(&piece, Piece::Head(head) if self.wanting[head.identity.rank as usize]);
        self.step(Input::Piece { call, piece, wanted });
    }

    fn fail(&mut self, failure: Failure) {
        let Some(telling) = self.telling.take() else { return };
        self.liars[telling.peer] |= failure == Failure::Useless;
        self.step(Input::Failed { call: telling.call, failure });
    }

    /// A piece that fits nowhere.
    fn lie(&mut self) {
        let Some(Telling { peer, call, .. }) = self.telling else { return };
        self.liars[peer] = true;
        let piece = match self.random.below(3) {
            0 => Piece::Chunk { number: 1_000, ops: Vec::new() },
            1 => Piece::End { chunks: 1_000, blocks: 0, checksum: 0 },
            _ => Piece::Chunk { number: 0, ops: vec![Op::Clear { tier: None }] },
        };
        self.step(Input::Piece { call, piece, wanted: false });
    }
}

#[test]
fn whatever_peers_do_only_whole_states_are_offered_and_it_ends() {
    let (mut offered, mut complete) = (0, 0);
    for seed in 0..SEEDS {
        let played = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.step(Input::Tick);
            while world.outcome.is_none() {
                world.happen();
                assert!(world.now < 4_000 * MS, "it ends at its deadline");
            }
            assert_eq!(world.bootstrap.next_tick(), None);
            // Between two pauses each peer is called once, and once more for every rank that a call got further.
            let burst = world.peers.len() * (RANKS as usize * 6 + 1);
            let calls = &world.calls;
            assert!(calls.windows(burst + 1).all(|calls| calls[burst] > calls[0]), "calls without a pause: {calls:?}");
            (world.offered, world.outcome)
        });
        match played {
            Ok((some, outcome)) => {
                offered += some;
                complete += u64::from(outcome == Some(Outcome::Complete));
            }
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{SEEDS} seeds: {offered} seeds offered, {complete} complete");
    assert!(offered > SEEDS && complete > SEEDS / 2, "{offered} offered, {complete} complete");
}
