//! The whole ladder: capacities, the search for the sustained rates, then a series of trials at every load.

use super::child::{ChildError, Runner};
use super::layout::Layout;
use super::pace::{Arrivals, Offer};
use super::search::{Ended, Found, Search, Verdict};
use super::series::{Series, Tally};
use super::trial::{TrialResult, TrialSpec};
use crate::indexers::{Choice, Form};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::time::Instant;

/// Trials of a search that may be repeated since a core was disturbed, for each rate.
const SEARCH_REPLACEMENTS_MAX: usize = 3;
/// Loads on the ladder, as parts of the slowest indexer's sustained rate.
const LOADS: [f64; 5] = [0.10, 0.25, 0.50, 0.75, 1.00];
/// Above that, loads rise by this.
const LOAD_STEP: f64 = 2.0;
/// An indexer is left out of loads above this much of its own sustained rate.
const OVERLOAD: f64 = 1.5;
/// Loads at most.
const LOADS_MAX: usize = 14;
/// Where time is limited: the part of it after which the capacity series ends.
const CAPACITY_TIME: f64 = 0.25;
/// The part of it after which the searches have ended.
const SEARCH_TIME: f64 = 0.7;
/// Rate that says how much of the tape a capacity trial takes; the trial issues it all at once.
const CAPACITY_PROBE: u64 = 20_000_000;

/// The campaign's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The indexers, in order.
    pub indexers: Vec<Choice>,
    /// Cores.
    pub layout: Layout,
    /// Whether threads are pinned.
    pub pin: bool,
    /// How operations are spread.
    pub arrivals: Arrivals,
    /// Window of a trial.
    pub window_ms: u64,
    /// Usable trials of each arm of a series.
    pub trials: usize,
    /// Disturbed trials that each arm of a series may replace.
    pub replacements_max: usize,
    /// Loads are these parts of the slowest indexer's sustained rate; empty for the usual ones.
    pub loads: Vec<f64>,
    /// How the product's own arm is driven.
    pub form: Form,
    /// Prompts compared with the oracle in every trial.
    pub check_prompts: usize,
    /// Seconds after which nothing new is begun; the parts share them. Without it there is no end.
    pub time_s: Option<f64>,
}

/// One arm of a series: an indexer, or the first indexer once more as a control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// The indexer.
    pub indexer: Choice,
    /// Whether it is the control: the same indexer and binary as the first arm, so every difference is noise.
    pub control: bool,
    /// What became of its trials.
    pub tally: Tally,
    /// The usable trials.
    pub trials: Vec<TrialResult>,
}

impl Arm {
    /// A figure of every usable trial.
    pub fn samples(&self, of: impl Fn(&TrialResult) -> f64) -> Vec<f64> {
        self.trials.iter().map(of).collect()
    }

    /// The name that tables show.
    pub fn name(&self) -> String {
        format!("{}{}", self.indexer.name(), if self.control { " (A/A)" } else { "" })
    }
}

/// A series at one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// Block operations offered in a second; 0 in the capacity series, where all are offered at once.
    pub rate: u64,
    /// The arms.
    pub arms: Vec<Arm>,
}

/// One process of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Offered rate.
    pub rate: u64,
    /// Done in a second, drain included.
    pub completed: f64,
    /// How it did.
    pub verdict: Verdict,
    /// Whether a core was disturbed.
    pub disturbed: bool,
    /// Whether it was repeated for that.
    pub replaced: bool,
}

/// A search and its processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sustain {
    /// The indexer.
    pub indexer: Choice,
    /// What was found.
    pub found: Found,
    /// Every process, in order.
    pub probes: Vec<Probe>,
}

impl Sustain {
    /// How it ended, in words; says so if a disturbed trial decided a rate.
    pub fn told(&self) -> String {
        let decided = |p: &&Probe| p.disturbed && !p.replaced && p.verdict != Verdict::Sustained;
        let disturbed = if self.probes.iter().any(|p| decided(&p)) { ", disturbed" } else { "" };
        // A trial that did not take place has done nothing.
        let short = |p: &Probe| p.verdict == Verdict::NotOffered && p.completed == 0.0;
        let words = match self.found.ended {
            Ended::GeneratorBound
                if self.probes.iter().rfind(|p| p.verdict == Verdict::NotOffered).is_some_and(short) =>
            {
                "at least (corpus too short)"
            }
            other => ended(other),
        };
        format!("{words}{disturbed}")
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// All operations at once: what each indexer does when there is always work.
    pub capacity: Rung,
    /// The sustained rates.
    pub sustained: Vec<Sustain>,
    /// The ladder, by rising load.
    pub rungs: Vec<Rung>,
    /// Whether time was over before everything was measured.
    pub cut_short: bool,
}

/// Hears what the campaign is doing.
pub trait Listener {
    /// A part begins; `trials` is how many it takes, as far as that is known.
    fn part(&self, words: &str, trials: Option<u64>);
    /// A trial ended.
    fn trial(&self, words: &str);
}

/// The time of a campaign.
struct Time {
    begun: Instant,
    all_s: Option<f64>,
    /// Whether anything was told that it is over.
    over: Cell<bool>,
}

impl Time {
    /// Whether this part of the time has passed.
    fn is_over(&self, part: f64) -> bool {
        let over = self.all_s.is_some_and(|all_s| self.begun.elapsed().as_secs_f64() > all_s * part);
        self.over.set(self.over.get() || over);
        over
    }
}

/// Runs a campaign.
pub struct Campaign<'a, R, L> {
    /// Its settings.
    pub plan: &'a Plan,
    /// Where trials are run.
    pub runner: &'a R,
    /// Who hears about it.
    pub listener: &'a L,
}

impl<R: Runner, L: Listener> Campaign<'_, R, L> {
    /// Measures everything.
    pub fn run(&self) -> Result<Measured, ChildError> {
        let time = Time { begun: Instant::now(), all_s: self.plan.time_s, over: Cell::new(false) };
        self.listener.part("capacity", Some((self.arms().len() * self.plan.trials) as u64));
        let at_once = Offer { rate: CAPACITY_PROBE, window_ms: self.plan.window_ms, arrivals: Arrivals::AtOnce };
        let capacity = self
            .series(0, at_once, &self.arms(), &|| time.is_over(CAPACITY_TIME))?
            .unwrap_or(Rung { rate: 0, arms: Vec::new() });
        let mut sustained = Vec::new();
        for (number, &indexer) in self.plan.indexers.iter().enumerate() {
            let part = (number + 1) as f64 / self.plan.indexers.len() as f64;
            let until = CAPACITY_TIME + (SEARCH_TIME - CAPACITY_TIME) * part;
            let arm = capacity.arms.iter().find(|a| a.indexer == indexer && !a.control);
            let samples = arm.map(|a| a.samples(|t| t.completed_rate)).unwrap_or_default();
            let estimate = if samples.is_empty() { 1e6 } else { super::statistics::middle(&samples) };
            sustained.push(self.search(indexer, (estimate * 0.9) as u64, &|| time.is_over(until))?);
        }
        let mut rungs = Vec::new();
        for rate in loads(&self.plan.loads, &sustained) {
            if time.is_over(1.0) {
                break;
            }
            let keeps_up = |indexer: &Choice| {
                let own = sustained.iter().find(|s| s.indexer == *indexer).map_or(0, |s| s.found.sustained);
                rate as f64 <= own as f64 * OVERLOAD
            };
            let arms: Vec<_> = self.arms().into_iter().filter(|(indexer, _)| keeps_up(indexer)).collect();
            self.listener
                .part(&format!("load {}/s", amount(rate as f64)), Some((arms.len() * self.plan.trials) as u64));
            let offer = Offer { rate, window_ms: self.plan.window_ms, arrivals: self.plan.arrivals };
            rungs.extend(self.series(rate, offer, &arms, &|| time.is_over(1.0))?);
        }
        Ok(Measured { capacity, sustained, rungs, cut_short: time.over.get() })
    }

    /// Every indexer, and the first one once more.
    fn arms(&self) -> Vec<(Choice, bool)> {
        let first = self.plan.indexers.first().map(|&indexer| (indexer, true));
        self.plan.indexers.iter().map(|&indexer| (indexer, false)).chain(first).collect()
    }

    fn spec(&self, indexer: Choice, offer: Offer) -> TrialSpec {
        let (layout, pin) = (self.plan.layout.clone(), self.plan.pin);
        TrialSpec { indexer, layout, pin, offer, form: self.plan.form, check_prompts: self.plan.check_prompts }
    }

    /// A series of trials of an offer. `None` when the tape is too short for it.
    fn series(
        &self,
        rate: u64,
        offer: Offer,
        arms: &[(Choice, bool)],
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<Rung>, ChildError> {
        let mut series = Series::new(arms.len(), self.plan.trials, self.plan.replacements_max);
        let mut trials: Vec<Vec<TrialResult>> = vec![Vec::new(); arms.len()];
        while let Some(arm) = series.next() {
            // Every arm has had a turn before time ends a series.
            if trials.iter().all(|of_arm| !of_arm.is_empty()) && is_over() {
                break;
            }
            let Some(result) = self.runner.run(&self.spec(arms[arm].0, offer))? else { return Ok(None) };
            let disturbed = result.disturbance.is_some();
            if series.tell(arm, disturbed) {
                self.listener.trial(&format!("{} {}/s", arms[arm].0.name(), amount(result.completed_rate)));
                trials[arm].push(result);
            }
        }
        let arm = |(((indexer, control), trials), tally): (((Choice, bool), _), &Tally)| Arm {
            indexer,
            control,
            tally: *tally,
            trials,
        };
        Ok(Some(Rung { rate, arms: arms.iter().copied().zip(trials).zip(series.tallies()).map(arm).collect() }))
    }

    fn search(&self, indexer: Choice, estimate: u64, is_over: &dyn Fn() -> bool) -> Result<Sustain, ChildError> {
        self.listener.part(&format!("sustained rate of {}", indexer.name()), None);
        let mut search = Search::from_estimate(estimate);
        let (mut probes, mut replaced_here, mut rate_before) = (Vec::new(), 0, 0);
        loop {
            if is_over() {
                return Ok(Sustain { indexer, found: search.give_up(), probes });
            }
            let rate = search.rate();
            if rate != rate_before {
                (replaced_here, rate_before) = (0, rate);
            }
            let offer = Offer { rate, window_ms: self.plan.window_ms, arrivals: self.plan.arrivals };
            let result = self.runner.run(&self.spec(indexer, offer))?;
            let verdict = result.as_ref().map_or(Verdict::NotOffered, |r| r.verdict);
            let disturbed = result.as_ref().is_some_and(|r| r.disturbance.is_some());
            // A rate that was sustained in spite of a disturbance was sustained.
            let replaced = disturbed && verdict != Verdict::Sustained && replaced_here < SEARCH_REPLACEMENTS_MAX;
            replaced_here += usize::from(replaced);
            let completed = result.map_or(0.0, |r| r.completed_rate);
            probes.push(Probe { rate, completed, verdict, disturbed, replaced });
            self.listener.trial(&format!("{} {}/s: {}", indexer.name(), amount(rate as f64), words(verdict)));
            if replaced {
                continue;
            }
            if let Some(found) = search.tell(verdict) {
                return Ok(Sustain { indexer, found, probes });
            }
        }
    }
}

/// The rates of the ladder: parts of the slowest indexer's sustained rate, then rising until the fastest one is passed.
fn loads(parts: &[f64], sustained: &[Sustain]) -> Vec<u64> {
    let known = || sustained.iter().map(|s| s.found.sustained).filter(|&rate| rate > 0);
    let (Some(slowest), Some(fastest)) = (known().min(), known().max()) else { return Vec::new() };
    let parts = if parts.is_empty() { &LOADS[..] } else { parts };
    let mut rates: Vec<u64> = parts.iter().map(|part| (slowest as f64 * part) as u64).filter(|&r| r > 0).collect();
    rates.sort_unstable();
    let mut rate = slowest as f64 * LOAD_STEP;
    while rate < fastest as f64 && rates.len() < LOADS_MAX - 1 {
        rates.push(rate as u64);
        rate *= LOAD_STEP;
    }
    if rates.last().is_none_or(|&last| (last as f64) < fastest as f64 * 0.95) {
        rates.push(fastest);
    }
    rates.dedup();
    rates
}

/// A verdict in words.
pub fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Sustained => "sustained",
        Verdict::Behind => "behind",
        Verdict::NotOffered => "not offered",
    }
}

/// How a search ended, in words.
fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Bisected => "bisected",
        Ended::GeneratorBound => "at least (issuer's limit)",
        Ended::NotAtAll => "not even the lowest rate",
        Ended::ProbesSpent => "contradicting trials",
        Ended::OutOfTime => "at least (time was over)",
    }
}

/// A figure with its thousands: 12.3 M.
pub fn amount(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e3 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = if scaled.abs() >= 100.0 {
        0
    } else if scaled.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sustain(indexer: Choice, sustained: u64) -> Sustain {
        Sustain { indexer, found: Found { sustained, not_sustained: None, ended: Ended::Bisected }, probes: Vec::new() }
    }

    #[test]
    fn loads_are_parts_of_the_slowest_and_go_on_to_the_fastest() {
        let both = [sustain(Choice::Kvatlas, 1000), sustain(Choice::Positional, 100)];
        assert_eq!(loads(&[], &both), [10, 25, 50, 75, 100, 200, 400, 800, 1000]);
        assert_eq!(loads(&[0.5, 1.0], &both[1..]), [50, 100]);
        assert_eq!(loads(&[], &[sustain(Choice::Null, 0)]), [] as [u64; 0]);
    }

    #[test]
    fn a_search_that_a_disturbed_trial_decided_says_so() {
        let mut s = sustain(Choice::Kvatlas, 1000);
        let probe = |verdict, replaced| Probe { rate: 1, completed: 1.0, verdict, disturbed: true, replaced };
        s.probes = vec![probe(Verdict::Behind, true), probe(Verdict::Sustained, false)];
        assert_eq!(s.told(), "bisected");
        s.probes.push(probe(Verdict::Behind, false));
        assert_eq!(s.told(), "bisected, disturbed");
    }

    #[test]
    fn amounts() {
        let shown = [0.0, 999.4, 12_345.0, 1.5e6, 123.4e6, 2e9].map(amount);
        assert_eq!(shown, ["0.00", "999", "12.3 k", "1.50 M", "123 M", "2.00 G"]);
    }
}
