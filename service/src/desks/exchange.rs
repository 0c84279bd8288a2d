//! Bookings between replicas at the desks: what is told of ours, and what is heard of others.
//!
//! Locks are taken in this order: what was heard, a desk, what is told. So a change of ours is told in the order in which its desk
//! made it, and a desk hears a foreign booking once, however it came into use.

use super::cell::DeskCell;
use super::registry::reservation;
use super::router::Router;
use crate::routing::{
    Behind, BookingChange, Dispatch, ForeignBookings, ForeignCounters, ForeignNews, Input, Listener, OwnBookings, Piece,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Both sides.
#[derive(Debug)]
pub(super) struct Exchange {
    own: Mutex<OwnBookings>,
    /// Touched at every change of ours.
    changed: watch::Sender<()>,
    foreign: Mutex<ForeignBookings>,
}

/// What is heard of other replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignTotals {
    /// Bookings of others that are open.
    pub open: usize,
    /// Routers that decide without telling, this one counted.
    pub routers: u32,
    /// What was counted.
    pub counters: ForeignCounters,
}

impl Exchange {
    /// With so many peers, in a run of this name.
    pub fn new(peers: usize, epoch: u64, history_max: usize) -> Self {
        Self {
            own: Mutex::new(OwnBookings::new(epoch, history_max)),
            changed: watch::Sender::new(()),
            foreign: Mutex::new(ForeignBookings::new(peers, epoch)),
        }
    }

    pub fn dispatched(&self, desk: u32, booking: u64, dispatch: Dispatch) {
        self.own(|own| own.dispatched(reservation(desk, booking), dispatch));
    }

    pub fn first_token(&self, reservation: u64) {
        self.own(|own| own.first_token(reservation));
    }

    pub fn ended(&self, desk: u32, booking: u64) {
        self.own(|own| own.ended(reservation(desk, booking)));
    }

    fn own(&self, change: impl FnOnce(&mut OwnBookings)) {
        change(&mut self.own.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_replace(());
    }

    fn foreign(&self) -> MutexGuard<'_, ForeignBookings> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A replica that listens to this one.
pub struct BookingsListener {
    router: Arc<Router>,
    listener: Listener,
    changed: watch::Receiver<()>,
    epoch: u64,
}

impl BookingsListener {
    /// The name of this run.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The next piece; waits until there is one. `Err`: the listener was too slow.
    pub async fn next(&mut self, most: usize) -> Result<Piece, Behind> {
        loop {
            // Looked at before the history, so that no change falls between the two.
            self.changed.mark_unchanged();
            let Some(exchange) = &self.router.exchange else { return Err(Behind) };
            let told = exchange.own.lock().unwrap_or_else(PoisonError::into_inner).tell(&mut self.listener, most)?;
            if let Some(piece) = told {
                return Ok(piece);
            }
            self.changed.changed().await.map_err(|_| Behind)?;
        }
    }
}

impl Router {
    /// The same, exchanging bookings with so many peers. A listener may be `history_max` changes behind.
    pub fn exchanging(mut self, peers: usize, history_max: usize) -> Self {
        self.exchange = (peers > 0).then(|| Exchange::new(peers, rand::random(), history_max));
        self
    }

    /// Lets another replica listen from now on. `None`: no bookings are exchanged.
    pub fn listen(self: &Arc<Self>) -> Option<BookingsListener> {
        let exchange = self.exchange.as_ref()?;
        let changed = exchange.changed.subscribe();
        let own = exchange.own.lock().unwrap_or_else(PoisonError::into_inner);
        let (listener, epoch) = (own.listen(), own.epoch());
        drop(own);
        Some(BookingsListener { router: self.clone(), listener, changed, epoch })
    }

    /// What is heard of other replicas; `None`: no bookings are exchanged.
    pub fn foreign(&self) -> Option<ForeignTotals> {
        let foreign = self.exchange.as_ref()?.foreign();
        Some(ForeignTotals { open: foreign.open(), routers: foreign.routers(), counters: foreign.counters() })
    }

    /// A connection to a peer begins.
    pub fn peer_connected(&self, peer: usize) {
        self.hear(|foreign, _| foreign.connected(peer));
    }

    /// A connection to a peer broke; when [`Router::forget_lost`] is due. What it told counts until then.
    pub fn peer_lost(&self, peer: usize) -> Duration {
        let keep_for = self.settings().bookings.foreign_keep;
        self.hear(|foreign, _| foreign.lost(self.now(), peer, keep_for));
        keep_for
    }

    /// Ends the bookings of peers that are lost for too long.
    pub fn forget_lost(&self) {
        self.hear(|foreign, news| foreign.tick(self.now(), news));
    }

    /// Takes what a peer told: see [`ForeignBookings::take`].
    pub fn peer_told(&self, peer: usize, epoch: u64, changes: Vec<(u64, BookingChange)>, is_open_complete: bool) {
        let most = self.settings().bookings.foreign_max;
        self.hear(|foreign, news| foreign.take(peer, epoch, changes, is_open_complete, most, news));
    }

    /// Tells the desks what came of something that was heard.
    fn hear(&self, act: impl FnOnce(&mut ForeignBookings, &mut Vec<ForeignNews>)) {
        let Some(exchange) = &self.exchange else { return };
        let mut foreign = exchange.foreign();
        let (routers_before, mut news) = (foreign.routers(), Vec::new());
        act(&mut foreign, &mut news);
        for ForeignNews { number, model, routing_group, change } in news {
            let Some(cell) = self.desks.find(&model, &routing_group) else { continue };
            self.at(&cell, |state, now| {
                // A desk that has not joined yet is told everything when it does.
                if state.joined {
                    state.desk.step(now, Input::Foreign { number, change }, &mut state.outputs);
                }
            });
        }
        let routers = foreign.routers();
        if routers != routers_before {
            for cell in self.desks.all() {
                self.at(&cell, |state, now| state.desk.step(now, Input::Routers { routers }, &mut state.outputs));
            }
        }
    }

    /// Tells a desk that is new what was heard before.
    pub(super) fn join(&self, cell: &DeskCell) {
        let Some(exchange) = &self.exchange else { return };
        if cell.lock().joined {
            return;
        }
        let foreign = exchange.foreign();
        let routers = foreign.routers();
        self.at(cell, |state, now| {
            state.joined = true;
            state.desk.step(now, Input::Routers { routers }, &mut state.outputs);
            for ForeignNews { number, change, .. } in foreign.replay(&cell.model, &cell.routing_group) {
                state.desk.step(now, Input::Foreign { number, change }, &mut state.outputs);
            }
        });
    }
}
