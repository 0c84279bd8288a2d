//! Issuers: each hands its operations to the lanes at their deadlines. It waits for deadlines only, never for a lane: a full
//! queue drops the operation and counts it.

use super::clock::{Clock, Gaps};
use super::layout::{Layout, Role};
use super::measure::Nanoseconds;
use super::pace::Pace;
use super::tape::Tape;
use rtrb::{Consumer, Producer, RingBuffer};

/// What goes through a queue: the operation's place in the trial's stretch of the tape.
pub type Ticket = u32;

/// The operations of one issuer with the lane thread of each, and its queues.
pub struct Issuer {
    orders: Vec<(Ticket, u16)>,
    queues: Vec<Producer<Ticket>>,
}

/// What an issuer did.
#[derive(Debug)]
pub struct Issued {
    /// When the last operation went out.
    pub last_ns: u64,
    /// Operations that found their queue full.
    pub overflow: u64,
    /// How late operations went out.
    pub lateness: Nanoseconds,
    /// Pauses of the spin.
    pub gaps_ns: u64,
}

/// Which thread serves which operation, and the queues between them: `consumers[thread]` has one for each issuer.
pub struct Wiring {
    /// Issuers, in the order of their cores.
    pub issuers: Vec<Issuer>,
    /// Ends of the queues, by serving thread.
    pub consumers: Vec<Vec<Consumer<Ticket>>>,
    /// Operations that each serving thread gets.
    pub expected: Vec<usize>,
}

impl Wiring {
    /// Wires a stretch of the tape to a layout. Events of a worker go through one issuer to one lane, so they stay in order;
    /// lookups go round over issuers and query lanes.
    pub fn new(tape: &Tape, pace: &Pace, layout: &Layout, roles: &[Role], queue_len: usize) -> Wiring {
        let (issuers, queries, events) = (layout.issuers.len(), layout.queries.len(), layout.events.len());
        let thread_of = |pick: &dyn Fn(&Role) -> Option<usize>, lane| {
            roles.iter().position(|r| pick(r) == Some(lane)).expect("every lane has a thread") as u16
        };
        let query_threads: Vec<u16> = (0..queries).map(|lane| thread_of(&|r: &Role| r.query, lane)).collect();
        let event_threads: Vec<u16> = (0..events).map(|lane| thread_of(&|r: &Role| r.event, lane)).collect();
        let mut orders = vec![Vec::new(); issuers];
        let mut expected = vec![0; roles.len()];
        let mut lookups = 0;
        for (ticket, operation) in tape.operations[pace.range.clone()].iter().enumerate() {
            let (issuer, thread) = if operation.is_event() {
                let worker = operation.worker as usize;
                (worker / events % issuers, event_threads[worker % events])
            } else {
                lookups += 1;
                (lookups / queries % issuers, query_threads[lookups % queries])
            };
            orders[issuer].push((ticket as Ticket, thread));
            expected[usize::from(thread)] += 1;
        }
        let mut consumers: Vec<Vec<_>> = roles.iter().map(|_| Vec::new()).collect();
        let with_queues = |orders| {
            let queue = |of_thread: &mut Vec<_>| {
                let (producer, consumer) = RingBuffer::new(queue_len);
                of_thread.push(consumer);
                producer
            };
            Issuer { orders, queues: consumers.iter_mut().map(queue).collect() }
        };
        let issuers = orders.into_iter().map(with_queues).collect();
        Wiring { issuers, consumers, expected }
    }
}

impl Issuer {
    /// Issues everything at its deadline. Dropping the issuer closes its queues.
    pub fn run(mut self, pace: &Pace, clock: &Clock) -> Issued {
        let mut gaps = Gaps::default();
        let mut issued = Issued { last_ns: 0, overflow: 0, lateness: Nanoseconds::new(), gaps_ns: 0 };
        for &(ticket, thread) in &self.orders {
            let due = pace.due_ns[ticket as usize];
            let now = clock.wait_until(due, &mut gaps);
            issued.overflow += u64::from(self.queues[usize::from(thread)].push(ticket).is_err());
            issued.lateness.record(now - due);
            issued.last_ns = now;
        }
        issued.gaps_ns = gaps.total_ns;
        issued
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::pace::{Arrivals, Offer};
    use kvatlas_index::{ContentHash, EngineHash};
    use std::time::Duration;

    fn tape() -> Tape {
        let mut tape = Tape::new(8);
        let at = tape.put_contents(&[ContentHash(1)]).unwrap();
        for i in 0..240u64 {
            match i % 3 {
                0 => tape.lookup(i, at, 1).unwrap(),
                _ => tape.store((i, (i % 8) as u32), None, &[EngineHash(i)], at).unwrap(),
            }
        }
        tape
    }

    fn wire(queue_len: usize) -> (Tape, Pace, Wiring) {
        let tape = tape();
        let layout = Layout { about: String::new(), issuers: vec![0, 1], queries: vec![2, 3], events: vec![3, 4] };
        let offer = Offer { rate: 1_000_000, window_ms: 1, arrivals: Arrivals::AtOnce };
        let pace = Pace::new(&tape, &offer).unwrap();
        let wiring = Wiring::new(&tape, &pace, &layout, &layout.roles(), queue_len);
        (tape, pace, wiring)
    }

    #[test]
    fn every_operation_goes_out_once_and_a_worker_keeps_its_order() {
        let (tape, pace, wiring) = wire(1000);
        let clock = Clock::starting_in(Duration::ZERO);
        wiring.issuers.into_iter().for_each(|issuer| {
            let issued = issuer.run(&pace, &clock);
            assert_eq!(issued.overflow, 0);
        });
        let mut all = Vec::new();
        for (thread, queues) in wiring.consumers.into_iter().enumerate() {
            let before = all.len();
            for mut queue in queues {
                let tickets: Vec<Ticket> = std::iter::from_fn(|| queue.pop().ok()).collect();
                assert!(tickets.is_sorted());
                for worker in tickets.iter().map(|&t| &tape.operations[t as usize]).filter(|o| o.is_event()) {
                    assert_eq!(thread, 1 + worker.worker as usize % 2, "events of a worker are on its lane");
                }
                all.extend(tickets);
            }
            assert_eq!(all.len() - before, wiring.expected[thread]);
        }
        all.sort_unstable();
        assert_eq!(all, (0..240).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_never_blocks() {
        let (_, pace, wiring) = wire(8);
        let clock = Clock::starting_in(Duration::ZERO);
        let overflow: u64 = wiring.issuers.into_iter().map(|i| i.run(&pace, &clock).overflow).sum();
        let kept: usize = wiring.consumers.iter().flatten().map(Consumer::slots).sum();
        assert_eq!(overflow as usize + kept, 240);
        assert!(overflow > 100);
    }
}
