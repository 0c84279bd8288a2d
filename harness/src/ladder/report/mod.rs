//! Reports: everything measured as JSON, the same as one self-contained HTML page, and a table for the terminal.

mod html;
mod modes;
mod svg;
mod table;

pub use html::page;
pub use modes::{ChurnFacts, Findings, Page};
pub use svg::time;
pub use table::{plain_table, table};

use super::campaign::{Arm, Measured, Plan, Rung};
use super::corpus::CorpusFacts;
use super::statistics::{Interval, interval};
use super::trial::TrialResult;
use kvatlas_benches::provenance::Provenance;
use serde::{Deserialize, Serialize};

/// Everything about one run of the ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where it comes from.
    pub provenance: Provenance,
    /// What was replayed.
    pub corpus: CorpusFacts,
    /// The settings.
    pub plan: Plan,
    /// The name of the layout.
    pub layout_name: String,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// What was measured.
    pub measured: Measured,
}

impl Report {
    /// Every series, the capacity one first.
    pub fn series(&self) -> impl Iterator<Item = &Rung> {
        std::iter::once(&self.measured.capacity).chain(&self.measured.rungs)
    }

    fn arms(&self) -> impl Iterator<Item = &Arm> {
        self.series().flat_map(|rung| &rung.arms)
    }

    /// Disturbed trials: replaced, and kept for want of replacements.
    pub fn disturbed(&self) -> (usize, usize) {
        self.arms().fold((0, 0), |(r, k), arm| (r + arm.tally.replaced, k + arm.tally.kept_disturbed))
    }

    /// Trials that count.
    pub fn usable(&self) -> usize {
        self.arms().map(|a| a.tally.usable).sum()
    }

    /// Cores that the system refused to pin a thread to.
    pub fn refused_pins(&self) -> Vec<usize> {
        let evidence = self.arms().flat_map(|a| &a.trials).flat_map(|t| &t.evidence);
        let mut cores: Vec<usize> = evidence.filter(|e| self.plan.pin && !e.pinned).map(|e| e.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// Prompts compared with the oracle, and those that differ, by indexer that promises none; `None` if none was compared.
    pub fn checked(&self) -> Option<(u64, u64)> {
        let checked = || self.arms().flat_map(|a| &a.trials).filter_map(|t| t.checked.as_ref()).filter(|c| c.promised);
        checked().next()?;
        Some(checked().fold((0, 0), |(p, d), c| (p + c.prompts, d + c.differing)))
    }

    /// Sentences that a reader has to know before any figure.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let (_, kept) = self.disturbed();
        if kept > 0 {
            warnings.push(format!(
                "{kept} of {} trials had a disturbed core and count all the same, since no replacements were left. Latencies of \
                 this run are not to be quoted; run it on an idle machine.",
                self.usable()
            ));
        }
        let refused = self.refused_pins();
        if !refused.is_empty() {
            warnings.push(format!("The system refused to pin threads to cores {refused:?}."));
        }
        if self.measured.cut_short {
            warnings.push(
                "Time was over before everything was measured: some series are short, some loads are missing."
                    .to_owned(),
            );
        }
        if let Some(hop_ns) = self.arms().flat_map(|a| &a.trials).filter_map(|t| t.hop_ns).max() {
            warnings.push(format!(
                "crtc applies events on a thread of its own: each of its events is charged a hop there and back, up to {} here. \
                 Its sustained and peak rates, waits and lags include that; its event blocks a CPU second do not.",
                time(hop_ns as f64)
            ));
        }
        if !self.plan.pin {
            warnings.push("Threads were not pinned.".to_owned());
        }
        if let Some((_, differing)) = self.checked().filter(|(_, differing)| *differing > 0) {
            warnings.push(format!("{differing} answers differ from the oracle's where none may."));
        }
        warnings
    }
}

/// A figure of an arm as median and interval.
pub fn figure(arm: &Arm, of: impl Fn(&TrialResult) -> f64) -> Option<Interval> {
    interval(&arm.samples(of))
}
