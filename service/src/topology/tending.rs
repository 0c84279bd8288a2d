//! The thread that makes huge pages of the index's memory in use, away from the lanes' cores.

use super::pin::Spot;
use kvatlas_index::Index;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Settings of the thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TendingSettings {
    /// Time between two scans.
    pub period: Duration,
    /// Huge pages that a scan makes at most.
    pub collapses_max: u32,
    /// Cores that it may run on; empty for any.
    pub cores: Vec<usize>,
}

impl TendingSettings {
    /// The cores of a machine that no lane is pinned to; none, for any, where lanes are not pinned or leave none over.
    pub fn cores_beside(lanes: &[Option<Spot>], cores: &[usize]) -> Vec<usize> {
        let taken: Vec<usize> = lanes.iter().flatten().map(|spot| spot.core).collect();
        if taken.is_empty() {
            return Vec::new();
        }
        cores.iter().copied().filter(|core| !taken.contains(core)).collect()
    }
}

/// The thread; it ends soon after this is dropped, which does not wait for it.
#[derive(Debug)]
pub struct Tending {
    _end: SyncSender<()>,
}

impl Tending {
    /// Starts the thread for an index that asks for [`kvatlas_index::HugePages::Collapse`].
    pub fn start(index: Arc<Index>, settings: TendingSettings) -> io::Result<Self> {
        let (end, ended) = sync_channel(0);
        let tend = move || {
            keep_to(&settings.cores);
            while ended.recv_timeout(settings.period) == Err(RecvTimeoutError::Timeout) {
                index.tend_pages(settings.collapses_max);
            }
        };
        std::thread::Builder::new().name("pages".to_owned()).spawn(tend)?;
        Ok(Self { _end: end })
    }
}

/// Keeps the calling thread to these cores; it runs anywhere where the system refuses.
#[cfg(target_os = "linux")]
fn keep_to(cores: &[usize]) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cores.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(%error, "the thread that makes huge pages runs on any core");
    }
}

/// There is no such call.
#[cfg(not(target_os = "linux"))]
fn keep_to(_cores: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_to_cores_without_a_lane() {
        let lane = |core| Some(Spot { core, node: None });
        assert_eq!(TendingSettings::cores_beside(&[lane(0), lane(2)], &[0, 1, 2, 3]), [1, 3]);
        assert_eq!(TendingSettings::cores_beside(&[None], &[0, 1]), [0usize; 0]);
        assert_eq!(TendingSettings::cores_beside(&[lane(0), lane(1)], &[0, 1]), [0usize; 0]);
    }
}
