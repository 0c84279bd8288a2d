//! The terminal's table.

use super::svg::time;
use super::{Report, figure};
use crate::ladder::campaign::{Arm, Rung, amount};
use crate::ladder::search::Verdict;
use crate::ladder::statistics::ratio;
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write;

/// A table whose columns but the first are figures.
pub fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header);
    for column in 1..header.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Everything that matters, as text.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let block_ops = amount(report.corpus.block_ops as f64);
    let _ = writeln!(out, "corpus: {}, {block_ops} block operations", report.corpus.told());
    let _ = writeln!(out, "layout {}: {}\n", report.layout_name, report.plan.layout.about);
    let _ = writeln!(out, "{}", summary(report));
    let _ = writeln!(out, "\n{}", loads(report));
    let (replaced, kept) = report.disturbed();
    let _ = writeln!(
        out,
        "\n{} trials count, {replaced} disturbed ones were replaced, {kept} kept; medians of each arm's trials; {:.0} s",
        report.usable(),
        report.took_s
    );
    if let Some((prompts, differing)) = report.checked() {
        let _ = writeln!(out, "compared with the oracle: {prompts} prompts, {differing} differ");
    }
    report.warnings().iter().for_each(|w| {
        let _ = writeln!(out, "NOTE: {w}");
    });
    out
}

/// Sustained and peak rates, with the ratio to the first indexer.
fn summary(report: &Report) -> Table {
    let mut table = plain_table(&[
        "indexer",
        "sustained /s",
        "",
        "peak /s",
        "95% interval",
        "first / this",
        "event blocks / CPU s",
    ]);
    let capacity = &report.measured.capacity.arms;
    let first = capacity.first().map(|arm| arm.samples(|t| t.completed_rate)).unwrap_or_default();
    for arm in capacity {
        let found = report.measured.sustained.iter().find(|s| s.indexer == arm.indexer && !arm.control);
        let peak = figure(arm, |t| t.completed_rate);
        let quotient = ratio(&first, &arm.samples(|t| t.completed_rate));
        let per_cpu = figure(arm, |t| t.event_block_ops_per_cpu_s);
        table.add_row(vec![
            arm.name(),
            found.map_or(String::new(), |s| amount(s.found.sustained as f64)),
            found.map_or(String::new(), |s| s.told()),
            peak.map_or(String::new(), |i| amount(i.median)),
            peak.map_or(String::new(), |i| format!("{} to {}", amount(i.low), amount(i.high))),
            quotient.map_or(String::new(), |q| format!("{:.2} ({:.2} to {:.2})", q.median, q.low, q.high)),
            per_cpu.map_or(String::new(), |i| amount(i.median)),
        ]);
    }
    table
}

fn loads(report: &Report) -> Table {
    let mut table = plain_table(&[
        "offered /s",
        "indexer",
        "done",
        "service p50",
        "p99",
        "p99.9",
        "wait p50",
        "p99",
        "p99.9",
        "to done p50",
        "p99",
        "p99.9",
        "event lag p99",
    ]);
    for rung in &report.measured.rungs {
        for (i, arm) in rung.arms.iter().enumerate() {
            let offered = if i == 0 { amount(rung.rate as f64) } else { String::new() };
            table.add_row([vec![offered, arm.name(), done(rung, arm)], latencies(arm)].concat());
        }
    }
    table
}

/// The part of the offered rate that was done, and whether the trials were valid.
pub fn done(rung: &Rung, arm: &Arm) -> String {
    let share = figure(arm, |t| t.completed_rate).map_or(0.0, |i| i.median / rung.rate.max(1) as f64);
    let late = arm.trials.iter().filter(|t| t.verdict == Verdict::NotOffered).count();
    let mark = if late > 0 { format!(" ({late} not offered)") } else { String::new() };
    format!("{:.1}%{mark}", share * 100.0)
}

/// The columns of times.
pub fn latencies(arm: &Arm) -> Vec<String> {
    let columns: [fn(&crate::ladder::trial::TrialResult) -> u64; 10] = [
        |t| t.lookups.service.p50,
        |t| t.lookups.service.p99,
        |t| t.lookups.service.p999,
        |t| t.lookups.queue_wait.p50,
        |t| t.lookups.queue_wait.p99,
        |t| t.lookups.queue_wait.p999,
        |t| t.lookups.scheduled_to_done.p50,
        |t| t.lookups.scheduled_to_done.p99,
        |t| t.lookups.scheduled_to_done.p999,
        |t| t.events.scheduled_to_done.p99,
    ];
    columns.iter().map(|of| figure(arm, |t| of(t) as f64).map_or(String::new(), |i| time(i.median))).collect()
}
