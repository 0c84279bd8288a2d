//! The side that listens.

use super::{BookingChange, Dispatch};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Bit of every number that foreign bookings have here: own ones never reach it.
const FOREIGN: u64 = 1 << 63;

/// What a desk has to be told of another replica's booking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignNews {
    /// The booking's number here; none of our own bookings has it.
    pub number: u64,
    /// The model.
    pub model: Arc<str>,
    /// The routing group.
    pub routing_group: Arc<str>,
    /// What happened.
    pub change: BookingChange,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForeignCounters {
    /// Bookings that were taken over.
    pub taken: u64,
    /// Bookings that were not, since there are too many (limit `routing.bookings.foreign_max`).
    pub full: u64,
    /// Bookings that their replica ended.
    pub ended: u64,
    /// Bookings that are over since their replica began another run, or did not name them when it was met again.
    pub forgotten: u64,
    /// Bookings that are over since their replica was lost for too long.
    pub lost: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing is heard of it; its bookings stay until then.
    Away { until: Duration },
    /// It is telling what is open.
    Opening,
    /// What is known of it is complete.
    Here,
    /// It is this replica itself, or one that is heard already under another address.
    Same,
}

#[derive(Clone, Debug)]
struct Foreign {
    number: u64,
    /// The connection on which it was told last.
    round: u64,
    begun: bool,
    dispatch: Dispatch,
}

#[derive(Clone, Debug)]
struct Peer {
    state: State,
    epoch: Option<u64>,
    /// Number of its connection.
    round: u64,
    /// By the peer's own numbers.
    bookings: HashMap<u64, Foreign>,
}

/// What a replica knows of the bookings of others.
#[derive(Clone, Debug)]
pub struct ForeignBookings {
    own_epoch: u64,
    peers: Vec<Peer>,
    open: usize,
    last_number: u64,
    counters: ForeignCounters,
}

impl ForeignBookings {
    /// Of so many peers nothing is known yet. `own_epoch` is that of this replica, by which it knows itself among them.
    pub fn new(peers: usize, own_epoch: u64) -> Self {
        let away = State::Away { until: Duration::ZERO };
        let peer = Peer { state: away, epoch: None, round: 0, bookings: HashMap::new() };
        let counters = ForeignCounters::default();
        Self { own_epoch, peers: vec![peer; peers], open: 0, last_number: FOREIGN, counters }
    }

    /// Routers that decide without telling: this one, and every peer that is not heard.
    pub fn routers(&self) -> u32 {
        let deaf = |peer: &&Peer| matches!(peer.state, State::Away { .. } | State::Opening);
        1 + self.peers.iter().filter(deaf).count() as u32
    }

    /// Bookings that are kept.
    pub fn open(&self) -> usize {
        self.open
    }

    /// What was counted.
    pub fn counters(&self) -> ForeignCounters {
        self.counters
    }

    /// A connection to a peer begins: it tells everything from the beginning. What is known of it counts until then.
    pub fn connected(&mut self, peer: usize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.state = State::Opening;
            peer.round += 1;
        }
    }

    /// A connection broke. The peer's bookings stay for so long: it may be back sooner.
    pub fn lost(&mut self, now: Duration, peer: usize, keep_for: Duration) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.state = State::Away { until: now.saturating_add(keep_for) };
        }
    }

    /// When [`ForeignBookings::tick`] is due; `None`: nothing waits for time to pass.
    pub fn next_tick(&self) -> Option<Duration> {
        let waiting = self.peers.iter().filter(|peer| !peer.bookings.is_empty());
        let until = waiting.filter_map(|peer| match peer.state {
            State::Away { until } => Some(until),
            _ => None,
        });
        until.min()
    }

    /// Ends the bookings of those that are lost for too long.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<ForeignNews>) {
        for peer in &mut self.peers {
            if matches!(peer.state, State::Away { until } if until <= now) {
                let ended = end_where(peer, |_| true, out);
                self.open -= ended;
                self.counters.lost += ended as u64;
            }
        }
    }

    /// Takes what a peer told in one message, and appends what desks have to be told. `is_open_complete`: everything that was open
    /// when the connection began has been told. Changes of bookings that are not known (any more) change nothing.
    pub fn take(
        &mut self,
        peer: usize,
        epoch: u64,
        changes: impl IntoIterator<Item = (u64, BookingChange)>,
        is_open_complete: bool,
        foreign_max: usize,
        out: &mut Vec<ForeignNews>,
    ) {
        if !self.meet(peer, epoch, out) {
            return;
        }
        for (reservation, change) in changes {
            match change {
                BookingChange::Dispatched(dispatch) => self.dispatched(peer, reservation, dispatch, foreign_max, out),
                BookingChange::FirstToken => self.first_token(peer, reservation, out),
                BookingChange::Ended => self.ended(peer, reservation, out),
            }
        }
        if is_open_complete {
            let peer = &mut self.peers[peer];
            let round = peer.round;
            let ended = end_where(peer, |booking| booking.round != round, out);
            peer.state = State::Here;
            self.open -= ended;
            self.counters.forgotten += ended as u64;
        }
    }

    /// Everything that is open at one model and routing group, for a desk that is new.
    pub fn replay<'a>(&'a self, model: &'a str, routing_group: &'a str) -> impl Iterator<Item = ForeignNews> + 'a {
        let of = move |dispatch: &Dispatch| &*dispatch.model == model && &*dispatch.routing_group == routing_group;
        let bookings = self.peers.iter().flat_map(|peer| peer.bookings.values());
        bookings.filter(move |booking| of(&booking.dispatch)).flat_map(|booking| {
            let begun = booking.begun.then(|| booking.news(BookingChange::FirstToken));
            [booking.news(BookingChange::Dispatched(booking.dispatch.clone()))].into_iter().chain(begun)
        })
    }

    /// Whether a peer's message counts. One that began another run has none of its earlier bookings.
    fn meet(&mut self, at: usize, epoch: u64, out: &mut Vec<ForeignNews>) -> bool {
        let heard = |other: &Peer| other.epoch == Some(epoch) && matches!(other.state, State::Opening | State::Here);
        let is_same =
            epoch == self.own_epoch || self.peers.iter().enumerate().any(|(other, peer)| other != at && heard(peer));
        let Some(peer) = self.peers.get_mut(at) else { return false };
        if peer.state == State::Same {
            // Until it is met anew: in the middle of what it tells nobody can begin to listen.
            return false;
        }
        if peer.epoch != Some(epoch) || is_same {
            let ended = end_where(peer, |_| true, out);
            self.open -= ended;
            self.counters.forgotten += ended as u64;
        }
        if is_same {
            (peer.state, peer.epoch) = (State::Same, None);
        } else {
            peer.epoch = Some(epoch);
        }
        !is_same
    }

    fn dispatched(
        &mut self,
        peer: usize,
        reservation: u64,
        dispatch: Dispatch,
        foreign_max: usize,
        out: &mut Vec<ForeignNews>,
    ) {
        let peer = &mut self.peers[peer];
        if let Some(known) = peer.bookings.get_mut(&reservation) {
            known.round = peer.round;
            return;
        }
        if self.open >= foreign_max {
            self.counters.full += 1;
            return;
        }
        self.last_number += 1;
        let foreign = Foreign { number: self.last_number, round: peer.round, begun: false, dispatch };
        out.push(foreign.news(BookingChange::Dispatched(foreign.dispatch.clone())));
        peer.bookings.insert(reservation, foreign);
        self.open += 1;
        self.counters.taken += 1;
    }

    fn first_token(&mut self, peer: usize, reservation: u64, out: &mut Vec<ForeignNews>) {
        let booking = self.peers[peer].bookings.get_mut(&reservation);
        if let Some(booking) = booking.filter(|booking| !booking.begun) {
            booking.begun = true;
            out.push(booking.news(BookingChange::FirstToken));
        }
    }

    fn ended(&mut self, peer: usize, reservation: u64, out: &mut Vec<ForeignNews>) {
        if let Some(booking) = self.peers[peer].bookings.remove(&reservation) {
            out.push(booking.news(BookingChange::Ended));
            self.open -= 1;
            self.counters.ended += 1;
        }
    }
}

impl Foreign {
    fn news(&self, change: BookingChange) -> ForeignNews {
        let Dispatch { model, routing_group, .. } = &self.dispatch;
        ForeignNews { number: self.number, model: model.clone(), routing_group: routing_group.clone(), change }
    }
}

/// Ends some of a peer's bookings; how many.
fn end_where(peer: &mut Peer, is_over: impl Fn(&Foreign) -> bool, out: &mut Vec<ForeignNews>) -> usize {
    let before = peer.bookings.len();
    peer.bookings.retain(|_, booking| {
        let over = is_over(booking);
        if over {
            out.push(booking.news(BookingChange::Ended));
        }
        !over
    });
    before - peer.bookings.len()
}
