//! One lane or the oracle behind the same calls, so that a list of operations can be played on each by itself.

use super::operation::Op;
use kvatlas_index::reference::Reference;
use kvatlas_index::{Cleared, Holder, IndexError, Lane, RankKey, RankSlot, Removed, Store, Stored};

/// What an operation answered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Did {
    Stored(Result<Stored, IndexError>),
    Removed(Result<Removed, IndexError>),
    Cleared(Result<Cleared, IndexError>),
    Opened,
}

/// Numbers of the ranks of one history. A rank that is closed and opened again answers under another number.
#[derive(Clone)]
pub struct Keys {
    first: u32,
    lives: Vec<u32>,
}

impl Keys {
    /// Numbers from `first` on; two for each rank.
    pub fn new(first: u32, ranks: usize) -> Self {
        Self { first, lives: vec![0; ranks] }
    }

    /// The number under which the rank answers, or will answer when it is opened next.
    pub fn key(&self, rank: usize) -> RankKey {
        let ranks = self.lives.len() as u32;
        RankKey(self.first + rank as u32 + ranks * (self.lives[rank] % 2))
    }
}

/// A history on one lane.
pub struct OnLane {
    pub lane: Lane,
    pub keys: Keys,
    pub slots: Vec<Option<RankSlot>>,
}

impl OnLane {
    /// All ranks closed.
    pub fn new(lane: Lane, keys: Keys) -> Self {
        let slots = vec![None; keys.lives.len()];
        Self { lane, keys, slots }
    }

    /// Plays one operation; what it says goes to `did`, one entry an event. Operations on closed ranks are skipped.
    pub fn apply(&mut self, op: &Op, did: &mut Vec<Did>) {
        let rank = op.rank();
        let Some(slot) = self.slots[rank] else {
            if let Op::Open { .. } = op {
                let slot = self.lane.open_rank(self.keys.key(rank)).expect("room for every rank");
                self.slots[rank] = Some(slot);
                did.push(Did::Opened);
            }
            return;
        };
        let lane = &mut self.lane;
        match op {
            Op::Open { .. } => {}
            Op::Close { .. } => {
                did.push(Did::Cleared(lane.close_rank(slot)));
                self.slots[rank] = None;
                self.keys.lives[rank] += 1;
            }
            Op::Clear { tier, .. } => did.push(Did::Cleared(lane.clear(slot, *tier))),
            Op::Store { tier, parent, names, contents, kind, .. } => {
                let store = Store { parent: *parent, names, contents, kind: *kind };
                did.push(Did::Stored(lane.store(Holder { rank: slot, tier: *tier }, &store)));
            }
            Op::Adopt { tier, names, .. } => {
                did.push(Did::Stored(lane.adopt(Holder { rank: slot, tier: *tier }, names)));
            }
            Op::Remove { tier, names, each, .. } => {
                let event_len = if *each { 1 } else { names.len().max(1) };
                let at = Holder { rank: slot, tier: *tier };
                did.extend(names.chunks(event_len).map(|event| Did::Removed(lane.remove(at, event))));
            }
            Op::SetCopies { tier, name, left, .. } => {
                did.push(Did::Removed(lane.set_copies(Holder { rank: slot, tier: *tier }, *name, *left)));
            }
        }
    }
}

/// The same history on the oracle.
pub struct OnOracle<'a> {
    pub oracle: &'a mut Reference,
    pub keys: Keys,
    open: Vec<bool>,
}

impl<'a> OnOracle<'a> {
    /// All ranks closed.
    pub fn new(oracle: &'a mut Reference, keys: Keys) -> Self {
        let open = vec![false; keys.lives.len()];
        Self { oracle, keys, open }
    }

    /// Plays one operation as [`OnLane::apply`] does.
    pub fn apply(&mut self, op: &Op, did: &mut Vec<Did>) {
        let (rank, oracle) = (op.rank(), &mut *self.oracle);
        let key = self.keys.key(rank);
        if !self.open[rank] {
            if let Op::Open { .. } = op {
                oracle.open_rank(key);
                self.open[rank] = true;
                did.push(Did::Opened);
            }
            return;
        }
        match op {
            Op::Open { .. } => {}
            Op::Close { .. } => {
                did.push(Did::Cleared(oracle.clear(key, None)));
                oracle.close_rank(key);
                self.open[rank] = false;
                self.keys.lives[rank] += 1;
            }
            Op::Clear { tier, .. } => did.push(Did::Cleared(oracle.clear(key, *tier))),
            Op::Store { tier, parent, names, contents, kind, .. } => {
                let store = Store { parent: *parent, names, contents, kind: *kind };
                did.push(Did::Stored(oracle.store(key, *tier, &store)));
            }
            Op::Adopt { tier, names, .. } => did.push(Did::Stored(oracle.adopt(key, *tier, names))),
            Op::Remove { tier, names, each, .. } => {
                let event_len = if *each { 1 } else { names.len().max(1) };
                did.extend(names.chunks(event_len).map(|event| Did::Removed(oracle.remove(key, *tier, event))));
            }
            Op::SetCopies { tier, name, left, .. } => {
                did.push(Did::Removed(oracle.set_copies(key, *tier, *name, *left)));
            }
        }
    }
}
