//! Random schedules of losses, repetitions, delays, disconnections, restarts and broken replays against a model publisher:
//! in the end the rank is exact and equal to the engine, or it says that it is not. The subscriber itself may be started anew, and
//! be offered seeds: its own ones, and those that a replica cut at any moment of this life of the publisher or an earlier one.

use super::{Cursor, Input, Output};
use crate::ingest::spec::IngestLimits;
use crate::ingest::status::Trust;
use crate::seed::{Cut, PROOFS_MAX, Proof};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// What an engine's batch does, to a set of blocks.
#[derive(Clone, Copy, Debug)]
enum Change {
    Add(u8),
    Remove(u8),
    Clear,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// The engine publishes; whether the batch reaches the subscriber's side of the network.
    Publish(Change, bool),
    /// The newest live message arrives once more.
    Repeat,
    /// The two newest live messages change places.
    Swap,
    /// This many messages come out of the network.
    Deliver(u8),
    Disconnect,
    Connect,
    /// The engine starts anew: sockets break, buffer and blocks are gone.
    Restart,
    /// The publisher answers the request in flight, perhaps badly.
    Answer(Answer),
    /// This many replies come out of the network.
    DeliverReplies(u8),
    /// The publisher writes its state down for the request in flight, or refuses.
    TellState(bool),
    /// What was told arrives.
    DeliverState,
    Wait(u16),
    /// The subscriber writes its state down.
    Save,
    /// The subscriber ends and is started anew.
    StartAnew,
    /// What was written down last is offered, whether it was made in this run or an earlier one.
    OfferSaved,
    /// A replica offers what it has: of the life so many before this one, so many batches before its end.
    OfferFrom(u8, u8),
}

/// What a seed says, the blocks in it, and the life that it was cut from.
type Saved = (Cut, BTreeSet<u8>, u32);

#[derive(Clone, Copy, Debug)]
enum Answer {
    Whole,
    /// Replies from this one on are missing, the end marker included.
    Cut(u8),
    /// This reply is missing.
    Hole(u8),
    WithoutEnd,
    Refused,
}

/// Engine, network and subscriber.
struct World {
    cursor: Cursor,
    fresh: Box<dyn Fn() -> Cursor>,
    now: Duration,
    /// Batches of this life, and how many of them the replay still has.
    log: Vec<Bytes>,
    window: usize,
    life: u32,
    truth: BTreeSet<u8>,
    /// What the applied batches come to.
    seen: BTreeSet<u8>,
    connected: bool,
    network: VecDeque<Input>,
    request: Option<(u64, u64)>,
    replies: VecDeque<Input>,
    state_request: Option<u64>,
    told: Option<(Input, BTreeSet<u8>, u32)>,
    saved: Option<Saved>,
    /// The seed that waits in the cursor.
    offered: Option<Saved>,
    /// Payload hashes of every batch, by life and sequence.
    hashes: BTreeMap<(u32, u64), u64>,
    /// What the engine held after each batch, by life and sequence.
    states: BTreeMap<(u32, u64), BTreeSet<u8>>,
    /// Life and sequence of the batch applied last.
    last: Option<(u32, u64)>,
    /// A moment at which the rank was exact and wrong.
    wrong: Option<String>,
}

impl World {
    fn new(has_replay: bool, has_states: bool, window: usize, limits: IngestLimits) -> Self {
        let fresh = move || Cursor::new(limits, has_replay, false).with_snapshots(has_replay && has_states);
        Self {
            cursor: fresh(),
            fresh: Box::new(fresh),
            now: Duration::ZERO,
            log: Vec::new(),
            window,
            life: 0,
            truth: BTreeSet::new(),
            seen: BTreeSet::new(),
            connected: false,
            network: VecDeque::new(),
            request: None,
            replies: VecDeque::new(),
            state_request: None,
            told: None,
            saved: None,
            offered: None,
            hashes: BTreeMap::new(),
            states: BTreeMap::new(),
            last: None,
            wrong: None,
        }
    }

    /// Everything that happens, and then no more trouble.
    fn play(&mut self, actions: Vec<Action>, replay_works: bool, states_work: bool) {
        actions.into_iter().for_each(|action| self.act(action));
        self.settle(replay_works, states_work);
    }

    /// The same, with the connection broken in the end: whatever was lost is fetched again when the network has come back, so
    /// the newest life ends exact.
    fn ends_exact(mut self, mut actions: Vec<Action>) -> Result<(), TestCaseError> {
        actions.push(Action::Disconnect);
        self.play(actions, true, true);
        prop_assert_eq!(&self.wrong, &None);
        prop_assert_eq!(self.cursor.trust(), Trust::Exact);
        prop_assert_eq!(&self.seen, &self.truth);
        Ok(())
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Publish(change, arrives) => self.publish(change, arrives),
            Action::Repeat => {
                let newest = self.network.iter().rev().find(|m| matches!(m, Input::Live { .. })).cloned();
                // Repetitions stay within their connection.
                if let Some(message) = newest.filter(|_| matches!(self.network.back(), Some(Input::Live { .. }))) {
                    self.network.push_back(message);
                }
            }
            Action::Swap => {
                if let [.., a, b] = self.network.make_contiguous()
                    && let (Input::Live { .. }, Input::Live { .. }) = (&a, &b)
                {
                    std::mem::swap(a, b);
                }
            }
            Action::Deliver(count) => (0..count).for_each(|_| self.deliver()),
            Action::Disconnect => self.disconnect(),
            Action::Connect if !self.connected => {
                self.connected = true;
                self.network.push_back(Input::Connected);
            }
            Action::Connect => {}
            Action::Restart => {
                self.disconnect();
                self.life += 1;
                self.log.clear();
                self.truth.clear();
            }
            Action::Answer(answer) => self.answer(answer),
            Action::DeliverReplies(count) => (0..count).for_each(|_| self.deliver_reply()),
            Action::TellState(offered) => self.tell_state(offered),
            Action::DeliverState => self.deliver_state(),
            Action::Wait(millis) => {
                self.now += Duration::from_millis(u64::from(millis));
                self.step(Input::Tick);
            }
            Action::Save => {
                if let (Some(cut), Some((life, _))) = (self.cursor.cut(), self.last) {
                    self.saved = Some((cut, self.seen.clone(), life));
                }
            }
            Action::StartAnew => self.start_anew(),
            Action::OfferSaved => {
                if let Some(saved) = self.saved.clone() {
                    self.offer(saved);
                }
            }
            Action::OfferFrom(lives, batches) => self.offer_from(lives, batches),
        }
    }

    fn start_anew(&mut self) {
        self.cursor = (self.fresh)();
        self.connected = false;
        self.network.clear();
        self.replies.clear();
        (self.request, self.state_request, self.told, self.offered) = (None, None, None, None);
        self.seen.clear();
        self.last = None;
    }

    /// A replica that has seen everything cuts its seed.
    fn offer_from(&mut self, lives: u8, batches: u8) {
        let life = self.life.saturating_sub(u32::from(lives));
        let Some((&(_, newest), _)) = self.states.range((life, 0)..=(life, u64::MAX)).next_back() else { return };
        let cursor = newest.saturating_sub(u64::from(batches));
        let proof = |sequence| Proof { sequence, payload_hash: self.hashes[&(life, sequence)] };
        let proofs = (cursor.saturating_sub(PROOFS_MAX as u64 - 1)..=cursor).map(proof).collect();
        let cut = Cut { cursor, incarnation: 1, trust: Trust::Exact, proofs };
        self.offer((cut, self.states[&(life, cursor)].clone(), life));
    }

    fn offer(&mut self, seed: Saved) {
        let cut = seed.0.clone();
        self.offered = Some(seed);
        self.step(Input::Seed(cut));
    }

    fn publish(&mut self, change: Change, arrives: bool) {
        apply(change, &mut self.truth);
        let seq = self.log.len() as u64;
        let (kind, block) = match change {
            Change::Add(block) => (b'+', block),
            Change::Remove(block) => (b'-', block),
            Change::Clear => (b'!', 0),
        };
        let payload = [&[kind, block][..], &self.life.to_be_bytes(), &seq.to_be_bytes()].concat();
        self.hashes.insert((self.life, seq), xxh3_64(&payload));
        self.log.push(payload.clone().into());
        self.states.insert((self.life, seq), self.truth.clone());
        if self.connected && arrives {
            self.network.push_back(Input::Live { seq, payload: payload.into() });
        }
    }

    fn disconnect(&mut self) {
        if self.connected {
            self.connected = false;
            self.network.push_back(Input::Disconnected);
        }
    }

    fn deliver(&mut self) {
        if let Some(message) = self.network.pop_front() {
            self.step(message);
        }
    }

    fn deliver_reply(&mut self) {
        // The subscriber gives answers up while it knows of a broken connection that the cursor was not told about yet.
        let behind = self.network.iter().any(|m| matches!(m, Input::Connected | Input::Disconnected));
        match self.replies.pop_front() {
            Some(Input::ReplayBatch { request, .. } | Input::ReplayEnd { request }) if behind => {
                self.step(Input::ReplayFailed { request });
            }
            Some(reply) => self.step(reply),
            None => {}
        }
    }

    fn tell_state(&mut self, offered: bool) {
        let Some(request) = self.state_request.take() else { return };
        let next = self.log.len() as u64;
        let input = match offered {
            true => Input::SnapshotReady { request, next },
            false => Input::SnapshotFailed { request },
        };
        self.told = Some((input, self.truth.clone(), self.life));
    }

    fn deliver_state(&mut self) {
        let behind = self.network.iter().any(|m| matches!(m, Input::Connected | Input::Disconnected));
        match self.told.take() {
            Some((Input::SnapshotReady { request, .. }, ..)) if behind => self.step(Input::SnapshotFailed { request }),
            Some((input, blocks, life)) => self.step_with(input, Some((blocks, life))),
            None => {}
        }
    }

    fn answer(&mut self, answer: Answer) {
        let Some((request, from)) = self.request.take() else { return };
        let oldest = self.log.len().saturating_sub(self.window) as u64;
        let batches = (from.max(oldest)..self.log.len() as u64).map(|seq| {
            let payload = self.log[seq as usize].clone();
            Input::ReplayBatch { request, seq, payload }
        });
        let mut replies: Vec<Input> = batches.chain([Input::ReplayEnd { request }]).collect();
        match answer {
            Answer::Whole => {}
            Answer::Cut(at) => replies.truncate(at as usize),
            Answer::Hole(at) if (at as usize) < replies.len() => drop(replies.remove(at as usize)),
            Answer::Hole(_) => {}
            Answer::WithoutEnd => drop(replies.pop()),
            Answer::Refused => replies = vec![Input::ReplayFailed { request }],
        }
        self.replies.extend(replies);
    }

    fn step(&mut self, input: Input) {
        self.step_with(input, None);
    }

    /// Takes a step; `told` is the state that comes with it.
    fn step_with(&mut self, input: Input, told: Option<(BTreeSet<u8>, u32)>) {
        let mut out = Vec::new();
        self.cursor.step(self.now, input, &mut out);
        for output in out {
            match output {
                Output::Apply { seq, payload } => {
                    let change = match payload[0] {
                        b'+' => Change::Add(payload[1]),
                        b'-' => Change::Remove(payload[1]),
                        _ => Change::Clear,
                    };
                    apply(change, &mut self.seen);
                    let life = u32::from_be_bytes(payload[2..6].try_into().expect("four bytes"));
                    self.last = Some((life, seq));
                    if matches!(change, Change::Clear) {
                        self.cursor.cleared(seq);
                    }
                }
                Output::Clear => {
                    self.seen.clear();
                    self.last = None;
                }
                Output::RequestReplay { request, from } => {
                    self.replies.clear();
                    self.request = Some((request, from));
                }
                Output::RequestSnapshot { request } => (self.state_request, self.told) = (Some(request), None),
                Output::CancelSnapshot => (self.state_request, self.told) = (None, None),
                Output::Load { seq } => {
                    let (blocks, life) = told.clone().expect("only a state that has come is loaded");
                    (self.seen, self.last) = (blocks, Some((life, seq)));
                }
                Output::LoadSeed { seq } => {
                    let (_, blocks, life) = self.offered.take().expect("only a seed that waits is loaded");
                    (self.seen, self.last) = (blocks, Some((life, seq)));
                }
                Output::DropSeed => self.offered = None,
                Output::CancelReplay => {
                    self.replies.clear();
                    self.request = None;
                }
            }
        }
        let held = self.last.map_or(BTreeSet::new(), |at| self.states[&at].clone());
        if self.cursor.trust() == Trust::Exact && self.seen != held && self.wrong.is_none() {
            self.wrong = Some(format!("{:?} after {:?} of {:?}", self.seen, self.last, held));
        }
    }

    /// No more trouble: everything arrives, one batch more is published, and time passes.
    fn settle(&mut self, replay_works: bool, states_work: bool) {
        self.act(Action::Connect);
        self.publish(Change::Add(0), true);
        for _ in 0..60 {
            self.quiesce(replay_works, states_work);
            self.act(Action::Wait(3_000));
        }
        self.quiesce(replay_works, states_work);
    }

    /// Delivers whatever is under way.
    fn quiesce(&mut self, replay_works: bool, states_work: bool) {
        while self.state_request.is_some()
            || self.told.is_some()
            || !self.network.is_empty()
            || !self.replies.is_empty()
            || (replay_works && self.request.is_some())
        {
            self.deliver();
            self.deliver_reply();
            if replay_works {
                self.answer(Answer::Whole);
            }
            self.tell_state(states_work);
            self.deliver_state();
        }
    }
}

fn apply(change: Change, blocks: &mut BTreeSet<u8>) {
    match change {
        Change::Add(block) => drop(blocks.insert(block)),
        Change::Remove(block) => drop(blocks.remove(&block)),
        Change::Clear => blocks.clear(),
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        12 => (0_u8..40).prop_map(Change::Add),
        8 => (0_u8..40).prop_map(Change::Remove),
        1 => Just(Change::Clear),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        30 => (change(), prop::bool::weighted(0.9)).prop_map(|(change, arrives)| Action::Publish(change, arrives)),
        2 => Just(Action::Repeat),
        2 => Just(Action::Swap),
        20 => (1_u8..8).prop_map(Action::Deliver),
        1 => Just(Action::Disconnect),
        4 => Just(Action::Connect),
        1 => Just(Action::Restart),
        8 => answer().prop_map(Action::Answer),
        10 => (1_u8..8).prop_map(Action::DeliverReplies),
        4 => prop::bool::weighted(0.9).prop_map(Action::TellState),
        4 => Just(Action::DeliverState),
        4 => (1_u16..4_000).prop_map(Action::Wait),
        2 => Just(Action::Save),
        1 => Just(Action::StartAnew),
        2 => Just(Action::OfferSaved),
        2 => (0_u8..3, 0_u8..12).prop_map(|(lives, batches)| Action::OfferFrom(lives, batches)),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::Whole),
        1 => (0_u8..20).prop_map(Answer::Cut),
        1 => (0_u8..20).prop_map(Answer::Hole),
        1 => Just(Answer::WithoutEnd),
        1 => Just(Answer::Refused),
    ]
}

fn limits() -> impl Strategy<Value = IngestLimits> {
    (prop_oneof![Just(2_usize), Just(8), Just(1_000)], prop_oneof![Just(1_usize), Just(4), Just(512)], 0_u64..10)
        .prop_map(|(held_batches_max, payload_hashes_max, repairable_batches_max)| IngestLimits {
            held_batches_max,
            payload_hashes_max,
            repairable_batches_max,
            ..IngestLimits::default()
        })
}

/// The same schedules on every run, unless `KVATLAS_SEED` asks for others and `KVATLAS_CASES` for more. The seed is shown
/// with a failure.
fn config() -> ProptestConfig {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = 20_261_130 + number("KVATLAS_SEED").unwrap_or(0);
    let cases = number("KVATLAS_CASES").and_then(|cases| u32::try_from(cases).ok()).unwrap_or(3_000);
    println!("seed {seed}, {cases} cases");
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn exact_means_equal_to_the_engine(
        actions in prop::collection::vec(action(), 1..250),
        has_replay in prop::bool::weighted(0.8),
        (has_states, states_work) in (prop::bool::ANY, prop::bool::ANY),
        replay_works in prop::bool::weighted(0.8),
        window in prop_oneof![Just(0_usize), Just(3), Just(20), Just(10_000)],
        limits in limits(),
    ) {
        let mut world = World::new(has_replay, has_states, window, limits);
        world.play(actions, replay_works, states_work);
        let trust = world.cursor.trust();
        prop_assert_ne!(trust, Trust::NeverSeen);
        prop_assert_eq!(&world.wrong, &None);
        if trust == Trust::Exact {
            prop_assert_eq!(&world.seen, &world.truth);
        }
    }

    #[test]
    fn with_a_whole_replay_buffer_the_newest_life_ends_exact(
        actions in prop::collection::vec(action(), 1..250),
        limits in limits(),
        has_states in prop::bool::ANY,
    ) {
        World::new(true, has_states, 10_000, limits).ends_exact(actions)?;
    }

    #[test]
    fn with_states_and_a_short_replay_buffer_the_newest_life_ends_exact(
        actions in prop::collection::vec(action(), 1..250),
        window in 2_usize..20,
        limits in limits(),
    ) {
        World::new(true, true, window, limits).ends_exact(actions)?;
    }

    #[test]
    fn a_seed_within_the_window_makes_a_fresh_rank_exact_and_no_other_does(
        (before, after, lives) in (1_u8..60, 0_u8..60, 0_u8..3),
        window in 1_usize..60,
        changes in prop::collection::vec(change(), 200),
        limits in limits(),
    ) {
        // Everything up to the seed, then perhaps other lives, then what came after it.
        let limits = IngestLimits { held_batches_max: 1_000, ..limits };
        let mut world = World::new(true, false, window, limits);
        let mut changes = changes.into_iter().cycle();
        let mut publish = |world: &mut World, count: u8| {
            (0..count).for_each(|_| world.publish(changes.next().expect("a cycle"), true));
        };
        world.act(Action::Connect);
        world.quiesce(true, false);
        publish(&mut world, before);
        world.quiesce(true, false);
        world.act(Action::Save);
        prop_assert_eq!(world.cursor.trust(), Trust::Exact);
        for _ in 0..lives {
            world.act(Action::Restart);
        }
        publish(&mut world, after);
        world.act(Action::StartAnew);
        world.act(Action::OfferSaved);
        world.settle(true, false);
        prop_assert_eq!(&world.wrong, &None);
        // `settle` publishes one batch, perhaps after the question was answered.
        let gone = world.log.len().saturating_sub(window);
        let counters = world.cursor.counters();
        let loaded = counters.get("seeds_loaded") == 1;
        prop_assert_eq!(loaded, lives == 0 && gone < usize::from(before));
        let expected = if loaded || gone == 0 { Trust::Exact } else { Trust::Partial };
        if expected == Trust::Exact || world.cursor.trust() == Trust::Exact {
            prop_assert_eq!(&world.seen, &world.truth);
        }
        if expected == Trust::Exact {
            prop_assert_eq!(world.cursor.trust(), Trust::Exact);
        }
    }
}
