//! The world: what is in it, and how it goes on.

use super::super::*;
use super::checks::{Checks, Commit};
use super::random::Random;
use crate::ingest::Counters;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

const ROUTERS: usize = 3;
const WORKERS: usize = 6;
const PREFIXES: u8 = 2;
const HORIZON: Duration = Duration::from_secs(60);
const CALL_MAX: Duration = Duration::from_millis(800);

/// Ways to build the machine wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Broken {
    NoFenceCheck,
    NoFenceAtTheEngine,
    PublishFirst,
    NoSkewWait,
    TokensForgotten,
    RouterWithoutClock,
    NoTombstones,
    TargetNotLookedAt,
    RefundAfterDispatch,
}

impl Broken {
    /// Each with the invariant that it breaks.
    pub(super) const ALL: [(Broken, &'static str); 9] = [
        (Broken::NoFenceCheck, "I5"),
        (Broken::NoFenceAtTheEngine, "I5"),
        (Broken::PublishFirst, "I2"),
        (Broken::NoSkewWait, "I1"),
        (Broken::TokensForgotten, "I6"),
        (Broken::RouterWithoutClock, "I1"),
        (Broken::NoTombstones, "I3"),
        (Broken::TargetNotLookedAt, "I4"),
        (Broken::RefundAfterDispatch, "I6"),
    ];
}

/// What happened, over all schedules: a schedule without faults proves nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) granted: u64,
    pub(super) dispatched: u64,
    pub(super) committed: u64,
    pub(super) expired: u64,
    pub(super) aborted: u64,
    pub(super) fenced: u64,
    pub(super) refused: u64,
    pub(super) revoked: u64,
    pub(super) pauses: u64,
    pub(super) crashes: u64,
    pub(super) cut: u64,
    pub(super) late_dispatches: u64,
    pub(super) tokens_replayed: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.granted += other.granted;
        self.dispatched += other.dispatched;
        self.committed += other.committed;
        self.expired += other.expired;
        self.aborted += other.aborted;
        self.fenced += other.fenced;
        self.refused += other.refused;
        self.revoked += other.revoked;
        self.pauses += other.pauses;
        self.crashes += other.crashes;
        self.cut += other.cut;
        self.late_dispatches += other.late_dispatches;
        self.tokens_replayed += other.tokens_replayed;
    }
}

#[derive(Clone)]
enum Ask {
    Acquire(Acquire),
    Renew(LeaseKey, bool),
    Commit(LeaseKey, Option<EndProof>),
    Abort(LeaseKey),
}

/// A message names the attempt that it is of: a router that began anew does not listen to the old one's.
#[derive(Clone)]
enum Event {
    Wake(usize),
    ToStore { attempt: u64, call: u64, ask: Ask },
    ToRouter { attempt: u64, call: Option<u64>, heard: Heard },
    ToEngine { attempt: u64, fence: u64 },
    EngineEnds { attempt: u64, fence: u64, end: End },
    Tick(u64),
    Timeout { attempt: u64, call: u64 },
    Resume(usize),
    Heal(usize),
    Chaos,
}

struct Router {
    attempt: Option<Attempt>,
    /// Stands still until then.
    paused: Option<Duration>,
    partitioned: bool,
    /// Which replica it asks, by the offset of its clock.
    offset: Duration,
}

/// One seeded request of a router.
struct Attempt {
    number: u64,
    seeder: Seeder,
    acquire: Acquire,
    /// Calls that were not answered yet.
    open: HashSet<u64>,
    flying: bool,
}

#[derive(Clone)]
struct Engine {
    life: Target,
    applied: u64,
    held: HashSet<u8>,
}

pub(super) struct World {
    now: Duration,
    start: Duration,
    random: Random,
    settings: LeaseSettings,
    broken: Option<Broken>,
    events: BTreeMap<(Duration, u64), Event>,
    sequence: u64,
    record: Record,
    routers: Vec<Router>,
    engines: Vec<Engine>,
    fences: Fences,
    partition: Partition,
    /// Removals that were told to the store: the latest of each prefix and worker's life.
    removals: HashMap<(u8, String, u64), u64>,
    tokens: u64,
    attempts: u64,
    pub(super) checks: Checks,
    pub(super) tally: Tally,
}

impl World {
    pub(super) fn new(seed: u64, broken: Option<Broken>) -> Self {
        let mut random = Random(seed);
        let settings = LeaseSettings {
            cooldown_committed: Duration::from_secs(random.pick(&[0, 5])),
            cooldown_failed: Duration::from_secs(random.pick(&[0, 0, 2, 30])),
            hold_max: Duration::from_secs(random.pick(&[8, 120])),
            ..LeaseSettings::default()
        };
        let start = Duration::from_secs(1_000_000);
        let mut record = Record::new(start, &settings);
        record.settle(start + settings.quiet(), &settings, &mut Counters::default());
        let router = |random: &mut Random| Router {
            attempt: None,
            paused: None,
            partitioned: false,
            offset: random.pick(&[Duration::ZERO, Duration::from_millis(500), Duration::from_secs(1)]),
        };
        let routers = (0..ROUTERS).map(|_| router(&mut random)).collect();
        let life = |i| Target { worker: format!("w{i}"), generation: 1, incarnation: 1, replica: 1 };
        let engines = (0..WORKERS).map(|i| Engine { life: life(i), applied: 0, held: HashSet::new() }).collect();
        let partition = Partition { model: "m".into(), namespace: String::new(), pool: String::new() };
        let start = start + settings.quiet();
        let mut world = Self {
            now: start,
            start,
            random,
            settings,
            broken,
            events: BTreeMap::new(),
            sequence: 0,
            record,
            routers,
            engines,
            fences: Fences::new(1),
            partition,
            removals: HashMap::new(),
            tokens: 0,
            attempts: 0,
            checks: Checks::default(),
            tally: Tally::default(),
        };
        for router in 0..ROUTERS {
            let pause = world.random.millis(2_000);
            world.after(pause, Event::Wake(router));
        }
        world.after(Duration::from_millis(300), Event::Chaos);
        world
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    fn after(&mut self, pause: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + pause, self.sequence), event);
    }

    /// One event; whether there was one before the horizon.
    pub(super) fn step(&mut self) -> bool {
        let Some(((at, _), event)) = self.events.pop_first() else { return false };
        if at > self.start + HORIZON {
            return false;
        }
        self.now = at;
        match event {
            Event::Wake(router) => self.wake(router),
            Event::ToStore { attempt, call, ask } => self.at_the_store(attempt, call, ask),
            Event::ToRouter { attempt, call, heard } => self.at_the_router(attempt, call, heard),
            Event::ToEngine { attempt, fence } => self.at_the_engine(attempt, fence),
            Event::EngineEnds { attempt, fence, end } => self.engine_ends(attempt, fence, end),
            Event::Tick(attempt) => self.tick(attempt),
            Event::Timeout { attempt, call } => self.timeout(attempt, call),
            Event::Resume(router) => self.resume(router),
            Event::Heal(router) => self.routers[router].partitioned = false,
            Event::Chaos => self.chaos(),
        }
        self.look();
        true
    }

    fn look(&mut self) {
        let flying: Vec<(usize, u64)> = self
            .routers
            .iter()
            .enumerate()
            .filter_map(|(i, router)| {
                let attempt = router.attempt.as_ref().filter(|attempt| attempt.flying)?;
                let counts = router.paused.is_none() || self.now < attempt.seeder.end();
                counts.then(|| (i, attempt.seeder.fence().unwrap_or(0)))
            })
            .collect();
        self.checks.in_flight(self.now, &flying);
    }

    /// The first thing that a router does is to look at its clock.
    fn resume(&mut self, router: usize) {
        self.routers[router].paused = None;
        let attempt = self.routers[router].attempt.as_ref().map(|attempt| attempt.number);
        attempt.into_iter().for_each(|attempt| self.tick(attempt));
    }

    fn tick(&mut self, attempt: u64) {
        let Some(router) = self.router_of(attempt) else { return };
        // One that never looks whether its lease is over only renews.
        let over = self.routers[router].attempt.as_ref().is_some_and(|a| self.now >= a.seeder.end());
        if !(over && self.is(Broken::RouterWithoutClock)) {
            self.at_the_router(attempt, None, Heard::Tick);
        }
    }

    /// The router with an attempt, if it is still at it.
    fn router_of(&self, attempt: u64) -> Option<usize> {
        self.routers.iter().position(|router| router.attempt.as_ref().is_some_and(|a| a.number == attempt))
    }

    /// Puts an event off while its router stands still.
    fn stands_still(&mut self, router: usize, event: Event) -> bool {
        let Some(until) = self.routers[router].paused else { return false };
        self.after(until.saturating_sub(self.now), event);
        true
    }

    fn wake(&mut self, router: usize) {
        if self.stands_still(router, Event::Wake(router)) {
            return;
        }
        if self.routers[router].attempt.is_none() {
            self.begin(router);
        }
        let pause = Duration::from_millis(500) + self.random.millis(4_000);
        self.after(pause, Event::Wake(router));
    }

    fn begin(&mut self, router: usize) {
        let (prefix, worker) = (self.random.below(PREFIXES.into()) as u8, self.random.below(WORKERS as u64) as usize);
        // A front end mints a token for each request; now and then a router tries an old one.
        let replayed = self.tokens > 0 && self.random.one_in(4);
        let token = if replayed { self.random.below(self.tokens) } else { self.tokens };
        self.tokens += u64::from(!replayed);
        let set = self.record.prefixes.get(&[prefix]);
        let acquire = Acquire {
            prefix: vec![prefix],
            router: format!("r{router}"),
            token: TokenHash::of(&token.to_string()),
            target: self.engines[worker].life.clone(),
            owner_revision: set.map_or(0, |set| set.revision),
            telemetry_digest: 0,
            deadline: self.random.one_in(3).then(|| Duration::from_secs(3)),
        };
        let mut wishes = Vec::new();
        let seeder = Seeder::begin(self.now, &self.settings, &mut wishes);
        self.attempts += 1;
        let attempt = Attempt { number: self.attempts, seeder, acquire, open: HashSet::new(), flying: false };
        self.routers[router].attempt = Some(attempt);
        self.fulfil(router, wishes);
    }

    fn fulfil(&mut self, router: usize, wishes: Vec<Wish>) {
        let Some(number) = self.routers[router].attempt.as_ref().map(|attempt| attempt.number) else { return };
        for wish in wishes {
            match wish {
                Wish::Acquire => {
                    let ask = self.routers[router].attempt.as_ref().map(|attempt| attempt.acquire.clone());
                    ask.into_iter().for_each(|ask| self.call(router, Ask::Acquire(ask)));
                }
                Wish::Recheck => {
                    let heard = Heard::Rechecked(!self.random.one_in(12));
                    self.after(Duration::ZERO, Event::ToRouter { attempt: number, call: None, heard });
                }
                Wish::Renew { key, dispatching } => self.call(router, Ask::Renew(key, dispatching)),
                Wish::Commit { key, end } => self.call(router, Ask::Commit(key, end)),
                Wish::Abort { key, .. } => self.call(router, Ask::Abort(key)),
                Wish::Dispatch { fence } => self.dispatch(router, fence),
                Wish::Cut => {
                    self.tally.cut += 1;
                    self.with(router, |attempt| attempt.flying = false);
                }
                Wish::Finished(_) => self.routers[router].attempt = None,
            }
        }
        let next = self.routers[router].attempt.as_ref().and_then(|attempt| attempt.seeder.next_tick());
        if let Some(at) = next {
            self.after(at.saturating_sub(self.now), Event::Tick(number));
        }
    }

    fn with(&mut self, router: usize, change: impl FnOnce(&mut Attempt)) {
        if let Some(attempt) = &mut self.routers[router].attempt {
            change(attempt);
        }
    }

    /// Sends a question: late, lost or twice, sometimes.
    fn call(&mut self, router: usize, ask: Ask) {
        self.sequence += 1;
        let call = self.sequence;
        self.with(router, |attempt| {
            attempt.open.insert(call);
        });
        let Some(attempt) = self.routers[router].attempt.as_ref().map(|attempt| attempt.number) else { return };
        self.after(CALL_MAX, Event::Timeout { attempt, call });
        if self.routers[router].partitioned || self.random.one_in(20) {
            return;
        }
        let delay = self.delay();
        if self.random.one_in(15) {
            let (again, ask) = (self.random.millis(12_000), ask.clone());
            self.after(again, Event::ToStore { attempt, call, ask });
        }
        self.after(delay, Event::ToStore { attempt, call, ask });
    }

    fn delay(&mut self) -> Duration {
        let most = if self.random.one_in(10) { 9_000 } else { 60 };
        self.random.millis(most)
    }

    fn dispatch(&mut self, router: usize, fence: u64) {
        let token = self.routers[router].attempt.as_ref().map(|attempt| (attempt.number, attempt.acquire.token));
        let Some((attempt, token)) = token else { return };
        self.tally.dispatched += 1;
        self.checks.dispatched(fence, token);
        self.with(router, |attempt| attempt.flying = true);
        let delay = self.delay();
        self.after(delay, Event::ToEngine { attempt, fence });
        if self.random.one_in(8) {
            let again = self.random.millis(12_000);
            self.after(again, Event::ToEngine { attempt, fence });
        }
    }

    fn at_the_engine(&mut self, attempt: u64, fence: u64) {
        let admitted = self.is(Broken::NoFenceAtTheEngine) || self.fences.admit(&self.partition, fence).is_ok();
        if !admitted {
            self.tally.late_dispatches += 1;
            return;
        }
        self.checks.let_in(fence);
        // Its client cut the connection before it was there.
        let Some(router) = self.router_of(attempt) else { return };
        let Some(acquire) = self.routers[router].attempt.as_ref().filter(|a| a.flying).map(|a| a.acquire.clone())
        else {
            return;
        };
        let takes = Duration::from_millis(200) + self.random.millis(9_000);
        let tokens = 100 + self.random.below(17);
        let usage = EndProof {
            clean: true,
            finish_reason: "stop".into(),
            output_tokens: 1,
            prompt_tokens: 100,
            router_prompt_tokens: tokens,
            block_size: 16,
        };
        let end = match self.random.below(8) {
            0..=4 => End::Usage(usage),
            5 => End::Clean,
            _ => End::Failed,
        };
        let engine = self.engine(&acquire.target.worker);
        let end = if self.engines[engine].life == acquire.target { end } else { End::Failed };
        self.after(takes, Event::EngineEnds { attempt, fence, end });
    }

    fn engine(&self, worker: &str) -> usize {
        self.engines.iter().position(|engine| engine.life.worker == worker).unwrap_or(0)
    }

    fn engine_ends(&mut self, attempt: u64, fence: u64, end: End) {
        let Some(router) = self.router_of(attempt) else { return };
        let Some(acquire) = self.routers[router].attempt.as_ref().filter(|a| a.flying).map(|a| a.acquire.clone())
        else {
            return;
        };
        let at = self.engine(&acquire.target.worker);
        let end = if self.engines[at].life == acquire.target { end } else { End::Failed };
        if end != End::Failed {
            self.engines[at].held.insert(acquire.prefix[0]);
            self.engines[at].applied += 1;
            self.checks.ended(fence);
        }
        let delay = self.delay();
        self.after(delay, Event::ToRouter { attempt, call: None, heard: Heard::Ended(end) });
    }

    fn at_the_router(&mut self, attempt: u64, call: Option<u64>, heard: Heard) {
        let Some(router) = self.router_of(attempt) else { return };
        if self.stands_still(router, Event::ToRouter { attempt, call, heard: heard.clone() }) {
            return;
        }
        if let Some(call) = call {
            let mut waited = false;
            self.with(router, |attempt| waited = attempt.open.remove(&call));
            // A late answer, or a second one.
            if !waited && !matches!(heard, Heard::Acquired(_)) {
                return;
            }
        }
        let mut wishes = Vec::new();
        let now = self.now;
        self.with(router, |attempt| {
            if matches!(heard, Heard::Ended(_)) {
                attempt.flying = false;
            }
            attempt.seeder.step(now, heard, &mut wishes);
        });
        self.fulfil(router, wishes);
    }

    fn timeout(&mut self, attempt: u64, call: u64) {
        let Some(router) = self.router_of(attempt) else { return };
        if self.stands_still(router, Event::Timeout { attempt, call }) {
            return;
        }
        let mut waited = false;
        self.with(router, |attempt| waited = attempt.open.remove(&call));
        if waited {
            self.at_the_router(attempt, None, Heard::Unanswered);
        }
    }

    /// A replica steps the record, by its own clock.
    fn at_the_store(&mut self, attempt: u64, call: u64, ask: Ask) {
        let router = self.router_of(attempt);
        let offset = match router {
            Some(router) => self.routers[router].offset,
            None => self.random.pick(&[Duration::ZERO, Duration::from_secs(1)]),
        };
        let (clock, mut counts) = (self.now + offset, Counters::default());
        let heard = self.answer(clock, ask, &mut counts);
        for (reason, count) in counts.iter() {
            match reason {
                "granted" => self.tally.granted += count,
                "committed" => self.tally.committed += count,
                "expired" => self.tally.expired += count,
                "aborted" => self.tally.aborted += count,
                "fenced" => self.tally.fenced += count,
                "refused_token_used" => self.tally.tokens_replayed += count,
                "refused_held" | "refused_cooldown" => self.tally.refused += count,
                _ => {}
            }
        }
        let partitioned = router.is_some_and(|router| self.routers[router].partitioned);
        if let Some(heard) = heard.filter(|_| !partitioned && !self.random.one_in(20)) {
            let delay = self.delay();
            self.after(delay, Event::ToRouter { attempt, call: Some(call), heard });
        }
    }

    fn answer(&mut self, clock: Duration, ask: Ask, counts: &mut Counters) -> Option<Heard> {
        let settings = self.settings.clone();
        self.break_before(&settings);
        let heard = match ask {
            Ask::Acquire(ask) => {
                let life = self.engines[self.engine(&ask.target.worker)].life.clone();
                let answer = self.record.acquire(clock, &ask, &life, &settings, counts);
                if let Ok(lease) = &answer {
                    self.checks.granted(lease.key.fence, ask.token);
                    self.publish_first(&ask);
                }
                self.checks.owners(&self.record, None);
                Some(Heard::Acquired(answer))
            }
            Ask::Renew(key, dispatching) => {
                let key = self.key(key);
                let present = self.record.grant().map(|grant| self.present(&grant.target));
                let announced = dispatching.then_some(present.as_ref());
                Some(Heard::Renewed(self.record.renew(clock, key, announced, &settings, counts).ok()))
            }
            Ask::Commit(key, end) => Some(self.commit(clock, key, end, counts)),
            Ask::Abort(key) => {
                let key = self.key(key);
                let token = self.record.grant().filter(|grant| grant.is(key)).map(|grant| grant.token);
                let lied = self.is(Broken::RefundAfterDispatch);
                if lied && let Phase::Granted(grant) = &mut self.record.phase {
                    grant.dispatched = None;
                }
                let refunded = self.record.abort(clock, key, &settings, counts);
                token.filter(|_| refunded).into_iter().for_each(|token| self.checks.refunded(token));
                None
            }
        };
        self.break_after();
        heard
    }

    fn present(&self, target: &Target) -> Present {
        let engine = &self.engines[self.engine(&target.worker)];
        let target = if self.is(Broken::TargetNotLookedAt) { target.clone() } else { engine.life.clone() };
        Present { target, sequences: Sequences(vec![engine.applied]) }
    }

    fn commit(&mut self, clock: Duration, key: LeaseKey, end: Option<EndProof>, counts: &mut Counters) -> Heard {
        let (settings, asked) = (self.settings.clone(), key);
        let key = self.key(key);
        let grant = self.record.grant().cloned();
        let target = grant.as_ref().map(|grant| grant.target.clone());
        let engine = target.as_ref().map(|target| self.engines[self.engine(&target.worker)].clone());
        let prefix = grant.as_ref().map_or(0, |grant| grant.prefix[0]);
        let holds = engine.as_ref().is_some_and(|engine| engine.held.contains(&prefix));
        let sequences = Sequences(vec![engine.as_ref().map_or(0, |engine| engine.applied)]);
        let proof = match end {
            Some(end) => Proof::End(end),
            None => Proof::Index(IndexEvidence { holds, exact: true, sequences }),
        };
        let removed =
            target.as_ref().and_then(|t| self.removals.get(&(prefix, t.worker.clone(), t.incarnation)).copied());
        let dispatched = grant.as_ref().and_then(|grant| grant.dispatched.clone());
        let from = if matches!(proof, Proof::End(_)) { dispatched.and_then(|s| s.0.first().copied()) } else { None };
        let present = target.as_ref().map(|target| self.present(target).target);
        let answer = self.record.commit(clock, key, &proof, present.as_ref(), &settings, counts);
        let fresh = counts.get("committed") > 0;
        if let (true, Some(target), Some(engine)) = (fresh, &target, &engine) {
            let commit = Commit {
                fence: asked.fence,
                prefix: &vec![prefix],
                target,
                life: &engine.life,
                holds,
                removed_since: removed.zip(from).is_some_and(|(removed, from)| removed > from),
            };
            self.checks.committed(&commit);
            self.checks.owners(&self.record, Some(&commit));
        } else {
            self.checks.owners(&self.record, None);
        }
        Heard::Committed(match answer {
            Ok(_) => Answer::Done,
            Err(NotCommitted::Rejected(_)) => Answer::Rejected,
            Err(NotCommitted::Lost | NotCommitted::TargetChanged) => Answer::Over,
        })
    }

    /// The key that a caller sent; without a fence check, whichever would do.
    fn key(&self, key: LeaseKey) -> LeaseKey {
        let current = self.record.grant().map(|grant| LeaseKey { lease_id: grant.lease_id, fence: grant.fence });
        if self.is(Broken::NoFenceCheck) { current.unwrap_or(key) } else { key }
    }

    fn break_before(&mut self, settings: &LeaseSettings) {
        if self.is(Broken::TokensForgotten) {
            self.record.tokens.forget(self.now + settings.token_lifetime * 2, settings.token_lifetime);
        }
    }

    fn break_after(&mut self) {
        if self.is(Broken::NoSkewWait)
            && let Phase::Cooldown { until, ending: Ending::Expired, .. } = &mut self.record.phase
        {
            *until = Duration::ZERO;
        }
    }

    fn publish_first(&mut self, ask: &Acquire) {
        if self.is(Broken::PublishFirst) {
            let owner = Owner { target: ask.target.clone(), proven: Sequences::default() };
            let revision = self.record.revision + 1;
            self.record.prefixes.join(&ask.prefix, owner, revision);
            self.record.revision = revision;
        }
    }

    fn chaos(&mut self) {
        let router = self.random.below(ROUTERS as u64) as usize;
        match self.random.below(14) {
            0 | 1 => {
                let pause = Duration::from_millis(100) + self.random.millis(10_000);
                self.routers[router].paused = Some(self.now + pause);
                self.tally.pauses += 1;
                self.after(pause, Event::Resume(router));
            }
            2 => {
                // Its connections go with it.
                self.routers[router].attempt = None;
                self.tally.crashes += 1;
            }
            3 => {
                self.routers[router].partitioned = true;
                let pause = self.random.millis(9_000);
                self.after(pause, Event::Heal(router));
            }
            4 => {
                let at = self.random.below(WORKERS as u64) as usize;
                let engine = &mut self.engines[at];
                let dead = engine.life.clone();
                engine.life.incarnation += 1;
                (engine.applied, engine.held) = (0, HashSet::new());
                let gone = self.record.gone(self.now, &dead, &self.settings, &mut Counters::default());
                self.tally.revoked += u64::from(gone);
            }
            5..=7 => self.remove(),
            8 => self.routers[router].offset = self.random.pick(&[Duration::ZERO, Duration::from_secs(1)]),
            _ => {}
        }
        self.checks.owners(&self.record, None);
        let pause = self.random.millis(1_200);
        self.after(pause, Event::Chaos);
    }

    /// An engine drops a prefix, and the sweep sees that.
    fn remove(&mut self) {
        let held = self.engines.iter().enumerate().flat_map(|(i, e)| e.held.iter().map(move |prefix| (i, *prefix)));
        let Some((at, prefix)) = held.min_by_key(|(i, prefix)| Reverse((*i, *prefix))) else { return };
        let engine = &mut self.engines[at];
        engine.held.remove(&prefix);
        engine.applied += 1;
        let present = Present { target: engine.life.clone(), sequences: Sequences(vec![engine.applied]) };
        let life = (prefix, present.target.worker.clone(), present.target.incarnation);
        self.removals.insert(life, present.sequences.0[0]);
        let revoked = self.record.removed(self.now, &[prefix], &present, &self.settings, &mut Counters::default());
        self.tally.revoked += u64::from(revoked);
        if self.is(Broken::NoTombstones) {
            self.record.prefixes.forget_tombstones();
        }
    }
}
