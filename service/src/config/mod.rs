//! Configuration in two stages: [`Raw`] is what the operator wrote, [`Resolved`] what was checked. Code past start-up sees the
//! resolved one only.
//!
//! Sources, later ones win: defaults, the TOML file, the environment (`KVATLAS_`, `__` between section and key:
//! `KVATLAS_GRPC__LISTEN`), flags. A key that is not known is an error in each of them.

mod lease;
mod limit;
mod liveness;
mod log;
mod raw;
mod relay;
mod replicas;
mod resolve;
mod routing;
mod state;
mod wire;
mod worker;

pub use lease::RawLease;
pub use liveness::RawLiveness;
pub use log::{LogSettings, RawLog};
pub use raw::{ConfigError, Flags, Raw, RawHugePages, RawNuma};
pub use relay::RawRelay;
pub use replicas::RawReplicas;
pub use resolve::Resolved;
pub use routing::{
    RawApproximate, RawBalanced, RawBookings, RawCacheAware, RawCredit, RawCreditMode, RawExpectedTtft, RawHashMode,
    RawHold, RawLoad, RawOverload, RawOwnerPressure, RawRouting, RawThreshold, RawWarmup, RoutingFlags,
};
pub use state::RawState;
pub use wire::RawWire;
pub use worker::RawWorker;
