//! Tiers of one rank: own parents first, adoption across tiers, both ways to count residency.

mod common;

over_every_configuration!(tiers);
