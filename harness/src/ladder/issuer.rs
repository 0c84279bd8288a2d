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

/// Operations that go out between two readings of the clock, if all of them are due: a reading costs as much as several of
/// them.
const TICK_MAX: usize = 32;

/// An operation of an issuer's schedule.
#[derive(Clone, Copy, Debug)]
struct Order {
    due_ns: u64,
    ticket: Ticket,
    /// The thread that serves it.
    thread: u16,
}

/// The schedule of one issuer, and its queues.
pub struct Issuer {
    orders: Vec<Order>,
    queues: Vec<Producer<Ticket>>,
}

/// What an issuer did.
#[derive(Debug)]
pub struct Issued {
    /// When the last operation went out.
    pub last_ns: u64,
    /// Operations that found their queue full.
    pub overflow: u64,
    /// Pauses of the spin.
    pub gaps_ns: u64,
    orders: Vec<Order>,
    /// How many orders were out when each tick ended, and when that was.
    ticks: Vec<(u32, u64)>,
}

impl Issued {
    /// How late operations went out.
    pub fn lateness(&self) -> Nanoseconds {
        lateness(&self.orders, &self.ticks)
    }
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
            orders[issuer].push(Order { due_ns: pace.due_ns[ticket], ticket: ticket as Ticket, thread });
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
    /// Room for the ends of all ticks, touched already: to be made before the window.
    pub fn ticks(&self) -> Vec<(u32, u64)> {
        let mut ticks = vec![(1, 1); self.orders.len()];
        ticks.clear();
        ticks
    }

    /// Issues everything at its deadline. What became due at the same time goes out in one tick, and counts as sent when the
    /// tick ends: lateness is never too small. Dropping the issuer closes its queues.
    pub fn run(mut self, mut ticks: Vec<(u32, u64)>, clock: &Clock) -> Issued {
        let mut gaps = Gaps::default();
        let (mut overflow, mut place) = (0, 0);
        while let Some(first) = self.orders.get(place) {
            let now = clock.wait_until(first.due_ns, &mut gaps);
            let due = self.orders[place..].iter().take(TICK_MAX).take_while(|order| order.due_ns <= now);
            for order in due {
                overflow += u64::from(self.queues[usize::from(order.thread)].push(order.ticket).is_err());
                place += 1;
            }
            ticks.push((place as u32, clock.now_ns()));
        }
        let last_ns = ticks.last().map_or(0, |tick| tick.1);
        Issued { last_ns, overflow, gaps_ns: gaps.total_ns, orders: self.orders, ticks }
    }
}

/// How late each order went out, from the ticks' ends.
fn lateness(orders: &[Order], ticks: &[(u32, u64)]) -> Nanoseconds {
    let mut lateness = Nanoseconds::new();
    let mut from = 0;
    for &(to, sent_ns) in ticks {
        orders[from..to as usize].iter().for_each(|order| lateness.record(sent_ns.saturating_sub(order.due_ns)));
        from = to as usize;
    }
    lateness
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
        let (tape, _, wiring) = wire(1000);
        let clock = Clock::starting_in(Duration::ZERO);
        wiring.issuers.into_iter().for_each(|issuer| {
            let (ticks, orders) = (issuer.ticks(), issuer.orders.len() as u64);
            let issued = issuer.run(ticks, &clock);
            assert_eq!((issued.overflow, issued.lateness().quantiles().count), (0, orders));
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
    fn an_order_is_as_late_as_the_end_of_its_tick() {
        let order = |due_ns| Order { due_ns, ticket: 0, thread: 0 };
        let late = lateness(&[order(0), order(10), order(100)], &[(2, 40), (3, 100)]).quantiles();
        assert_eq!((late.count, late.max, late.p50), (3, 40, 30));
    }

    #[test]
    fn nothing_goes_out_before_its_deadline() {
        let (_, mut pace, _) = wire(1000);
        let tape = tape();
        pace.due_ns = (0..240).map(|i| i * 20_000).collect();
        let layout = Layout { about: String::new(), issuers: vec![0], queries: vec![1], events: vec![1] };
        let wiring = Wiring::new(&tape, &pace, &layout, &layout.roles(), 1000);
        let issuer = wiring.issuers.into_iter().next().unwrap();
        let clock = Clock::starting_in(Duration::ZERO);
        let mut queues = wiring.consumers;
        let queue = &mut queues[0][0];
        std::thread::scope(|scope| {
            scope.spawn(|| issuer.run(Vec::new(), &clock));
            while !(queue.is_abandoned() && queue.is_empty()) {
                if let Ok(ticket) = queue.pop() {
                    assert!(clock.now_ns() >= pace.due_ns[ticket as usize]);
                }
            }
        });
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_never_blocks() {
        let (_, _, wiring) = wire(8);
        let clock = Clock::starting_in(Duration::ZERO);
        let overflow: u64 = wiring.issuers.into_iter().map(|i| i.run(Vec::new(), &clock).overflow).sum();
        let kept: usize = wiring.consumers.iter().flatten().map(Consumer::slots).sum();
        assert_eq!(overflow as usize + kept, 240);
        assert!(overflow > 100);
    }
}
