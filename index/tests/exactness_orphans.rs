//! Stores whose parent is unknown: parked under a bound, attached when it arrives, never credited at the root.

mod common;

over_every_configuration!(orphans);
