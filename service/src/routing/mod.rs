//! Routing: where a request should go. Pure: no clock, no socket, no thread; every random draw comes from an injected generator.
//!
//! [`Columns`] is what is known of each worker (loads as reported, own bookings, vetoes), [`Overlap`] what the index says about one
//! prompt, [`View`] both at the moment of one decision. A [`Policy`] makes a [`Pick`] of them. A [`Desk`] is all of it for one model and
//! routing group, with the reservations.
//!
//! Not here: gRPC, the polling of loads, who is registered.

mod approximate;
mod candidates;
mod columns;
mod desk;
mod exchange;
mod gate;
mod hash_heads;
mod hold;
#[cfg(test)]
mod hold_tests;
mod lives;
mod load;
mod overlap;
mod overload;
mod policy;
mod prefix;
mod recent;
mod request;
mod settings;
mod tally;
mod timing;
mod trace;
mod version;
mod view;
mod wait;
mod warmup;

#[cfg(test)]
mod property;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod toy;
#[cfg(test)]
mod warmup_tests;

pub use approximate::{Approximate, ApproximateFigures};
pub use candidates::{Gates, Nobody, candidates};
pub use columns::{Columns, Slot, Status};
pub use desk::{
    Ask, Booking, CachedTokens, DIFFERENCE_BOUNDS, Decision, Desk, DeskCounters, Ending, Input, NO_RANK, Outcome,
    Output, Refusal, ReleasedBy, WorkerState,
};
pub use exchange::{
    Behind, BookingChange, Dispatch, ForeignBookings, ForeignCounters, ForeignNews, Listener, OwnBookings, Piece,
};
pub use gate::CountGate;
pub use hold::{HeldRequest, Hold, HoldCounters, Leaving, Left, Prices};
pub use load::{LoadReport, LoadSource, Malformed, RankLoad, WorkerLoad};
pub use overlap::Overlap;
pub use overload::{Threshold, WorkerOverload, latch};
pub use policy::{
    Balanced, CacheAware, CreditReason, ExpectedTtft, LeastLoad, News, OwnerPressure, Policy, PolicyName, PowerOfTwo,
    Random, RoundRobin, TtftPrices,
};
pub use request::Request;
pub use settings::{
    ApproximateSettings, BalancedSettings, BookingSettings, CacheAwareSettings, CreditMode, CreditSettings,
    ExpectedTtftSettings, HashModeSettings, HoldSettings, LoadSettings, OverloadSettings, OwnerPressureSettings,
    RoutingSettings, Timing, WarmupSettings,
};
pub use tally::Tally;
pub use timing::{CLASS_8B_FILE, TIMING_FILE_BYTES_MAX, TimingError, TimingFile, TimingFit};
pub use trace::{Trace, TraceRow};
pub use version::PolicyVersion;
pub use view::{Branch, Pick, View};
pub use wait::{Waits, least, tie_width};
pub use warmup::Warmup;
