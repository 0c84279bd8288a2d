//! The world: what is in it, and how it goes on.

mod engines;
mod store;

use super::super::*;
use super::checks::Checks;
use super::random::Random;
use crate::ingest::Counters;
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
}
