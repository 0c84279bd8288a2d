//! The gates that a measured figure has to pass.

use super::measured::{Compared, Measured, Outcome};
use crate::histogram::Histogram;
use crate::sampling::Estimate;
use kvatlas_corpora::Names;
use serde::{Deserialize, Serialize};

/// How our index is named when its lane sees the queue and asks for memory ahead.
const AHEAD: &str = "kvatlas-ahead";
/// Ours, on huge pages from the first touch on.
const HUGE: &str = "kvatlas-huge";
/// Ours, on small pages only.
const SMALL_PAGES: &str = "kvatlas-small-pages";
/// All that are ours, which are no rivals.
const OURS: [&str; 4] = ["kvatlas", AHEAD, HUGE, SMALL_PAGES];
/// What the rows of [`SMALL_PAGES`] end with. They have no gate; there is one for each figure that has a gate where pages are
/// those of the service.
pub(super) const ON_SMALL_PAGES: &str = ", small pages";
/// Blocks of a store in which growth of tables has a gate.
const GROWTH_BLOCKS: u32 = 64;

/// One line of the table: a figure of ours, of a rival, how often ours goes into the rival's, and what it has to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The cell.
    pub cell: String,
    /// What was measured.
    pub what: String,
    /// Whom it is compared with.
    pub rival: String,
    /// Our figure.
    pub ours: f64,
    /// The other one.
    pub theirs: f64,
    /// Theirs by ours.
    pub ratio: Estimate,
    /// Ratio to reach; none where the row is shown only.
    pub gate: Option<f64>,
    /// Whether it is reached.
    pub passed: Option<bool>,
}

impl Row {
    /// A row with its interval.
    pub fn new(
        cell: &str,
        what: &str,
        rival: &str,
        (ours, theirs): (f64, f64),
        ratio: Estimate,
        gate: Option<f64>,
    ) -> Self {
        let passed = gate.map(|gate| ratio.value >= gate);
        Self {
            cell: cell.to_owned(),
            what: what.to_owned(),
            rival: rival.to_owned(),
            ours,
            theirs,
            ratio,
            gate,
            passed,
        }
    }

    /// A row of two figures that are counted and not timed.
    pub fn plain(cell: &str, what: &str, rival: &str, figures: (f64, f64), gate: Option<f64>) -> Self {
        let ratio = Estimate::exactly(figures.1 / figures.0.max(1e-9));
        Self::new(cell, what, rival, figures, ratio, gate)
    }
}

impl Compared {
    fn row(&self, cell: &str, what: &str, rival: &str, gate: Option<f64>) -> Row {
        Row::new(cell, what, rival, (self.ours, self.theirs), self.ratio, gate)
    }
}

/// What the gates of a cell depend on.
struct Gates {
    high: bool,
    low: bool,
    same: bool,
    tokens: u32,
    one_hash: bool,
    best_fill: bool,
}

impl Gates {
    fn of(outcome: &Outcome) -> Self {
        let parameters = &outcome.parameters;
        Self {
            // With one-token blocks "high" has two or three holders a block: what is asked of 14 is not asked there.
            high: outcome.cell.starts_with("high") && parameters.block_tokens > 1,
            low: outcome.cell.starts_with("low") || (outcome.cell.starts_with("high") && parameters.block_tokens == 1),
            same: parameters.names == Names::Same,
            tokens: parameters.block_tokens,
            one_hash: parameters.removal_names_max == 1,
            best_fill: outcome.cell.ends_with("best-fill"),
        }
    }

    /// One value for high and one for low sharing.
    fn by_sharing(&self, high: f64, low: f64) -> Option<f64> {
        if self.high { Some(high) } else { self.low.then_some(low) }
    }

    fn class(&self, class: &str) -> Option<f64> {
        match (class, self.same) {
            ("join", true) => self.by_sharing(5.0, 2.2),
            ("join", false) if self.tokens == 128 => Some(1.0),
            ("join", false) if self.tokens == 16 => Some(0.85),
            ("first", _) if self.tokens == 128 => Some(1.1),
            ("first", _) if self.tokens == 16 => Some(1.0),
            ("remove", true) if self.one_hash => self.by_sharing(4.5, 1.7),
            ("remove", true) => self.by_sharing(4.0, 1.5),
            ("remove", false) if self.one_hash => Some(1.4),
            // With one-token blocks a whole answer is one append.
            ("append", _) if self.tokens > 1 => Some(if self.low { 0.7 } else { 1.0 }),
            ("whole", false) => Some(1.2),
            _ => None,
        }
    }

    /// What is asked where the lane sees its queue, where that is more.
    fn class_ahead(&self, class: &str) -> Option<f64> {
        match (class, self.same) {
            ("join", true) if self.low => Some(4.0),
            ("remove", true) if self.low => Some(if self.one_hash { 3.0 } else { 1.9 }),
            ("remove", false) if self.one_hash => Some(2.8),
            ("append", _) if self.tokens > 1 => Some(1.0),
            _ => None,
        }
    }

    fn fill(&self) -> Option<f64> {
        if self.same { self.by_sharing(3.0, 0.9) } else { Some(0.6) }
    }

    fn memory(&self) -> Option<f64> {
        match (self.same, self.best_fill) {
            (true, false) => self.by_sharing(8.0, 1.75),
            (true, true) => self.by_sharing(7.0, 1.5),
            (false, false) => self.by_sharing(1.6, 1.75),
            (false, true) => self.by_sharing(1.1, 1.35),
        }
    }

    fn lookup(&self, rival: &str, kind: &str, share: &str) -> Option<f64> {
        match (rival, kind, share) {
            ("kv-index", "steady lookup", "p50") => Some(if self.tokens == 128 { 2.0 } else { 1.6 }),
            ("kv-index", "busy lookup", "p50") => Some(1.5),
            ("kv-index", _, "p99") => Some(if self.tokens == 1 { 1.0 } else { 1.2 }),
            ("crtc", "steady lookup", "p50") => Some(6.0),
            ("crtc", "steady lookup", "p99") => Some(3.0),
            _ => None,
        }
    }
}

/// Every row of a churn cell.
pub fn rows(outcome: &Outcome) -> Vec<Row> {
    let of_name = |name: &str| outcome.indexes.iter().find(|measured| measured.name == name);
    let Some(ours) = of_name("kvatlas") else { return Vec::new() };
    let gates = Gates::of(outcome);
    let mut rows = Vec::new();
    for theirs in outcome.indexes.iter().filter(|measured| !OURS.contains(&measured.name.as_str())) {
        event_rows(outcome, &gates, (ours, theirs), &mut rows);
        lookup_rows(outcome, &gates, (ours, theirs), &mut rows);
        memory_rows(outcome, &gates, (ours, theirs), &mut rows);
    }
    if let (Some(ahead), Some(theirs)) = (of_name(AHEAD), of_name("kv-index")) {
        ahead_rows(outcome, &gates, (ahead, theirs), &mut rows);
    }
    if let (Some(huge), Some(theirs)) = (of_name(HUGE), of_name("kv-index")) {
        rows.extend(on_other_pages(outcome, &gates, (huge, theirs), ", huge pages"));
    }
    if let (Some(small), Some(theirs)) = (of_name(SMALL_PAGES), of_name("kv-index")) {
        let reported = on_other_pages(outcome, &gates, (small, theirs), ON_SMALL_PAGES);
        let reported = reported.into_iter().filter(|row| row.gate.is_some());
        rows.extend(reported.map(|row| Row { gate: None, passed: None, ..row }));
    }
    rows.extend(growth(outcome, ours));
    rows.extend(tail(outcome, ours));
    rows
}

/// The rows of ours on other pages than the service's.
fn on_other_pages(outcome: &Outcome, gates: &Gates, pair: (&Measured, &Measured), pages: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    event_rows(outcome, gates, pair, &mut rows);
    lookup_rows(outcome, gates, pair, &mut rows);
    memory_rows(outcome, gates, pair, &mut rows);
    rows.iter_mut().for_each(|row| row.what.push_str(pages));
    rows
}

/// Classes of events, and all of them.
const CLASSES: [&str; 6] = ["first", "join", "mixed", "append", "remove", "whole"];

fn event_rows(outcome: &Outcome, gates: &Gates, (ours, theirs): (&Measured, &Measured), rows: &mut Vec<Row>) {
    let mut put = |what: &str, compared: Option<Compared>, gate: Option<f64>| {
        rows.extend(compared.map(|found| found.row(&outcome.cell, what, &theirs.name, gate)))
    };
    let rival = theirs.name == "kv-index";
    for class in CLASSES {
        put(class, Compared::class(ours, theirs, class), gates.class(class).filter(|_| rival));
    }
    put("fill", Compared::fill(ours, theirs), gates.fill().filter(|_| rival));
    let gate = (gates.same && !gates.one_hash && theirs.name != "control").then_some(2.0);
    put("events beside lookups", Compared::busy_events(ours, theirs), gate);
}

/// Events where our lane sees its queue.
fn ahead_rows(outcome: &Outcome, gates: &Gates, (ahead, theirs): (&Measured, &Measured), rows: &mut Vec<Row>) {
    for class in CLASSES {
        let what = format!("{class}, looking ahead");
        let found = Compared::class(ahead, theirs, class);
        rows.extend(found.map(|found| found.row(&outcome.cell, &what, &theirs.name, gates.class_ahead(class))));
    }
}

fn lookup_rows(outcome: &Outcome, gates: &Gates, (ours, theirs): (&Measured, &Measured), rows: &mut Vec<Row>) {
    let kinds = [
        ("steady lookup", &ours.steady_lookups, &theirs.steady_lookups),
        ("cold lookup", &ours.cold_lookups, &theirs.cold_lookups),
        ("busy lookup", &ours.busy_lookups, &theirs.busy_lookups),
    ];
    for (kind, a, b) in kinds {
        for (share, name) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
            let Some(found) = Compared::lookups(a, b, share) else { continue };
            let (gate, what) = (gates.lookup(&theirs.name, kind, name), format!("{kind} {name}"));
            rows.push(found.row(&outcome.cell, &what, &theirs.name, gate));
        }
    }
}

fn memory_rows(outcome: &Outcome, gates: &Gates, (ours, theirs): (&Measured, &Measured), rows: &mut Vec<Row>) {
    let each = |bytes: u64| bytes as f64 / outcome.memberships.max(1) as f64;
    // Of kv-index the smaller figure counts: its arena is allocated in large chunks that it has not used up.
    let own = theirs.own_bytes.filter(|_| theirs.name == "kv-index").unwrap_or(u64::MAX);
    let gate = match theirs.name.as_str() {
        "kv-index" => gates.memory(),
        "crtc" if gates.same => gates.by_sharing(10.0, 4.0),
        _ => None,
    };
    let figures = (each(ours.bytes), each(theirs.bytes.min(own)));
    rows.push(Row::plain(&outcome.cell, "bytes a membership", &theirs.name, figures, gate));
}

/// Growth of tables inside a full-size store: its work is at most 100 us in 9,999 of 10,000. With what the system took away, too.
fn growth(outcome: &Outcome, ours: &Measured) -> Vec<Row> {
    let gate = (outcome.parameters.store_blocks_max <= GROWTH_BLOCKS).then_some(1.0);
    let row = |(what, times, gate): (&str, &Histogram, Option<f64>)| {
        let us = times.quantile(0.9999) / 1000.0;
        Row::plain(&outcome.cell, what, "100 us", (us, 100.0), gate)
    };
    [
        ("full store while filling p99.99, us of work", &ours.fill_stores_worked, gate),
        ("full store while filling p99.99, us", &ours.fill_stores, None),
    ]
    .into_iter()
    .filter(|(_, times, _)| !times.is_empty())
    .map(row)
    .collect()
}

/// The tail of lookups beside a writer: p99.9 at most twice p99.
fn tail(outcome: &Outcome, ours: &Measured) -> Option<Row> {
    let at = |share| crate::histogram::quantile_over(&ours.busy_lookups, share).value;
    let figures = (at(0.999), 2.0 * at(0.99));
    let row = || Row::plain(&outcome.cell, "busy lookup p99.9", "2 x p99", figures, Some(1.0));
    (!ours.busy_lookups.is_empty()).then(row)
}

/// Prints rows as a table.
pub fn print(rows: &[Row]) {
    println!("{:<36} {:<9} {:>10} {:>10} {:>20} {:>6}", "what", "against", "ours", "theirs", "ratio [95 %]", "gate");
    for row in rows {
        let ratio = format!("{:.2} [{:.2}, {:.2}]", row.ratio.value, row.ratio.low, row.ratio.high);
        let gate = row.gate.map_or(String::new(), |gate| format!("{gate:.2}"));
        let passed = row.passed.map_or("", |passed| if passed { "  ok" } else { "  SHORT" });
        println!(
            "{:<36} {:<9} {:>10.1} {:>10.1} {:>20} {:>6}{passed}",
            row.what, row.rival, row.ours, row.theirs, ratio, gate
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_corpora::{Parameters, Sharing};

    fn gates(cell: &str, change: impl FnOnce(&mut Parameters)) -> Gates {
        let names = if cell.contains("random") { Names::Random } else { Names::Same };
        let tokens = cell.split('-').nth(2).and_then(|tokens| tokens.parse().ok()).unwrap();
        let mut parameters = Parameters::standard(tokens, Sharing::High, names);
        change(&mut parameters);
        let cell = cell.to_owned();
        let outcome =
            Outcome { cell, parameters, holders_per_block: 1.0, memberships: 1, distinct: 1, indexes: Vec::new() };
        Gates::of(&outcome)
    }

    #[test]
    fn names_of_a_workers_own_have_gates_of_their_own() {
        let same = gates("low-same-128", |_| {});
        assert_eq!((same.class("remove"), same.class("join"), same.class("whole")), (Some(1.5), Some(2.2), None));
        let random = gates("low-random-128", |_| {});
        assert_eq!((random.class("remove"), random.class("join"), random.class("whole")), (None, Some(1.0), Some(1.2)));
        assert_eq!((random.fill(), random.memory()), (Some(0.6), Some(1.75)));
        assert_eq!(gates("low-random-16", |_| {}).class("join"), Some(0.85));
        let one = gates("high-random-128-one", |p| p.removal_names_max = 1);
        assert_eq!((one.class("remove"), one.memory()), (Some(1.4), Some(1.6)));
        assert_eq!(gates("high-random-128-best-fill", |_| {}).memory(), Some(1.1));
    }

    #[test]
    fn an_index_that_sees_its_queue_is_asked_for_more() {
        let low = gates("low-same-128", |_| {});
        assert_eq!(
            ["join", "remove", "append", "first"].map(|class| low.class_ahead(class)),
            [Some(4.0), Some(1.9), Some(1.0), None]
        );
        assert_eq!(gates("high-same-128", |_| {}).class_ahead("join"), None);
        assert_eq!(gates("low-random-128-one", |p| p.removal_names_max = 1).class_ahead("remove"), Some(2.8));
    }

    #[test]
    fn ours_on_small_pages_is_reported_and_asked_for_nothing() {
        let parameters = Parameters::standard(128, Sharing::High, Names::Same);
        let cell = String::from("high-same-128");
        let named = |name: &str| Measured { name: name.to_owned(), bytes: 1, ..Measured::default() };
        let indexes = ["kvatlas", SMALL_PAGES, "kv-index"].map(named).into();
        let outcome = Outcome { cell, parameters, holders_per_block: 1.0, memberships: 1, distinct: 1, indexes };
        let rows = rows(&outcome);
        assert!(rows.iter().all(|row| row.rival != SMALL_PAGES));
        let gate = |what: &str| rows.iter().find(|row| row.what == what).map(|row| row.gate);
        assert_eq!(gate("bytes a membership"), Some(Some(8.0)));
        assert_eq!(gate("bytes a membership, small pages"), Some(None));
    }

    #[test]
    fn growth_has_a_gate_where_stores_have_64_blocks() {
        let measured = Measured {
            name: "kvatlas".to_owned(),
            fill_stores: [200_000.0].into_iter().collect(),
            fill_stores_worked: [50_000.0].into_iter().collect(),
            ..Measured::default()
        };
        for (tokens, gate) in [(128, Some(1.0)), (16, None)] {
            let parameters = Parameters::standard(tokens, Sharing::High, Names::Same);
            let cell = String::from("high-same");
            let outcome =
                Outcome { cell, parameters, holders_per_block: 1.0, memberships: 1, distinct: 1, indexes: Vec::new() };
            let [work, with_the_system] = &growth(&outcome, &measured)[..] else { panic!("two rows") };
            assert_eq!((work.gate, work.passed, with_the_system.gate), (gate, gate.map(|_| true), None));
        }
    }
}
