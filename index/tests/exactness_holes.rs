//! Holes are exact and heal: evictions from the middle, and stores that bring back what was evicted.

mod common;

over_every_configuration!(holes);
