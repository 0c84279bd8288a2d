//! The side that tells.

use super::{BookingChange, Dispatch};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
struct Open {
    dispatch: Dispatch,
    begun: bool,
}

/// A replica's bookings, for others. Bounded by its own book and by the history.
#[derive(Clone, Debug)]
pub struct OwnBookings {
    epoch: u64,
    open: BTreeMap<u64, Open>,
    history: VecDeque<(u64, BookingChange)>,
    history_max: usize,
    /// Number of the change at the front of the history.
    first: u64,
}

/// How far a listener has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The last open booking that it was told; `None`: it has been told them all.
    opening: Option<u64>,
    /// The next change.
    next: u64,
}

/// What a listener is told at once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    /// Changes in order, each with the number of its reservation.
    pub changes: Vec<(u64, BookingChange)>,
    /// Whether the bookings that were open at the beginning have been told now. Once for each listener.
    pub is_open_complete: bool,
}

impl OwnBookings {
    /// No bookings yet. `epoch` names the replica's run and must be drawn anew for each; `history_max`: changes that a listener may
    /// be behind.
    pub fn new(epoch: u64, history_max: usize) -> Self {
        let history_max = history_max.max(1);
        Self { epoch, open: BTreeMap::new(), history: VecDeque::new(), history_max, first: 0 }
    }

    /// The name of this run.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Open bookings.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// A booking was made.
    pub fn dispatched(&mut self, reservation: u64, dispatch: Dispatch) {
        self.open.insert(reservation, Open { dispatch: dispatch.clone(), begun: false });
        self.note(reservation, BookingChange::Dispatched(dispatch));
    }

    /// Its first token came. Later signs of life are none of others' business.
    pub fn first_token(&mut self, reservation: u64) {
        let open = self.open.get_mut(&reservation).filter(|open| !open.begun);
        if open.map(|open| open.begun = true).is_some() {
            self.note(reservation, BookingChange::FirstToken);
        }
    }

    /// It ended, by whatever path.
    pub fn ended(&mut self, reservation: u64) {
        if self.open.remove(&reservation).is_some() {
            self.note(reservation, BookingChange::Ended);
        }
    }

    /// Somebody begins to listen.
    pub fn listen(&self) -> Listener {
        // Open bookings are told in pieces, and the changes since now afterwards: what of them a piece shows already is told twice,
        // which makes no difference.
        Listener { opening: Some(0), next: self.first + self.history.len() as u64 }
    }

    /// The next piece of at most `most` bookings or changes; `None`: nothing new. `Err`: the listener is so far behind that changes
    /// are gone, and has to begin again.
    pub fn tell(&self, listener: &mut Listener, most: usize) -> Result<Option<Piece>, Behind> {
        let at = listener.next.checked_sub(self.first).ok_or(Behind)?;
        let most = most.max(1);
        if let Some(after) = listener.opening {
            return Ok(Some(self.opening(listener, after, most)));
        }
        let changes: Vec<_> = self.history.iter().skip(at as usize).take(most).cloned().collect();
        listener.next += changes.len() as u64;
        Ok((!changes.is_empty()).then_some(Piece { changes, is_open_complete: false }))
    }

    fn opening(&self, listener: &mut Listener, after: u64, most: usize) -> Piece {
        let mut changes = Vec::new();
        let mut last = after;
        let mut left = self.open.range(after.saturating_add(1)..);
        for (reservation, open) in left.by_ref().take(most) {
            last = *reservation;
            changes.push((last, BookingChange::Dispatched(open.dispatch.clone())));
            if open.begun {
                changes.push((last, BookingChange::FirstToken));
            }
        }
        let is_open_complete = left.next().is_none();
        listener.opening = (!is_open_complete).then_some(last);
        Piece { changes, is_open_complete }
    }

    fn note(&mut self, reservation: u64, change: BookingChange) {
        if self.history.len() >= self.history_max {
            self.history.pop_front();
            self.first += 1;
        }
        self.history.push_back((reservation, change));
    }
}

/// A listener is too far behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("too slow: changes that were not read are gone")]
pub struct Behind;
