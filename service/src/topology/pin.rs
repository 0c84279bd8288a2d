//! Pins of threads to cores, and what came of them.

use core_affinity::CoreId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A core, and the node that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The system's number of the core.
    pub core: usize,
    /// The memory node of the core, where the topology knows it.
    pub node: Option<u32>,
}

/// What came of pinning a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pinned {
    /// Nobody asked for it.
    #[default]
    NotAsked,
    /// The thread runs there only.
    Yes(Spot),
    /// The system refused: the thread runs anywhere.
    Refused(Spot),
}

impl Pinned {
    /// Where the thread was to run.
    pub fn spot(self) -> Option<Spot> {
        match self {
            Pinned::NotAsked => None,
            Pinned::Yes(spot) | Pinned::Refused(spot) => Some(spot),
        }
    }

    /// Whether the system refused.
    pub fn is_refused(self) -> bool {
        matches!(self, Pinned::Refused(_))
    }
}

/// Pins the calling thread, if it has a spot. Threads that it starts afterwards begin on the same core.
pub fn pin_current_thread(spot: Option<Spot>) -> Pinned {
    match spot {
        None => Pinned::NotAsked,
        Some(spot) if core_affinity::set_for_current(CoreId { id: spot.core }) => Pinned::Yes(spot),
        Some(spot) => Pinned::Refused(spot),
    }
}

/// The spots of the lookup threads, taken in the order in which the threads start. Shared by `Arc`.
#[derive(Debug, Default)]
pub struct LookupPins {
    spots: Vec<Option<Spot>>,
    started: AtomicUsize,
    outcomes: Mutex<Vec<Pinned>>,
}

impl LookupPins {
    /// One spot for each thread.
    pub fn new(spots: Vec<Option<Spot>>) -> Self {
        Self { spots, ..Self::default() }
    }

    /// Pins the calling thread to the next spot. Threads beyond the last one (the runtime's helpers for blocking calls) stay as
    /// they are.
    pub fn pin_next_thread(&self) {
        let next = self.started.fetch_add(1, Ordering::Relaxed);
        let Some(spot) = self.spots.get(next) else { return };
        let pinned = pin_current_thread(*spot);
        if let Pinned::Refused(spot) = pinned {
            tracing::warn!(thread = next, core = spot.core, "a lookup thread could not be pinned");
        }
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(pinned);
    }

    /// What came of the pins so far, in no particular order. Allocates.
    pub fn outcomes(&self) -> Vec<Pinned> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        let missing = Spot { core: 1000, node: None };
        let pins = std::sync::Arc::new(LookupPins::new(vec![Some(missing), None]));
        let threads = (0..3).map(|_| {
            let pins = pins.clone();
            std::thread::spawn(move || pins.pin_next_thread())
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|t| t.join().unwrap());
        let outcomes = pins.outcomes();
        assert_eq!(outcomes.len(), 2);
        assert!(outcomes.contains(&Pinned::Refused(missing)) && outcomes.contains(&Pinned::NotAsked), "{outcomes:?}");
    }
}
