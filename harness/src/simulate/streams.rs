//! Streams of draws: one for each purpose, all from one seed, so that another policy does not change the arrivals.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// What draws are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// When requests arrive.
    Arrivals,
    /// Ties and draws of routers.
    Ties,
    /// Delays of the network.
    Net,
}

/// The stream of a purpose.
pub fn stream(seed: u64, purpose: Stream) -> StdRng {
    StdRng::seed_from_u64(seed_of(seed, purpose))
}

/// A seed for a purpose, for whoever makes a stream of its own.
pub fn seed_of(seed: u64, purpose: Stream) -> u64 {
    let words = [seed, 1 + purpose as u64].map(u64::to_le_bytes);
    xxhash_rust::xxh3::xxh3_64(words.as_flattened())
}
