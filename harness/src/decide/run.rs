//! The open loop: one core asks at absolute times, ends what was decided before, and tells loads; the other decides.

use super::fleet::{Inside, MODEL};
use crate::ladder::clock::{Clock, Gaps};
use crate::ladder::measure::{Nanoseconds, Quantiles};
use core_affinity::CoreId;
use kvatlas_service::desks::Order;
use kvatlas_service::lookup::{NamespaceText, Prompt};
use kvatlas_service::routing::{Ending, Outcome, PolicyName};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rtrb::RingBuffer;
use serde::Serialize;
use std::time::Duration;

/// Requests in flight: each ends when so many came after it.
const IN_FLIGHT: usize = 4_000;
/// Decisions before the clock counts.
const WARM: usize = 5_000;
/// Orders that wait for the deciding core at most.
const QUEUE: usize = 1 << 16;

/// What a trial asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialSpec {
    /// Decisions a second.
    pub rate: u64,
    /// How long.
    pub seconds: f64,
    /// The policy.
    pub policy: PolicyName,
    /// The core that asks, and the one that decides; `None`: wherever the system puts them.
    pub cores: Option<(usize, usize)>,
}

/// What came of it. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TrialFigures {
    /// From the order taken to the worker booked: hashing, lookup and choice.
    pub service: Quantiles,
    /// From the time at which it was due to the worker booked.
    pub scheduled_to_done: Quantiles,
    /// Orders that could not be answered.
    pub refused: u64,
    /// Orders that found the queue full.
    pub overflow: u64,
    /// Latest that an order went out after it was due.
    pub latest_issue_ns: u64,
}

/// Shares of a decision, means over the prompts, in nanoseconds. What is left of it is candidates, policy and booking.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Shares {
    /// Token ids to content hashes.
    pub hash: f64,
    /// The index.
    pub lookup: f64,
}

/// An order for each prompt.
pub fn orders(inside: &Inside, policy: PolicyName) -> Vec<Order> {
    let order = |ids: &Vec<u32>| Order {
        model: MODEL.into(),
        prompt: Some(Prompt::Tokens { ids: ids.clone(), namespace: NamespaceText::default() }),
        policy: Some(policy),
        ..Order::default()
    };
    inside.prompts.iter().map(order).collect()
}

/// One trial on a fleet that is there.
pub fn trial(inside: &Inside, orders: &[Order], spec: &TrialSpec) -> TrialFigures {
    let total = WARM + (spec.rate as f64 * spec.seconds) as usize;
    let gap_ns = 1e9 / spec.rate as f64;
    let clock = Clock::starting_in(Duration::from_millis(20));
    let (mut asked, mut to_decide) = RingBuffer::<usize>::new(QUEUE);
    let (mut decided, mut to_end) = RingBuffer::<u64>::new(QUEUE);
    let due = |number: usize| (number as f64 * gap_ns) as u64;
    std::thread::scope(|scope| {
        let decider = scope.spawn(move || {
            pin(spec.cores.map(|cores| cores.1));
            let (mut service, mut done, mut refused) = (Nanoseconds::new(), Nanoseconds::new(), 0);
            loop {
                let Ok(number) = to_decide.pop() else {
                    if to_decide.is_abandoned() {
                        return (service, done, refused);
                    }
                    std::hint::spin_loop();
                    continue;
                };
                let start = clock.now_ns();
                let selected = inside.router.select(&orders[number % orders.len()]);
                let end = clock.now_ns();
                match selected {
                    // A full ring loses an end: the time to live releases it.
                    Ok(selected) => drop(decided.push(selected.reservation)),
                    Err(_) => refused += 1,
                }
                if number >= WARM {
                    service.record(end - start);
                    done.record(end.saturating_sub(due(number)));
                }
            }
        });
        pin(spec.cores.map(|cores| cores.0));
        let (mut overflow, mut latest, mut gaps) = (0, 0, Gaps::default());
        // Every worker tells its load once a second, one after the other.
        let (workers, mut random) = (u64::from(inside.workers()), StdRng::seed_from_u64(spec.rate));
        let told_by = |number: usize| number as u64 * workers / spec.rate;
        for number in 0..total {
            for load in told_by(number)..told_by(number + 1) {
                inside.tell_load((load % workers) as u32, &mut random);
            }
            let now = clock.wait_until(due(number), &mut gaps);
            latest = latest.max(now - due(number).min(now));
            overflow += u64::from(asked.push(number).is_err());
            if to_end.slots() > IN_FLIGHT
                && let Ok(reservation) = to_end.pop()
            {
                let ending = Ending::bare(Outcome::Ok);
                // Whether it was open is all that can be wrong with it.
                let _ = inside.router.progress(reservation);
                let _ = inside.router.complete(reservation, ending);
            }
        }
        drop(asked);
        let (service, done, refused) = decider.join().expect("the deciding thread ends");
        while let Ok(reservation) = to_end.pop() {
            let _ = inside.router.complete(reservation, Ending::bare(Outcome::Ok));
        }
        TrialFigures {
            service: service.quantiles(),
            scheduled_to_done: done.quantiles(),
            refused,
            overflow,
            latest_issue_ns: latest,
        }
    })
}

/// The shares of a decision, out of receipts of dry runs.
pub fn shares(inside: &Inside, orders: &[Order]) -> Shares {
    let (mut sum, mut count) = (Shares::default(), 0.0_f64);
    for order in orders {
        let order = Order { explain: true, dry_run: true, ..order.clone() };
        let Some(receipt) = inside.router.select(&order).ok().and_then(|selected| selected.receipt) else { continue };
        sum.hash += receipt.hashed_in.as_nanos() as f64;
        sum.lookup += receipt.looked_up_in.as_nanos() as f64;
        count += 1.0;
    }
    let count = count.max(1.0);
    Shares { hash: sum.hash / count, lookup: sum.lookup / count }
}

fn pin(core: Option<usize>) {
    if let Some(id) = core {
        // An unpinned trial is worse, not wrong: its times show it.
        core_affinity::set_for_current(CoreId { id });
    }
}

#[cfg(test)]
mod tests {
    use super::super::corpus::CorpusSpec;
    use super::*;
    use kvatlas_service::routing::RoutingSettings;

    #[test]
    fn every_order_is_answered_and_every_reservation_ends() {
        let corpus = CorpusSpec { workers: 4, block_size: 16, memberships: 5_000, prompts: 50, seed: 3 };
        let inside = Inside::new(&corpus, RoutingSettings::default()).unwrap();
        let orders = orders(&inside, PolicyName::CacheAware);
        let spec = TrialSpec { rate: 100_000, seconds: 0.05, policy: PolicyName::CacheAware, cores: None };
        let figures = trial(&inside, &orders, &spec);
        assert_eq!((figures.service.count, figures.refused, figures.overflow), (5_000, 0, 0));
        assert_eq!(inside.router.totals().open, 0);
        assert!((5_000..7_000).contains(&inside.memberships), "{}", inside.memberships);
        let shares = shares(&inside, &orders);
        assert!(shares.hash > 0.0 && shares.lookup > 0.0, "{shares:?}");
    }
}
