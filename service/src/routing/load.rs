//! Load records: what an engine says of itself, checked field by field, and the figures that policies read.

use std::time::Duration;

/// One rank's load, as reported. Fields as the engines count them, so that a wrong one can be told.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RankLoad {
    /// Data-parallel rank.
    pub rank: u32,
    /// Requests in the engine's batch.
    pub running: i64,
    /// Requests queued in the engine.
    pub waiting: i64,
    /// Prompt tokens of waiting requests that are still to compute. 0 beside waiting requests: not reported.
    pub waiting_uncached_tokens: i64,
    /// Tokens still to compute of requests already admitted. 0: none, or not reported.
    pub prefill_remaining_tokens: i64,
    /// Tokens of the KV pool in use.
    pub used_tokens: i64,
    /// Tokens of the KV pool. Not above 0: only the ratio is known.
    pub max_total_tokens: i64,
    /// Share of the KV pool in use, 0 to 1.
    pub token_usage: f64,
    /// The engine's own busy figure, 0 to 1. 0: not reported.
    pub utilization: f64,
    /// Tokens per second over the last decode interval; some engines never clear it when they become idle.
    pub gen_throughput: f64,
    /// Share of prompt tokens found cached; information only.
    pub cache_hit_rate: f64,
    /// Most requests that the scheduler runs at once. Not above 0: not reported.
    pub max_running: i64,
}

/// How a load came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LoadSource {
    /// Reported by the worker or beside its events.
    #[default]
    Pushed,
    /// Asked for.
    Polled,
}

impl LoadSource {
    /// The name in metrics, JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            LoadSource::Pushed => "pushed",
            LoadSource::Polled => "polled",
        }
    }
}

/// A worker's load as it arrived.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoadReport {
    /// Ranks that the worker has, as registered.
    pub rank_count: u32,
    /// One record for each rank.
    pub ranks: Vec<RankLoad>,
    /// How it came.
    pub source: LoadSource,
    /// How long it may be believed from its arrival on.
    pub fresh_for: Duration,
}

/// The field for which a report is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Malformed {
    /// A rank stands twice.
    RankRepeated,
    /// A rank is not one of the worker's.
    RankUnknown,
    /// A rank of the worker is missing.
    RankMissing,
    /// A count of requests is negative.
    Running,
    /// A count of requests is negative.
    Waiting,
    /// A count of tokens is negative.
    WaitingUncachedTokens,
    /// A count of tokens is negative.
    PrefillRemainingTokens,
    /// A count of tokens is negative.
    UsedTokens,
    /// Outside of 0 to 1, or no number.
    TokenUsage,
    /// Negative or no number.
    Utilization,
    /// Negative or no number.
    GenThroughput,
}

impl Malformed {
    /// Every reason.
    pub const ALL: [Malformed; 11] = [
        Malformed::RankRepeated,
        Malformed::RankUnknown,
        Malformed::RankMissing,
        Malformed::Running,
        Malformed::Waiting,
        Malformed::WaitingUncachedTokens,
        Malformed::PrefillRemainingTokens,
        Malformed::UsedTokens,
        Malformed::TokenUsage,
        Malformed::Utilization,
        Malformed::GenThroughput,
    ];

    /// The name in metrics, JSON and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Malformed::RankRepeated => "rank_repeated",
            Malformed::RankUnknown => "rank_unknown",
            Malformed::RankMissing => "rank_missing",
            Malformed::Running => "running",
            Malformed::Waiting => "waiting",
            Malformed::WaitingUncachedTokens => "waiting_uncached_tokens",
            Malformed::PrefillRemainingTokens => "prefill_remaining_tokens",
            Malformed::UsedTokens => "used_tokens",
            Malformed::TokenUsage => "token_usage",
            Malformed::Utilization => "utilization",
            Malformed::GenThroughput => "gen_throughput",
        }
    }
}

/// Largest ratio that still counts as 1: engines round.
const RATIO_MAX: f64 = 1.0 + 1e-6;

/// A worker's valid load, over its ranks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WorkerLoad {
    /// Requests running.
    pub running: i64,
    /// Requests waiting.
    pub waiting: i64,
    /// Mean share of the KV pools in use: one full rank does not condemn a worker.
    pub usage: f64,
    /// Mean busy figure.
    pub utilization: f64,
    /// Requests that the worker may run at once; `None` unless every rank says.
    pub running_max: Option<i64>,
    /// Prompt tokens of waiting requests that are still to compute; 0 where not reported.
    pub waiting_uncached_tokens: i64,
    /// Tokens still to compute of admitted requests.
    pub prefill_remaining_tokens: i64,
    /// Rate of the ranks that run anything, tokens per second.
    pub rate: f64,
    /// Ranks.
    pub ranks: u32,
    /// Ranks that run anything.
    pub busy_ranks: u32,
    /// Tokens of all KV pools; 0 unless every rank says.
    pub pool_tokens: i64,
    /// Tokens in use; 0 where not reported.
    pub used_tokens: i64,
}

impl WorkerLoad {
    /// The figures of a report, or the field for which the whole of it is refused.
    pub fn from_report(report: &LoadReport) -> Result<Self, Malformed> {
        let mut load = Self { ranks: report.rank_count, running_max: Some(0), ..Self::default() };
        let mut pools_known = true;
        for (i, rank) in report.ranks.iter().enumerate() {
            check(rank)?;
            if rank.rank >= report.rank_count {
                return Err(Malformed::RankUnknown);
            }
            if report.ranks[..i].iter().any(|other| other.rank == rank.rank) {
                return Err(Malformed::RankRepeated);
            }
            load.running = load.running.saturating_add(rank.running);
            load.waiting = load.waiting.saturating_add(rank.waiting);
            load.usage += rank.token_usage.min(1.0);
            load.utilization += rank.utilization;
            let cap = (rank.max_running > 0).then_some(rank.max_running);
            load.running_max = load.running_max.zip(cap).map(|(sum, cap)| sum.saturating_add(cap));
            load.waiting_uncached_tokens = load.waiting_uncached_tokens.saturating_add(rank.waiting_uncached_tokens);
            load.prefill_remaining_tokens = load.prefill_remaining_tokens.saturating_add(rank.prefill_remaining_tokens);
            load.used_tokens = load.used_tokens.saturating_add(rank.used_tokens);
            pools_known &= rank.max_total_tokens > 0;
            load.pool_tokens = load.pool_tokens.saturating_add(rank.max_total_tokens.max(0));
            // A rank that runs nothing may still show the rate of its last request.
            if rank.running > 0 {
                load.rate += rank.gen_throughput;
                load.busy_ranks += 1;
            }
        }
        if report.ranks.is_empty() || report.ranks.len() < report.rank_count as usize {
            return Err(Malformed::RankMissing);
        }
        let ranks = f64::from(report.rank_count);
        load.usage /= ranks;
        load.utilization /= ranks;
        if !pools_known {
            load.pool_tokens = 0;
        }
        Ok(load)
    }
}

fn check(rank: &RankLoad) -> Result<(), Malformed> {
    let count = |value: i64, field| if value < 0 { Err(field) } else { Ok(()) };
    let number = |value: f64, most: f64, field| if (0.0..=most).contains(&value) { Ok(()) } else { Err(field) };
    count(rank.running, Malformed::Running)?;
    count(rank.waiting, Malformed::Waiting)?;
    count(rank.waiting_uncached_tokens, Malformed::WaitingUncachedTokens)?;
    count(rank.prefill_remaining_tokens, Malformed::PrefillRemainingTokens)?;
    count(rank.used_tokens, Malformed::UsedTokens)?;
    number(rank.token_usage, RATIO_MAX, Malformed::TokenUsage)?;
    number(rank.utilization, f64::MAX, Malformed::Utilization)?;
    number(rank.gen_throughput, f64::MAX, Malformed::GenThroughput)
}
