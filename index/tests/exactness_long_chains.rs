//! Chains of up to 900 blocks: several runs a chain, splits far from the ends.

mod common;

over_every_configuration!(long_chains);
