//! Small fleets for tests: workers by slot, their loads as an engine reports them, who holds how much of the prompt in question.

use super::columns::{Columns, Slot, Status};
use super::load::{LoadReport, RankLoad, WorkerLoad};
use super::overlap::Overlap;
use super::policy::{News, Policy, PolicyName};
use super::request::Request;
use super::settings::RoutingSettings;
use super::trace::Trace;
use super::view::{Pick, View};
use kvatlas_index::ContentHash;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// Tokens in a block of every [`Prompt`].
pub(crate) const BLOCK: u32 = 16;

/// How long every record of a [`Fleet`] may be believed.
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(15);

/// The generator of a test.
pub(crate) fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// The generator of a property: `KVATLAS_SEED` makes another of it. The seed is shown where the test fails.
pub(crate) fn varied(seed: u64) -> StdRng {
    let more = std::env::var("KVATLAS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    println!("seed {seed}, KVATLAS_SEED={more}");
    StdRng::seed_from_u64(seed.wrapping_add(more))
}

/// A rank that runs so many requests, or shows the rate of its last one.
pub(crate) fn rank(running: i64, rate: f64) -> RankLoad {
    RankLoad { running, gen_throughput: rate, ..RankLoad::default() }
}

/// A rank that runs one request at 100 tokens per second, with a fifth of its KV pool in use.
pub(crate) fn busy(queued_tokens: i64) -> RankLoad {
    RankLoad { waiting_uncached_tokens: queued_tokens, token_usage: 0.2, ..rank(1, 100.0) }
}

/// A prompt with its hashes.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub tokens: Option<u64>,
    pub token_ids: Vec<u32>,
    pub contents: Vec<ContentHash>,
}

impl Prompt {
    /// The prompt of that number: no two numbers share a block.
    pub fn new(number: u32, tokens: u64) -> Self {
        let token_ids: Vec<u32> = (0..tokens as u32).map(|at| number.wrapping_mul(0x0100_0193) ^ at).collect();
        let hash = |block: u32| (u64::from(number) << 32 | u64::from(block)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let contents = (0..tokens as u32 / BLOCK).map(|block| ContentHash(hash(block))).collect();
        Self { tokens: Some(tokens), token_ids, contents }
    }

    /// A prompt of which nothing is known.
    pub fn unknown() -> Self {
        Self { tokens: None, token_ids: Vec::new(), contents: Vec::new() }
    }

    /// A request for it.
    pub fn request(&self, booking: u64) -> Request<'_> {
        let Self { tokens, token_ids, contents } = self;
        Request { tokens: *tokens, block_size: BLOCK, contents, token_ids, booking }
    }
}

/// A fleet, and what the index says of one prompt.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub now: Duration,
    pub columns: Columns,
    pub overlap: Overlap,
    pub settings: RoutingSettings,
    pub routers: u32,
}

impl Fleet {
    /// So many ready workers, named by their slots: dark, idle, without blocks, an hour after their registration.
    pub fn dark(workers: usize) -> Self {
        let mut columns = Columns::default();
        for worker in 0..workers {
            columns.add(Duration::ZERO, Arc::from(worker.to_string()));
        }
        let mut overlap = Overlap::default();
        overlap.reset(workers);
        Self { now: Duration::from_secs(3600), columns, overlap, settings: RoutingSettings::default(), routers: 1 }
    }

    /// One worker for each record, of one rank.
    pub fn of(ranks: &[RankLoad]) -> Self {
        let mut fleet = Self::dark(ranks.len());
        for (slot, rank) in ranks.iter().enumerate() {
            fleet.record(slot as Slot, &[*rank]);
        }
        fleet
    }

    /// Takes a worker's record now; the ranks are numbered as they stand.
    pub fn record(&mut self, slot: Slot, ranks: &[RankLoad]) {
        let ranks: Vec<_> = ranks.iter().zip(0..).map(|(load, rank)| RankLoad { rank, ..*load }).collect();
        let report = LoadReport { rank_count: ranks.len() as u32, ranks, fresh_for: FRESH_FOR, ..Default::default() };
        let load = WorkerLoad::from_report(&report).expect("a valid record");
        self.columns.recorded(self.now, slot, load, FRESH_FOR, &self.settings.load);
    }

    /// Has the router dispatched requests so long ago that every record shows them.
    pub fn in_flight(&mut self, requests: &[u32]) {
        self.columns.in_flight.copy_from_slice(requests);
    }

    /// Lets the workers hold so many leading blocks, and vouches for all of it.
    pub fn hold(&mut self, blocks: &[u32]) {
        self.overlap.reset(self.columns.len());
        self.overlap.blocks.copy_from_slice(blocks);
        self.columns.certified.fill(true);
    }

    /// Sets or clears a bit of a worker's status.
    pub fn put(&mut self, slot: Slot, bit: u8, on: bool) {
        self.columns.status[slot as usize].put(bit, on);
    }

    /// Who has no bit set.
    pub fn candidates(&self) -> Vec<Slot> {
        let status = self.columns.status.iter().zip(0..);
        status.filter(|(status, _)| **status == Status::default()).map(|(_, slot)| slot).collect()
    }

    /// The moment, for these candidates.
    pub fn view<'a>(&'a self, candidates: &'a [Slot]) -> View<'a> {
        let Self { now, columns, overlap, settings, routers } = self;
        View { now: *now, columns, candidates, overlap, settings, routers: *routers }
    }

    /// A policy's choice among everybody who may be chosen, which changes nothing in the fleet.
    pub fn pick(&self, policy: &mut dyn Policy, request: &Request<'_>, rng: &mut dyn Rng) -> Option<Pick> {
        policy.pick(&self.view(&self.candidates()), request, rng, &mut Trace::off())
    }

    /// The same, and the request is dispatched there.
    pub fn dispatch(&mut self, policy: &mut dyn Policy, request: &Request<'_>, rng: &mut dyn Rng) -> Option<Slot> {
        let pick = self.pick(policy, request, rng)?;
        let tokens = request.tokens_or(self.settings.load.mean_prefill_tokens) as u64;
        self.columns.dispatched(self.now, pick.slot, tokens, &self.settings.load);
        let blocks = self.overlap.blocks[pick.slot as usize];
        let news = News::Dispatched { request: *request, slot: pick.slot, blocks };
        policy.news(&self.view(&[]), self.now, news);
        Some(pick.slot)
    }

    /// How often each worker gets one of so many requests of this size, each dispatched before the next is decided.
    pub fn burst(&mut self, policy: &mut dyn Policy, requests: u32, tokens: u64, rng: &mut dyn Rng) -> Vec<u32> {
        let mut counts = vec![0; self.columns.len()];
        for number in 0..requests {
            let prompt = Prompt::new(number, tokens);
            let slot = self.dispatch(policy, &prompt.request(u64::from(number) + 1), rng).expect("a worker");
            counts[slot as usize] += 1;
        }
        counts
    }

    /// How often each worker is picked in so many decisions, of which each is a new policy's first; only an order is kept.
    pub fn shares(&self, name: PolicyName, decisions: u32, prompt: &Prompt, rng: &mut dyn Rng) -> Vec<u32> {
        let mut counts = vec![0; self.columns.len()];
        let mut policy = name.policy();
        for _ in 0..decisions {
            if name != PolicyName::RoundRobin {
                policy = name.policy();
            }
            let pick = self.pick(policy.as_mut(), &prompt.request(1), rng).expect("a worker");
            counts[pick.slot as usize] += 1;
        }
        counts
    }

    /// The same fleet with its workers in other slots: `order[i]` is who stands in slot `i` then.
    pub fn permuted(&self, order: &[Slot]) -> Self {
        fn by<T: Clone>(order: &[Slot], column: &[T]) -> Vec<T> {
            order.iter().map(|slot| column[*slot as usize].clone()).collect()
        }
        let is = &self.columns;
        let columns = Columns {
            names: by(order, &is.names),
            status: by(order, &is.status),
            fresh_until: by(order, &is.fresh_until),
            malformed: by(order, &is.malformed),
            overload: by(order, &is.overload),
            load: by(order, &is.load),
            received_at: by(order, &is.received_at),
            queued: by(order, &is.queued),
            rate: by(order, &is.rate),
            pressure: by(order, &is.pressure),
            in_flight: by(order, &is.in_flight),
            unrecorded: by(order, &is.unrecorded),
            tallies: by(order, &is.tallies),
            blocks: by(order, &is.blocks),
            routable_since: by(order, &is.routable_since),
            certified: by(order, &is.certified),
        };
        let mut overlap = self.overlap.clone();
        overlap.blocks = by(order, &self.overlap.blocks);
        if overlap.predicted {
            overlap.unraised = by(order, &self.overlap.unraised);
        }
        Self { columns, overlap, ..self.clone() }
    }

    /// Any fleet: dark, stale, idle, busy and full workers, holders of any number of the prompt's blocks, dispatches on the way.
    pub fn random(workers: usize, blocks: u32, rng: &mut dyn Rng) -> Self {
        let mut fleet = Self::dark(workers);
        for slot in 0..workers as Slot {
            if rng.random_bool(0.8) {
                let ranks: Vec<_> = (0..rng.random_range(1..=2)).map(|_| any_rank(rng)).collect();
                fleet.record(slot, &ranks);
            }
            let at = slot as usize;
            fleet.columns.blocks[at] = rng.random_range(0..5000);
            fleet.columns.certified[at] = rng.random_bool(0.8);
            fleet.overlap.blocks[at] = if rng.random_bool(0.5) { rng.random_range(0..=blocks) } else { 0 };
            fleet.columns.in_flight[at] = rng.random_range(0..60);
            for _ in 0..rng.random_range(0..3) {
                let tokens = rng.random_range(1..4000);
                fleet.columns.dispatched(fleet.now, slot, tokens, &fleet.settings.load);
            }
        }
        fleet
    }
}

fn any_rank(rng: &mut dyn Rng) -> RankLoad {
    let waiting = if rng.random_bool(0.5) { rng.random_range(0..40) } else { 0 };
    RankLoad {
        waiting,
        waiting_uncached_tokens: if rng.random_bool(0.5) { waiting * rng.random_range(0..2000) } else { 0 },
        token_usage: rng.random_range(0..=20) as f64 / 20.0,
        utilization: rng.random_range(0..=20) as f64 / 20.0,
        max_running: if rng.random_bool(0.7) { 38 } else { 0 },
        ..rank(rng.random_range(0..38), rng.random_range(0..4) as f64 * 1000.0)
    }
}
