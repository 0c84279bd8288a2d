//! One rank's status: written by whoever follows its events, read by every answer that names it.

use crate::ingest::{RankStatus, Trust};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Set in the brief byte when answers about the rank may be too high.
const UPPER_BOUND: u8 = 0x80;

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

    /// Trust, and whether answers may be too high. One relaxed load: the two belong to one publication, but may be older than
    /// what [`Self::full`] says.
    pub fn brief(&self) -> (Trust, bool) {
        let byte = self.brief.load(Ordering::Relaxed);
        (trust_of(byte & !UPPER_BOUND), byte & UPPER_BOUND != 0)
    }

    /// Publishes a status and gives the one before back. One writer at a time.
    pub fn publish(&self, status: RankStatus) -> Arc<RankStatus> {
        self.brief.store(brief(&status), Ordering::Relaxed);
        self.full.swap(Arc::new(status))
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

/// Unix time in milliseconds. A clock before 1970 reads as 0.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brief_byte_says_what_the_full_status_says() {
        let cell = StatusCell::default();
        assert_eq!(cell.brief(), (Trust::NeverSeen, false));
        for trust in [Trust::Exact, Trust::Misconfigured, Trust::Partial, Trust::Degraded, Trust::Bootstrapping] {
            for upper_bound in [None, Some("window groups")] {
                cell.publish(RankStatus { trust, upper_bound, ..RankStatus::default() });
                assert_eq!(cell.brief(), (trust, upper_bound.is_some()));
            }
        }
    }
}
