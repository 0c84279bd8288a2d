//! The moment of one decision, and what came of it.

use super::columns::{Columns, Slot};
use super::overlap::Overlap;
use super::settings::RoutingSettings;
use std::time::Duration;

/// What a policy sees. The candidates are never empty.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The time, from the origin of every other time here.
    pub now: Duration,
    /// The workers.
    pub columns: &'a Columns,
    /// Who may be chosen, by rising slot. Overlap and load of others do not matter.
    pub candidates: &'a [Slot],
    /// What the index says.
    pub overlap: &'a Overlap,
    /// The settings.
    pub settings: &'a RoutingSettings,
    /// Routers that send to these workers without telling each other; 1 for this one, or where bookings are exchanged.
    pub routers: u32,
}

impl View<'_> {
    /// The time in the unit of [`Columns::fresh_until`]. Never 0, which stands for no record there.
    #[inline]
    pub fn nanos(&self) -> u64 {
        super::columns::nanos(self.now)
    }

    /// Whether nothing fresh and valid is known of a worker's load.
    #[inline]
    pub fn is_dark(&self, slot: Slot) -> bool {
        self.nanos() > self.columns.fresh_until[slot as usize]
    }
}

/// By which way a decision was made: the label of its counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Branch {
    /// The policy looks at nothing but its order or its draw.
    Blind,
    /// The least expected wait.
    MinWait,
    /// Under KV pressure, the least expected wait.
    KvPressureMinWait,
    /// A holder.
    Hit,
    /// Nobody holds anything that counts.
    Miss,
    /// The best holder has too many requests.
    Spill,
    /// A warming worker.
    Warmup,
    /// A hit that was given to a warming worker.
    WarmupDiverted,
    /// The best owner, below the watermark.
    CachedOwnerHold,
    /// A worker to which the prefix is on its way already.
    OwnerPressureCoalesce,
    /// Owners are many enough, or the last was added too recently.
    ReplicationHold,
    /// No worker is so much less pressured that a new owner would help.
    NoSafeSpillHold,
    /// A new owner.
    OwnerPressureSpill,
    /// The first owner of a prefix.
    OwnerBootstrap,
    /// Cache credit moved the request.
    CreditMoved,
    /// Cache credit was looked at, and the base pick stayed.
    CreditBase,
    /// The least expected wait after a capped credit for the prefix.
    Balanced,
    /// The least price in seconds.
    ExpectedTtft,
}

impl Branch {
    /// The name in metrics, JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Branch::Blind => "blind",
            Branch::MinWait => "min_wait",
            Branch::KvPressureMinWait => "kv_pressure_min_wait",
            Branch::Hit => "hit",
            Branch::Miss => "miss",
            Branch::Spill => "spill",
            Branch::Warmup => "warmup",
            Branch::WarmupDiverted => "warmup_diverted",
            Branch::CachedOwnerHold => "cached_owner_hold",
            Branch::OwnerPressureCoalesce => "owner_pressure_coalesce",
            Branch::ReplicationHold => "replication_hold",
            Branch::NoSafeSpillHold => "no_safe_spill_hold",
            Branch::OwnerPressureSpill => "owner_pressure_spill",
            Branch::OwnerBootstrap => "owner_bootstrap",
            Branch::CreditMoved => "credit_moved",
            Branch::CreditBase => "credit_base",
            Branch::Balanced => "balanced",
            Branch::ExpectedTtft => "expected_ttft",
        }
    }
}

/// A policy's choice.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pick {
    /// The worker.
    pub slot: Slot,
    /// Why.
    pub branch: Branch,
    /// A second label, where a policy has one (the reason of the bounded credit).
    pub detail: Option<&'static str>,
    /// Seconds until the request's turn, as the policy expects it; `None`: it expects nothing.
    pub wait: Option<f64>,
}

impl Pick {
    /// A choice with nothing more to say.
    pub const fn new(slot: Slot, branch: Branch) -> Self {
        Self { slot, branch, detail: None, wait: None }
    }
}
