//! Every constant of routing: a named setting with its default. The names are those of the configuration file.

use super::load::WorkerLoad;
use super::policy::PolicyName;
use serde::Serialize;
use std::time::Duration;

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoutingSettings {
    /// The policy where a request names none.
    pub policy: PolicyName,
    /// Width of a tie, seconds: among candidates this close to the least, one is drawn.
    pub tie_seconds: f64,
    /// Holders that a selection looks at; among more, so many are drawn.
    pub holders_max: usize,
    /// Where several routers decide without telling each other: a draw among candidates within this share of the best.
    pub near_tie: f64,
    /// Loads and expected waits.
    pub load: LoadSettings,
    /// The policy `cache_aware`.
    pub cache_aware: CacheAwareSettings,
    /// Its hash mode.
    pub hash_mode: HashModeSettings,
    /// The policy `owner_pressure`.
    pub owner_pressure: OwnerPressureSettings,
    /// The bounded credit of `least_load`.
    pub credit: CreditSettings,
    /// The policy `balanced`.
    pub balanced: BalancedSettings,
    /// Overload protection.
    pub overload: OverloadSettings,
    /// The slice of warming workers.
    pub warmup: WarmupSettings,
    /// The policy `expected_ttft`.
    pub expected_ttft: ExpectedTtftSettings,
    /// Late binding.
    pub hold: HoldSettings,
    /// What is known of prompts before their events come.
    pub approximate: ApproximateSettings,
    /// Reservations.
    pub bookings: BookingSettings,
}

impl Default for RoutingSettings {
    fn default() -> Self {
        Self {
            policy: PolicyName::default(),
            tie_seconds: 1e-6,
            holders_max: 32,
            near_tie: 0.10,
            load: LoadSettings::default(),
            cache_aware: CacheAwareSettings::default(),
            hash_mode: HashModeSettings::default(),
            owner_pressure: OwnerPressureSettings::default(),
            credit: CreditSettings::default(),
            balanced: BalancedSettings::default(),
            overload: OverloadSettings::default(),
            warmup: WarmupSettings::default(),
            expected_ttft: ExpectedTtftSettings::default(),
            hold: HoldSettings::default(),
            approximate: ApproximateSettings::default(),
            bookings: BookingSettings::default(),
        }
    }
}

/// Loads and the expected wait that is made of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadSettings {
    /// Seconds that KV pressure is priced at: `kv_pressure_weight · k / (1 − k)`.
    pub kv_pressure_weight: f64,
    /// Tokens of a prompt of which nothing is known.
    pub mean_prefill_tokens: f64,
    /// Tokens per second where no worker reports a rate.
    pub default_throughput: f64,
    /// Price a worker's idle ranks at the rate of its busy ones.
    pub idle_rank_credit: bool,
    /// Waiting requests from which `least_load` does not choose a worker; 0: no cap.
    pub max_waiting_requests: i64,
    /// Time from a dispatch until the engine's load shows it.
    pub ack_delay: Duration,
    /// Time between two polls of a worker that pushes nothing; a worker may have its own.
    pub poll_interval: Duration,
    /// Time that a poll may take.
    pub poll_timeout: Duration,
    /// Most bytes of an answer to a poll.
    pub poll_bytes_max: usize,
    /// How long a pushed load may be believed.
    pub pushed_fresh_for: Duration,
    /// Dispatches that are told apart for each worker until a record acknowledges them; beyond it the oldest are taken together.
    pub tally_entries_max: usize,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            kv_pressure_weight: 0.15,
            mean_prefill_tokens: 1024.0,
            default_throughput: 2000.0,
            idle_rank_credit: false,
            max_waiting_requests: 0,
            ack_delay: Duration::from_millis(50),
            poll_interval: Duration::from_secs(10),
            poll_timeout: Duration::from_secs(2),
            poll_bytes_max: 4 << 20,
            pushed_fresh_for: Duration::from_secs(15),
            tally_entries_max: 4096,
        }
    }
}

impl LoadSettings {
    /// Tokens queued at a worker: as reported, or its waiting requests at the mean.
    pub fn queued_tokens(&self, load: &WorkerLoad) -> f64 {
        if load.waiting_uncached_tokens > 0 {
            load.waiting_uncached_tokens as f64
        } else {
            load.waiting.max(0) as f64 * self.mean_prefill()
        }
    }

    /// A worker's live rate, tokens per second; 0: none.
    pub fn live_rate(&self, load: &WorkerLoad) -> f64 {
        match load.busy_ranks {
            0 => 0.0,
            busy if self.idle_rank_credit => load.rate * f64::from(load.ranks) / f64::from(busy),
            _ => load.rate,
        }
    }

    /// The price of a share of the KV pool in use, seconds.
    pub fn pressure(&self, usage: f64) -> f64 {
        let k = usage.clamp(0.0, 0.999);
        self.pressure_weight() * k / (1.0 - k)
    }

    /// The weight of KV pressure, seconds: the default in place of one that makes no sense.
    pub fn pressure_weight(&self) -> f64 {
        let weight = self.kv_pressure_weight;
        if weight.is_finite() && weight >= 0.0 { weight } else { Self::default().kv_pressure_weight }
    }

    /// Tokens of a prompt of which nothing is known: the default in place of a number that makes no sense.
    pub fn mean_prefill(&self) -> f64 {
        let tokens = self.mean_prefill_tokens;
        if tokens.is_finite() && tokens >= 1.0 { tokens } else { Self::default().mean_prefill_tokens }
    }

    /// Tokens per second where no worker reports a rate: the default in place of a number that makes no sense.
    pub fn throughput(&self) -> f64 {
        let rate = self.default_throughput;
        if rate.is_finite() && rate > 0.0 { rate } else { Self::default().default_throughput }
    }

    /// How long a polled load may be believed, for a worker polled at this interval.
    pub fn polled_fresh_for(&self, interval: Duration) -> Duration {
        interval.saturating_mul(2).saturating_add(Duration::from_secs(1))
    }
}

/// `cache_aware`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheAwareSettings {
    /// Approximate mode: a match counts if it is more than this share of the prompt.
    pub cache_threshold: f64,
    /// Event mode: leading blocks from which a worker counts as a holder.
    pub event_min_overlap_blocks: u32,
    /// Count gate: requests above the mean.
    pub balance_abs_threshold: f64,
    /// Count gate: multiple of the mean.
    pub balance_rel_threshold: f64,
    /// KV spread from which the least wait decides; 1: off.
    pub balance_token_usage_threshold: f64,
    /// KV use of the fullest worker from which the least wait decides; 1: off.
    pub overload_token_usage_threshold: f64,
    /// How much queued work takes from a holder's score; 0: nothing.
    pub overlap_decay: f64,
    /// Draw among holders by softmax of their scores; 0: the best.
    pub selection_temperature: f64,
}

impl Default for CacheAwareSettings {
    fn default() -> Self {
        Self {
            cache_threshold: 0.5,
            event_min_overlap_blocks: 1,
            balance_abs_threshold: 32.0,
            balance_rel_threshold: 1.1,
            balance_token_usage_threshold: 1.0,
            overload_token_usage_threshold: 1.0,
            overlap_decay: 0.0,
            selection_temperature: 0.0,
        }
    }
}

/// Hash mode of `cache_aware`: exact heads at configured boundaries, for fleets without events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HashModeSettings {
    /// Tokens at which heads end. Empty: the mode is off.
    pub boundaries: Vec<u32>,
    /// How long a holder is remembered.
    pub ttl: Duration,
    /// Holders of one head; another takes the place of the stalest.
    pub holders_max: usize,
    /// Heads that are remembered; beyond it the stalest goes.
    pub heads_max: usize,
}

impl Default for HashModeSettings {
    fn default() -> Self {
        Self { boundaries: Vec::new(), ttl: Duration::from_secs(180), holders_max: 3, heads_max: 1 << 20 }
    }
}

/// `owner_pressure`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnerPressureSettings {
    /// Pressure from which an owner counts as pressured.
    pub watermark: f64,
    /// Pressure between owners, and between an owner and a new one, that counts.
    pub slack: f64,
    /// Owners of one prefix.
    pub owners_max: usize,
    /// Time between two new owners of one prefix.
    pub cooldown: Duration,
    /// How long a new owner is believed in before its events show the prefix.
    pub provisional: Duration,
    /// Prefixes with owners on their way or in cooldown that are remembered; beyond it the stalest goes.
    pub prefixes_max: usize,
}

impl Default for OwnerPressureSettings {
    fn default() -> Self {
        Self {
            watermark: 0.90,
            slack: 0.10,
            owners_max: 4,
            cooldown: Duration::from_secs(5),
            provisional: Duration::from_secs(10),
            prefixes_max: 65_536,
        }
    }
}

/// What is done with bounded cache credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum CreditMode {
    /// Nothing.
    #[default]
    Off,
    /// It is computed and counted.
    Shadow,
    /// It moves requests.
    Enforce,
}

/// Bounded cache credit of `least_load`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CreditSettings {
    /// What is done with it.
    pub mode: CreditMode,
    /// Tokens per second that a cached prefix saves.
    pub prefill_throughput: f64,
}

impl Default for CreditSettings {
    fn default() -> Self {
        Self { mode: CreditMode::Off, prefill_throughput: 8000.0 }
    }
}

impl CreditSettings {
    /// Seconds of prefill that so many tokens take: at the default rate in place of one that makes no sense.
    pub fn seconds(&self, tokens: f64) -> f64 {
        let rate = self.prefill_throughput;
        tokens / if rate.is_finite() && rate > 0.0 { rate } else { Self::default().prefill_throughput }
    }
}

/// `balanced`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BalancedSettings {
    /// Most seconds that a prefix is credited with.
    pub credit_max_seconds: f64,
}

impl Default for BalancedSettings {
    fn default() -> Self {
        Self { credit_max_seconds: 0.5 }
    }
}

/// Overload protection: who is over is not chosen while others are not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverloadSettings {
    /// Whether workers are flagged at all.
    pub enabled: bool,
    /// Waiting requests from which a worker is over; `None`: this signal is off.
    pub waiting_requests: Option<i64>,
    /// Share of the KV pool from which a worker is over; `None`: this signal is off.
    pub token_usage: Option<f64>,
    /// Refuse a request when everybody is over (otherwise the least loaded gets it).
    pub shed: bool,
}

impl Default for OverloadSettings {
    fn default() -> Self {
        Self { enabled: true, waiting_requests: Some(8), token_usage: Some(0.8), shed: false }
    }
}

/// The slice of requests that warms workers up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WarmupSettings {
    /// Whether there is one.
    pub enabled: bool,
    /// How long a new worker counts as warming.
    pub duration: Duration,
    /// Share of misses that go to warming workers.
    pub share: f64,
    /// Blocks with which a new worker is warm.
    pub blocks: u64,
    /// Share of the fleet's mean below which any worker is warming.
    pub thin_ratio: f64,
    /// Most of the recent requests that may be hits diverted to warming workers.
    pub hit_share: f64,
    /// Diverted hits that a warming worker may have in flight.
    pub hits_in_flight: u32,
}

impl Default for WarmupSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            duration: Duration::from_secs(60),
            share: 0.25,
            blocks: 1024,
            thin_ratio: 0.5,
            hit_share: 0.05,
            hits_in_flight: 4,
        }
    }
}

/// The engine's own timing: `base + kp·prefill + ka·Σ chunk·(ctx + chunk/2) + kd·decodes + kc·decode context`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Seconds a pass.
    pub base: f64,
    /// Seconds a prompt token.
    pub kp: f64,
    /// Seconds a prompt token and token before it.
    pub ka: f64,
    /// Seconds a decoding request.
    pub kd: f64,
    /// Seconds a token of decoding context.
    pub kc: f64,
    /// Tokens of a pass.
    pub token_budget: f64,
    /// Tokens of the KV pool, where no load tells.
    pub pool_tokens: f64,
}

impl Timing {
    /// An engine with a model of about eight billion parameters on one accelerator, the calibration of the simulations.
    pub const CLASS_8B: Timing = Timing {
        base: 0.006,
        kp: 26e-6,
        ka: 0.5e-9,
        kd: 30e-6,
        kc: 26e-9,
        token_budget: 2048.0,
        pool_tokens: 676_128.0,
    };
}

/// `expected_ttft`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedTtftSettings {
    /// The calibration; `None`: the policy falls back to the expected wait.
    pub timing: Option<Timing>,
    /// Price of a second of work, beside the wait for it.
    pub beta: f64,
    /// Output tokens of a request that says nothing of them.
    pub mean_output_tokens: f64,
    /// Share of the KV pool beyond which waiting for memory is expected.
    pub pool_share: f64,
    /// Weight of the newest residence in its mean.
    pub residence_weight: f64,
    /// Work that loads report, beside own bookings, is counted.
    pub use_reported_work: bool,
}

impl Default for ExpectedTtftSettings {
    fn default() -> Self {
        Self {
            timing: None,
            beta: 1.0,
            mean_output_tokens: 200.0,
            pool_share: 0.97,
            residence_weight: 0.1,
            use_reported_work: false,
        }
    }
}

/// Late binding: requests wait here until a worker can begin with them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HoldSettings {
    /// Whether a request that allows it is held.
    pub enabled: bool,
    /// Backlog of a worker below which a request is bound to it, seconds.
    pub backlog_seconds: f64,
    /// Price that a second of age takes off a held request.
    pub aging: f64,
    /// Requests held at once; beyond it they are bound at once.
    pub requests_max: usize,
    /// Age at which a request is bound whatever the backlogs.
    pub age_max: Duration,
}

impl Default for HoldSettings {
    fn default() -> Self {
        Self { enabled: false, backlog_seconds: 0.05, aging: 0.1, requests_max: 4096, age_max: Duration::from_secs(2) }
    }
}

/// What is known of prompts that were routed, before (or without) events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ApproximateSettings {
    /// Whether routed prompts are remembered.
    pub enabled: bool,
    /// Blocks of them, over all workers; beyond it the oldest prompt goes.
    pub blocks_max: u32,
    /// How long one is remembered where the model has no events.
    pub age_max: Duration,
    /// How long one is remembered where events should confirm it.
    pub predicted_age_max: Duration,
}

impl Default for ApproximateSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            blocks_max: 1 << 20,
            age_max: Duration::from_secs(180),
            predicted_age_max: Duration::from_secs(5),
        }
    }
}

/// Reservations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BookingSettings {
    /// Reservations at once, over all models; beyond it a selection books nothing, and says so.
    pub bookings_max: usize,
    /// Time without a sign of life after which a reservation is released.
    pub ttl: Duration,
    /// Bytes of a caller's request id.
    pub request_id_bytes_max: usize,
    /// Candidates that a selection may name.
    pub candidates_max: usize,
    /// Bookings of other replicas that are kept.
    pub foreign_max: usize,
    /// How long the bookings of a replica that is lost are kept.
    pub foreign_keep: Duration,
    /// Changes of bookings that a replica which listens may be behind.
    pub history_max: usize,
}

impl Default for BookingSettings {
    fn default() -> Self {
        Self {
            bookings_max: 1 << 20,
            ttl: Duration::from_secs(600),
            request_id_bytes_max: 256,
            candidates_max: 8192,
            foreign_max: 1 << 20,
            foreign_keep: Duration::from_secs(10),
            history_max: 1 << 16,
        }
    }
}
