//! The policies: each a file, each blind to clocks and sockets.

mod balanced;
mod cache_aware;
mod credit;
#[cfg(test)]
mod credit_fleet_tests;
#[cfg(test)]
mod credit_tests;
mod expected_ttft;
mod holders;
mod kv_pressure;
mod least_load;
mod owner_pressure;
mod power_of_two;
mod random;
mod round_robin;

pub use balanced::Balanced;
pub use cache_aware::CacheAware;
pub use credit::CreditReason;
pub use expected_ttft::{ExpectedTtft, TtftPrices};
pub use least_load::LeastLoad;
pub use owner_pressure::OwnerPressure;
pub use power_of_two::PowerOfTwo;
pub use random::Random;
pub use round_robin::RoundRobin;

use super::columns::Slot;
use super::request::Request;
use super::trace::Trace;
use super::view::{Pick, View};
use rand::Rng;
use serde::Serialize;
use std::time::Duration;

/// What became of requests and workers, for policies that remember.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// A request was given to a worker, whoever picked it.
    Dispatched {
        /// The request; its booking is what the other news are about.
        request: Request<'a>,
        /// The worker.
        slot: Slot,
        /// Blocks that it was credited with.
        blocks: u32,
    },
    /// The first token came.
    FirstToken {
        /// The booking.
        booking: u64,
        /// The worker.
        slot: Slot,
    },
    /// A request ended.
    Ended {
        /// The booking.
        booking: u64,
        /// The worker.
        slot: Slot,
        /// Whether it ended cleanly, with its proof of completion.
        clean: bool,
    },
    /// A worker reported a valid load, which the columns have already.
    Recorded {
        /// The worker.
        slot: Slot,
    },
    /// A worker is gone, or holds nothing any more: what is known of its cache is void.
    Emptied {
        /// The worker.
        slot: Slot,
        /// Whether it is gone, and its slot free.
        gone: bool,
    },
}

/// How a worker is chosen.
pub trait Policy: Send {
    /// Its name.
    fn name(&self) -> PolicyName;

    /// Chooses one of the view's candidates. `None` only where the policy's own cap admits nobody.
    fn pick(&mut self, view: &View<'_>, request: &Request<'_>, rng: &mut dyn Rng, trace: &mut Trace) -> Option<Pick>;

    /// Takes notice of what happened.
    fn news(&mut self, _view: &View<'_>, _now: Duration, _news: News<'_>) {}
}

/// The policies by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub enum PolicyName {
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The better of two.
    PowerOfTwo,
    /// The least expected wait, optionally with bounded cache credit.
    LeastLoad,
    /// A holder, as long as loads allow.
    #[default]
    CacheAware,
    /// A holder, with new owners under pressure.
    OwnerPressure,
    /// Expected wait minus a capped prefix credit.
    Balanced,
    /// The least expected time to the first token.
    ExpectedTtft,
}

impl PolicyName {
    /// Every policy.
    pub const ALL: [PolicyName; 8] = [
        PolicyName::RoundRobin,
        PolicyName::Random,
        PolicyName::PowerOfTwo,
        PolicyName::LeastLoad,
        PolicyName::CacheAware,
        PolicyName::OwnerPressure,
        PolicyName::Balanced,
        PolicyName::ExpectedTtft,
    ];

    /// The name in settings, metrics, JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::RoundRobin => "round_robin",
            PolicyName::Random => "random",
            PolicyName::PowerOfTwo => "power_of_two",
            PolicyName::LeastLoad => "least_load",
            PolicyName::CacheAware => "cache_aware",
            PolicyName::OwnerPressure => "owner_pressure",
            PolicyName::Balanced => "balanced",
            PolicyName::ExpectedTtft => "expected_ttft",
        }
    }

    /// The policy with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Whether it may leave a worker empty because others hold more: only then are workers warmed up. One that looks at waits
    /// first sends what nobody holds to empty workers anyway.
    pub const fn prefers_holders(self) -> bool {
        match self {
            PolicyName::CacheAware | PolicyName::OwnerPressure | PolicyName::Balanced | PolicyName::ExpectedTtft => {
                true
            }
            PolicyName::RoundRobin | PolicyName::Random | PolicyName::PowerOfTwo | PolicyName::LeastLoad => false,
        }
    }

    /// A new policy of this name, which remembers nothing yet.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            PolicyName::RoundRobin => Box::new(RoundRobin::default()),
            PolicyName::Random => Box::new(Random),
            PolicyName::PowerOfTwo => Box::new(PowerOfTwo::default()),
            PolicyName::LeastLoad => Box::new(LeastLoad::default()),
            PolicyName::ExpectedTtft => Box::new(ExpectedTtft::default()),
            PolicyName::CacheAware => Box::new(CacheAware::default()),
            PolicyName::OwnerPressure => Box::new(OwnerPressure::default()),
            PolicyName::Balanced => Box::new(Balanced::default()),
        }
    }
}
