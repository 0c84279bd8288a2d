//! Whether somebody else ran on a pinned core during a trial. Evidence comes from the kernel's own accounting of each pinned
//! thread and of each core; the rule is pure.

use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;

/// Part of the window that a pinned thread may have stood in the run queue of its core.
pub const QUEUED_SHARE_MAX: f64 = 0.01;
/// Part of the window that the hypervisor may have taken a pinned core away.
pub const STOLEN_SHARE_MAX: f64 = 0.01;
/// One accounting tick of `/proc/stat` (USER_HZ is 100 on every Linux): a single tick says little about a short window.
pub const STOLEN_TICK: Duration = Duration::from_millis(10);
/// A pause of a spinning thread longer than this is a gap.
pub const GAP: Duration = Duration::from_micros(200);
/// Part of the window that a spinning thread may have lost in gaps that nothing else explains.
pub const GAP_SHARE_MAX: f64 = 0.02;

/// What a pinned thread saw of its core during the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The core.
    pub core: usize,
    /// Whether the system accepted the pin.
    pub pinned: bool,
    /// Time the thread was runnable but did not run, in nanoseconds; `None` if the kernel does not say.
    pub queued_ns: Option<u64>,
    /// Involuntary context switches; `None` if the kernel does not say.
    pub switches: Option<u64>,
    /// Time stolen from the core, in nanoseconds and in whole ticks; `None` if the kernel does not say.
    pub stolen_ns: Option<u64>,
    /// Gaps of the thread's own spin loops, in nanoseconds.
    pub gaps_ns: u64,
}

/// Why a trial does not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum Disturbance {
    /// A thread waited for its own core.
    Queued {
        /// The core.
        core: usize,
        /// Part of the window.
        share: f64,
    },
    /// The hypervisor ran something else.
    Stolen {
        /// The core.
        core: usize,
        /// Part of the window.
        share: f64,
    },
    /// A spinning thread stood still.
    Gaps {
        /// The core.
        core: usize,
        /// Part of the window.
        share: f64,
    },
}

/// The first disturbance that the evidence shows, worst kind first. A thread that is not pinned is judged all the same.
pub fn judge(evidence: &[Evidence], window: Duration) -> Option<Disturbance> {
    let share = |ns: u64| ns as f64 / window.as_nanos().max(1) as f64;
    let stolen = evidence.iter().find(|e| {
        let ns = e.stolen_ns.unwrap_or(0);
        ns > STOLEN_TICK.as_nanos() as u64 && share(ns) > STOLEN_SHARE_MAX
    });
    if let Some(e) = stolen {
        return Some(Disturbance::Stolen { core: e.core, share: share(e.stolen_ns.unwrap_or(0)) });
    }
    if let Some(e) = evidence.iter().find(|e| share(e.queued_ns.unwrap_or(0)) > QUEUED_SHARE_MAX) {
        return Some(Disturbance::Queued { core: e.core, share: share(e.queued_ns.unwrap_or(0)) });
    }
    let gaps = evidence.iter().find(|e| share(e.gaps_ns) > GAP_SHARE_MAX)?;
    Some(Disturbance::Gaps { core: gaps.core, share: share(gaps.gaps_ns) })
}

/// Reads the evidence of the calling thread: one at the start of the window, one after it.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    core: usize,
    pinned: bool,
    queued_ns: Option<u64>,
    switches: Option<u64>,
    stolen_ticks: Option<u64>,
}

impl Watch {
    /// Begins to watch the calling thread on its core.
    pub fn begin(core: usize, pinned: bool) -> Self {
        Self { core, pinned, queued_ns: queued_ns(), switches: switches(), stolen_ticks: stolen_ticks(core) }
    }

    /// What happened since.
    pub fn end(&self, gaps_ns: u64) -> Evidence {
        let since = |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before?));
        let ticks = since(self.stolen_ticks, stolen_ticks(self.core));
        Evidence {
            core: self.core,
            pinned: self.pinned,
            queued_ns: since(self.queued_ns, queued_ns()),
            switches: since(self.switches, switches()),
            stolen_ns: ticks.map(|t| t * STOLEN_TICK.as_nanos() as u64),
            gaps_ns,
        }
    }
}

fn queued_ns() -> Option<u64> {
    parse_schedstat(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

fn switches() -> Option<u64> {
    parse_switches(&fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn stolen_ticks(core: usize) -> Option<u64> {
    parse_stolen(&fs::read_to_string("/proc/stat").ok()?, core)
}

/// Second figure of `schedstat`: nanoseconds in the run queue.
fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

fn parse_switches(text: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix("nonvoluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Eighth figure of the core's line of `/proc/stat`.
fn parse_stolen(text: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core} ");
    text.lines().find_map(|l| l.strip_prefix(&name))?.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(1);

    fn quiet(core: usize) -> Evidence {
        Evidence { core, pinned: true, queued_ns: Some(0), switches: Some(3), stolen_ns: Some(0), gaps_ns: 0 }
    }

    #[test]
    fn a_quiet_core_is_not_disturbed_and_limits_are_not_reached_by_equality() {
        assert_eq!(judge(&[quiet(0), quiet(1)], WINDOW), None);
        let at_limit =
            Evidence { queued_ns: Some(10_000_000), stolen_ns: Some(10_000_000), gaps_ns: 20_000_000, ..quiet(1) };
        assert_eq!(judge(&[at_limit], WINDOW), None);
        assert_eq!(judge(&[], WINDOW), None);
    }

    #[test]
    fn each_kind_is_found_with_its_core() {
        let queued = Evidence { queued_ns: Some(20_000_000), ..quiet(1) };
        assert_eq!(judge(&[quiet(0), queued], WINDOW), Some(Disturbance::Queued { core: 1, share: 0.02 }));
        let stolen = Evidence { stolen_ns: Some(30_000_000), ..queued };
        assert_eq!(judge(&[queued, stolen], WINDOW), Some(Disturbance::Stolen { core: 1, share: 0.03 }));
        let gaps = Evidence { gaps_ns: 50_000_000, ..quiet(4) };
        assert_eq!(judge(&[quiet(0), gaps], WINDOW), Some(Disturbance::Gaps { core: 4, share: 0.05 }));
    }

    #[test]
    fn one_stolen_tick_is_not_a_finding_in_a_short_window() {
        let one = Evidence { stolen_ns: Some(10_000_000), ..quiet(0) };
        assert_eq!(judge(&[one], Duration::from_millis(100)), None);
        let two = Evidence { stolen_ns: Some(20_000_000), ..quiet(0) };
        assert!(judge(&[two], Duration::from_millis(100)).is_some());
    }

    #[test]
    fn a_kernel_that_says_nothing_leaves_the_gaps() {
        let silent = Evidence { queued_ns: None, switches: None, stolen_ns: None, ..quiet(0) };
        assert_eq!(judge(&[silent], WINDOW), None);
        assert!(judge(&[Evidence { gaps_ns: 21_000_000, ..silent }], WINDOW).is_some());
    }

    #[test]
    fn the_kernels_texts() {
        assert_eq!(parse_schedstat("566732 16227458 1\n"), Some(16_227_458));
        assert_eq!(parse_switches("voluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t12\n"), Some(12));
        let stat = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 11 9 10\ncpu10 0 0 0 0 0 0 0 12 0 0\ncpu1 0 0 0 0 0 0 0 13 0 0\n";
        assert_eq!([0, 10, 1, 2].map(|c| parse_stolen(stat, c)), [Some(11), Some(12), Some(13), None]);
        assert_eq!(parse_schedstat(""), None);
    }
}
