//! Sustained rates out of a report of `kvatlas-harness ladder`: the few fields of it that have gates.

use super::Row;
use crate::provenance::Provenance;
use crate::sampling::Estimate;
use serde::Deserialize;

/// The part of a report that is read here.
#[derive(Debug, Deserialize)]
pub struct LadderFile {
    /// Where it comes from.
    pub provenance: Provenance,
    took_s: f64,
    measured: Measured,
}

#[derive(Debug, Deserialize)]
struct Measured {
    sustained: Vec<Sustained>,
}

#[derive(Debug, Deserialize)]
struct Sustained {
    indexer: String,
    found: Found,
}

#[derive(Debug, Deserialize)]
struct Found {
    sustained: u64,
    not_sustained: Option<u64>,
}

impl LadderFile {
    /// How long the run took, in seconds.
    pub fn took_s(&self) -> u64 {
        self.took_s as u64
    }

    /// Our sustained rate against each rival's; the interval is that of both brackets.
    pub fn rows(&self, cell: &str) -> Vec<Row> {
        let all = &self.measured.sustained;
        let Some(ours) = all.iter().find(|arm| arm.indexer == "kvatlas").map(|arm| &arm.found) else {
            return Vec::new();
        };
        let per = |ours: u64, theirs: u64| ours as f64 / theirs.max(1) as f64;
        let row = |arm: &Sustained| {
            let gate = match arm.indexer.as_str() {
                "kv-index" => Some(1.5),
                "crtc" => Some(2.5),
                _ => return None,
            };
            let theirs = &arm.found;
            let ratio = Estimate {
                value: per(ours.sustained, theirs.sustained),
                low: per(ours.sustained, theirs.not_sustained.unwrap_or(theirs.sustained)),
                high: per(ours.not_sustained.unwrap_or(ours.sustained), theirs.sustained),
            };
            let millions = [ours, theirs].map(|found| found.sustained as f64 / 1e6);
            let what = "sustained block operations, millions a second";
            Some(Row::new(cell, what, &arm.indexer, (millions[0], millions[1]), ratio, gate))
        };
        all.iter().filter_map(row).collect()
    }
}
