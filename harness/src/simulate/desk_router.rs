//! The product's own router: an index fed by events as they are delivered, and the desk that the service runs.

use super::arrivals::Arrival;
use super::known::Known;
use super::router::{Dispatch, KvBatch, RequestNumber, Router};
use super::streams::{Stream, seed_of};
use crate::engine::{EngineSpec, Nanos};
use kvatlas_service::routing::{
    Ask, Desk, Ending, Input, LoadReport, LoadSource, Outcome, Overlap, RankLoad, Request, RoutingSettings, Slot, Trace,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A desk with an index of its own.
pub struct DeskRouter {
    desk: Desk,
    block_size: u32,
    known: Known,
    /// Desk slots by worker.
    slots: Vec<Slot>,
    /// How long a load may be believed.
    fresh_for: Duration,
    source: LoadSource,
    booked: HashMap<RequestNumber, u64>,
    overlap: Overlap,
}

fn time(now: Nanos) -> Duration {
    Duration::from_nanos(now)
}

impl DeskRouter {
    /// A router of so many workers that knows nothing yet. `polled`: the time between two loads of a worker; `None`: they are pushed.
    ///
    /// # Panics
    /// If the system has no memory for the index.
    pub fn new(
        workers: usize,
        engine: &EngineSpec,
        settings: Arc<RoutingSettings>,
        polled: Option<Duration>,
        seed: u64,
    ) -> Self {
        let fresh_for = match polled {
            Some(every) => settings.load.polled_fresh_for(every),
            None => settings.load.pushed_fresh_for,
        };
        let source = if polled.is_some() { LoadSource::Polled } else { LoadSource::Pushed };
        let mut desk = Desk::new(settings, engine.block_size, seed_of(seed, Stream::Ties));
        let mut out = Vec::new();
        let slots = (0..workers).map(|worker| {
            let name: Arc<str> = format!("w{worker:04}").into();
            let added = Input::WorkerAdded { worker: name.clone(), ranks: [0].into(), generation: 1 };
            desk.step(Duration::ZERO, added, &mut out);
            desk.step(Duration::ZERO, Input::Certified { worker: name.clone(), certified: true }, &mut out);
            desk.slot(&name).expect("a worker that was added")
        });
        let slots = slots.collect();
        Self {
            desk,
            block_size: engine.block_size,
            known: Known::new(workers),
            slots,
            fresh_for,
            source,
            booked: HashMap::new(),
            overlap: Overlap::default(),
        }
    }

    /// The desk.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    fn worker_of(&self, slot: Slot) -> usize {
        self.slots.iter().position(|is| *is == slot).expect("a slot of this desk")
    }
}

impl Router for DeskRouter {
    fn arrive(&mut self, now: Nanos, number: RequestNumber, request: &Arrival, out: &mut Vec<Dispatch>) {
        let (contents, depths) = self.known.look_up(request);
        self.overlap.reset(self.desk.columns().len());
        self.slots.iter().zip(depths).for_each(|(slot, blocks)| self.overlap.credit(*slot, *blocks));
        let asked = Request {
            tokens: Some(request.prompt_tokens.into()),
            block_size: self.block_size,
            contents,
            token_ids: &[],
            booking: 0,
        };
        let decided = self.desk.select(time(now), &Ask::of(asked), &mut self.overlap, &mut Trace::off());
        let decision = decided.expect("workers of a simulation are ready, and nobody sheds");
        self.booked.insert(number, decision.booking);
        let worker = self.worker_of(decision.pick.slot);
        // The last token of a prompt is always computed: a whole hit is one block less.
        let most = (request.prompt_tokens - 1) / self.block_size * self.block_size;
        let predicted_tokens = (decision.matched_blocks * self.block_size).min(most);
        out.push(Dispatch { request: number, worker, predicted_tokens });
    }

    fn first_token(&mut self, now: Nanos, number: RequestNumber, _: &mut Vec<Dispatch>) {
        let booking = self.booked[&number];
        self.desk.step(time(now), Input::FirstToken { booking }, &mut Vec::new());
    }

    fn ended(&mut self, now: Nanos, number: RequestNumber, cached_tokens: u32, _: &mut Vec<Dispatch>) {
        let Some(booking) = self.booked.remove(&number) else { return };
        let ending = Ending { cached_tokens: Some(cached_tokens.into()), ..Ending::bare(Outcome::Ok) };
        self.desk.step(time(now), Input::Completed { booking, ending }, &mut Vec::new());
    }

    fn load(&mut self, now: Nanos, worker: usize, load: &RankLoad, _: &mut Vec<Dispatch>) {
        let report = LoadReport { rank_count: 1, ranks: vec![*load], source: self.source, fresh_for: self.fresh_for };
        let worker = self.desk.columns().names[self.slots[worker] as usize].clone().expect("a worker that is there");
        self.desk.step(time(now), Input::Load { worker, report }, &mut Vec::new());
    }

    fn events(&mut self, _: Nanos, worker: usize, batch: &KvBatch, arrivals: &[Arrival]) {
        self.known.apply(worker, batch, arrivals);
    }
}
