//! One rank's status: written by whoever follows its events, read by every answer that names it.

use crate::ingest::{RankStatus, Trust};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Set in the brief byte when answers about the rank may be too high.
const UPPER_BOUND: u8 = 0x80;
/// Set in the brief byte while the rank's worker is vetoed. Not the publisher of statuses sets it, but the worker's watcher.
const VETOED: u8 = 0x40;

/// What every row of an answer needs to know about its rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Brief {
    /// How far the rank can be believed.
    pub trust: Trust,
    /// Whether answers may be too high.
    pub upper_bound: bool,
    /// Whether the rank's worker is vetoed: its blocks are known, but not offered.
    pub vetoed: bool,
}

/// The status and, for the lookup path, a byte with what every row of an answer needs.
#[derive(Debug)]
pub struct StatusCell {
    full: ArcSwap<RankStatus>,
    brief: AtomicU8,
}

impl Default for StatusCell {
    fn default() -> Self {
        Self { full: ArcSwap::default(), brief: AtomicU8::new(brief(&RankStatus::default())) }
    }
}

impl StatusCell {
    /// The status as it was published last.
    pub fn full(&self) -> Arc<RankStatus> {
        self.full.load_full()
    }

    /// One relaxed load: trust and upper bound belong to one publication, but may be older than what [`Self::full`] says.
    pub fn brief(&self) -> Brief {
        let byte = self.brief.load(Ordering::Relaxed);
        let trust = trust_of(byte & !(UPPER_BOUND | VETOED));
        Brief { trust, upper_bound: byte & UPPER_BOUND != 0, vetoed: byte & VETOED != 0 }
    }

    /// Publishes a status and gives the one before back. One writer at a time.
    pub fn publish(&self, status: RankStatus) -> Arc<RankStatus> {
        let says = brief(&status);
        // The veto is another writer's and stays. The update never refuses.
        let _ = self.brief.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(says | old & VETOED));
        self.full.swap(Arc::new(status))
    }

    /// Whether the rank's worker is vetoed from now on. Statuses do not touch it.
    pub fn set_vetoed(&self, vetoed: bool) {
        if vetoed {
            self.brief.fetch_or(VETOED, Ordering::Relaxed);
        } else {
            self.brief.fetch_and(!VETOED, Ordering::Relaxed);
        }
    }
}

fn brief(status: &RankStatus) -> u8 {
    status.trust as u8 | if status.upper_bound.is_some() { UPPER_BOUND } else { 0 }
}

fn trust_of(byte: u8) -> Trust {
    const ALL: [Trust; 6] =
        [Trust::NeverSeen, Trust::Bootstrapping, Trust::Exact, Trust::Partial, Trust::Degraded, Trust::Misconfigured];
    ALL.into_iter().find(|t| *t as u8 == byte).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brief_byte_says_what_the_full_status_says() {
        let cell = StatusCell::default();
        let brief = |trust, upper_bound, vetoed| Brief { trust, upper_bound, vetoed };
        assert_eq!(cell.brief(), brief(Trust::NeverSeen, false, false));
        for trust in [Trust::Exact, Trust::Misconfigured, Trust::Partial, Trust::Degraded, Trust::Bootstrapping] {
            for upper_bound in [None, Some("window groups")] {
                cell.publish(RankStatus { trust, upper_bound, ..RankStatus::default() });
                assert_eq!(cell.brief(), brief(trust, upper_bound.is_some(), false));
                cell.set_vetoed(true);
                assert_eq!(cell.brief(), brief(trust, upper_bound.is_some(), true));
                cell.publish(RankStatus { trust, ..RankStatus::default() });
                assert_eq!(cell.brief(), brief(trust, false, true), "a status leaves the veto alone");
                cell.set_vetoed(false);
                assert_eq!(cell.brief(), brief(trust, false, false));
            }
        }
    }
}
