//! What the demo prints: on a terminal a table that is drawn anew each second, elsewhere one plain line a second.

use super::DemoArgs;
use super::check::Verdict;
use super::client::{View, trust_name};
use super::load::Latencies;
use super::worker::Worker;
use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// The output.
pub struct Screen {
    title: String,
    redraw: bool,
    /// Lines of the last drawing.
    drawn: usize,
    events: u64,
    at: Duration,
}

/// Figures of one second.
struct Figures {
    seconds: u64,
    events_per_s: f64,
    lookups_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    held: u64,
    distinct: u64,
    bytes_per_membership: f64,
}

impl Screen {
    /// Output for this run.
    pub fn new(args: &DemoArgs, service: SocketAddr) -> Self {
        let DemoArgs { workers, seconds, seed, requests, blocks, .. } = args;
        let title = format!(
            "kvatlas demo: {workers} mock workers of {blocks} blocks, {requests} requests/s for {seconds} s, seed {seed}, \
             gRPC at {service}"
        );
        Self { title, redraw: io::stdout().is_terminal(), drawn: 0, events: 0, at: Duration::ZERO }
    }

    /// Says what will run.
    pub fn title(&self) -> io::Result<()> {
        writeln!(io::stdout(), "{}", self.title)
    }

    /// Shows the state after so much time.
    pub fn show(&mut self, at: Duration, view: &View, workers: &[Worker], latencies: Latencies) -> io::Result<()> {
        let events: u64 = workers.iter().map(|w| w.events).sum();
        let period = (at - self.at).as_secs_f64().max(f64::EPSILON);
        let figures = Figures {
            seconds: at.as_secs(),
            events_per_s: (events - self.events) as f64 / period,
            lookups_per_s: latencies.len() as f64 / period,
            p50_us: latencies.value_at_quantile(0.5) as f64 / 1000.0,
            p99_us: latencies.value_at_quantile(0.99) as f64 / 1000.0,
            held: view.status.blocks_held,
            distinct: view.status.blocks_distinct,
            bytes_per_membership: view.status.bytes_live as f64 / view.status.blocks_held.max(1) as f64,
        };
        (self.events, self.at) = (events, at);
        let mut out = io::stdout().lock();
        if !self.redraw {
            return writeln!(out, "{}", plain(&figures, view));
        }
        let drawing = drawing(&figures, view, workers);
        if self.drawn > 0 {
            // Up to where the last drawing began, then clear to the end.
            write!(out, "\x1b[{}A\x1b[J", self.drawn)?;
        }
        self.drawn = drawing.lines().count();
        writeln!(out, "{drawing}")?;
        out.flush()
    }

    /// Shows the end.
    pub fn verdict(&self, verdict: &Verdict, failed: u64) -> io::Result<()> {
        let Verdict { prompts, exact, hits, lines, blocks, .. } = verdict;
        let mut out = io::stdout().lock();
        for words in &verdict.differences {
            writeln!(out, "difference: {words}")?;
        }
        if failed > 0 {
            writeln!(out, "{failed} lookups failed")?;
        }
        writeln!(
            out,
            "compared with the engines' own tables: {blocks} blocks held, {hits} prompts with hits, {lines} lines"
        )?;
        writeln!(out, "exact {exact}/{prompts}")
    }
}

fn plain(f: &Figures, view: &View) -> String {
    format!(
        "{:>4}s  events/s {:>7.0}  blocks {:>8}  distinct {:>8}  bytes/membership {:>6.1}  lookups/s {:>6.0}  p50 {:>5.0} us  \
         p99 {:>5.0} us  trust {}",
        f.seconds,
        f.events_per_s,
        f.held,
        f.distinct,
        f.bytes_per_membership,
        f.lookups_per_s,
        f.p50_us,
        f.p99_us,
        trusts(view),
    )
}

/// How many ranks have which trust.
fn trusts(view: &View) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    view.ranks.values().for_each(|rank| *counts.entry(trust_name(rank)).or_insert(0) += 1);
    counts.iter().map(|(trust, n)| format!("{n} {trust}")).collect::<Vec<_>>().join(", ")
}

fn drawing(f: &Figures, view: &View, workers: &[Worker]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:>4} s   events/s {:.0}   lookups/s {:.0}   p50 {:.0} us   p99 {:.0} us",
        f.seconds, f.events_per_s, f.lookups_per_s, f.p50_us, f.p99_us
    );
    let _ = writeln!(
        text,
        "         blocks {}   distinct {}   bytes/membership {:.1}",
        f.held, f.distinct, f.bytes_per_membership
    );
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["worker", "published", "applied", "events", "trust"]);
    for worker in workers {
        let rank = view.ranks.get(&worker.id);
        let applied = rank.and_then(|r| r.cursor).map_or(0, |cursor| cursor + 1);
        table.add_row([
            worker.id.clone(),
            worker.batches.to_string(),
            applied.to_string(),
            worker.events.to_string(),
            rank.map_or("-", trust_name).to_owned(),
        ]);
    }
    for number in 1..=3 {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = write!(text, "{table}");
    text
}
