//! Pages of the modes beside the ladder: what was found as charts, the terminal's table, and where it comes from.

use super::html::{begin, card, framed, provenance};
use super::svg::{Axes, Bar, Line, STYLES, bars, escape, lines, round, time};
use crate::ladder::campaign::amount;
use crate::ladder::churn::{self, ChurnResult, Sample, Side};
use crate::ladder::corpus::CorpusFacts;
use crate::ladder::exact::{self, ExactResult};
use crate::ladder::memory::{self, MemoryResult};
use crate::ladder::statistics::Interval;
use comfy_table::{Row, Table};
use kvatlas_benches::provenance::Provenance;
use kvatlas_corpora::Parameters;
use serde::Serialize;
use std::fmt::Write;

/// What a mode found, and where it comes from.
#[derive(Debug, Serialize)]
pub struct Findings<C, R> {
    /// Where it comes from.
    pub provenance: Provenance,
    /// What was replayed.
    pub corpus: C,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// One for each indexer.
    pub results: Vec<R>,
}

/// What churn replays: it is generated on the way, so nothing is known of it before.
#[derive(Debug, Serialize)]
pub struct ChurnFacts {
    /// The parameters in force.
    pub parameters: Parameters,
    /// Where the schedule came from.
    pub schedule: String,
}

/// Findings that have a page of their own.
pub trait Page {
    /// One HTML page without any outside file.
    fn page(&self) -> String;
}

impl Page for Findings<CorpusFacts, MemoryResult> {
    fn page(&self) -> String {
        let mut body = String::new();
        begin(&mut body, "Bytes for each membership", &self.corpus.told());
        let bar = |(i, r): (usize, &MemoryResult)| {
            let parts = format!("heap {}, mapped {}", amount(r.heap_bytes as f64), amount(r.mapped_bytes as f64));
            let told = format!("{:.2} ({parts})", r.per_membership());
            let value = Interval::exactly(r.per_membership());
            Bar { name: r.indexer.name().to_owned(), style: i % (STYLES - 1), value, told }
        };
        let all: Vec<Bar> = self.results.iter().enumerate().map(bar).collect();
        body.push_str(
            "<p class=\"soft\">A membership is one block held by one worker. Charged are heap bytes asked for and not given back, \
             and resident pages of mappings that came with the indexer; each in a fresh process.</p>",
        );
        card(&mut body, "Bytes for each membership", &bars("bytes for each membership", &all));
        as_table(&mut body, &memory::table(&self.results));
        provenance(&mut body, &self.provenance, self.took_s);
        framed("memory", &body)
    }
}

impl Page for Findings<CorpusFacts, ExactResult> {
    fn page(&self) -> String {
        let mut body = String::new();
        begin(&mut body, "Answers against the oracle", &self.corpus.told());
        if !exact::all_exact(&self.results) {
            body.push_str("<p class=\"warn\">Answers differ from the oracle's where none may.</p>");
        }
        let bar = |(i, r): (usize, &ExactResult)| {
            let share = r.checked.differing as f64 / r.checked.prompts.max(1) as f64 * 100.0;
            let value = Interval::exactly(share);
            let told = format!("{} of {} ({share:.2}%)", r.checked.differing, r.checked.prompts);
            Bar { name: r.indexer.name().to_owned(), style: i % (STYLES - 1), value, told }
        };
        let all: Vec<Bar> = self.results.iter().enumerate().map(bar).collect();
        body.push_str(
            "<p class=\"soft\">The same corpus through every indexer and the oracle, compared at drained points.</p>",
        );
        let chart = match all.iter().any(|bar| bar.value.median > 0.0) {
            true => bars("prompts whose answer differs, percent", &all),
            false => "<p class=\"none\">no answer differs</p>".to_owned(),
        };
        card(&mut body, "Prompts whose answer differs, percent", &chart);
        as_table(&mut body, &exact::table(&self.results));
        provenance(&mut body, &self.provenance, self.took_s);
        framed("exactness", &body)
    }
}

impl Page for Findings<ChurnFacts, ChurnResult> {
    fn page(&self) -> String {
        let mut body = String::new();
        let p = &self.corpus.parameters;
        let about = format!(
            "{} workers of {} blocks of {} tokens; {}",
            p.workers, p.blocks_per_worker, p.block_tokens, self.corpus.schedule
        );
        begin(&mut body, "Hours of virtual churn", &about);
        let differing: u64 = self.results.iter().flat_map(|r| &r.samples).map(|s| s.differing).sum();
        if differing > 0 {
            let _ = write!(body, "<p class=\"warn\">{differing} answers differ from a fresh indexer's.</p>");
        }
        body.push_str(
            "<p class=\"soft\">One indexer sees everything; every few hours a fresh one is filled with the same content and both look \
             up the latest prompts, in turn. Where the lines of a chart lie on each other, churn leaves nothing behind.</p>",
        );
        for result in &self.results {
            let _ = write!(body, "<h2>{}</h2><div class=\"grid2\">", escape(result.indexer.name()));
            churn_charts(&mut body, &result.samples);
            body.push_str("</div>");
            as_table(&mut body, &churn::table(result));
        }
        provenance(&mut body, &self.provenance, self.took_s);
        framed("churn", &body)
    }
}

/// A figure of one side of a sample, if the indexer tells it: its name, how it is written, and what it is.
type Figure = (&'static str, fn(f64) -> String, fn(&Sample, &Side) -> Option<f64>);

fn churn_charts(body: &mut String, samples: &[Sample]) {
    const CHARTS: [Figure; 4] = [
        ("Lookup p50", time, |_, side| Some(side.lookup.p50 as f64)),
        ("Lookup p99", time, |_, side| Some(side.lookup.p99 as f64)),
        ("Bytes for each membership", round, |sample, side| {
            Some(*side.figures.get("bytes in use")? as f64 / sample.memberships.max(1) as f64)
        }),
        ("Runs", round, |_, side| Some(*side.figures.get("runs")? as f64)),
    ];
    for (title, show, of) in CHARTS {
        let line = |name: &str, style, side: fn(&Sample) -> &Side| {
            let point = |s: &Sample| Some((s.hours, Interval::exactly(of(s, side(s))?)));
            Line { name: name.to_owned(), style, points: samples.iter().filter_map(point).collect() }
        };
        let both = [line("churned", 0, |s| &s.churned), line("fresh", 1, |s| &s.fresh)];
        let axes = Axes { x: "virtual hours", y: title, diagonal: false, show };
        card(body, &format!("{title}: churned (line), fresh (dashes)"), &lines(&axes, &both));
    }
}

/// The terminal's table as the page's.
fn as_table(body: &mut String, table: &Table) {
    let cells = |row: &Row, tag: &str| -> String {
        row.cell_iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(&cell.content()))).collect()
    };
    let head = table.header().map(|row| cells(row, "th")).unwrap_or_default();
    let rows: String = table.row_iter().map(|row| format!("<tr>{}</tr>", cells(row, "td"))).collect();
    let _ = write!(
        body,
        "<h2>The same as a table</h2><div class=\"card scroll\"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::indexers::Choice;
    use crate::ladder::check::Checked;
    use crate::ladder::measure::Quantiles;
    use kvatlas_corpora::{Names, Sharing};
    use std::collections::BTreeMap;

    fn findings<C, R>(corpus: C, results: Vec<R>) -> Findings<C, R> {
        let provenance = Provenance::of_this_process("none".to_owned(), 2).unwrap();
        Findings { provenance, corpus, took_s: 1.0, results }
    }

    fn corpus() -> CorpusFacts {
        CorpusFacts {
            parameters: Parameters::standard(128, Sharing::High, Names::Same),
            schedule: "a <schedule>".to_owned(),
            memberships: 100,
            holders_per_block: 2.5,
            warm_operations: 10,
            operations: 10,
            block_ops: 200,
        }
    }

    /// A page stands alone, and holds what its mode found.
    fn check(page: &str, holds: &[&str], charts: usize) {
        assert!(page.starts_with("<!doctype html>") && page.contains("Where it comes from"));
        assert!(!page.contains("<schedule>") && page.contains("a &lt;schedule&gt;"));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "the page needs nothing from outside: {outside}");
        }
        assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (charts, charts));
        holds.iter().for_each(|text| assert!(page.contains(text), "{text} in {page}"));
    }

    #[test]
    fn memory_has_a_bar_for_each_indexer() {
        let result = |indexer, heap_bytes| MemoryResult {
            indexer,
            memberships: 100,
            heap_bytes,
            heap_peak_bytes: heap_bytes,
            mapped_bytes: 50,
            resident_growth_bytes: 500,
            figures: BTreeMap::new(),
        };
        let page = findings(corpus(), vec![result(Choice::Kvatlas, 150), result(Choice::Positional, 450)]).page();
        check(&page, &["kvatlas", "positional", "2.00 (heap", "5.00 (heap", "<td>2.50</td>"], 1);
    }

    #[test]
    fn exactness_says_where_none_may_differ_and_some_do() {
        let result = |differing, promised| {
            let checked = Checked { prompts: 200, lines: 900, differing, promised };
            vec![ExactResult { indexer: Choice::Kvatlas, checked, points: 20 }]
        };
        check(&findings(corpus(), result(0, true)).page(), &["no answer differs", "<td>900</td>"], 0);
        let warned = "Answers differ from the oracle";
        check(&findings(corpus(), result(3, true)).page(), &[warned, "3 of 200 (1.50%)"], 1);
        assert!(!findings(corpus(), result(3, false)).page().contains(warned));
    }

    #[test]
    fn churn_shows_both_sides_by_hour() {
        let side = |p50: u64, runs: u64| Side {
            lookup: Quantiles { count: 9, mean: 1.0, p50, p99: 2 * p50, p999: 3 * p50, max: 4 * p50 },
            figures: BTreeMap::from([("runs".to_owned(), runs), ("bytes in use".to_owned(), 1_000 * runs)]),
        };
        let sample = |hours: f64, differing| Sample {
            hours,
            memberships: 100,
            event_block_ops: 1_000,
            churned: side(700, 60),
            fresh: side(500, 40),
            differing,
        };
        let facts = ChurnFacts { parameters: corpus().parameters, schedule: corpus().schedule };
        let result = ChurnResult { indexer: Choice::Kvatlas, samples: vec![sample(3.0, 0), sample(6.0, 2)] };
        let page = findings(facts, vec![result]).page();
        check(&page, &["2 answers differ", "churned at 6", "fresh at 3", "700 ns", "500 ns", "Runs"], 4);
    }
}
