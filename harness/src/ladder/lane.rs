//! Serving threads: each takes the operation that was scheduled first out of its queues, applies it, and writes down when it
//! began and ended.

use super::clock::{Clock, Gaps};
use super::issuer::Ticket;
use super::measure::Served;
use super::tape::{Operation, Step, Tape};
use crate::indexers::{EventLane, QueryLane};
use kvatlas_index::HolderDepth;
use rtrb::Consumer;
use smallvec::SmallVec;
use std::time::Instant;

/// Operations between two readings of the clock while there is nothing to do.
const IDLE_SPINS: u32 = 16;

/// Events that a lane shows to an indexer that looks ahead, the next one included.
const SEEN_MAX: usize = 12;
/// Queued operations among which it looks for them.
const SCANNED_MAX: usize = 32;

/// One serving thread: an event lane, a query lane, or both.
pub struct Lane {
    events: Option<Box<dyn EventLane>>,
    queries: Option<Box<dyn QueryLane>>,
    /// Whether events, and whether lookups, were laid out ahead.
    ahead: (bool, bool),
    /// Whether the event lane wants to see its queue.
    looks_ahead: bool,
    answer: Vec<HolderDepth>,
}

/// What a lane did in the window.
#[derive(Debug)]
pub struct Shift {
    /// Every operation, in the order it was served.
    pub served: Vec<Served>,
    /// Pauses of the spin while it was idle.
    pub gaps_ns: u64,
    /// Whether it gave up with operations left.
    pub gave_up: bool,
}

/// When a lane is to serve.
#[derive(Clone, Copy, Debug)]
pub struct Hours {
    /// The trial's clock.
    pub clock: Clock,
    /// The drain ends here, done or not: a trial of an indexer that cannot keep up has to end, too.
    pub give_up_ns: u64,
}

impl Lane {
    /// A lane with its roles.
    pub fn new(events: Option<Box<dyn EventLane>>, queries: Option<Box<dyn QueryLane>>) -> Self {
        let looks_ahead = events.as_ref().is_some_and(|events| events.looks_ahead());
        Self { events, queries, ahead: (false, false), looks_ahead, answer: Vec::with_capacity(4096) }
    }

    /// Applies the events of a stretch of the tape that belong to event lane `lane` of `lanes`, as fast as it goes. Returns
    /// their block operations.
    pub fn warm(&mut self, tape: &Tape, operations: &[Operation], lane: usize, lanes: usize) -> u64 {
        let mine = |o: &&Operation| o.is_event() && o.worker as usize % lanes == lane;
        operations.iter().filter(mine).fold(0, |sum, operation| {
            self.apply(operation, tape.step(operation));
            sum + operation.block_ops()
        })
    }

    /// Lets indexers that want it lay out the window's operations.
    pub fn prepare(&mut self, tape: &Tape, range: &std::ops::Range<usize>) {
        let events = self.events.as_mut().is_some_and(|events| events.prepare(tape, range.clone()));
        let queries = self.queries.as_mut().is_some_and(|queries| queries.prepare(tape, range.clone()));
        self.ahead = (events, queries);
    }

    /// Serves until every issuer is done and every queue is empty, or it is time to give up.
    pub fn serve(
        &mut self,
        tape: &Tape,
        operations: &[Operation],
        mut queues: Vec<Consumer<Ticket>>,
        expected: usize,
        hours: Hours,
    ) -> Shift {
        // Touched before the window: a page fault in it would be charged to an operation.
        let mut served = vec![Served { operation: 1, start_ns: 1, end_ns: 1 }; expected];
        served.clear();
        let mut gaps = Gaps::default();
        loop {
            let over = queues.iter().all(Consumer::is_abandoned);
            let Some((ticket, queue)) = take_earliest(&mut queues) else {
                if over {
                    return Shift { served, gaps_ns: gaps.total_ns, gave_up: false };
                }
                idle(&mut gaps);
                continue;
            };
            let operation = &operations[ticket as usize];
            let start_ns = hours.clock.now_ns();
            if self.looks_ahead && operation.is_event() {
                self.look_ahead(ticket, &mut queues[queue], operations, tape);
            }
            self.serve_one(ticket, operation, tape);
            let end_ns = hours.clock.now_ns();
            served.push(Served { operation: ticket, start_ns, end_ns });
            gaps.interrupt();
            if end_ns > hours.give_up_ns {
                return Shift { served, gaps_ns: gaps.total_ns, gave_up: true };
            }
        }
    }

    /// Shows the event lane what is queued behind this event. Charged to the event.
    fn look_ahead(&mut self, ticket: Ticket, queue: &mut Consumer<Ticket>, operations: &[Operation], tape: &Tape) {
        let Some(events) = &mut self.events else { return };
        let mut seen: SmallVec<[&Operation; SEEN_MAX]> = SmallVec::new();
        seen.push(&operations[ticket as usize]);
        let waiting = queue.slots().min(SCANNED_MAX);
        if let Ok(chunk) = queue.read_chunk(waiting) {
            let (first, second) = chunk.as_slices();
            let queued = first.iter().chain(second).map(|&next| &operations[next as usize]);
            // The chunk is dropped without a commit: everything stays queued.
            seen.extend(queued.filter(|o| o.is_event()).take(SEEN_MAX - 1));
        }
        events.look_ahead(&|n| seen.get(n).map(|o| (o.worker, tape.step(o))));
    }

    #[inline]
    fn serve_one(&mut self, ticket: Ticket, operation: &Operation, tape: &Tape) {
        match (operation.is_event(), self.ahead, &mut self.events, &mut self.queries) {
            (true, (true, _), Some(events), _) => events.play(ticket as usize),
            (false, (_, true), _, Some(queries)) => queries.play(ticket as usize),
            _ => self.apply(operation, tape.step(operation)),
        }
    }

    #[inline]
    fn apply(&mut self, operation: &Operation, step: Step<'_>) {
        match (step, &mut self.events, &mut self.queries) {
            (Step::Lookup(query), _, Some(queries)) => {
                self.answer.clear();
                queries.serve(query, &mut self.answer);
                std::hint::black_box(&self.answer);
            }
            (Step::Store { parent, names, contents }, Some(events), _) => {
                events.store(operation.worker, parent, names, contents);
            }
            (Step::Remove(names), Some(events), _) => events.remove(operation.worker, names),
            (Step::Clear, Some(events), _) => events.clear(operation.worker),
            (_, None, _) | (Step::Lookup(_), _, None) => unreachable!("operations are wired to lanes of their role"),
        }
    }

    /// What its reader counts.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.queries.as_ref().map(|queries| queries.counters()).unwrap_or_default()
    }

    /// Answers one prompt, for checks after the window.
    pub fn answer(&mut self, query: &[kvatlas_index::ContentHash]) -> Option<&mut Vec<HolderDepth>> {
        self.answer.clear();
        self.queries.as_mut()?.lookup(query, &mut self.answer);
        Some(&mut self.answer)
    }
}

/// Tickets rise with their deadlines: the smallest was due first.
#[inline]
fn take_earliest(queues: &mut [Consumer<Ticket>]) -> Option<(Ticket, usize)> {
    if let [only] = queues {
        return only.pop().ok().map(|ticket| (ticket, 0));
    }
    let heads = queues.iter().enumerate().filter_map(|(i, q)| Some((*q.peek().ok()?, i)));
    let (_, earliest) = heads.min()?;
    queues[earliest].pop().ok().map(|ticket| (ticket, earliest))
}

#[inline]
fn idle(gaps: &mut Gaps) {
    (0..IDLE_SPINS).for_each(|_| std::hint::spin_loop());
    gaps.tick(Instant::now());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operation_that_was_due_first_is_taken_first() {
        let (mut a, from_a) = rtrb::RingBuffer::new(4);
        let (mut b, from_b) = rtrb::RingBuffer::new(4);
        [1, 4].into_iter().for_each(|t| a.push(t).unwrap());
        [2, 3].into_iter().for_each(|t| b.push(t).unwrap());
        let mut queues = [from_a, from_b];
        let taken: Vec<Ticket> = std::iter::from_fn(|| take_earliest(&mut queues).map(|(ticket, _)| ticket)).collect();
        assert_eq!(taken, [1, 2, 3, 4]);
    }
}
