//! Late binding: requests wait here until a worker can begin with them, so that a choice is made when most is known.
//!
//! A request is bound to a worker only while that worker has less than `hold.backlog_seconds` of work before it. One whose best
//! worker has more waits for it. Of the others the cheapest goes first, where each second of age takes `hold.aging` off the price.
//! Whoever is `hold.age_max` old is bound to the best worker, whatever waits there. Nothing is ever lost: each request leaves once,
//! bound, refused since nobody may be chosen, cancelled, or past its deadline.
//!
//! Pure: whoever owns the queue asks [`Hold::next`] for who leaves, again and again until nobody does, after anything that changes a
//! backlog and at [`Hold::next_tick`].

use super::columns::Slot;
use super::settings::RoutingSettings;
use rand::{Rng, RngExt};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// Least time until backlogs are looked at again only because time passed.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(1);

/// What a held request would cost where, in seconds.
pub trait Prices {
    /// Work that a worker has before a request that is sent to it now.
    fn backlog(&self, slot: Slot) -> f64;

    /// The price of a prompt at a worker that holds so many leading blocks of it. Lower is better.
    fn score(&self, tokens: Option<u64>, blocks: u32, slot: Slot) -> f64;

    /// How far from the least price others are as good.
    fn width(&self, least: f64) -> f64;
}

/// A request that waits, and what its owner keeps with it.
#[derive(Clone, PartialEq, Debug)]
pub struct HeldRequest<T> {
    /// Tokens of the prompt; `None`: not known.
    pub tokens: Option<u64>,
    /// Who holds leading blocks of it, and how many, by rising slot.
    pub holders: Vec<(Slot, u32)>,
    /// Only these workers, by rising slot; `None`: all.
    pub only: Option<Vec<Slot>>,
    /// From when on nobody waits for an answer; `None`: somebody always does.
    pub deadline: Option<Duration>,
    /// The owner's.
    pub payload: T,
}

impl<T> HeldRequest<T> {
    pub(super) fn may(&self, slot: Slot) -> bool {
        self.only.as_ref().is_none_or(|only| only.binary_search(&slot).is_ok())
    }

    fn score(&self, prices: &impl Prices, slot: Slot) -> f64 {
        let place = self.holders.binary_search_by_key(&slot, |(slot, _)| *slot);
        let blocks = place.map_or(0, |place| self.holders[place].1);
        prices.score(self.tokens, blocks, slot)
    }

    /// The least price among these workers; `None` where none of them may have it.
    fn least(&self, prices: &impl Prices, slots: impl Iterator<Item = Slot>) -> Option<f64> {
        slots.filter(|slot| self.may(*slot)).map(|slot| self.score(prices, slot)).min_by(f64::total_cmp)
    }

    /// One of these workers whose price is as good as the least, drawn.
    fn draw(&self, prices: &impl Prices, least: f64, slots: &[Slot], rng: &mut dyn Rng) -> Option<Slot> {
        let most = least + prices.width(least);
        // What is no number is as good as itself.
        let near = |slot: &Slot| self.may(*slot) && self.score(prices, *slot).total_cmp(&most).is_le();
        match slots.iter().copied().filter(near).count() {
            0 => None,
            1 => slots.iter().copied().find(near),
            near_many => slots.iter().copied().filter(near).nth(rng.random_range(0..near_many)),
        }
    }
}

/// How a request left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It goes to this worker.
    Bound {
        /// The worker.
        slot: Slot,
        /// Whether its age bound it, and not the worker's backlog.
        forced: bool,
    },
    /// It is of age, and no worker may be chosen for it.
    Nobody,
    /// Its deadline passed.
    TimedOut,
}

/// A request that left.
#[derive(Clone, PartialEq, Debug)]
pub struct Leaving<T> {
    /// Its ticket.
    pub ticket: u64,
    /// How long it was held.
    pub held: Duration,
    /// How it left.
    pub how: Left,
    /// What its owner kept.
    pub payload: T,
}

/// What a queue counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HoldCounters {
    /// Requests that were taken in.
    pub held: u64,
    /// Requests that were not, since the queue was full.
    pub full: u64,
    /// Bound to a worker that could begin.
    pub bound: u64,
    /// Bound by their age.
    pub forced: u64,
    /// Of age with nobody to be chosen.
    pub nobody: u64,
    /// Past their deadline.
    pub timed_out: u64,
    /// Cancelled.
    pub cancelled: u64,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    since: Duration,
    request: HeldRequest<T>,
}

/// The queue.
#[derive(Clone, Debug)]
pub struct Hold<T> {
    /// By ticket, which is the order of arrival.
    waiting: BTreeMap<u64, Waiting<T>>,
    deadlines: BTreeSet<(Duration, u64)>,
    last_ticket: u64,
    /// The latest arrival.
    latest: Duration,
    /// When time alone may have opened a worker.
    look_again: Option<Duration>,
    /// Workers that can begin, and requests by price, of the call at hand.
    open: Vec<Slot>,
    ranked: Vec<Ranked>,
    counters: HoldCounters,
}

impl<T> Default for Hold<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            last_ticket: 0,
            latest: Duration::ZERO,
            look_again: None,
            open: Vec::new(),
            ranked: Vec::new(),
            counters: HoldCounters::default(),
        }
    }
}

impl<T> Hold<T> {
    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What was counted.
    pub fn counters(&self) -> HoldCounters {
        self.counters
    }

    /// Takes a request in; its ticket. The request comes back where nothing is held (any more) or the queue is full: it is to be
    /// bound at once.
    pub fn hold(
        &mut self,
        now: Duration,
        settings: &RoutingSettings,
        request: HeldRequest<T>,
    ) -> Result<u64, HeldRequest<T>> {
        if !settings.hold.enabled {
            return Err(request);
        }
        if self.waiting.len() >= settings.hold.requests_max {
            self.counters.full += 1;
            return Err(request);
        }
        self.last_ticket += 1;
        self.latest = self.latest.max(now);
        if let Some(deadline) = request.deadline {
            self.deadlines.insert((deadline, self.last_ticket));
        }
        self.waiting.insert(self.last_ticket, Waiting { since: self.latest, request });
        self.counters.held += 1;
        Ok(self.last_ticket)
    }

    /// Takes a request out whose client gave up. `None`: it left before.
    pub fn cancel(&mut self, ticket: u64) -> Option<T> {
        let waiting = self.take(ticket)?;
        self.counters.cancelled += 1;
        Some(waiting.request.payload)
    }

    /// Forgets a worker that is gone, before its slot is given to another: what it held, and that requests asked for it.
    pub fn worker_gone(&mut self, slot: Slot) {
        for Waiting { request, .. } in self.waiting.values_mut() {
            request.holders.retain(|(holder, _)| *holder != slot);
            if let Some(only) = &mut request.only {
                only.retain(|asked| *asked != slot);
            }
        }
    }

    /// Who leaves next; `None`: nobody before something happens, or [`Hold::next_tick`]. `candidates` may be chosen, by rising slot.
    ///
    /// Prices each request at each worker that can begin, and the cheapest of them everywhere: requests times open workers. A warm
    /// queue allocates nothing.
    pub fn next(
        &mut self,
        now: Duration,
        settings: &RoutingSettings,
        candidates: &[Slot],
        prices: &impl Prices,
        rng: &mut dyn Rng,
    ) -> Option<Leaving<T>> {
        self.look_again = None;
        if let Some((_, ticket)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.counters.timed_out += 1;
            return self.leave(now, ticket, Left::TimedOut);
        }
        let (oldest, waiting) = self.waiting.first_key_value()?;
        if !settings.hold.enabled || waiting.since.saturating_add(settings.hold.age_max) <= now {
            let least = waiting.request.least(prices, candidates.iter().copied());
            let slot = least.and_then(|least| waiting.request.draw(prices, least, candidates, rng));
            let how = slot.map_or(Left::Nobody, |slot| Left::Bound { slot, forced: true });
            *(if slot.is_some() { &mut self.counters.forced } else { &mut self.counters.nobody }) += 1;
            return self.leave(now, *oldest, how);
        }
        self.open(now, settings.hold.backlog_seconds, candidates, prices);
        let (ticket, least) = self.cheapest(now, settings, candidates, prices)?;
        let slot = self.waiting[&ticket].request.draw(prices, least, &self.open, rng)?;
        self.counters.bound += 1;
        self.leave(now, ticket, Left::Bound { slot, forced: false })
    }

    /// When [`Hold::next`] has to be asked although nothing happened; `None`: not at all.
    pub fn next_tick(&self, settings: &RoutingSettings) -> Option<Duration> {
        let (_, oldest) = self.waiting.first_key_value()?;
        let age_max = if settings.hold.enabled { settings.hold.age_max } else { Duration::ZERO };
        let of_age = oldest.since.saturating_add(age_max);
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        [deadline, self.look_again].into_iter().flatten().chain([of_age]).min()
    }

    /// Notes who can begin, and when time alone opens the next.
    fn open(&mut self, now: Duration, backlog_max: f64, candidates: &[Slot], prices: &impl Prices) {
        self.open.clear();
        let mut nearest = f64::INFINITY;
        for slot in candidates {
            let backlog = prices.backlog(*slot);
            if backlog < backlog_max {
                self.open.push(*slot);
            } else {
                nearest = nearest.min(backlog - backlog_max);
            }
        }
        let wait = Duration::try_from_secs_f64(nearest).ok();
        self.look_again = wait.map(|wait| now.saturating_add(wait.max(LOOK_AGAIN_MIN)));
    }

    /// The request that goes first, with its least price among those who can begin. One that is cheaper elsewhere waits.
    fn cheapest(
        &mut self,
        now: Duration,
        settings: &RoutingSettings,
        candidates: &[Slot],
        prices: &impl Prices,
    ) -> Option<(u64, f64)> {
        self.ranked.clear();
        if self.open.is_empty() {
            return None;
        }
        for (ticket, Waiting { since, request }) in &self.waiting {
            if let Some(least) = request.least(prices, self.open.iter().copied()) {
                let key = least - settings.hold.aging * now.saturating_sub(*since).as_secs_f64();
                self.ranked.push(Ranked { key, ticket: *ticket, least });
            }
        }
        let mut ranked = BinaryHeap::from(std::mem::take(&mut self.ranked));
        let mut first = None;
        while let Some(Ranked { ticket, least, .. }) = ranked.pop() {
            let anywhere = self.waiting[&ticket].request.least(prices, candidates.iter().copied());
            if anywhere.is_none_or(|anywhere| anywhere >= least - settings.tie_seconds) {
                first = Some((ticket, least));
                break;
            }
        }
        self.ranked = ranked.into_vec();
        first
    }

    fn leave(&mut self, now: Duration, ticket: u64, how: Left) -> Option<Leaving<T>> {
        let Waiting { since, request } = self.take(ticket)?;
        Some(Leaving { ticket, held: now.saturating_sub(since), how, payload: request.payload })
    }

    fn take(&mut self, ticket: u64) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&ticket)?;
        if let Some(deadline) = waiting.request.deadline {
            self.deadlines.remove(&(deadline, ticket));
        }
        Some(waiting)
    }
}

/// A request by its price; the greatest is the cheapest, and of equals the oldest.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    key: f64,
    ticket: u64,
    least: f64,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.total_cmp(&self.key).then(other.ticket.cmp(&self.ticket))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}
