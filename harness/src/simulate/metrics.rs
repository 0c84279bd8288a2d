//! What a run comes to.
//!
//! | figure | is |
//! |---|---|
//! | TTFT | first token at the router, minus arrival |
//! | TPOT | (last token − first) / (output − 1), of answers of two tokens and more |
//! | within | requests that meet the SLO, over all |
//! | goodput | requests that meet it, over the time from the first arrival to the last end |
//! | reuse | prompt tokens that engines found cached, over prompt tokens |
//! | hit/oracle | what the chosen workers held at arrival, over the most that any worker held |
//! | credit = cached | requests whose predicted cached tokens are within a block of what the engine found |
//! | balance | most requests of a worker, over the mean |

use crate::engine::Nanos;
use serde::{Deserialize, Serialize};

/// What a request has to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Longest time to the first token, milliseconds.
    pub ttft_ms: f64,
    /// Longest time for each further token, milliseconds.
    pub tpot_ms: f64,
}

impl Slo {
    /// One second, and 60 ms a token.
    pub const DEFAULT: Slo = Slo { ttft_ms: 1000.0, tpot_ms: 60.0 };
    /// Half a second.
    pub const STRICT: Slo = Slo { ttft_ms: 500.0, tpot_ms: 60.0 };
}

/// What became of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// When it arrived.
    pub arrived: Nanos,
    /// When it was dispatched.
    pub dispatched: Nanos,
    /// When its first token came to the router.
    pub first_token: Nanos,
    /// When its last did.
    pub ended: Nanos,
    /// Its worker.
    pub worker: usize,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// What the router predicted.
    pub predicted_tokens: u32,
    /// What the engine found cached.
    pub cached_tokens: u32,
    /// What its worker held at arrival, in tokens.
    pub held_tokens: u32,
    /// The most that any worker held then.
    pub oracle_tokens: u32,
}

impl Outcome {
    fn ttft_ms(&self) -> f64 {
        (self.first_token - self.arrived) as f64 / 1e6
    }

    fn tpot_ms(&self) -> Option<f64> {
        let steps = self.output_tokens.checked_sub(1).filter(|steps| *steps > 0)?;
        Some((self.ended - self.first_token) as f64 / 1e6 / f64::from(steps))
    }

    fn meets(&self, slo: &Slo) -> bool {
        self.ttft_ms() <= slo.ttft_ms && self.tpot_ms().is_none_or(|tpot| tpot <= slo.tpot_ms)
    }
}

/// Mean and quantiles, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 9 of 10 take at most this.
    pub p90: f64,
    /// 99 of 100 take at most this.
    pub p99: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests.
    pub requests: usize,
    /// Times to the first token.
    pub ttft_ms: Spread,
    /// Times for each further token.
    pub tpot_ms: Spread,
    /// Share within [`Slo::DEFAULT`].
    pub within: f64,
    /// Requests a second within it.
    pub goodput: f64,
    /// Requests a second within [`Slo::STRICT`].
    pub goodput_strict: f64,
    /// See the table.
    pub reuse: f64,
    /// See the table; 1 where nobody ever held anything.
    pub hit_over_oracle: f64,
    /// See the table.
    pub oracle_reuse: f64,
    /// See the table.
    pub credit_is_cached: f64,
    /// See the table.
    pub balance: f64,
    /// Requests that lost their blocks, over all engines.
    pub preemptions: u64,
    /// Largest number of requests of one worker at any time, over all workers.
    pub in_flight_max: u32,
}

impl Figures {
    /// The figures of these requests, all of which ended.
    pub fn of(outcomes: &[Outcome], workers: usize, block_size: u32, preemptions: u64, in_flight_max: u32) -> Self {
        let all = outcomes.len().max(1) as f64;
        let sum = |of: fn(&Outcome) -> u32| outcomes.iter().map(|o| f64::from(of(o))).sum::<f64>();
        let meeting = |slo: &Slo| outcomes.iter().filter(|o| o.meets(slo)).count() as f64;
        let first = outcomes.iter().map(|o| o.arrived).min().unwrap_or(0);
        let last = outcomes.iter().map(|o| o.ended).max().unwrap_or(0);
        let seconds = ((last - first) as f64 / 1e9).max(1e-9);
        let (prompts, oracle) = (sum(|o| o.prompt_tokens).max(1.0), sum(|o| o.oracle_tokens));
        let mut by_worker = vec![0_u32; workers.max(1)];
        outcomes.iter().for_each(|o| by_worker[o.worker] += 1);
        let busiest = by_worker.iter().copied().max().unwrap_or(0);
        let right = outcomes.iter().filter(|o| o.predicted_tokens.abs_diff(o.cached_tokens) <= block_size);
        Self {
            requests: outcomes.len(),
            ttft_ms: Spread::of(outcomes.iter().map(Outcome::ttft_ms).collect()),
            tpot_ms: Spread::of(outcomes.iter().filter_map(Outcome::tpot_ms).collect()),
            within: meeting(&Slo::DEFAULT) / all,
            goodput: meeting(&Slo::DEFAULT) / seconds,
            goodput_strict: meeting(&Slo::STRICT) / seconds,
            reuse: sum(|o| o.cached_tokens) / prompts,
            hit_over_oracle: if oracle > 0.0 { sum(|o| o.held_tokens) / oracle } else { 1.0 },
            oracle_reuse: oracle / prompts,
            credit_is_cached: right.count() as f64 / all,
            balance: f64::from(busiest) * workers as f64 / all,
            preemptions,
            in_flight_max,
        }
    }
}
