//! One desk and what it was told of the fleet: always the group as the fleet has it when somebody asks.

use super::levels::{Seat, Seats};
use crate::fleet::{Group, RankEntry, VetoCell};
use crate::ingest::Trust;
use crate::routing::{Desk, Input, Output, Slot};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A desk between threads.
#[derive(Debug)]
pub(super) struct DeskCell {
    /// The model.
    pub model: Arc<str>,
    /// The routing group.
    pub routing_group: Arc<str>,
    /// Its number: the low bits of its reservations.
    pub number: u32,
    state: Mutex<DeskState>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct DeskState {
    pub desk: Desk,
    /// The group as the desk has it; `None`: it has nobody.
    group: Option<Arc<Group>>,
    pub seats: Seats,
    /// Whether any rank of the group ever said something.
    pub has_events: bool,
    /// Whether the index held anything of the group when it was looked at last.
    pub has_blocks: bool,
    /// Whether it has been told what other replicas have booked.
    pub joined: bool,
    /// Whether the desk is out of use: whoever meets it asks for the group's desk again.
    pub closed: bool,
    /// What the last steps have for others.
    pub outputs: Vec<Output>,
}

impl DeskCell {
    pub fn new(model: &str, routing_group: &str, number: u32, desk: Desk) -> Self {
        let state = DeskState {
            desk,
            group: None,
            seats: Seats::default(),
            has_events: false,
            has_blocks: false,
            joined: false,
            closed: false,
            outputs: Vec::new(),
        };
        Self { model: model.into(), routing_group: routing_group.into(), number, state: Mutex::new(state) }
    }

    /// Locks the desk: for microseconds, and never across anything that waits.
    pub fn lock(&self) -> MutexGuard<'_, DeskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeskState {
    /// Whether the group has nobody.
    pub fn is_empty(&self) -> bool {
        self.group.is_none()
    }

    /// Whether this is the group as the desk has it, so that its ranks and their numbers in the index are the same.
    pub fn is_as(&self, group: &Arc<Group>) -> bool {
        self.group.as_ref().is_some_and(|is| Arc::ptr_eq(is, group))
    }

    /// Takes the group as the fleet has it now. Does nothing where nothing changed; else takes time in proportion to the ranks.
    pub fn take_group(&mut self, now: Duration, group: Option<&Arc<Group>>) {
        match group {
            Some(group) if self.is_as(group) => return,
            None if self.group.is_none() => return,
            _ => {}
        }
        let before = self.group.take();
        let old = before.as_ref().map_or(&[][..], |group| &group.ranks);
        let new = group.map_or(&[][..], |group| &group.ranks);
        let generation = |ranks: &[Arc<RankEntry>], worker: &str| {
            let at = ranks.partition_point(|rank| &*rank.worker < worker);
            ranks.get(at).filter(|rank| &*rank.worker == worker).map(|rank| rank.generation)
        };
        for worker in old.chunk_by(|a, b| a.worker == b.worker) {
            if generation(new, &worker[0].worker) != Some(worker[0].generation) {
                self.desk.step(now, Input::WorkerGone { worker: worker[0].worker.clone() }, &mut self.outputs);
            }
        }
        for worker in new.chunk_by(|a, b| a.worker == b.worker) {
            if generation(old, &worker[0].worker) != Some(worker[0].generation) {
                self.add(now, worker);
            }
        }
        self.seats.clear();
        for rank in new {
            if let Some(slot) = self.desk.slot(&rank.worker) {
                self.seats.put(rank.key, Seat { slot, rank: rank.rank });
            }
        }
        self.group = group.cloned();
        self.take_trust(now);
    }

    fn add(&mut self, now: Duration, ranks: &[Arc<RankEntry>]) {
        let (worker, generation) = (ranks[0].worker.clone(), ranks[0].generation);
        let numbers = ranks.iter().map(|rank| rank.rank).collect();
        self.desk.step(now, Input::WorkerAdded { worker, ranks: numbers, generation }, &mut self.outputs);
    }

    /// Reads everything again that the fleet and the lanes say beside who is there.
    pub fn look(&mut self, now: Duration) {
        self.take_trust(now);
        self.take_blocks(now);
    }

    /// Reads vetoes and trust of every rank again. Takes time in proportion to the ranks.
    pub fn take_trust(&mut self, now: Duration) {
        let Some(group) = self.group.clone() else { return };
        self.has_events = false;
        group.ranks.chunk_by(|a, b| a.worker == b.worker).for_each(|ranks| self.trust(now, ranks));
    }

    /// Reads veto and trust of one worker again. That events came once is not forgotten.
    pub fn take_trust_of(&mut self, now: Duration, worker: &str) {
        let Some(group) = self.group.clone() else { return };
        let from = group.ranks.partition_point(|rank| &*rank.worker < worker);
        let to = group.ranks.partition_point(|rank| &*rank.worker <= worker);
        if from < to {
            self.trust(now, &group.ranks[from..to]);
        }
    }

    fn trust(&mut self, now: Duration, ranks: &[Arc<RankEntry>]) {
        let (mut certified, mut vetoed) = (true, false);
        for brief in ranks.iter().map(|rank| rank.status.brief()) {
            certified &= brief.trust == Trust::Exact && !brief.upper_bound;
            vetoed |= brief.vetoed;
            self.has_events |= brief.trust != Trust::NeverSeen;
        }
        let worker = || ranks[0].worker.clone();
        self.desk.step(now, Input::Certified { worker: worker(), certified }, &mut self.outputs);
        self.desk.step(now, Input::Vetoed { worker: worker(), vetoed }, &mut self.outputs);
    }

    /// Samples what the index holds of each worker. Takes time in proportion to the ranks.
    pub fn take_blocks(&mut self, now: Duration) {
        let Some(group) = self.group.clone() else { return };
        self.has_blocks = false;
        for ranks in group.ranks.chunk_by(|a, b| a.worker == b.worker) {
            let blocks = ranks.iter().map(|rank| rank.lane.blocks()).sum();
            self.has_blocks |= blocks > 0;
            let input = Input::Blocks { worker: ranks[0].worker.clone(), blocks };
            self.desk.step(now, input, &mut self.outputs);
        }
    }

    /// One rank of the group.
    pub fn rank(&self, worker: &str, rank: u32) -> Option<&Arc<RankEntry>> {
        let ranks = &self.group.as_ref()?.ranks;
        let at = ranks.binary_search_by(|r| (&*r.worker, r.rank).cmp(&(worker, rank))).ok()?;
        Some(&ranks[at])
    }

    /// What watches whether a worker of the group does anything.
    pub fn veto(&self, worker: &str) -> Option<&Arc<VetoCell>> {
        let ranks = &self.group.as_ref()?.ranks;
        let at = ranks.partition_point(|rank| &*rank.worker < worker);
        ranks.get(at).filter(|rank| &*rank.worker == worker).map(|rank| &rank.veto)
    }

    /// The slot of a worker of the group, and whether it has this rank.
    pub fn find(&self, worker: &str, rank: Option<u32>) -> Option<Slot> {
        let slot = self.desk.slot(worker)?;
        rank.is_none_or(|rank| self.rank(worker, rank).is_some()).then_some(slot)
    }
}
