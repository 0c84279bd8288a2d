//! What the world asks of a router, and tells it.

use super::arrivals::Arrival;
use crate::engine::{Nanos, Output};
use kvatlas_service::routing::RankLoad;

/// A request's number in a run: its place among the arrivals.
pub type RequestNumber = usize;

/// A request that goes to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The request.
    pub request: RequestNumber,
    /// The worker.
    pub worker: usize,
    /// Prompt tokens that the router expects to be cached there.
    pub predicted_tokens: u32,
}

/// Cache events of one pass, with what they are about.
#[derive(Clone, Debug)]
pub struct KvBatch {
    /// Stores, removals and clears in order; other outputs do not matter.
    pub events: Vec<Output>,
}

/// A router.
pub trait Router {
    /// A request arrives. What can be dispatched by now, this or others, goes to `out`.
    fn arrive(&mut self, now: Nanos, number: RequestNumber, request: &Arrival, out: &mut Vec<Dispatch>);

    /// The first token of a request came.
    fn first_token(&mut self, now: Nanos, number: RequestNumber, out: &mut Vec<Dispatch>);

    /// A request ended.
    fn ended(&mut self, now: Nanos, number: RequestNumber, cached_tokens: u32, out: &mut Vec<Dispatch>);

    /// A worker's load came.
    fn load(&mut self, now: Nanos, worker: usize, load: &RankLoad, out: &mut Vec<Dispatch>);

    /// A worker's events came; the contents of what is stored in them are found by the request's number.
    fn events(&mut self, now: Nanos, worker: usize, batch: &KvBatch, arrivals: &[Arrival]);

    /// When [`Router::timer`] is due.
    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    /// Time passed.
    fn timer(&mut self, _now: Nanos, _out: &mut Vec<Dispatch>) {}
}
