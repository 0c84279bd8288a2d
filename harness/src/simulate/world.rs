//! The queue of events, and what each of them does.

use super::arrivals::Arrival;
use super::metrics::{Figures, Outcome};
use super::net::{Delay, NetSpec};
use super::router::{Dispatch, KvBatch, RequestNumber, Router};
use super::streams::{Stream, stream};
use crate::engine::{Engine, EngineSpec, Nanos, Output, Request};
use kvatlas_service::routing::RankLoad;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A fleet and its network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorldSpec {
    /// Engines, all alike.
    pub workers: usize,
    /// What each is made of.
    pub engine: EngineSpec,
    /// Delays.
    pub net: NetSpec,
    /// How loads come.
    pub loads: Loads,
    /// Seed of the network's draws.
    pub seed: u64,
}

/// How loads come to routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loads {
    /// From every worker at once, every so many milliseconds.
    Polled(u64),
    /// With every pass that ends.
    Pushed,
}

#[derive(Clone, Debug)]
enum Event {
    Arrive(RequestNumber),
    Reach { request: RequestNumber, worker: usize },
    Wake { worker: usize },
    FirstToken(RequestNumber),
    Ended { request: RequestNumber, cached_tokens: u32 },
    Events { router: usize, worker: usize, batch: KvBatch },
    Poll,
    Load { router: usize, worker: usize, load: RankLoad },
    Timer { router: usize },
}

/// By time, then by cause.
struct Queued {
    at: Nanos,
    cause: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.cause) == (other.at, other.cause)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.cause).cmp(&(other.at, other.cause))
    }
}

/// Kinds of messages that stay in order between two ends.
const REQUESTS: usize = 0;
const TOKENS: usize = 1;
const EVENTS: usize = 2;
const LOADS: usize = 3;
const KINDS: usize = 4;

struct World<'a, R> {
    spec: &'a WorldSpec,
    arrivals: &'a [Arrival],
    routers: &'a mut [R],
    engines: Vec<Engine>,
    /// When each engine's wake is queued for.
    wakes: Vec<Option<Nanos>>,
    timers: Vec<Option<Nanos>>,
    queue: BinaryHeap<Reverse<Queued>>,
    causes: u64,
    random: StdRng,
    /// Latest delivery, by router, worker and kind.
    delivered: Vec<[Nanos; KINDS]>,
    outcomes: Vec<Outcome>,
    held_at_arrival: Vec<Vec<u32>>,
    left: usize,
    in_flight: Vec<u32>,
    in_flight_max: u32,
    dispatches: Vec<Dispatch>,
    outputs: Vec<Output>,
}

/// Plays the arrivals, each through the router of its number modulo theirs; ends when every request has. Returns what became of each
/// and the figures of all.
///
/// # Panics
/// If a request is longer than an engine's pool, or a router never dispatches one.
pub fn run<R: Router>(spec: &WorldSpec, arrivals: &[Arrival], routers: &mut [R]) -> (Vec<Outcome>, Figures) {
    let mut world = World {
        spec,
        arrivals,
        engines: (0..spec.workers).map(|_| Engine::new(spec.engine)).collect(),
        wakes: vec![None; spec.workers],
        timers: vec![None; routers.len()],
        queue: BinaryHeap::new(),
        causes: 0,
        random: stream(spec.seed, Stream::Net),
        delivered: vec![[0; KINDS]; spec.workers * routers.len()],
        outcomes: vec![Outcome::default(); arrivals.len()],
        held_at_arrival: vec![Vec::new(); arrivals.len()],
        left: arrivals.len(),
        in_flight: vec![0; spec.workers],
        in_flight_max: 0,
        dispatches: Vec::new(),
        outputs: Vec::new(),
        routers,
    };
    world.play();
    let preemptions = world.engines.iter().map(|engine| engine.counters().preemptions).sum();
    let block_size = spec.engine.block_size;
    let figures = Figures::of(&world.outcomes, spec.workers, block_size, preemptions, world.in_flight_max);
    (world.outcomes, figures)
}

impl<R: Router> World<'_, R> {
    fn play(&mut self) {
        for (number, arrival) in self.arrivals.iter().enumerate() {
            self.put(arrival.at, Event::Arrive(number));
        }
        if let Loads::Polled(_) = self.spec.loads {
            self.put(0, Event::Poll);
        }
        while self.left > 0 {
            let Reverse(Queued { at, event, .. }) =
                self.queue.pop().expect("requests are left, and nothing happens any more");
            self.happen(at, event);
        }
    }

    fn put(&mut self, at: Nanos, event: Event) {
        self.causes += 1;
        self.queue.push(Reverse(Queued { at, cause: self.causes, event }));
    }

    /// When a message that is sent now comes; after every one of its kind between the same ends.
    fn delivery(&mut self, now: Nanos, router: usize, worker: usize, kind: usize) -> Nanos {
        let net = &self.spec.net;
        let delay: &Delay = [&net.request, &net.token, &net.events, &net.load][kind];
        let at = now + delay.draw(&mut self.random);
        let latest = &mut self.delivered[router * self.spec.workers + worker][kind];
        *latest = at.max(*latest);
        *latest
    }

    fn router_of(&self, request: RequestNumber) -> usize {
        request % self.routers.len()
    }

    fn happen(&mut self, now: Nanos, event: Event) {
        let mut out = std::mem::take(&mut self.dispatches);
        let router = match event {
            Event::Arrive(number) => {
                self.note_arrival(now, number);
                let router = self.router_of(number);
                self.routers[router].arrive(now, number, &self.arrivals[number], &mut out);
                Some(router)
            }
            Event::FirstToken(number) => {
                self.outcomes[number].first_token = now;
                let router = self.router_of(number);
                self.routers[router].first_token(now, number, &mut out);
                Some(router)
            }
            Event::Ended { request, cached_tokens } => {
                self.note_end(now, request, cached_tokens);
                let router = self.router_of(request);
                self.routers[router].ended(now, request, cached_tokens, &mut out);
                Some(router)
            }
            Event::Load { router, worker, load } => {
                self.routers[router].load(now, worker, &load, &mut out);
                Some(router)
            }
            Event::Timer { router } => {
                self.timers[router] = None;
                self.routers[router].timer(now, &mut out);
                Some(router)
            }
            Event::Events { router, worker, batch } => {
                self.routers[router].events(now, worker, &batch, self.arrivals);
                None
            }
            Event::Reach { request, worker } => {
                self.submit(now, request, worker);
                None
            }
            Event::Wake { worker } => {
                self.wakes[worker] = None;
                self.advance(now, worker);
                None
            }
            Event::Poll => {
                self.poll(now);
                None
            }
        };
        if let Some(router) = router {
            out.drain(..).for_each(|dispatch| self.dispatch(now, router, dispatch));
            self.wind_timer(now, router);
        }
        self.dispatches = out;
    }

    /// What every worker holds of the prompt, in truth, before anybody decides.
    fn note_arrival(&mut self, now: Nanos, number: RequestNumber) {
        let arrival = &self.arrivals[number];
        let names = crate::engine::chained(&arrival.contents[..arrival.prompt_blocks as usize]);
        let tokens = |engine: &Engine| engine.truth(&names) as u32 * self.spec.engine.block_size;
        let held: Vec<u32> = self.engines.iter().map(tokens).collect();
        self.outcomes[number] = Outcome {
            arrived: now,
            prompt_tokens: arrival.prompt_tokens,
            output_tokens: arrival.output_tokens,
            oracle_tokens: held.iter().copied().max().unwrap_or(0),
            ..Outcome::default()
        };
        self.held_at_arrival[number] = held;
    }

    fn dispatch(&mut self, now: Nanos, router: usize, dispatch: Dispatch) {
        let Dispatch { request, worker, predicted_tokens } = dispatch;
        let held = std::mem::take(&mut self.held_at_arrival[request]);
        let outcome = &mut self.outcomes[request];
        (outcome.dispatched, outcome.worker, outcome.predicted_tokens) = (now, worker, predicted_tokens);
        outcome.held_tokens = held[worker];
        self.in_flight[worker] += 1;
        self.in_flight_max = self.in_flight_max.max(self.in_flight[worker]);
        let at = self.delivery(now, router, worker, REQUESTS);
        self.put(at, Event::Reach { request, worker });
    }

    fn note_end(&mut self, now: Nanos, number: RequestNumber, cached_tokens: u32) {
        let outcome = &mut self.outcomes[number];
        (outcome.ended, outcome.cached_tokens) = (now, cached_tokens);
        self.in_flight[outcome.worker] -= 1;
        self.left -= 1;
    }

    fn submit(&mut self, now: Nanos, number: RequestNumber, worker: usize) {
        let Arrival { prompt_tokens, output_tokens, contents, .. } = &self.arrivals[number];
        let block_size = self.spec.engine.block_size;
        let request = Request::new(number as u64, *prompt_tokens, *output_tokens, block_size, contents.clone());
        let request = request.expect("an arrival has its blocks");
        self.engines[worker].submit(now, request).expect("no request is longer than a pool");
        self.wind_engine(now, worker);
    }

    fn advance(&mut self, now: Nanos, worker: usize) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engines[worker].advance(now, &mut outputs);
        self.tell_requests(now, worker, &outputs);
        let is_cache = |o: &Output| matches!(o, Output::Stored { .. } | Output::Removed { .. } | Output::Cleared);
        outputs.retain(is_cache);
        if !outputs.is_empty() {
            for router in 0..self.routers.len() {
                let at = self.delivery(now, router, worker, EVENTS);
                let batch = KvBatch { events: outputs.clone() };
                self.put(at, Event::Events { router, worker, batch });
            }
        }
        outputs.clear();
        self.outputs = outputs;
        if self.spec.loads == Loads::Pushed {
            self.send_load(now, worker);
        }
        self.wind_engine(now, worker);
    }

    fn tell_requests(&mut self, now: Nanos, worker: usize, outputs: &[Output]) {
        for output in outputs {
            let (number, event) = match output {
                Output::Token { id, tokens: 1 } => (*id as usize, Event::FirstToken(*id as usize)),
                Output::Ended { id, cached_tokens } => {
                    (*id as usize, Event::Ended { request: *id as usize, cached_tokens: *cached_tokens })
                }
                _ => continue,
            };
            let at = self.delivery(now, self.router_of(number), worker, TOKENS);
            self.put(at, event);
        }
    }

    fn poll(&mut self, now: Nanos) {
        let Loads::Polled(every_ms) = self.spec.loads else { return };
        (0..self.spec.workers).for_each(|worker| self.send_load(now, worker));
        self.put(now + every_ms.max(1) * 1_000_000, Event::Poll);
    }

    fn send_load(&mut self, now: Nanos, worker: usize) {
        let load = self.engines[worker].load().rank;
        for router in 0..self.routers.len() {
            let at = self.delivery(now, router, worker, LOADS);
            self.put(at, Event::Load { router, worker, load });
        }
    }

    fn wind_engine(&mut self, now: Nanos, worker: usize) {
        let Some(at) = self.engines[worker].next_wakeup().map(|at| at.max(now)) else { return };
        if self.wakes[worker].is_none_or(|queued| queued > at) {
            self.wakes[worker] = Some(at);
            self.put(at, Event::Wake { worker });
        }
    }

    fn wind_timer(&mut self, now: Nanos, router: usize) {
        let Some(at) = self.routers[router].next_timer().map(|at| at.max(now)) else { return };
        if self.timers[router].is_none_or(|queued| queued > at) {
            self.timers[router] = Some(at);
            self.put(at, Event::Timer { router });
        }
    }
}
