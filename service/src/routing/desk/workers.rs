//! The workers of a desk by name, and how each one's ranks are loaded.

use super::words::{Ask, NO_RANK};
use crate::routing::columns::Slot;
use crate::routing::load::RankLoad;
use std::collections::HashMap;
use std::sync::Arc;

/// One data-parallel rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rank {
    number: u32,
    /// Requests dispatched to it that have not ended.
    in_flight: u32,
    /// Requests that it had by the latest valid record.
    reported: i64,
}

#[derive(Clone, Debug)]
struct Worker {
    name: Arc<str>,
    generation: u64,
    /// By rising number, never empty.
    ranks: Vec<Rank>,
}

/// The workers.
#[derive(Clone, Debug, Default)]
pub(super) struct Workers {
    slots: HashMap<Arc<str>, Slot>,
    /// By slot.
    workers: Vec<Option<Worker>>,
}

impl Workers {
    pub fn slot(&self, worker: &str) -> Option<Slot> {
        self.slots.get(worker).copied()
    }

    /// The id of the worker in a slot that is taken; empty where it is free.
    pub fn name(&self, slot: Slot) -> Arc<str> {
        self.worker(slot).map_or_else(|| "".into(), |worker| worker.name.clone())
    }

    /// Number of its registration.
    pub fn generation(&self, slot: Slot) -> u64 {
        self.worker(slot).map_or(0, |worker| worker.generation)
    }

    /// A worker without ranks has rank 0.
    pub fn add(&mut self, slot: Slot, name: Arc<str>, ranks: Arc<[u32]>, generation: u64) {
        let ranks = if ranks.is_empty() { &[0] } else { &*ranks };
        let mut ranks: Vec<Rank> =
            ranks.iter().map(|number| Rank { number: *number, in_flight: 0, reported: 0 }).collect();
        ranks.sort_unstable_by_key(|rank| rank.number);
        let at = slot as usize;
        if self.workers.len() <= at {
            self.workers.resize(at + 1, None);
        }
        self.slots.insert(name.clone(), slot);
        self.workers[at] = Some(Worker { name, generation, ranks });
    }

    pub fn remove(&mut self, worker: &str) {
        if let Some(slot) = self.slots.remove(worker) {
            self.workers[slot as usize] = None;
        }
    }

    /// Takes a valid record.
    pub fn recorded(&mut self, slot: Slot, loads: &[RankLoad]) {
        for load in loads {
            if let Some(rank) = self.rank_mut(slot, load.rank) {
                rank.reported = load.running.saturating_add(load.waiting);
            }
        }
    }

    /// Chooses the rank of a worker that a request goes to, among those that were asked for: the one that holds most of the
    /// prompt, else the one with the fewest requests of ours, then by its record, then the first.
    pub fn choose_rank(&self, slot: Slot, ask: &Ask<'_>) -> u32 {
        let Some(worker) = self.worker(slot) else { return 0 };
        let from = ask.only_ranks.partition_point(|(of, _)| *of < slot);
        let asked = &ask.only_ranks[from..];
        let asked = &asked[..asked.partition_point(|(of, _)| *of == slot)];
        let may = |rank: u32| asked.is_empty() || asked.iter().any(|(_, named)| *named == rank);
        let deepest = ask.deepest_ranks.get(slot as usize).copied().unwrap_or(NO_RANK);
        if deepest != NO_RANK && may(deepest) && worker.ranks.iter().any(|rank| rank.number == deepest) {
            return deepest;
        }
        let open = worker.ranks.iter().filter(|rank| may(rank.number));
        let least = open.min_by_key(|rank| (rank.in_flight, rank.reported, rank.number));
        least.or(worker.ranks.first()).map_or(0, |rank| rank.number)
    }

    pub fn dispatched(&mut self, slot: Slot, rank: u32) {
        if let Some(rank) = self.rank_mut(slot, rank) {
            rank.in_flight = rank.in_flight.saturating_add(1);
        }
    }

    pub fn ended(&mut self, slot: Slot, rank: u32) {
        if let Some(rank) = self.rank_mut(slot, rank) {
            rank.in_flight = rank.in_flight.saturating_sub(1);
        }
    }

    /// Requests of ours on each rank of a worker.
    #[cfg(test)]
    pub fn in_flight(&self, slot: Slot) -> impl Iterator<Item = (u32, u32)> {
        self.worker(slot).into_iter().flat_map(|worker| &worker.ranks).map(|rank| (rank.number, rank.in_flight))
    }

    fn worker(&self, slot: Slot) -> Option<&Worker> {
        self.workers.get(slot as usize)?.as_ref()
    }

    fn rank_mut(&mut self, slot: Slot, number: u32) -> Option<&mut Rank> {
        let ranks = &mut self.workers.get_mut(slot as usize)?.as_mut()?.ranks;
        ranks.iter_mut().find(|rank| rank.number == number)
    }
}
