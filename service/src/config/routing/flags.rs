//! The settings of routing that have flags: those that are reached for first.

use super::{RawCreditMode, RawRouting, RawThreshold};
use clap::builder::BoolishValueParser;

/// What flags say of routing, over everything else.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Routing")]
pub struct RoutingFlags {
    /// How a worker is chosen where a request does not say [default: cache_aware].
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Whether overloaded workers are left out while there are others [default: on].
    #[arg(long, value_name = "on|off", value_parser = BoolishValueParser::new())]
    pub overload: Option<bool>,
    /// Waiting requests from which a worker is overloaded, or off [default: 8].
    #[arg(long, value_name = "REQUESTS|off")]
    pub overload_waiting: Option<RawThreshold<i64>>,
    /// Share of the KV pool in use from which a worker is overloaded, or off [default: 0.8].
    #[arg(long, value_name = "SHARE|off")]
    pub overload_usage: Option<RawThreshold<f64>>,
    /// Whether a request is refused when every worker is overloaded [default: off].
    #[arg(long, value_name = "on|off", value_parser = BoolishValueParser::new())]
    pub shed: Option<bool>,
    /// Whether new and emptied workers get a share of the misses [default: on].
    #[arg(long, value_name = "on|off", value_parser = BoolishValueParser::new())]
    pub warmup: Option<bool>,
    /// What least_load does with bounded cache credit [default: off].
    #[arg(long, value_enum)]
    pub credit: Option<RawCreditMode>,
    /// Whether requests that allow it wait here until a worker can begin with them [default: off].
    #[arg(long, value_name = "on|off", value_parser = BoolishValueParser::new())]
    pub hold: Option<bool>,
}

impl RoutingFlags {
    /// Writes what was said over what the other sources say.
    pub(in super::super) fn apply(&self, raw: &mut RawRouting) {
        fn set<T: Clone>(setting: &mut T, said: Option<&T>) {
            if let Some(said) = said {
                setting.clone_from(said);
            }
        }
        set(&mut raw.policy, self.policy.as_ref());
        set(&mut raw.overload.enabled, self.overload.as_ref());
        set(&mut raw.overload.waiting_requests, self.overload_waiting.as_ref());
        set(&mut raw.overload.token_usage, self.overload_usage.as_ref());
        set(&mut raw.overload.shed, self.shed.as_ref());
        set(&mut raw.warmup.enabled, self.warmup.as_ref());
        set(&mut raw.credit.mode, self.credit.as_ref());
        set(&mut raw.hold.enabled, self.hold.as_ref());
    }
}
