//! Two writers, a server and a reader in virtual time, under every fault that the module knows of: a reader that says EXACT holds what
//! the publisher held, at every step; and when the faults end it says so.

use super::entry::{Entry, Says};
use super::*;
use crate::ingest::{Now, Trust};
use crate::ops::{Op, OpBatch};
use crate::relay::{Life, Part};
use bytes::Bytes;
use kvatlas_index::{EngineHash, Tier};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

const HISTORY: usize = 12;
const WRITERS: usize = 2;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

fn mixed(state: u64, word: u64) -> u64 {
    Random(state.rotate_left(17) ^ word).next()
}

fn word_of(ops: &[Op]) -> Option<u64> {
    match ops {
        [Op::Remove { names, .. }] => names.first().map(|name| name.0),
        _ => None,
    }
}

fn ops_of(word: u64) -> Vec<Op> {
    vec![Op::Remove { tier: Tier::Device, names: vec![EngineHash(word)] }]
}

#[derive(Clone)]
struct Batch {
    sequence: u64,
    word: u64,
    lost_before: bool,
    trust: Trust,
}

/// The rank where it is written, as its relay shows it.
struct Rank {
    life: u64,
    lives: u64,
    next: u64,
    state: u64,
    trust: Trust,
    history: VecDeque<Batch>,
    /// What was held after each batch, and what was to be believed of it.
    truth: HashMap<(u64, u64), (u64, Trust)>,
}

impl Rank {
    fn new() -> Self {
        let truth = HashMap::new();
        Self { life: 1, lives: 1, next: 0, state: 0, trust: Trust::Exact, history: VecDeque::new(), truth }
    }

    fn publish(&mut self, random: &mut Random) {
        if random.one_in(60) {
            self.lives += 1;
            (self.life, self.next, self.state, self.trust) = (self.lives, 0, 0, Trust::Exact);
            self.history.clear();
        }
        let lost_before = self.next > 0 && random.one_in(30);
        if lost_before {
            self.next += 1 + random.below(3);
            self.trust = Trust::Degraded;
        } else if random.one_in(10) {
            self.trust = Trust::Exact;
        }
        let word = random.next();
        self.state = mixed(self.state, word);
        self.truth.insert((self.life, self.next), (self.state, self.trust));
        self.history.push_back(Batch { sequence: self.next, word, lost_before, trust: self.trust });
        self.next += 1;
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    fn newest(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }
}

/// A subscription, as `relay` gives it.
struct Subscription {
    life: u64,
    next: u64,
    reset: bool,
    parts: VecDeque<Entry>,
    said: Option<Trust>,
}

impl Subscription {
    fn new(rank: &Rank, random: &mut Random) -> Self {
        let life = rank.life;
        let Some(cut) = rank.newest() else {
            return Self { life, next: 0, reset: true, parts: VecDeque::new(), said: None };
        };
        let count = 1 + random.below(3) as u32;
        let part = |chunk: u32| {
            let part = Part { chunk, last: chunk + 1 == count };
            let ops = if chunk == 0 { ops_of(rank.state) } else { Vec::new() };
            entry(life, None, Says::Part { part, sequence: cut, ops })
        };
        Self { life, next: cut + 1, reset: false, parts: (0..count).map(part).collect(), said: None }
    }

    /// The next item; `Err` for the end.
    fn poll(&mut self, rank: &Rank) -> Result<Option<Entry>, ()> {
        if let Some(part) = self.parts.pop_front() {
            return Ok(Some(part));
        }
        if rank.life != self.life {
            return Err(());
        }
        let oldest = rank.history.front().map_or(rank.next, |batch| batch.sequence);
        if self.next < oldest && !self.reset {
            return Err(());
        }
        if let Some(batch) = rank.history.iter().find(|batch| batch.sequence >= self.next) {
            self.next = batch.sequence + 1;
            self.said = Some(batch.trust);
            let reset = std::mem::take(&mut self.reset);
            let (sequence, ops) = (Some(batch.sequence), ops_of(batch.word));
            let op_batch = OpBatch { sequence, ops, lost_before: batch.lost_before && !reset, ..OpBatch::default() };
            return Ok(Some(entry(self.life, Some(batch.trust), Says::Batch { reset, batch: op_batch })));
        }
        if self.said != Some(rank.trust) && rank.newest().is_some() {
            self.said = Some(rank.trust);
            return Ok(Some(entry(self.life, self.said, Says::Nothing)));
        }
        Ok(None)
    }
}

fn entry(life: u64, trust: Option<Trust>, says: Says) -> Entry {
    Entry { life: Life(life), trust, upper_bound: false, fits: true, bytes: 1, says }
}

#[derive(Clone, Default)]
struct Stored {
    /// Numbers of what was written; garbage has none.
    entries: BTreeMap<EntryId, Option<u64>>,
    last: Option<EntryId>,
}

#[derive(Default)]
struct Server {
    stored: Stored,
    /// What a restart leads back to.
    saved: Stored,
    lease: Option<(usize, Duration)>,
    up: bool,
    /// Entries that are refused for want of room.
    full: bool,
}

impl Server {
    fn append(&mut self, id: EntryId, number: Option<u64>) -> Outcome {
        if self.stored.last.is_some_and(|last| id <= last) {
            return Outcome::Fenced;
        }
        if self.stored.last.is_none() && id.number > 0 || self.full {
            return Outcome::Refused;
        }
        self.stored.entries.insert(id, number);
        self.stored.last = Some(id);
        Outcome::Taken
    }

    fn obey(&mut self, writer: usize, now: Duration, lease: Duration, command: &AppenderOutput) -> AppenderInput {
        match command {
            AppenderOutput::Lease => {
                let holder = self.lease.filter(|(_, until)| *until > now).map(|(holder, _)| holder);
                let ours = holder.is_none_or(|holder| holder == writer);
                if ours {
                    self.lease = Some((writer, now + lease));
                }
                AppenderInput::Lease { ours, stream: self.stored.last.is_some() }
            }
            AppenderOutput::Tail => AppenderInput::Tail(self.stored.last),
            AppenderOutput::Append { first, entries } => {
                let mut worst = Outcome::Taken;
                for (number, bytes) in (first.number..).zip(entries) {
                    let written = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                    let outcome = self.append(EntryId { number, ..*first }, Some(written));
                    worst = if worst == Outcome::Taken { outcome } else { worst };
                }
                AppenderInput::Appended(worst)
            }
            AppenderOutput::Trim { from } => {
                self.stored.entries.retain(|id, _| id >= from);
                AppenderInput::Trimmed
            }
            AppenderOutput::Delete => {
                self.stored = Stored::default();
                AppenderInput::Trimmed
            }
            AppenderOutput::Subscribe | AppenderOutput::Unsubscribe => panic!("no command"),
        }
    }
}

struct Writer {
    machine: Appender,
    now: Option<Subscription>,
    then: Option<Subscription>,
    command: Option<AppenderOutput>,
}

struct Copy {
    machine: Reader,
    connected: bool,
    last: Option<EntryId>,
    held: u64,
    life: u64,
    /// Entries on their way, in order with the other news.
    news: VecDeque<ReaderInput>,
}

struct World {
    random: Random,
    now: Duration,
    limits: LogLimits,
    rank: Rank,
    written: Vec<Entry>,
    server: Server,
    writers: Vec<Writer>,
    /// Commands that their writers have given up, and the server may still obey.
    late: Vec<(usize, AppenderOutput)>,
    copy: Copy,
    faults: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let limits = LogLimits {
            entries_max: 15,
            queue_entries_max: 5,
            retry_max: Duration::from_millis(400),
            ..LogLimits::default()
        };
        let writer = |nonce: usize| Writer {
            machine: Appender::new(limits, nonce as u64),
            now: None,
            then: None,
            command: None,
        };
        Self {
            random: Random(seed),
            now: Duration::ZERO,
            limits,
            rank: Rank::new(),
            written: Vec::new(),
            server: Server { up: true, ..Server::default() },
            writers: (0..WRITERS).map(writer).collect(),
            late: Vec::new(),
            copy: Copy {
                machine: Reader::new(limits),
                connected: false,
                last: None,
                held: 0,
                life: 0,
                news: VecDeque::new(),
            },
            faults: true,
        }
    }

    fn clock(&self) -> Now {
        Now { elapsed: self.now, unix_ms: 1_700_000_000_000 + self.now.as_millis() as u64 }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(60));
        if self.faults {
            self.hurt();
        }
        if self.random.one_in(3) {
            self.rank.publish(&mut self.random);
        }
        for at in 0..WRITERS {
            self.write(at);
        }
        self.read();
    }

    fn hurt(&mut self) {
        match self.random.below(400) {
            0 => self.server.up = false,
            // A restart: everything, a part, or nothing of it is there again.
            1 | 2 => {
                self.server.stored = match self.random.below(3) {
                    0 => Stored::default(),
                    1 => self.server.saved.clone(),
                    _ => self.server.stored.clone(),
                };
                self.server.lease = None;
                self.copy.disconnect();
            }
            3 => {
                let (keep, last) = (self.random.below(10) as usize, self.server.stored.entries.len());
                let gone: Vec<_> = self.server.stored.entries.keys().take(last.saturating_sub(keep)).copied().collect();
                for id in gone {
                    self.server.stored.entries.remove(&id);
                }
            }
            4 => {
                let after = self.server.stored.last.map(|last| EntryId { number: last.number + 1, ..last });
                self.server.append(after.unwrap_or(EntryId { epoch: 1, number: 0 }), None);
            }
            5 => self.server.full = true,
            6 => self.copy.disconnect(),
            7 if self.random.one_in(4) => {
                let id = EntryId { epoch: u64::MAX, number: 0 };
                self.server.append(id, None);
            }
            8..40 => self.server.up = true,
            40..80 => self.server.full = false,
            80..90 => self.server.saved = self.server.stored.clone(),
            90..100 if !self.late.is_empty() && self.server.up => {
                let (writer, command) = self.late.remove(0);
                self.server.obey(writer, self.now, self.limits.lease, &command);
            }
            _ => {}
        }
    }

    fn write(&mut self, at: usize) {
        // Some writers are slow.
        if self.faults && self.random.one_in(4) {
            return;
        }
        let input = match self.writers[at].command.take() {
            Some(command) => self.answer(at, command),
            None => match self.writers[at].machine.next_tick() {
                Some(due) if self.now >= due => AppenderInput::Tick,
                _ => return self.take(at),
            },
        };
        self.tell(at, input);
        self.take(at);
    }

    fn answer(&mut self, at: usize, command: AppenderOutput) -> AppenderInput {
        let unanswered = match command {
            AppenderOutput::Append { .. } => AppenderInput::Appended(Outcome::Unanswered),
            _ => AppenderInput::Unanswered,
        };
        if !self.server.up {
            if self.random.one_in(2) {
                self.late.push((at, command));
            }
            return unanswered;
        }
        let answer = self.server.obey(at, self.now, self.limits.lease, &command);
        if self.faults && self.random.one_in(40) { unanswered } else { answer }
    }

    fn tell(&mut self, at: usize, input: AppenderInput) {
        let (now, mut out) = (self.clock(), Vec::new());
        let writer = &mut self.writers[at];
        writer.machine.step(now, input, &mut out);
        for output in out {
            match output {
                AppenderOutput::Subscribe => {
                    writer.then = Some(Subscription::new(&self.rank, &mut self.random));
                }
                AppenderOutput::Unsubscribe => (writer.now, writer.then) = (None, None),
                command => {
                    assert!(writer.command.replace(command).is_none(), "one command at a time");
                }
            }
        }
    }

    /// Takes what the subscriptions give.
    fn take(&mut self, at: usize) {
        for _ in 0..8 {
            let writer = &mut self.writers[at];
            if !writer.machine.wants_more() {
                return;
            }
            if let Some(then) = &writer.then
                && writer.now.as_ref().is_none_or(|now| now.life != then.life || now.next >= then.next)
            {
                writer.now = writer.then.take();
            }
            let Some(now) = &mut writer.now else { return };
            let input = match now.poll(&self.rank) {
                Ok(None) => return,
                Ok(Some(entry)) => piece(&mut self.written, entry),
                Err(()) => {
                    let life = now.life;
                    writer.now = None;
                    if writer.then.is_some() {
                        continue;
                    }
                    let word = entry(life, Some(Trust::Degraded), Says::Nothing);
                    let AppenderInput::Piece(piece) = piece(&mut self.written, word) else { return };
                    AppenderInput::Over(piece.bytes)
                }
            };
            self.tell(at, input);
        }
    }

    fn read(&mut self) {
        let copy = &mut self.copy;
        if self.server.up && self.random.one_in(2) {
            let tail = self.server.stored.last;
            let writer = self.server.lease.is_some_and(|(_, until)| until > self.now);
            if tail < copy.last {
                copy.last = None;
            }
            if !copy.connected {
                copy.connected = true;
                copy.news.push_back(ReaderInput::Connected { tail });
            }
            if self.random.one_in(4) {
                copy.news.push_back(ReaderInput::Quiet { tail, writer });
            }
            let from = copy.last.unwrap_or_default();
            let count = self.random.below(8) as usize;
            for (&id, number) in self.server.stored.entries.range(from..).filter(|(id, _)| **id > from).take(count) {
                let read = number.map(|number| self.written[number as usize].clone()).ok_or("entry_malformed");
                copy.last = Some(id);
                copy.news.push_back(ReaderInput::Entry { id, read });
            }
        }
        for _ in 0..self.random.below(6) {
            let Some(input) = self.copy.news.pop_front() else { break };
            self.copy.step(input);
            self.check();
        }
    }

    fn check(&self) {
        let copy = &self.copy;
        if copy.machine.trust() != Trust::Exact {
            return;
        }
        let cursor = copy.machine.status().cursor.expect("an exact rank has a cursor");
        let truth = self.rank.truth.get(&(copy.life, cursor));
        assert_eq!(truth, Some(&(copy.held, Trust::Exact)), "life {} batch {cursor}", copy.life);
    }

    fn is_there(&self) -> bool {
        let status = self.copy.machine.status();
        status.trust == self.rank.trust
            && status.cursor == self.rank.newest()
            && (self.copy.life, self.copy.held) == (self.rank.life, self.rank.state)
    }
}

fn piece(written: &mut Vec<Entry>, entry: Entry) -> AppenderInput {
    let (begins, ends) = match &entry.says {
        Says::Part { part, .. } => (part.chunk == 0, part.last),
        Says::Batch { reset, .. } => (*reset, *reset),
        Says::Nothing => (false, false),
    };
    written.push(entry);
    let bytes = Bytes::copy_from_slice(&(written.len() as u64 - 1).to_be_bytes());
    AppenderInput::Piece(Piece { bytes, begins, ends })
}

impl Copy {
    fn disconnect(&mut self) {
        self.connected = false;
        self.news.push_back(ReaderInput::Disconnected);
    }

    fn step(&mut self, input: ReaderInput) {
        let life = match &input {
            ReaderInput::Entry { read: Ok(entry), .. } => entry.life.0,
            _ => self.life,
        };
        let mut out = Vec::new();
        self.machine.step(Now::default(), input, &mut out);
        for output in out {
            match output {
                ReaderOutput::Judge(_) => {}
                ReaderOutput::Load { parts, .. } => {
                    (self.life, self.held) = (life, word_of(&parts[0]).unwrap());
                }
                ReaderOutput::Apply(batch) => match word_of(&batch.ops) {
                    Some(word) => (self.life, self.held) = (life, mixed(self.held, word)),
                    None => self.held = 0,
                },
            }
        }
    }
}

fn cases() -> u64 {
    std::env::var("KVATLAS_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

#[test]
fn a_copy_is_never_exact_and_wrong_and_comes_to_the_truth_when_faults_end() {
    let (mut exact, mut loaded, mut gaps) = (0, 0, 0);
    for seed in 0..cases() {
        let mut world = World::new(seed);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..1_500 {
                world.step();
                world.check();
                exact += u64::from(world.copy.machine.trust() == Trust::Exact);
            }
            world.faults = false;
            (world.server.up, world.server.full) = (true, false);
            // Another batch comes now and then, so the end is looked for.
            let there = (0..4_000).any(|_| {
                world.step();
                world.check();
                world.is_there()
            });
            assert!(there, "{:?}", world.copy.machine.status());
        }));
        if let Err(panic) = checked {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
        let counters = world.copy.machine.status().counters;
        loaded += counters.get("states_loaded").copied().unwrap_or(0);
        gaps += counters.get("gaps").copied().unwrap_or(0);
    }
    println!("{exact} exact steps, {loaded} states loaded, {gaps} gaps");
    // The faults are there, and so is the rule.
    assert!(exact > 100 * cases() && loaded > cases() && gaps > cases());
}
