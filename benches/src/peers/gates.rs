//! The gates that a measured figure has to pass, and the table that shows them.

use crate::churn::{Measured, Outcome, lookup_quantile};
use kvatlas_benches::sampling::{Estimate, quantile};
use kvatlas_corpora::Names;
use serde::Serialize;

/// One line of the table: a figure of ours, of a rival, how often ours goes into the rival's, and what it has to be.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub cell: String,
    pub what: String,
    pub rival: &'static str,
    pub ours: f64,
    pub theirs: f64,
    pub ratio: Estimate,
    /// Ratio to reach; none where the row is shown only.
    pub gate: Option<f64>,
    pub passed: Option<bool>,
}

impl Row {
    pub fn new(
        cell: &str,
        what: &str,
        rival: &'static str,
        (ours, theirs): (f64, f64),
        ratio: Estimate,
        gate: Option<f64>,
    ) -> Self {
        let passed = gate.map(|gate| ratio.value >= gate);
        Self { cell: cell.to_owned(), what: what.to_owned(), rival, ours, theirs, ratio, gate, passed }
    }

    /// A row of two plain figures.
    pub fn plain(cell: &str, what: &str, rival: &'static str, figures: (f64, f64), gate: Option<f64>) -> Self {
        let value = figures.1 / figures.0.max(1e-9);
        Self::new(cell, what, rival, figures, Estimate { value, low: value, high: value }, gate)
    }
}

/// Gates of a cell against kv-index, by what is measured.
struct Gates {
    high: bool,
    low: bool,
    same: bool,
    tokens: u32,
    one_hash: bool,
    favourable: bool,
}

impl Gates {
    fn of(outcome: &Outcome) -> Self {
        let parameters = &outcome.parameters;
        Self {
            high: outcome.cell.contains("high"),
            low: outcome.cell.contains("low"),
            same: parameters.names == Names::Same,
            tokens: parameters.block_tokens,
            one_hash: parameters.removal_names_max == 1,
            favourable: outcome.cell.contains("best-fill"),
        }
    }

    /// One value for high and one for low sharing.
    fn by_sharing(&self, high: f64, low: f64) -> Option<f64> {
        if self.high { Some(high) } else { self.low.then_some(low) }
    }

    fn class(&self, class: &str) -> Option<f64> {
        match class {
            "join" if self.same => self.by_sharing(5.0, 2.2),
            "join" if self.tokens == 128 => Some(1.0),
            "join" if self.tokens == 16 => Some(0.85),
            "first" if self.tokens == 128 => Some(1.1),
            "first" if self.tokens == 16 => Some(1.0),
            "remove" if self.one_hash && !self.same => Some(1.4),
            "remove" if self.one_hash => self.by_sharing(4.5, 1.7),
            "remove" => self.by_sharing(4.0, 1.5),
            "append" => Some(if self.low { 0.7 } else { 1.0 }),
            "whole" if !self.same => Some(1.2),
            "whole" if !self.high && !self.low => Some(2.0),
            _ => None,
        }
    }

    fn fill(&self) -> Option<f64> {
        if self.same { self.by_sharing(3.0, 0.9) } else { Some(0.6) }
    }

    fn memory(&self) -> Option<f64> {
        match (self.same, self.favourable) {
            (true, false) => self.by_sharing(8.0, 1.75),
            (true, true) => self.by_sharing(7.0, 1.5),
            (false, false) => self.by_sharing(1.6, 1.75),
            (false, true) => self.by_sharing(1.1, 1.35),
        }
    }
}

/// Every row of a churn cell.
pub fn rows(outcome: &Outcome) -> Vec<Row> {
    let Some(ours) = outcome.indexes.iter().find(|m| m.name == "kvatlas") else { return Vec::new() };
    let mut rows = Vec::new();
    for theirs in outcome.indexes.iter().filter(|m| m.name != "kvatlas") {
        event_rows(outcome, ours, theirs, &mut rows);
        lookup_rows(outcome, ours, theirs, &mut rows);
        memory_rows(outcome, ours, theirs, &mut rows);
    }
    rows.push(growth(outcome, ours));
    rows.extend(tail(outcome, ours));
    rows
}

fn event_rows(outcome: &Outcome, ours: &Measured, theirs: &Measured, rows: &mut Vec<Row>) {
    let gates = Gates::of(outcome);
    let gated = theirs.name == "kv-index";
    for class in ["first", "join", "mixed", "append", "remove", "whole"] {
        let (Some(a), Some(b)) = (ours.ns_per_block(class), theirs.ns_per_block(class)) else { continue };
        let Some(ratio) = theirs.ratio(ours, class) else { continue };
        let gate = gates.class(class).filter(|_| gated);
        rows.push(Row::new(&outcome.cell, class, theirs.name, (a.value, b.value), ratio, gate));
    }
    let fill = (ours.fill_ns_per_block(), theirs.fill_ns_per_block());
    rows.push(Row::plain(&outcome.cell, "fill", theirs.name, fill, gates.fill().filter(|_| gated)));
}

fn lookup_rows(outcome: &Outcome, ours: &Measured, theirs: &Measured, rows: &mut Vec<Row>) {
    let kinds = [("lookup", &ours.lookups, &theirs.lookups), ("busy lookup", &ours.busy_lookups, &theirs.busy_lookups)];
    for (what, a, b) in kinds {
        for (share, name) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
            if a.is_empty() || b.is_empty() {
                continue;
            }
            let (x, y) = (lookup_quantile(a, share), lookup_quantile(b, share));
            let per = |theirs: f64, ours: f64| theirs / ours.max(1.0);
            let ratio = Estimate { value: per(y.value, x.value), low: per(y.low, x.high), high: per(y.high, x.low) };
            let gate = match (theirs.name, what, name) {
                ("kv-index", "lookup", "p50") if outcome.parameters.block_tokens == 128 => Some(2.0),
                ("kv-index", "lookup", "p50") => Some(1.6),
                ("kv-index", "busy lookup", "p50") => Some(1.5),
                ("kv-index", _, "p99") if outcome.parameters.block_tokens == 1 => Some(1.0),
                ("kv-index", _, "p99") => Some(1.2),
                ("crtc", "lookup", "p50") => Some(6.0),
                ("crtc", "lookup", "p99") => Some(3.0),
                _ => None,
            };
            rows.push(Row::new(&outcome.cell, &format!("{what} {name}"), theirs.name, (x.value, y.value), ratio, gate));
        }
    }
}

fn memory_rows(outcome: &Outcome, ours: &Measured, theirs: &Measured, rows: &mut Vec<Row>) {
    let gates = Gates::of(outcome);
    let each = |measured: &Measured| measured.bytes as f64 / outcome.memberships.max(1) as f64;
    // Of kv-index the smaller figure counts: its arena is allocated in large chunks that it has not used up.
    let least = each(theirs).min(
        theirs
            .own_bytes
            .filter(|_| theirs.name == "kv-index")
            .map_or(f64::MAX, |bytes| bytes as f64 / outcome.memberships.max(1) as f64),
    );
    let gate = match theirs.name {
        "kv-index" => gates.memory(),
        "crtc" if gates.same => gates.by_sharing(10.0, 4.0),
        _ => None,
    };
    rows.push(Row::plain(&outcome.cell, "bytes a membership", theirs.name, (each(ours), least), gate));
}

/// Growth of tables inside a full-size store: at most 100 us in 9,999 of 10,000.
fn growth(outcome: &Outcome, ours: &Measured) -> Row {
    let mut times = ours.fill_store_ns.clone();
    let figure = quantile(&mut times, 0.9999);
    let largest = quantile(&mut times, 1.0);
    let what = format!("full store while filling p99.99 (largest {:.0} us)", largest / 1000.0);
    let gate = (outcome.parameters.store_blocks_max <= 64).then_some(1.0);
    Row::plain(&outcome.cell, &what, "100 us", (figure, 100_000.0), gate)
}

/// The tail of lookups beside a writer: p99.9 at most twice p99.
fn tail(outcome: &Outcome, ours: &Measured) -> Option<Row> {
    if ours.busy_lookups.is_empty() {
        return None;
    }
    let at = |share| lookup_quantile(&ours.busy_lookups, share).value;
    Some(Row::plain(&outcome.cell, "busy lookup p99.9", "2 x p99", (at(0.999), 2.0 * at(0.99)), Some(1.0)))
}

/// Prints rows as a table.
pub fn print(rows: &[Row]) {
    println!("{:<44} {:<9} {:>10} {:>10} {:>20} {:>6}", "what", "against", "ours", "theirs", "ratio [95 %]", "gate");
    for row in rows {
        let ratio = format!("{:.2} [{:.2}, {:.2}]", row.ratio.value, row.ratio.low, row.ratio.high);
        let gate = row.gate.map_or(String::new(), |gate| format!("{gate:.2}"));
        let passed = row.passed.map_or("", |passed| if passed { "  ok" } else { "  SHORT" });
        println!(
            "{:<44} {:<9} {:>10.1} {:>10.1} {:>20} {:>6}{passed}",
            row.what, row.rival, row.ours, row.theirs, ratio, gate
        );
    }
}
