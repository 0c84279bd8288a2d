//! The network between routers and engines: how long each kind of message takes.

use crate::engine::Nanos;
use rand::RngExt;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

/// A delay: at least so long, and an exponentially distributed rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delay {
    /// Least, in microseconds.
    pub least_us: f64,
    /// Mean of what is added to it, in microseconds.
    pub mean_more_us: f64,
}

impl Delay {
    /// None at all.
    pub const NONE: Delay = Delay { least_us: 0.0, mean_more_us: 0.0 };

    /// Always so many microseconds.
    pub const fn always(least_us: f64) -> Self {
        Self { least_us, mean_more_us: 0.0 }
    }

    /// Draws one. Draws nothing where there is nothing to draw.
    pub fn draw(&self, random: &mut StdRng) -> Nanos {
        let more = if self.mean_more_us > 0.0 {
            -self.mean_more_us * random.random_range(f64::MIN_POSITIVE..1.0_f64).ln()
        } else {
            0.0
        };
        ((self.least_us + more) * 1e3) as Nanos
    }
}

/// The delays by kind of message. Messages of one kind between two ends stay in order, as on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetSpec {
    /// Requests from a router to an engine.
    pub request: Delay,
    /// Tokens and ends from an engine to a router.
    pub token: Delay,
    /// Batches of events from an engine to a router's index.
    pub events: Delay,
    /// Loads from an engine to a router.
    pub load: Delay,
}
