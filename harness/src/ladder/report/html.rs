//! One HTML page without any outside file: the ladder plotted, the same in tables, and where it comes from.

use super::svg::{Axes, Bar, Line, STYLES, bars, escape, lines, marker, round, time};
use super::table::{done, latencies};
use super::{Report, figure};
use crate::indexers::Choice;
use crate::ladder::campaign::amount;
use crate::ladder::statistics::{Interval, ratio};
use crate::ladder::trial::TrialResult;
use kvatlas_benches::provenance::Provenance;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
const OFFERED: &str = "offered, block operations/s";

type Figure = fn(&TrialResult) -> f64;

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut body = String::new();
    head(&mut body, report);
    rates(&mut body, report);
    ladder(&mut body, report);
    times(&mut body, report);
    tables(&mut body, report);
    counters(&mut body, report);
    method(&mut body);
    provenance(&mut body, &report.provenance, report.took_s);
    framed("throughput ladder", &body)
}

/// A page around a body.
pub(super) fn framed(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>KV Atlas: {title}</title><style>{STYLE}</style></head>\
         <body><main>{body}</main></body></html>\n"
    )
}

/// The heading of a page, and what was replayed for it.
pub(super) fn begin(body: &mut String, title: &str, replayed: &str) {
    let _ = write!(body, "<h1>{}</h1><p class=\"soft\">{}.</p>", escape(title), escape(replayed));
}

/// A chart under its title.
pub(super) fn card(body: &mut String, title: &str, chart: &str) {
    let _ = write!(body, "<div class=\"card\"><h3>{}</h3>{chart}</div>", escape(title));
}

fn style_of(report: &Report, indexer: Choice) -> usize {
    report.plan.indexers.iter().position(|&i| i == indexer).unwrap_or(0) % (STYLES - 1)
}

fn head(body: &mut String, report: &Report) {
    let (layout, plan) = (&report.layout_name, &report.plan);
    let measured = format!(
        "layout {layout} ({}); {} trials an arm, windows of {} ms",
        plan.layout.about, plan.trials, plan.window_ms
    );
    begin(body, "Throughput ladder", &format!("{}; {measured}", report.corpus.told()));
    for warning in report.warnings() {
        let _ = write!(body, "<p class=\"warn\">{}</p>", escape(&warning));
    }
    let (replaced, kept) = report.disturbed();
    let _ = write!(
        body,
        "<p class=\"soft\">{} trials count; {replaced} with a disturbed core were replaced, {kept} kept. ",
        report.usable()
    );
    match report.checked() {
        Some((prompts, differing)) => {
            let _ = write!(body, "{prompts} sampled answers were compared with the oracle: {differing} differ.</p>");
        }
        None => body.push_str("Answers were not compared with the oracle in this run.</p>"),
    }
    body.push_str("<div class=\"legend\">");
    for &indexer in &report.plan.indexers {
        let style = style_of(report, indexer);
        let _ = write!(
            body,
            "<span><svg viewBox=\"0 0 30 12\"><line class=\"line s{style}\" x1=\"0\" y1=\"6\" x2=\"30\" y2=\"6\"/><g class=\"mark \
             s{style}\">{}</g></svg>{}</span>",
            marker(style, 15.0, 6.0),
            escape(indexer.name())
        );
    }
    body.push_str("</div>");
}

fn rates(body: &mut String, report: &Report) {
    let sustained: Vec<Bar> = report
        .measured
        .sustained
        .iter()
        .map(|s| Bar {
            name: s.indexer.name().to_owned(),
            style: style_of(report, s.indexer),
            value: Interval::exactly(s.found.sustained as f64),
            told: format!("{}/s, {}", amount(s.found.sustained as f64), s.told()),
        })
        .collect();
    let first = report.measured.capacity.arms.first().map(|a| a.samples(|t| t.completed_rate)).unwrap_or_default();
    let peak: Vec<Bar> = report
        .measured
        .capacity
        .arms
        .iter()
        .filter_map(|arm| {
            let value = figure(arm, |t| t.completed_rate)?;
            let quotient = ratio(&first, &arm.samples(|t| t.completed_rate));
            let quotient = quotient.map_or(String::new(), |q| format!(" (first is {:.2}x)", q.median));
            let style = if arm.control { STYLES - 1 } else { style_of(report, arm.indexer) };
            Some(Bar { name: arm.name(), style, value, told: format!("{}/s{quotient}", amount(value.median)) })
        })
        .collect();
    let _ = write!(
        body,
        "<h2>Sustained and peak rates</h2><p class=\"soft\">Block operations a second: hashes requested, stored and removed. \
         Sustained: at least 99% of what was offered was done, drain included, in three fresh processes; bracketed and bisected \
         to 10%. Peak: everything offered at once; median and 95% bootstrap interval, with the first indexer's multiple of this one. A/A is the first indexer once more: its \
         distance from the first bar is noise.</p><div class=\"grid2\"><div class=\"card\"><h3>Sustained</h3>{}</div><div \
         class=\"card\"><h3>Peak</h3>{}</div></div>",
        bars("sustained block operations a second", &sustained),
        bars("peak block operations a second", &peak),
    );
}

/// One line for each indexer: a figure at every load.
fn by_load(report: &Report, of: Figure) -> Vec<Line> {
    let line = |&indexer: &Choice| {
        let point = |rung: &crate::ladder::campaign::Rung| {
            let arm = rung.arms.iter().find(|a| a.indexer == indexer && !a.control)?;
            Some((rung.rate as f64, figure(arm, of)?))
        };
        let points = report.measured.rungs.iter().filter_map(point).collect();
        Line { name: indexer.name().to_owned(), style: style_of(report, indexer), points }
    };
    report.plan.indexers.iter().map(line).collect()
}

fn chart(body: &mut String, report: &Report, title: &str, axes: Axes<'_>, of: Figure) {
    card(body, title, &lines(&axes, &by_load(report, of)));
}

fn ladder(body: &mut String, report: &Report) {
    body.push_str(
        "<h2>The ladder</h2><p class=\"soft\">Each point is a series at one load. On the dotted diagonal everything offered was \
         done in the window.</p><div class=\"grid2\">",
    );
    let rate = |y, diagonal| Axes { x: OFFERED, y, diagonal, show: round };
    chart(body, report, "Done against offered", rate("done, block operations/s", true), |t| t.completed_rate);
    chart(body, report, "Work of events", rate("event blocks / CPU second", false), |t| t.event_block_ops_per_cpu_s);
    body.push_str("</div>");
}

fn times(body: &mut String, report: &Report) {
    const CHARTS: [(&str, [Figure; 3]); 4] = [
        (
            "Lookup service time",
            [|t| t.lookups.service.p50 as f64, |t| t.lookups.service.p99 as f64, |t| t.lookups.service.p999 as f64],
        ),
        (
            "Lookup queue wait",
            [
                |t| t.lookups.queue_wait.p50 as f64,
                |t| t.lookups.queue_wait.p99 as f64,
                |t| t.lookups.queue_wait.p999 as f64,
            ],
        ),
        (
            "Lookup, scheduled to done",
            [
                |t| t.lookups.scheduled_to_done.p50 as f64,
                |t| t.lookups.scheduled_to_done.p99 as f64,
                |t| t.lookups.scheduled_to_done.p999 as f64,
            ],
        ),
        (
            "Event lag, scheduled to applied",
            [
                |t| t.events.scheduled_to_done.p50 as f64,
                |t| t.events.scheduled_to_done.p99 as f64,
                |t| t.events.scheduled_to_done.p999 as f64,
            ],
        ),
    ];
    body.push_str(
        "<h2>Times by load</h2><p class=\"soft\">Service: from taken by a lane to done. Wait: from the schedule to taken. All \
         times count from the schedule, never from the send: a lane that falls behind is charged for everybody who waits.</p>",
    );
    for (title, figures) in CHARTS {
        body.push_str("<div class=\"grid3\">");
        for (quantile, of) in ["p50", "p99", "p99.9"].into_iter().zip(figures) {
            let axes = Axes { x: OFFERED, y: "time", diagonal: false, show: time };
            chart(body, report, &format!("{title}, {quantile}"), axes, of);
        }
        body.push_str("</div><br>");
    }
}

fn tables(body: &mut String, report: &Report) {
    body.push_str(
        "<h2>The same as a table</h2><div class=\"card scroll\"><table><thead><tr><th class=\"left\">indexer</th><th>done</th>\
         <th>service p50</th><th>p99</th><th>p99.9</th><th>wait p50</th><th>p99</th><th>p99.9</th><th>to done \
         p50</th><th>p99</th><th>p99.9</th><th>event lag p99</th><th>trials</th><th>replaced</th><th>kept disturbed</th></tr></thead><tbody>",
    );
    for rung in &report.measured.rungs {
        let _ = write!(body, "<tr class=\"load\"><td colspan=\"15\">offered {}/s</td></tr>", amount(rung.rate as f64));
        for arm in &rung.arms {
            let tally = [arm.tally.usable, arm.tally.replaced, arm.tally.kept_disturbed].map(|n| n.to_string());
            let cells = [vec![done(rung, arm)], latencies(arm), tally.to_vec()].concat();
            let cells: String = cells.iter().map(|c| format!("<td>{}</td>", escape(c))).collect();
            let _ = write!(body, "<tr><td>{}</td>{cells}</tr>", escape(&arm.name()));
        }
    }
    body.push_str("</tbody></table></div>");
}

/// What the indexers said about themselves, at their peak.
fn counters(body: &mut String, report: &Report) {
    body.push_str(
        "<h2>What the indexers count</h2><p class=\"soft\">Figures of their own after a trial of the peak series, and how much of \
         it came while measuring; medians. Waits, retries and lines written for each block say how work would spread over more \
         cores than there are here.</p><div class=\"card scroll\"><table><thead><tr><th class=\"left\">indexer</th><th \
         class=\"left\">figure</th><th>value</th><th>in the window</th><th>for each block operation</th></tr></thead><tbody>",
    );
    for arm in report.measured.capacity.arms.iter().filter(|a| !a.control) {
        let Some(last) = arm.trials.last() else { continue };
        for (name, (value, change)) in &last.figures {
            let each = *change as f64 / last.done.total().max(1) as f64;
            let _ = write!(
                body,
                "<tr><td>{}</td><td class=\"left\">{}</td><td>{}</td><td>{}</td><td>{each:.2e}</td></tr>",
                escape(arm.indexer.name()),
                escape(name),
                amount(*value as f64),
                amount(*change as f64)
            );
        }
    }
    body.push_str("</tbody></table></div>");
}

fn method(body: &mut String) {
    body.push_str(
        "<h2>How it was measured</h2><p>Every trial is a fresh process of one binary. The indexer is filled until the mock caches \
         are full; then issuers on cores of their own hand over each operation at its absolute deadline, sleeping first and \
         spinning at the end. They wait for deadlines only, never for an answer, so no pause of a lane can hide behind requests \
         that were not sent. Queues are bounded; an overflow makes the trial invalid. A trial is valid when its issue span is at \
         most 1.01 of the window.</p><p>A lane is charged for reading the operation's hashes from the tape (they are not in its \
         caches), for the call, and for two readings of the clock. It writes down two times an operation; histograms are made \
         after the window. Lookups go into a reused buffer. Trials in which a pinned thread stood in its core's run queue, lost \
         time to the hypervisor, or paused while it spun, are replaced and counted. Arms take turns, and another one begins each \
         round.</p>",
    );
}

/// Where a page's figures come from.
pub(super) fn provenance(body: &mut String, p: &Provenance, took_s: f64) {
    let rows = [
        ("command", format!("<code>{}</code>", escape(&p.command.join(" ")))),
        ("command SHA-256", format!("<code>{}</code>", p.command_sha256)),
        ("binary", format!("kvatlas-harness {}, SHA-256 <code>{}</code>", escape(&p.version), p.binary_sha256)),
        ("commit", format!("<code>{}</code>", escape(&p.commit))),
        ("corpus SHA-256", format!("<code>{}</code>", p.corpus_sha256)),
        ("machine", escape(&p.machine.line())),
        ("load average before", escape(p.machine.load_average.as_deref().unwrap_or("unknown"))),
        ("begun", format!("{} s after 1970-01-01 UTC, took {took_s:.0} s", p.begun_unix_s)),
    ];
    body.push_str("<h2>Where it comes from</h2><div class=\"card\"><dl>");
    for (name, value) in rows {
        let _ = write!(body, "<dt>{name}</dt><dd>{value}</dd>");
    }
    body.push_str("</dl></div>");
}
